"""Waiting pods say their place in line, and say it anew now and then; many of them cost a few writes a second."""

from collections import Counter
from typing import Any

import pytest

from tessera_local.cluster.in_memory import MemoryCluster
from tests.unit.binder.adoption.adoption_world import AdoptionWorld


def message(world: AdoptionWorld, name: str) -> str:
    return str(world.condition(world.owned(name)[0]).get("message", ""))


async def test_a_waiting_pod_says_its_place_and_a_minute_later_the_one_that_it_has_then() -> None:
    async with AdoptionWorld() as world:
        world.make_pod("holder", gpus=8)
        await world.run(5)
        for name in ("first", "second"):
            world.make_pod(name, gpus=8)
            await world.run(1)
        await world.run(10)
        assert "waits in queue research, place 1 in the line of pool default" in message(world, "first")
        assert "place 2 in the line of pool default" in message(world, "second")
        world.core.delete("pods", "lab", "first")
        await world.run(90)
        assert "place 1 in the line of pool default" in message(world, "second")
        reasons = [event["reason"] for event in world.events() if event["involvedObject"]["name"] == "second"]
        assert reasons == ["NoFit"] or len(reasons) == len(set(reasons))


async def test_a_long_line_whose_places_change_costs_a_few_writes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: Counter[str] = Counter()
    patch = MemoryCluster.patch_pod_status

    async def counted(self: Any, *about: Any) -> None:
        writes["status"] += 1
        await patch(self, *about)

    async with AdoptionWorld() as world:
        world.make_pod("holder", gpus=8)
        await world.run(5)
        for number in range(60):
            world.make_pod(f"each-{number:02}", gpus=8)
        await world.run(20)
        monkeypatch.setattr(MemoryCluster, "patch_pod_status", counted)
        world.core.delete("pods", "lab", "each-00")
        await world.run(120)
        assert 5 <= writes["status"] <= 130


async def test_two_binders_that_see_different_reasons_do_not_answer_each_other_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = 0
    patch = MemoryCluster.patch_pod_status

    async def answered(self: Any, namespace: str, name: str, body: Any) -> None:
        nonlocal ours
        await patch(self, namespace, name, body)
        if name == "second":
            ours += 1
            other = {"type": "PodScheduled", "status": "False", "reason": "BehindQueueHead", "message": "as of before"}
            await patch(self, namespace, name, {"status": {"conditions": [other]}})

    async with AdoptionWorld() as world:
        world.make_pod("holder", gpus=8)
        await world.run(5)
        monkeypatch.setattr(MemoryCluster, "patch_pod_status", answered)
        world.make_pod("second", gpus=8)
        await world.run(20)
        assert 2 <= ours <= 20
        monkeypatch.setattr(MemoryCluster, "patch_pod_status", patch)
        await world.run(5)
        assert world.condition(world.owned("second")[0])["reason"] == "NoFit"

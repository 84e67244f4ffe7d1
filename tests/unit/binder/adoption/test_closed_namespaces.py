"""Work of a namespace that has not let the binder in is not submitted: it would hold devices that it can never use."""

from collections import Counter
from typing import Any

import pytest

from tessera.kernel.ports import ApiError
from tessera_local.cluster.in_memory import MemoryCluster
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld


class Gate:
    """What the API server says of the binder's rights in the tenant's namespace."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, may_tell: bool = False) -> None:
        self.open, self.asked = False, Counter[str]()
        patch, event = MemoryCluster.patch_pod_status, MemoryCluster.create_event
        gate = self

        async def may(cluster: Any, namespace: str, verb: str, resource: str, group: str = "") -> bool:
            gate.asked[f"{verb} {resource}"] += 1
            return gate.open

        async def told(cluster: Any, *about: Any) -> None:
            gate.asked["told"] += 1
            if not (gate.open or may_tell):
                raise ApiError(403, "Forbidden", "cannot patch resource pods/status")
            await patch(cluster, *about)

        async def made(cluster: Any, *about: Any) -> None:
            if not (gate.open or may_tell):
                raise ApiError(403, "Forbidden", "cannot create resource events")
            await event(cluster, *about)

        monkeypatch.setattr(MemoryCluster, "may", may)
        monkeypatch.setattr(MemoryCluster, "patch_pod_status", told)
        monkeypatch.setattr(MemoryCluster, "create_event", made)


async def test_work_is_submitted_once_its_namespace_lets_the_binder_in(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    async with AdoptionWorld() as world:
        world.make_job(pods=2)
        world.make_job("later", suspend=True)
        await world.run(60)
        assert world.commands == []
        assert not world.state.runs
        gate.open = True
        await world.run(60)
        assert world.only().phase == "running"
        assert world.only("later").phase == "running"


async def test_a_closed_namespace_costs_a_question_now_and_then_however_many_pods_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch)
    async with AdoptionWorld() as world:
        for number in range(20):
            world.make_pod(f"each-{number}")
        await world.run(60)
        assert 2 <= gate.asked["create pods/binding"] <= 8
        assert gate.asked["told"] <= 10


async def test_pods_say_it_where_the_namespace_lets_the_binder_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    Gate(monkeypatch, may_tell=True)
    async with AdoptionWorld() as world:
        world.make_pod("alone")
        await world.run(5)
        said = world.condition(world.owned("alone")[0])
        assert said["reason"] == "NamespaceNotLetIn"
        assert f"namespace {NS} has not let the binder in" in said["message"]
        assert "`tenants` in the chart's values" in said["message"]
        assert [event["reason"] for event in world.events()] == ["NamespaceNotLetIn"]


async def test_an_open_namespace_is_asked_about_once_for_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    gate.open = True
    async with AdoptionWorld() as world:
        for number in range(8):
            world.make_pod(f"each-{number}")
        await world.run(10)
        assert {job.phase for job in world.state.jobs.values()} == {"running"}
        assert gate.asked["create pods/binding"] == 1


async def test_a_server_that_cannot_say_is_taken_to_let_the_binder_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def may(*_: Any, **__: Any) -> bool:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")

    monkeypatch.setattr(MemoryCluster, "may", may)
    async with AdoptionWorld() as world:
        world.make_pod("alone")
        await world.run(10)
        assert world.only("alone").phase == "running"

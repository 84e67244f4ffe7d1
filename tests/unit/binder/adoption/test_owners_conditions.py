"""A Job that waits or is refused says so in a condition of its own status, and later that it is placed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.kernel.ports import ApiError
from tessera_local.cluster.in_memory import MemoryCluster
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld

Json = dict[str, Any]


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


def placed(world: AdoptionWorld, name: str = "train") -> Json:
    conditions = world.job_object(name)["status"].get("conditions") or []
    return next((one for one in conditions if one["type"] == "tessera.io/Placed"), {})


async def test_a_job_that_waits_says_why_and_its_place_and_that_it_is_placed_afterwards(world: AdoptionWorld) -> None:
    world.make_job("first", gpus=8, seconds=30)
    await world.run(5)
    world.make_job("train", gpus=8)
    await world.run(10)
    said = placed(world)
    assert (said["status"], said["reason"]) == ("False", "NoFit")
    assert "place 1 in the line" in said["message"]
    await world.run(60)
    assert world.only().phase == "running"
    assert (placed(world)["status"], placed(world)["reason"]) == ("True", "Scheduled")
    assert placed(world, "first") == {}, "what starts at once costs no write"


async def test_a_refused_job_names_the_field_in_its_condition(world: AdoptionWorld) -> None:
    world.make_job("train", preemptionPolicy="Never")
    await world.run(5)
    said = placed(world)
    assert (said["status"], said["reason"]) == ("False", "NotSupportedYet")
    assert "spec.preemptionPolicy" in said["message"]


async def test_a_job_of_a_queue_that_is_not_there_says_so_and_how_to_go_on(world: AdoptionWorld) -> None:
    world.make_job("train", labels={"tessera.io/queue": "nowhere"})
    await world.run(5)
    said = placed(world)
    assert said["reason"] == "NoSuchQueue"
    assert "tessera.io/queue" in said["message"]


async def test_a_job_that_waits_suspended_says_why_though_it_has_no_pod(world: AdoptionWorld) -> None:
    world.make_job("first", gpus=8, seconds=600)
    await world.run(5)
    world.make_job("train", gpus=8, suspend=True)
    await world.run(10)
    assert world.owned("train") == []
    assert placed(world)["reason"] == "NoFit"


async def test_conditions_of_others_stay_as_they_are(world: AdoptionWorld) -> None:
    world.make_job("train", preemptionPolicy="Never", suspend=True)
    theirs = {"type": "Suspended", "status": "True"}
    world.core.patch("jobs", NS, "train", {"status": {"conditions": [theirs]}}, "status")
    await world.run(5)
    assert placed(world)["reason"] == "NotSupportedYet"
    assert theirs in world.job_object()["status"]["conditions"]


async def test_many_jobs_are_told_a_few_a_second_and_the_newest_word_counts(
    world: AdoptionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    patch_status = MemoryCluster.patch_status

    async def counted(self: MemoryCluster, *named: Any) -> None:
        told.append(world.clock.monotonic())
        await patch_status(self, *named)

    monkeypatch.setattr(MemoryCluster, "patch_status", counted)
    for number in range(30):
        world.make_job(f"train-{number}", preemptionPolicy="Never")
    await world.run(5)
    assert len(told) == 30
    assert all(later - told[index] >= 0.9 for index, later in enumerate(told[20:]))


async def test_without_the_right_to_write_it_the_pods_say_it_all_the_same(
    world: AdoptionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(*_: Any) -> None:
        raise ApiError(403, "Forbidden", "cannot patch jobs/status")

    monkeypatch.setattr(MemoryCluster, "patch_status", forbidden)
    world.make_job("train", preemptionPolicy="Never")
    await world.run(5)
    assert world.condition(world.owned("train")[0])["reason"] == "NotSupportedYet"
    assert placed(world) == {}


async def test_a_job_that_has_changed_since_it_was_seen_is_looked_at_and_told(
    world: AdoptionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_status, refused = MemoryCluster.patch_status, [0]

    async def stale_at_first(self: MemoryCluster, *named: Any) -> None:
        refused[0] += 1
        if refused[0] == 1:
            raise ApiError(409, "Conflict", "the object has been modified")
        await patch_status(self, *named)

    monkeypatch.setattr(MemoryCluster, "patch_status", stale_at_first)
    world.make_job("train", preemptionPolicy="Never")
    await world.run(5)
    assert placed(world)["reason"] == "NotSupportedYet"
    assert refused[0] == 2

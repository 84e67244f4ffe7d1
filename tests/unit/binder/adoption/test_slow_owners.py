"""Owners make evicted pods again in their own time: until then nothing is held for them, and then the job goes on."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld
from tests.unit.binder.adoption.training_jobs import make_pods, make_training_job


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


async def test_no_device_is_held_for_pods_that_are_not_there_and_the_job_keeps_its_place(world: AdoptionWorld) -> None:
    owner = make_training_job(world)
    make_pods(world, owner)
    await world.run(10)
    before = world.only()
    world.core.faults.answer("patch", 403, count=1)  # it cannot be suspended, so that its pods are evicted
    await world.drain("node-a")
    await world.run(30)
    await world.drain("node-a", undo=True)
    said = len(world.facts)
    await world.run(300)
    job = world.only()
    assert (job.job_id, job.phase, job.attempt, job.strikes) == (before.job_id, "queued", 1, 0)
    assert job.reason is not None
    assert job.reason.code == "GangIncomplete"
    assert "bind_failed" not in {fact.kind for fact in world.facts[said:]}
    assert not len(world.state.runs)

    make_pods(world, owner)
    await world.run(10)
    job = world.only()
    assert (job.job_id, job.phase, job.attempt) == (before.job_id, "running", 2)


async def test_an_owner_that_does_not_take_its_pods_away_has_them_evicted(world: AdoptionWorld) -> None:
    """As of a controller that is down, or does not know of suspension."""
    make_pods(world, make_training_job(world))
    await world.run(10)
    await world.drain("node-a")
    await world.run(20)
    assert world.only().phase == "evicting"
    await world.run(60)
    assert world.only().phase == "queued"


async def test_pods_that_were_there_all_the_time_are_said_to_be(world: AdoptionWorld) -> None:
    """As after a refused bind: they were given back and wait."""
    world.core.faults.answer("bind", 422, count=1)
    make_pods(world, make_training_job(world, pods=1), pods=1, seconds=20)
    await world.run(90)
    assert [(job.phase, job.attempt) for job in world.ended()] == [("succeeded", 2)]


async def test_a_job_in_line_is_told_what_its_owner_survives_and_keeps_its_place(world: AdoptionWorld) -> None:
    world.make_pod("first", gpus=8)
    await world.run(10)
    make_pods(world, make_training_job(world, pods=1), pods=1)
    await world.run(10)
    before = world.only()
    never = {"Worker": {"replicas": 1, "restartPolicy": "Never"}}
    taken = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}}  # another suspends it from now on
    world.core.patch("pytorchjobs", NS, "train", {"spec": {"pytorchReplicaSpecs": never}, **taken})
    await world.run(60)
    after = world.only()
    assert (after.job_id, after.taken_n, after.phase, after.reason) == (
        before.job_id,
        before.taken_n,
        "queued",
        before.reason,
    )
    assert (before.preemptible, after.preemptible) == (True, False)

"""A RayJob is one job, whatever clusters its operator makes of it: it stops by suspension and comes back."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, user_pod
from tests.unit.binder.adoption.ray_operator import Operator


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


def bound(world: AdoptionWorld) -> set[str]:
    return {pod["metadata"]["labels"]["ray.io/cluster"] for pod in world.owned() if pod["spec"].get("nodeName")}


async def test_a_ray_job_that_lost_a_worker_is_suspended_and_its_next_cluster_is_its_next_attempt(
    world: AdoptionWorld,
) -> None:
    operator = Operator(world)
    await operator.run(10)
    job = world.only()
    assert (job.phase, job.attempt, bound(world)) == ("running", 1, {"train-1"})
    assert job.adopted is not None
    assert (job.adopted.owner_kind, job.preemptible) == ("RayJob", True)
    world.core.delete("pods", NS, "train-1-2")
    await operator.run(60)
    assert bound(world) == {"train-2"}
    assert (world.only().job_id, world.only().phase, world.only().attempt) == (job.job_id, "running", 2)


async def test_a_ray_job_created_suspended_waits_without_a_cluster_until_there_is_room(world: AdoptionWorld) -> None:
    world.core.create("pods", NS, user_pod("holds", gpus=8, seconds=20))
    await world.run(5)
    operator = Operator(world, suspended=True)
    await operator.run(10)
    assert (world.only().phase, world.only().pods, world.owned()) == ("queued", 3, [])
    await operator.run(30)
    assert operator.job()["spec"]["suspend"] is False
    assert (world.only().phase, bound(world)) == ("running", {"train-1"})


async def test_a_ray_job_that_is_complete_ends_its_job_well(world: AdoptionWorld) -> None:
    operator = Operator(world)
    await operator.run(10)
    world.core.patch("rayjobs", NS, "train", {"status": {"jobDeploymentStatus": "Complete"}})
    for pod in world.owned():
        world.core.delete("pods", NS, pod["metadata"]["name"])
    await world.run(40)
    (ended,) = world.ended()
    assert ended.phase == "succeeded"

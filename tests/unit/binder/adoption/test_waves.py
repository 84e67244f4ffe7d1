"""
Jobs of more completions than pods at once: each pod starts by itself, and to Kubernetes an evicted one has failed. So
the Job is suspended where all of its pods at work stop for others, and its limit is minded where only some do.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tessera.engine.preemption.plans import Plan, plan, proposal
from tessera_schemas.config import Policy
from tests.builders import admitted
from tests.unit.binder.adoption.adoption_world import AdoptionWorld
from tests.unit.binder.cluster_world import train


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    policy = Policy(preset="priority", min_runtime_seconds=0, node_lost_seconds=30)
    async with AdoptionWorld(policy=policy) as world:
        yield world


async def preempt(world: AdoptionWorld, gpus: int) -> bool:
    """A job of a higher class comes; whether a plan stops others for it."""
    fact = admitted("urgent", train(gpus=gpus, priority_class="high", seconds=20))
    await world.commit(fact)
    found = plan(world.state, world.job(fact.job_id), world.state.ts, "preemption")
    if isinstance(found, Plan):
        await world.commit(proposal(world.state, found, world.state.ts))
    return isinstance(found, Plan)


def status(world: AdoptionWorld) -> tuple[int, int]:
    """Pods that have succeeded, and failed, as the Job counts them."""
    found = world.job_object()["status"]
    return found["succeeded"], found["failed"]


def running(world: AdoptionWorld) -> int:
    return sum(
        pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"] for pod in world.owned()
    )


@pytest.mark.parametrize("pods", [1, 2])
async def test_a_job_of_which_all_pods_at_work_stop_is_suspended_and_resumed_without_a_failure(
    world: AdoptionWorld, pods: int
) -> None:
    world.make_job(pods=pods, completions=4, gpus=8 // pods, seconds=30)
    await world.run(10)
    assert running(world) == pods
    assert await preempt(world, 8)
    await world.run(15)
    assert (running(world), world.job_object()["spec"]["suspend"]) == (0, False), "its next pods wait in line"
    assert not list(world.state.refused.values())
    await world.run(240)
    assert status(world) == (4, 0)
    assert world.job_object()["status"]["conditions"][0]["type"] == "Complete"


async def test_a_job_that_allows_no_failure_and_has_one_pod_at_once_may_be_preempted(world: AdoptionWorld) -> None:
    world.make_job(completions=3, gpus=8, seconds=30, backoffLimit=0)
    await world.run(10)
    assert await preempt(world, 8)
    await world.run(240)
    assert status(world) == (3, 0)


async def test_some_pods_of_a_job_are_evicted_while_it_goes_on_after_that(world: AdoptionWorld) -> None:
    world.make_job(pods=2, completions=4, gpus=4, seconds=60)
    await world.run(10)
    assert await preempt(world, 4)
    await world.run(10)
    assert (running(world), status(world)) == (1, (0, 1))


async def test_no_plan_evicts_more_pods_of_a_job_than_it_goes_on_after(world: AdoptionWorld) -> None:
    world.make_job(pods=3, completions=6, gpus=2, seconds=60, backoffLimit=1)
    await world.run(10)
    assert await preempt(world, 6)
    await world.run(10)
    assert (running(world), status(world)) == (3, (0, 0))
    told = [event["message"] for event in world.events() if event["reason"] == "BlockedByDisruptionBudget"]
    assert any("counts each evicted pod as a failure" in message for message in told)

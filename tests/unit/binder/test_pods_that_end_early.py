"""Pods that end before the rest of their gang: seen by reclamation, given back, and no trouble for the binder."""

from collections.abc import AsyncIterator

import pytest

from tessera_schemas.cluster.labels import FINALIZER
from tessera_schemas.facts import RunAbsent
from tessera_schemas.job import JobSpec
from tests.unit.binder.cluster_world import RESERVED, World, train

GANG = 4


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(("node-a",)) as world:
        yield world


def one_after_the_other(every: float, first: float = 10, **more: object) -> JobSpec:
    """A gang of four pods of two GPUs; each pod runs `every` seconds longer than the one before."""
    spec = train(GANG, gpus=2, seconds=first, **more)
    worker = spec.roles[0]
    notes = worker.template.annotations | {f"{RESERVED}rank-seconds": str(every)}
    template = worker.template.model_copy(update={"annotations": notes})
    return spec.model_copy(update={"roles": (worker.model_copy(update={"template": template}),)})


def free(world: World, node: str = "node-a") -> int:
    return sum(world.state.nodes.get(node).gpu_free) // 1000


def parts(world: World) -> list[tuple[int, ...]]:
    """The ranks that were said to be absent by themselves, fact by fact."""
    return [fact.ranks for fact in world.said("run_absent") if isinstance(fact, RunAbsent) and fact.ranks]


async def test_pods_that_succeed_give_their_devices_back_while_their_gang_goes_on(world: World) -> None:
    job = await world.submit(spec=one_after_the_other(every=20))
    assert free(world) == 0
    await world.run(12)
    assert (free(world), world.job(job).phase) == (2, "running")
    await world.run(20)
    assert (free(world), world.job(job).phase) == (4, "running")
    await world.run(50)
    assert (free(world), world.job(job).phase) == (8, "succeeded")
    assert parts(world) == [(0,), (1,), (2,)], "the last one goes with the run"
    assert len(world.state.runs) == 0


async def test_pods_that_end_within_a_moment_are_one_release(world: World) -> None:
    job = await world.submit(spec=one_after_the_other(every=0.2))
    await world.run(15)
    assert world.job(job).phase == "succeeded"
    assert parts(world) == []
    assert [record.ranks for record in world.records if record.kind == "released"] == [()]


async def test_another_job_runs_where_they_were(world: World) -> None:
    first = await world.submit(spec=one_after_the_other(every=100))
    await world.run(12)
    second = await world.submit("k2", train(gpus=2))
    assert (world.job(first).phase, world.job(second).phase) == ("running", "running")


async def test_an_ended_pod_stays_readable_until_its_run_is_gone(world: World) -> None:
    job = await world.submit(spec=one_after_the_other(every=30, ttl_seconds_after_finished=20))
    await world.run(15)
    (over,) = [pod for pod in world.pods() if pod["status"]["phase"] == "Succeeded"]
    assert FINALIZER in over["metadata"]["finalizers"]
    assert len(world.pods()) == GANG
    await world.run(90)
    assert world.job(job).phase == "succeeded"
    await world.run(30)
    assert world.pods() == []


async def test_an_ended_pod_whose_object_is_taken_away_is_no_failure_of_its_gang(world: World) -> None:
    job = await world.submit(spec=one_after_the_other(every=30))
    await world.run(12)
    (over,) = [pod["metadata"] for pod in world.pods() if pod["status"]["phase"] == "Succeeded"]
    world.core.vanish(over["namespace"], over["name"])
    await world.run(2)
    assert len(world.pods()) == GANG - 1
    await world.stop("binder")
    world.start_binder()
    await world.run(120)
    assert (world.job(job).phase, world.job(job).attempt) == ("succeeded", 1)


async def test_a_node_that_does_not_answer_keeps_its_own_devices_and_no_others() -> None:
    async with World(node_lost_seconds=5) as world:
        job = await world.submit(spec=train(GANG, gpus=4))
        assert world.nodes_of(job) == {"node-a", "node-b"}
        world.core.set_reachable("node-b", False)
        await world.run(120)
        assert world.job(job).phase == "evicting"
        assert (free(world), free(world, "node-b")) == (8, 0)
        world.core.set_reachable("node-b", True)
        await world.run(60)
        assert (world.job(job).phase, world.job(job).attempt) == ("running", 2)

"""What ends before it is told to stop has ended, whatever it was to stop for: binder, committer and reclamation."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.engine.preemption.plans import Plan, plan, proposal
from tessera_schemas.cluster.labels import CHECKPOINT_ANNOTATION, EVICT_AT_ANNOTATION
from tessera_schemas.config import Policy
from tessera_schemas.facts import CancelRequested, DrainRequested
from tessera_schemas.job import JobSpec, Retry
from tessera_schemas.reasons import Code
from tests.builders import admitted
from tests.unit.binder.cluster_world import RESERVED, World, train

NOTICE = 60
POLICY = Policy(preset="priority", min_runtime_seconds=0, node_lost_seconds=30)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(nodes=("node-a",), policy=POLICY) as world:
        yield world


def noted(spec: JobSpec, name: str, value: str) -> JobSpec:
    """The job, with one more word on how its program behaves."""
    (worker,) = spec.roles
    notes = {**worker.template.annotations, f"{RESERVED}{name}": value}
    template = worker.template.model_copy(update={"annotations": notes})
    return spec.model_copy(update={"roles": (worker.model_copy(update={"template": template}),)})


def ends_with(code: int, seconds: float = 20, **more: Any) -> JobSpec:
    """A job of 8 GPUs whose program ends with this exit code."""
    return noted(train(gpus=8, seconds=seconds, notice=NOTICE, **more), "exit-code", str(code))


async def preempt(world: World) -> str:
    """A job of a higher class comes, and the plan for it stops the run that is in its way."""
    fact = admitted("urgent", train(gpus=8, priority_class="high", seconds=5))
    await world.commit(fact)
    found = plan(world.state, world.job(fact.job_id), world.state.ts, "preemption")
    assert isinstance(found, Plan)
    await world.commit(proposal(world.state, found, world.state.ts))
    return fact.job_id


async def test_a_preempted_job_that_ends_well_in_its_notice_has_succeeded(world: World) -> None:
    job = await world.submit(spec=ends_with(0))
    urgent = await preempt(world)
    await world.run(10)
    assert world.job(job).phase == "evicting"
    await world.run(30)
    assert (world.job(job).phase, world.job(job).attempt, world.job(job).evictions) == ("succeeded", 1, 0)
    assert world.job(urgent).phase == "succeeded", "its room is there as soon as the other has ended"
    assert "requeued" not in world.kinds()


async def test_a_preempted_job_that_fails_in_its_notice_pays_for_that(world: World) -> None:
    job = await world.submit(spec=ends_with(3))
    urgent = await preempt(world)
    await world.run(40)
    ended = world.job(job)
    assert (ended.phase, ended.attempt, ended.exit_code, ended.evictions) == ("failed", 1, 3, 0)
    assert ended.reason is not None
    assert ended.reason.code is Code.POD_FAILED
    assert world.job(urgent).phase == "succeeded"


async def test_a_preempted_job_that_fails_in_its_notice_is_tried_again_as_its_retry_says(world: World) -> None:
    again = Retry(backoff_seconds=0, max_attempts=2, on_failure=True)
    job = await world.submit(spec=ends_with(3, retry=again))
    await preempt(world)
    await world.run(90)
    assert (world.job(job).phase, world.job(job).attempt, world.job(job).evictions) == ("failed", 2, 0)
    assert world.job(job).reason.code is Code.ATTEMPTS_EXHAUSTED


@pytest.mark.parametrize(("restarts", "phase", "attempt"), [(True, "running", 2), (False, "failed", 1)])
async def test_a_preempted_job_pays_for_no_restart_of_its_machine_in_its_notice(
    world: World, restarts: bool, phase: str, attempt: int
) -> None:
    world.core.patch("nodes", "", "node-a", {"status": {"nodeInfo": {"bootID": "boot-1"}}}, "status")
    await world.run(1)
    job = await world.submit(spec=train(gpus=8, notice=NOTICE))
    await preempt(world)
    await world.run(10)
    (pod,) = world.pods(world.current(job).run_id)
    ended = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 143}}}]}
    world.core.patch("pods", "lab", pod["metadata"]["name"], {"status": ended}, "status")
    await world.run(1)
    if restarts:  # the node's own word comes a moment later
        world.core.patch("nodes", "", "node-a", {"status": {"nodeInfo": {"bootID": "boot-2"}}}, "status")
    await world.run(NOTICE + 10)
    assert (world.job(job).phase, world.job(job).attempt) == (phase, attempt)


async def test_a_preempted_job_that_reaches_its_time_limit_in_its_notice_has_reached_it(world: World) -> None:
    job = await world.submit(spec=train(gpus=8, notice=NOTICE, time_limit_seconds=15))
    await preempt(world)
    await world.run(40)
    assert (world.job(job).phase, world.job(job).attempt) == ("failed", 1)
    assert world.job(job).reason.code is Code.TIME_LIMIT


async def test_a_cancelled_job_that_ends_well_in_its_notice_has_succeeded(world: World) -> None:
    job = await world.submit(spec=ends_with(0))
    await world.commit(CancelRequested(kind="cancel_requested", job_id=job, why="test"))
    await world.run(30)
    assert world.job(job).phase == "succeeded"


async def test_a_drained_job_that_ends_well_in_its_notice_has_succeeded(world: World) -> None:
    job = await world.submit(spec=ends_with(0))
    await world.commit(DrainRequested(kind="drain_requested", node="node-a", evict=True))
    await world.run(30)
    assert (world.job(job).phase, world.job(job).attempt) == ("succeeded", 1)


async def test_a_gang_has_succeeded_only_when_all_of_it_had_before_anything_was_stopped(world: World) -> None:
    spec = train(replicas=2, gpus=4, seconds=20, notice=NOTICE)
    for longer, phase in ((10, "succeeded"), (100, "queued")):
        job = await world.submit(f"gang-{longer}", noted(spec, "rank-seconds", str(longer)))
        await world.commit(DrainRequested(kind="drain_requested", node="node-a", evict=True))
        await world.run(NOTICE + 10)
        assert world.job(job).phase == phase
        await world.commit(DrainRequested(kind="drain_requested", node="node-a", undo=True))
        await world.run(1)


async def test_a_program_that_ends_well_after_sigterm_has_not_succeeded(world: World) -> None:
    job = await world.submit(spec=noted(train(gpus=8, seconds=16), "term-ms", "5000"))
    await world.run(10)
    await world.commit(DrainRequested(kind="drain_requested", node="node-a", evict=True))
    await world.run(1)
    assert ["deletionTimestamp" in pod["metadata"] for pod in world.pods(f"{job}-1")] == [True]
    await world.run(10)
    assert world.job(job).phase == "queued"


async def test_who_saved_its_work_when_told_and_left_goes_on_from_there(world: World) -> None:
    job = await world.submit(spec=ends_with(0, seconds=8))
    name = f"{world.current(job).run_id}-0"
    await preempt(world)
    await world.run(1)
    (pod,) = world.pods(f"{job}-1")
    assert EVICT_AT_ANNOTATION in pod["metadata"]["annotations"]
    await world.stop("binder")  # it would delete the pod at once
    world.core.patch("pods", "lab", name, {"metadata": {"annotations": {CHECKPOINT_ANNOTATION: "/saved/1"}}})
    await world.run(10)
    world.start_binder()
    await world.run(60)
    assert world.job(job).attempt == 2
    assert world.job(job).phase == "succeeded"


@pytest.fixture
async def silenced() -> AsyncIterator[World]:
    """Three nodes, so that the silence of one is no outage."""
    async with World(nodes=("node-a", "node-b", "node-c"), policy=POLICY) as world:
        yield world


async def test_a_job_that_ended_well_on_a_node_that_was_silent_meanwhile_has_succeeded(silenced: World) -> None:
    world = silenced
    job = await world.submit(spec=train(gpus=8, seconds=40))
    (node,) = world.nodes_of(job)
    world.core.set_reachable(node, False)
    await world.run(80)
    assert world.current(job).revoked.code is Code.NODE_LOST
    assert all("deletionTimestamp" not in pod["metadata"] for pod in world.pods())
    world.core.set_reachable(node, True)
    await world.run(20)
    assert (world.job(job).phase, world.job(job).attempt) == ("succeeded", 1)


async def test_a_job_that_still_runs_when_its_silent_node_is_back_is_stopped_then(silenced: World) -> None:
    world = silenced
    job = await world.submit(spec=train(gpus=8, seconds=6000))
    (node,) = world.nodes_of(job)
    world.core.set_reachable(node, False)
    await world.run(80)
    world.core.set_reachable(node, True)
    await world.run(8)
    assert world.job(job).attempt == 1, "first its kubelet says what has ended"
    await world.run(20)
    assert world.job(job).attempt == 2


async def test_without_a_binder_to_say_so_the_run_is_released_after_a_while(world: World) -> None:
    job = await world.submit(spec=ends_with(0))
    await world.commit(DrainRequested(kind="drain_requested", node="node-a", evict=True))
    await world.run(1)
    await world.stop("binder")
    await world.run(40)
    assert world.job(job).phase == "evicting"
    await world.run(20)
    assert world.job(job).phase == "queued"

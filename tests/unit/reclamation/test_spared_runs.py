"""Runs whose revoke is taken back: what was said of them while they were to stop is said again when it matters."""

from collections.abc import AsyncIterator

import pytest

from tessera.engine.preemption.plans import Plan, plan, proposal
from tessera_schemas.config import Policy
from tessera_schemas.facts import RunUntouched
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted
from tests.unit.binder.cluster_world import World, train

WHY = Reason(code=Code.BLOCKED_BY_DISRUPTION_BUDGET, detail="budget keep")
POLICY = Policy(preset="priority", min_runtime_seconds=0, node_lost_seconds=30)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(nodes=("node-a",), policy=POLICY, unsaid_end_seconds=0) as world:
        yield world


async def preempt(world: World) -> None:
    """A job of a higher class comes, and the plan for it stops every run; nobody works for the binder meanwhile."""
    fact = admitted("urgent", train(gpus=8, priority_class="high"))
    await world.commit(fact)
    found = plan(world.state, world.job(fact.job_id), world.state.ts, "preemption")
    assert isinstance(found, Plan)
    await world.commit(proposal(world.state, found, world.state.ts))


async def spare(world: World, run_id: str) -> None:
    run = world.state.runs.get(run_id)
    await world.commit(
        RunUntouched(kind="run_untouched", run_id=run_id, revoked_ts=run.stopped_ts, reason=WHY, kept=True)
    )
    assert world.kinds()[-1] == "waiting"
    assert "spared" in world.kinds()


async def test_a_run_that_was_absent_before_it_was_spared_gives_its_devices_back(world: World) -> None:
    job = await world.submit(spec=train(gpus=8, seconds=5))
    await world.stop("binder")
    await preempt(world)
    await world.clock.run(10)  # its pod ends; the committer takes in that it is absent behind that it was not touched
    await spare(world, f"{job}-1")
    await world.turn()
    assert len(world.said("run_absent")) == 1
    assert world.state.runs.get(f"{job}-1") is not None
    world.start_binder()
    await world.run(30)
    assert world.job(job).phase == "succeeded"
    assert world.state.runs.get(f"{job}-1") is None


async def test_a_run_that_was_lost_before_it_was_spared_starts_elsewhere(world: World) -> None:
    job = await world.submit(spec=train(gpus=8))
    await world.stop("binder")
    world.core.remove_node("node-a")
    await world.clock.run(30)  # nobody has taken in yet that its node is lost
    await preempt(world)
    await world.turn()
    assert len(world.said("run_lost")) == 1
    await spare(world, f"{job}-1")
    await world.run(30)
    assert world.state.runs.get(f"{job}-1").revoked.code is Code.NODE_LOST


async def test_a_run_that_ended_before_it_could_be_spared_has_ended(world: World) -> None:
    """Its binder had said so before it was to stop, and that is taken in behind the plan."""
    job = await world.submit(spec=train(gpus=8, seconds=5))
    await world.clock.run(10)
    await preempt(world)
    revoked_ts = world.state.runs.get(f"{job}-1").stopped_ts
    await world.turn()
    assert len(world.said("run_ended")) == 1
    assert world.job(job).phase == "succeeded"
    await world.commit(
        RunUntouched(kind="run_untouched", run_id=f"{job}-1", revoked_ts=revoked_ts, reason=WHY, kept=True)
    )
    assert "spared" not in world.kinds()
    await world.run(30)
    assert world.state.runs.get(f"{job}-1") is None

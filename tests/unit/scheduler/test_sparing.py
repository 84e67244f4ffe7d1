"""A revoke for another job's sake is taken back while nothing of the run was stopped; the plan is undone with it."""

import pytest

from tessera.domain.work.phases import Phase
from tessera_schemas.facts import RunUntouched
from tessera_schemas.ledger import EarmarkEnded, Spared
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, job_spec, role, run_absent
from tests.unit.scheduler.committer_world import RUN, World, cancel, kinds, reasons
from tests.unit.scheduler.contested_world import K2, contested, drain, plan, refusal

WHY = Reason(code=Code.BLOCKED_BY_DISRUPTION_BUDGET, detail="budget keep")


def untouched(world: World, kept: bool = True, ago_ms: int = 0) -> RunUntouched:
    run = world.run
    return RunUntouched(kind="run_untouched", run_id=RUN, revoked_ts=run.stopped_ts - ago_ms, reason=WHY, kept=kept)


def preempted() -> World:
    world = contested()
    world.commit(plan())
    return world


def test_the_run_goes_on_and_what_was_kept_for_the_preemptor_is_common_again() -> None:
    world = preempted()
    said = world.commit(untouched(world))
    assert kinds(said)[:3] == ["earmark_ended", "spared", "waiting"]
    assert reasons(said)[0] is Code.BLOCKED_BY_DISRUPTION_BUDGET, "whoever waits for the room is told"
    ended, spared = said.records[0], said.records[1]
    assert isinstance(ended, EarmarkEnded)
    assert isinstance(spared, Spared)
    assert (ended.owner, ended.why, spared.reason) == (K2, "blocked", WHY)
    assert (world.job.phase, world.job.reason, world.run.revoked, world.run.stopping) == (
        Phase.RUNNING,
        None,
        None,
        False,
    )
    assert world.say(run_absent(RUN)) == [], "nobody releases what goes on"


def test_the_same_plan_is_refused_for_a_while_and_by_the_budgets_name() -> None:
    world = preempted()
    world.commit(untouched(world))
    assert refusal(world.commit(plan())) is Code.BLOCKED_BY_DISRUPTION_BUDGET
    assert world.say(plan(), ms=300_000)[0] == "revoked"


def test_a_run_that_only_went_with_another_may_be_taken_again_at_once() -> None:
    world = preempted()
    world.commit(untouched(world, kept=False))
    assert world.say(plan())[0] == "revoked"


def test_what_was_said_of_an_earlier_revoke_or_twice_is_nothing() -> None:
    world = preempted()
    assert world.say(untouched(world, ago_ms=1)) == []
    said = untouched(world)
    assert "spared" in world.say(said)
    assert world.say(said) == []


def test_a_cancel_stands_whatever_a_budget_says() -> None:
    world = preempted()
    world.commit(cancel())
    assert world.say(untouched(world)) == []


def test_a_drain_stands_whatever_a_budget_says() -> None:
    world = World().running()
    world.commit(drain(evict=True))
    assert world.say(untouched(world)) == []


@pytest.mark.parametrize("gpus", [4, 8])
def test_room_kept_for_others_ends_where_there_is_none_beside_the_run(gpus: int) -> None:
    """Another plan counted on what was being stopped: with the run back, its room is not there."""
    world = preempted()
    world.commit(cancel(K2))
    third = admitted("k3", job_spec(role(gpus=gpus), priority_class="urgent"))
    world.commit(third)
    world.say(plan((), job=third.job_id, gpus=gpus))
    assert world.state.earmarks.get(third.job_id) is not None
    assert world.say(untouched(world))[:2] == ["earmark_ended", "spared"]
    assert not world.state.earmarks

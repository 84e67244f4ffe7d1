"""A revoke for another job's sake is taken back while nothing of the run was stopped; the plan is undone with it."""

import pytest

from tessera.domain.folding import jobs as fold_of_jobs
from tessera.domain.work.phases import Phase
from tessera.engine.preemption.rules import is_unneeded
from tessera_schemas.facts import AnyFact, HoldRequested, PriorityRequested, RunUntouched
from tessera_schemas.ledger import FORMAT, EarmarkEnded, Spared
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


NOT_NEEDED = Reason(code=Code.STOP_NOT_NEEDED)


def not_needed(world: World) -> RunUntouched:
    return RunUntouched(kind="run_untouched", run_id=RUN, revoked_ts=world.run.stopped_ts, reason=NOT_NEEDED)


@pytest.mark.parametrize(
    "gone",
    [
        cancel(K2),
        HoldRequested(kind="hold_requested", job_id=K2),
        PriorityRequested(kind="priority_requested", job_id=K2, priority_class="low"),
    ],
)
def test_a_victim_whose_preemptor_is_cancelled_held_or_lowered_goes_on(gone: AnyFact) -> None:
    world = preempted()
    assert not is_unneeded(world.state, world.run)
    assert world.say(not_needed(world)) == [], "somebody waits for its room"
    assert "earmark_ended" in world.say(gone)
    assert is_unneeded(world.state, world.run)
    assert "spared" in world.say(not_needed(world))
    assert (world.job.phase, world.run.revoked, world.run.unneeded) == (Phase.RUNNING, None, False)
    assert not is_unneeded(world.state, world.run)


def test_a_preemptor_that_is_raised_keeps_its_room() -> None:
    world = preempted()
    world.commit(PriorityRequested(kind="priority_requested", job_id=K2, priority_class="low"))
    world.commit(not_needed(world))
    world.commit(PriorityRequested(kind="priority_requested", job_id=K2, priority_class="high"))
    world.commit(plan())
    assert "earmark_ended" not in world.say(
        PriorityRequested(kind="priority_requested", job_id=K2, priority_class="urgent")
    )
    assert not is_unneeded(world.state, world.run)


def test_an_earmark_that_runs_out_leaves_its_owner_in_line_and_its_victims_stopping() -> None:
    """A notice may be longer than an earmark: spared and evicted again, the run would never stop."""
    world = preempted()
    seconds = world.state.tree.policy.earmark_seconds
    assert "earmark_ended" in kinds(world.commit(ms=seconds * 1000))
    assert not is_unneeded(world.state, world.run)
    assert "spared" not in world.say(not_needed(world))


def test_a_run_is_not_spared_once_another_counts_on_its_room() -> None:
    world = preempted()
    world.commit(cancel(K2))
    said, third = not_needed(world), admitted("k3", job_spec(role(gpus=8), priority_class="urgent"))
    world.commit(third)
    world.say(plan((), job=third.job_id))
    assert world.state.earmarks.get(third.job_id) is not None
    assert "spared" not in world.say(said)
    assert world.state.earmarks.get(third.job_id) is not None


def test_a_drain_that_is_over_stops_nobody_it_has_not_touched() -> None:
    world = World().running()
    world.commit(drain(evict=True))
    assert world.say(not_needed(world)) == [], "the node is still to be empty"
    world.commit(drain(undo=True))
    assert "spared" in world.say(not_needed(world))
    assert (world.job.phase, world.run.revoked) == (Phase.RUNNING, None)


def test_a_cancel_stands_though_nobody_needs_the_room() -> None:
    world = preempted()
    world.commit(cancel(K2))
    world.commit(cancel())
    assert "spared" not in world.say(not_needed(world))


def test_below_its_format_nobody_is_known_to_be_unneeded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = preempted()
    monkeypatch.setattr(fold_of_jobs, "UNNEEDED_STOPS_FROM", FORMAT + 1)
    world.commit(cancel(K2))
    assert not world.run.unneeded
    assert not is_unneeded(world.state, world.run)

"""An adopted job ends as its owner has: at once if it waits, else once its run is released."""

import pytest

from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record
from tessera.domain.work.phases import Phase
from tessera_schemas.facts import HoldRequested, OwnerEnded, PodsBack
from tessera_schemas.job import Retry
from tessera_schemas.ledger import Finished, OwnerEndNoted, TakenFact
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.adopted import Adopted
from tests.builders import admitted, job_spec, run_absent
from tests.unit.scheduler.committer_world import K1, RUN, World, cancel, ended, made, started

OWNER = Adopted(api_version="batch/v1", owner_kind="Job", owner_name="train", owner_uid="u", group="batch/Job/lab/u")
COMPLETE = OwnerEnded(kind="owner_ended", job_id=K1)
FAILED = COMPLETE.model_copy(
    update={"reason": Reason(code=Code.OWNER_FAILED, detail="Job/train: BackoffLimitExceeded")}
)
LATE = COMPLETE.model_copy(update={"reason": Reason(code=Code.TIME_LIMIT, detail="Job/train: DeadlineExceeded")})
EXIT_3 = Reason(code=Code.POD_FAILED, numbers={"exit_code": 3})
DELETED = Reason(code=Code.POD_DELETED)
BROUGHT_BACK = Retry(max_attempts=1000, on_failure=True)
RAN_MS = 7_000
ABOUT_MS = 4_000


def running() -> World:
    world = World()
    world.commit(admitted("k1", job_spec(retry=BROUGHT_BACK)).model_copy(update={"adopted": OWNER}))
    world.place()
    world.commit(made())
    world.commit(started())
    world.ts += RAN_MS
    return world


def released(reason: Reason = EXIT_3) -> World:
    """A job whose run has ended, and which waits for what its owner makes of that."""
    world = running()
    world.commit(ended(reason=reason))
    world.commit(run_absent(RUN))
    assert world.job.phase is Phase.QUEUED
    return world


@pytest.mark.parametrize(
    ("fact", "last", "phase", "code", "exit_code"),
    [
        (FAILED, EXIT_3, Phase.FAILED, Code.OWNER_FAILED, 3),
        (FAILED, DELETED, Phase.FAILED, Code.OWNER_FAILED, None),
        (LATE, DELETED, Phase.FAILED, Code.TIME_LIMIT, None),
        (FAILED, Reason(code=Code.TIME_LIMIT), Phase.FAILED, Code.TIME_LIMIT, None),
        (COMPLETE, DELETED, Phase.SUCCEEDED, None, 0),
    ],
)
@pytest.mark.parametrize("first", ["the run", "the owner"])
def test_it_ends_once_both_are_over_whichever_is_said_first(
    first: str, fact: OwnerEnded, last: Reason, phase: Phase, code: Code | None, exit_code: int | None
) -> None:
    if first == "the run":
        world = released(last)
        assert "finished" in world.say(fact, ms=60_000)
    else:
        world = running()
        assert world.say(fact) == ["owner_end_noted"]
        assert world.job.phase is Phase.RUNNING, "no run is stopped for it"
        world.commit(ended(reason=last))
        world.commit(run_absent(RUN))
    job = world.state.ended.found([K1])[0]
    assert (job.phase, job.reason and job.reason.code, job.exit_code) == (phase, code, exit_code)
    assert RAN_MS <= job.ended_ts - job.started_ts < RAN_MS + ABOUT_MS, "the time after the run is not the run's"
    assert (job.earlier_ms, bool(job.nodes), job.gpu_milli_ms >= RAN_MS * job.amount.gpu_milli) == (0, True, True)


def test_what_is_known_of_the_last_run_is_said_with_the_owners_word() -> None:
    world = released()
    world.say(FAILED)
    reason = world.state.ended.found([K1])[0].reason
    assert reason is not None
    assert "BackoffLimitExceeded; last: PodFailed" in reason.detail


def test_a_job_whose_pods_came_back_and_wait_ended_in_line_and_keeps_its_time_as_earlier() -> None:
    world = released(DELETED)
    world.commit(HoldRequested(kind="hold_requested", job_id=K1, tenant="lab"))
    world.say(PodsBack(kind="pods_back", job_id=K1), ms=3_600_000)
    assert world.say(LATE) == ["finished"]
    job = world.state.ended.found([K1])[0]
    assert (job.phase, job.started_ts, job.ended_ts) == (Phase.FAILED, 0, world.state.ts)
    assert job.earlier_ms >= RAN_MS


def test_a_cancel_while_its_owner_makes_no_pods_keeps_the_last_runs_time() -> None:
    world = released(DELETED)
    world.say(cancel(why="Job/train is gone"), ms=60_000)
    job = world.state.ended.found([K1])[0]
    assert (job.phase, RAN_MS <= job.ended_ts - job.started_ts < RAN_MS + ABOUT_MS) == (Phase.CANCELLED, True)


def test_it_is_said_of_adopted_jobs_once_and_of_no_other() -> None:
    world = running()
    assert world.say(FAILED) == ["owner_end_noted"]
    assert world.say(COMPLETE) == []
    assert World().queued().say(COMPLETE) == []
    assert World().say(COMPLETE) == []


def test_the_fold_takes_such_an_end_of_a_waiting_job_of_a_newer_ledger_and_of_adopted_work_alone() -> None:
    record = Finished(kind="finished", job_id=K1, phase="succeeded")
    world = World().queued()
    with pytest.raises(Contradiction):
        apply_record(world.state.overlay(), record, ())
    world = released()
    apply_record(world.state.overlay(), record, ())
    world.state.format = 5
    with pytest.raises(Contradiction):
        apply_record(world.state.overlay(), record, ())
    noted = OwnerEndNoted(kind="owner_end_noted", fact=0, job_id=K1)
    with pytest.raises(Contradiction):
        apply_record(world.state.overlay(), noted, (TakenFact(seq=1, service="binder", fact=FAILED),))

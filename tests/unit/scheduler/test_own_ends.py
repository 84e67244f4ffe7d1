"""What ended before it was told to stop has ended: the committer, of runs that are being stopped."""

import pytest

from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record
from tessera.domain.work.phases import Phase
from tessera_schemas.facts import CheckpointSaved, RunIdle, RunLost, RunUntouched
from tessera_schemas.job import Retry
from tessera_schemas.ledger import Revoked
from tessera_schemas.reasons import Code, Reason
from tests.builders import config_body, run_absent
from tests.unit.scheduler.committer_world import K1, RUN, World, cancel, ended
from tests.unit.scheduler.contested_world import contested, drain, plan

AT_LIMIT = Reason(code=Code.TIME_LIMIT, detail="DeadlineExceeded")
LOST = RunLost(kind="run_lost", run_id=RUN, reason=Reason(code=Code.NODE_LOST), nodes=("node-a",))
AGAIN = {"retry": Retry(max_attempts=3, on_failure=True, backoff_seconds=0)}


def preempted() -> World:
    world = contested()
    world.commit(plan())
    return world


def lost(**spec: object) -> World:
    world = World().running(**spec)
    world.commit(LOST)
    return world


def saved(path: str = "/saved/1") -> CheckpointSaved:
    return CheckpointSaved(kind="checkpoint_saved", run_id=RUN, path=path)


def phase_of(world: World) -> str:
    return world.state.ended.get(K1).phase.value  # type: ignore[union-attr]


def test_a_victim_that_succeeded_has_succeeded_and_its_room_goes_to_whom_it_was_kept_for() -> None:
    world = preempted()
    assert world.say(ended(reason=None)) == ["finished"]
    run = world.state.runs.get(RUN)
    assert run is not None
    assert (run.over, run.revoked, run.then, run.stopped_ts) == (True, None, "", 0)
    assert world.say(run_absent(RUN)) == ["released", "earmark_ended", "allocated"]
    ended_job = world.state.ended.get(K1)
    assert ended_job is not None
    assert (ended_job.phase, ended_job.attempt, ended_job.evictions) == (Phase.SUCCEEDED, 1, 0)


def test_a_victim_that_failed_by_itself_pays_as_at_any_other_time() -> None:
    world = preempted()
    assert world.say(ended()) == ["revoked"]
    assert (world.run.revoked.code, world.run.then) == (Code.POD_FAILED, "failed")
    assert world.job.avoid == ("node-a",)
    world.commit(run_absent(RUN))
    assert phase_of(world) == "failed"
    assert world.state.ended.get(K1).evictions == 0


def test_a_victim_that_failed_and_may_be_tried_again_is_and_counts_no_eviction() -> None:
    world = World().running(**AGAIN)
    world.commit(drain(evict=True))
    assert world.say(ended()) == ["revoked"]
    world.commit(run_absent(RUN))
    assert (world.job.phase, world.job.strikes, world.job.evictions) == (Phase.QUEUED, 1, 0)


def test_an_end_that_arrives_in_the_message_in_which_its_run_is_released_counts() -> None:
    """The binder was away for so long that reclamation waited no more."""
    world = preempted()
    message = world.commit(run_absent(RUN), ended(reason=None))
    assert [record.kind for record in message.records] == ["finished", "released", "earmark_ended", "allocated"]
    assert phase_of(world) == "succeeded"


def test_the_first_end_that_was_observed_stands() -> None:
    world = preempted()
    world.commit(ended())
    assert world.say(ended()) == []
    assert world.say(ended(reason=AT_LIMIT)) == []
    assert world.say(ended(reason=None)) == []


def test_what_others_did_to_a_pod_of_a_victim_changes_nothing() -> None:
    world = preempted()
    assert world.say(ended(reason=Reason(code=Code.POD_EVICTED))) == []
    assert world.say(ended(reason=Reason(code=Code.POD_DELETED))) == []
    assert world.run.revoked.code is Code.PREEMPTED


def test_a_run_that_saved_since_it_was_told_goes_on_from_there() -> None:
    for end in (ended(reason=None), ended()):
        world = preempted()
        world.commit(saved())
        assert world.say(end) == []
        world.commit(run_absent(RUN))
        assert (world.job.phase, world.job.saved_path) == (Phase.QUEUED, "/saved/1")


def test_a_lost_run_whose_program_succeeded_has_succeeded_even_if_it_saved_meanwhile() -> None:
    world = lost()
    world.commit(saved())
    assert world.say(ended(reason=None)) == ["finished"]


def test_a_lost_run_does_not_pay_for_what_failed_beside_the_lost_node() -> None:
    world = lost()
    assert world.say(ended()) == []
    world.commit(run_absent(RUN))
    assert (world.job.reason, world.job.strikes) == (None, 0), "it starts again at once"


def test_a_lost_run_that_reached_its_time_limit_has() -> None:
    world = lost()
    assert world.say(ended(reason=AT_LIMIT)) == ["revoked"]
    world.commit(run_absent(RUN))
    assert phase_of(world) == "failed"


@pytest.mark.parametrize(
    ("spec", "fact", "phase"),
    [
        ({}, ended(reason=None), "succeeded"),
        ({}, ended(), "failed"),
        (AGAIN, ended(), "cancelled"),
    ],
    ids=["succeeded", "failed for good", "would have been tried again"],
)
def test_a_cancelled_job_that_ended_first_has_ended(spec: dict[str, object], fact: object, phase: str) -> None:
    world = World().running(**spec)
    world.commit(cancel())
    world.commit(fact)  # type: ignore[arg-type]
    world.commit(run_absent(RUN))
    assert phase_of(world) == phase


def test_an_idle_job_that_is_to_fail_and_fails_by_itself_has_failed_by_itself() -> None:
    policy = {"idle": "fail", "idle_warn_seconds": 1, "idle_reclaim_seconds": 1}
    world = World(body=config_body(policy=policy)).running(**AGAIN)
    idle = RunIdle(kind="run_idle", run_id=RUN, idle_seconds=5)
    world.commit(idle)
    assert world.say(idle, ms=5000) == ["revoked"]
    assert world.say(ended()) == ["revoked"]
    world.commit(run_absent(RUN))
    assert phase_of(world) == "failed"


def test_who_has_ended_is_not_spared_any_more() -> None:
    world = preempted()
    why = Reason(code=Code.BLOCKED_BY_DISRUPTION_BUDGET)
    untouched = RunUntouched(kind="run_untouched", run_id=RUN, revoked_ts=world.run.stopped_ts, reason=why)
    world.commit(ended())
    assert world.say(untouched) == []


def test_a_record_of_such_an_end_is_refused_of_a_run_that_is_not_stopping_for_another_reason() -> None:
    record = Revoked(kind="revoked", run_id=RUN, reason=AT_LIMIT, then="failed", ended=True)
    with pytest.raises(Contradiction):
        apply_record(World().running().state, record, ())
    world = preempted()
    world.commit(ended())
    with pytest.raises(Contradiction):
        apply_record(world.state, record, ())

"""Who pays for the end of a run: a test for each row of the table `RUN_ENDS`, by what the committer makes of it."""

import pytest

from tessera.domain.work.phases import Phase
from tessera_schemas.config import Policy
from tessera_schemas.facts import BindFailed, CheckpointSaved, DrainRequested, HoldRequested, RunIdle, RunLost
from tessera_schemas.job import Retry, Session
from tessera_schemas.ledger import Finished, Held, Requeued, Revoked
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.run_ends import RUN_ENDS, Limit, PauseRule, Whose, end_of
from tests.builders import config_body, node_seen, run_absent
from tests.unit.scheduler.committer_world import K1, World, ended, made, started

HOUR_MS = 3_600_000
IDLE = {"idle": "requeue", "idle_warn_seconds": 60, "idle_reclaim_seconds": 60}
BY_THE_PROGRAM = frozenset({Code.POD_FAILED, Code.TIME_LIMIT})
ASKED = frozenset(
    {Code.CANCELLED, Code.CANCELLED_BY_SCRIPT, Code.REQUEUE_ASKED, Code.PAUSED_AS_IDLE, Code.ENDED_AS_IDLE}
)
BY_A_POD = tuple(
    code
    for code, end in RUN_ENDS.items()
    if code in BY_THE_PROGRAM or (end.whose not in (Whose.SCHEDULER, Whose.PROGRAM) and code not in ASKED)
)
"""Causes that a pod, a node or the API server shows; commands and plans have tests of their own."""
UNSTARTED = frozenset({Code.BIND_REFUSED, Code.IMAGE_NOT_PULLED, Code.VOLUME_NOT_READY})
OPERATORS = frozenset({Code.NODE_DRAINED, Code.QUEUE_DRAINED})
LOST = frozenset({Code.NODE_LOST, Code.NODE_SHRUNK})
SHOWN = tuple(code for code in BY_A_POD if code not in OPERATORS and code is not Code.START_TIMEOUT)


def end(world: World, code: Code, pods: int = 1) -> None:
    """The present run ends for `code`, after it started where the cause is one of running pods."""
    run, reason = world.run.run_id, Reason(code=code, numbers={"rank": 0})
    world.commit(made(run, pods))
    if code in UNSTARTED:
        nodes = (world.run.placements[0].node,)
        world.commit(BindFailed(kind="bind_failed", run_id=run, rank=0, reason=reason, nodes=nodes))
    else:
        world.commit(started(run))
        lost = RunLost(kind="run_lost", run_id=run, reason=reason, nodes=(world.run.placements[0].node,))
        world.commit(lost if code in LOST else ended(run, reason))


def saved(run: str) -> CheckpointSaved:
    return CheckpointSaved(kind="checkpoint_saved", run_id=run, path=f"/data/{run}")


def again(world: World) -> Requeued:
    """The record by which the job goes back to its queue once the run is absent."""
    (record,) = [r for r in world.commit(run_absent(world.run.run_id)).records if isinstance(r, Requeued)]
    return record


@pytest.mark.parametrize("code", SHOWN)
def test_only_the_programs_own_failure_spends_an_attempt(code: Code) -> None:
    world = World(node_seen("node-a"), node_seen("node-b")).allocated(retry=Retry(max_attempts=9, on_failure=True))
    node = world.run.placements[0].node
    end(world, code)
    back, row = again(world), RUN_ENDS[code]
    assert (back.strike, world.job.strikes) == (row.spends, int(row.spends))
    assert (node in world.job.avoid) is row.avoids
    pause = {
        PauseRule.NONE: 0,
        PauseRule.LATE: 0,
        PauseRule.SHORT: 1_000,
        PauseRule.RUNS: 1_000,
        PauseRule.OWN: 10_000,
    }[row.pause]
    assert max(0, back.not_before - world.ts) == pause


@pytest.mark.parametrize("code", SHOWN)
def test_nothing_but_its_own_program_ends_a_job(code: Code) -> None:
    world = World(body=config_body(policy=Policy(requeues_max=4))).allocated(retry=Retry(max_attempts=1))
    for attempt in range(1, 9):
        assert world.job.attempt == attempt
        end(world, code)
        world.commit(run_absent(world.run.run_id))
        if RUN_ENDS[code].spends:
            gone = world.state.ended.get(K1)
            assert gone is not None
            assert gone.phase is Phase.FAILED
            return
        if world.job.held:
            assert (RUN_ENDS[code].limit, attempt) == (Limit.HOLD, 4)
            assert world.job.reason is not None
            assert world.job.reason.code is Code.HELD_AFTER_REQUEUES
            return
        if world.job.phase is Phase.QUEUED:
            world.place(ms=60_000)
    assert RUN_ENDS[code].limit is Limit.NONE


def test_a_release_starts_a_job_that_was_put_on_hold_and_forgives_what_broke_it() -> None:
    world = World(body=config_body(policy=Policy(requeues_max=1))).allocated()
    end(world, Code.POD_REFUSED_BY_NODE)
    held = [r for r in world.commit(run_absent(world.run.run_id)).records if isinstance(r, Held)]
    assert [(r.job_id, r.by, r.undo) for r in held] == [(K1, "scheduler", False)]
    assert world.job.troubles == 1
    world.commit(HoldRequested(kind="hold_requested", job_id=K1, tenant="lab", undo=True))
    world.place(ms=300_000)
    assert (world.job.held, world.job.troubles, world.job.phase) == (False, 0, Phase.ALLOCATED)


def test_pods_that_are_evicted_again_and_again_come_back_at_once_at_first_and_never_fail_their_job() -> None:
    world, waits = World().allocated(retry=Retry(max_attempts=1)), []
    for _ in range(14):
        end(world, Code.POD_EVICTED)
        waits.append(max(0, again(world).not_before - world.ts) // 1000)
        if world.job.phase is Phase.QUEUED:
            world.place(ms=60_000)
    assert waits == [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("code", [Code.POD_FAILED, Code.POD_REFUSED_BY_NODE])
def test_a_run_that_held_for_an_hour_fills_the_budgets_again(code: Code) -> None:
    world = World().allocated(retry=Retry(max_attempts=3, on_failure=True, backoff_seconds=0))
    for _ in range(2):
        end(world, code)
        again(world)
        world.place(ms=60_000)
    run, pays = world.run.run_id, end_of(code).spends
    assert (world.job.strikes, world.job.troubles) == ((2, 0) if pays else (0, 2))
    world.commit(made(run))
    world.commit(started(run))
    world.commit(ended(run, Reason(code=code)), ms=HOUR_MS)
    assert again(world).fresh
    assert (world.job.strikes, world.job.troubles) == ((1, 0) if pays else (0, 1))


def test_a_checkpoint_fills_the_budgets_as_an_hour_does() -> None:
    world = World().running(retry=Retry(max_attempts=1, on_failure=True))
    world.commit(saved(world.run.run_id))
    world.commit(ended())
    assert world.run.then == "failed", "one attempt is one attempt"
    world = World().running(retry=Retry(max_attempts=2, on_failure=True, backoff_seconds=0))
    for _ in range(5):
        run = world.run.run_id
        world.commit(saved(run))
        world.commit(ended(run))
        assert again(world).fresh
        world.place(ms=60_000)
        world.commit(made(world.run.run_id))
        world.commit(started(world.run.run_id))
    assert world.job.strikes == 1


def test_a_run_in_its_third_week_is_tried_again_when_its_node_is_lost() -> None:
    world = World().running(retry=Retry(max_attempts=1))
    lost = RunLost(kind="run_lost", run_id=world.run.run_id, reason=Reason(code=Code.NODE_LOST))
    world.commit(lost, ms=21 * 24 * HOUR_MS)
    assert world.run.then == "requeue"


def test_a_run_in_its_third_week_that_fails_has_all_its_attempts() -> None:
    world = World().running(retry=Retry(max_attempts=2, on_failure=True))
    world.commit(ended(), ms=21 * 24 * HOUR_MS)
    assert world.run.then == "requeue"
    again(world)
    world.place(ms=60_000)
    assert world.job.first_ts == world.run.allocated_ts, "the time in which it is tried again begins anew"


def test_an_operators_drain_costs_nothing() -> None:
    world = World(node_seen("node-a"), node_seen("node-b")).running(retry=Retry(max_attempts=1))
    node = world.run.placements[0].node
    world.commit(DrainRequested(kind="drain_requested", node=node, evict=True))
    back = again(world)
    assert (back.strike, back.trouble, back.not_before) == (False, False, 0)


def test_an_idle_run_that_is_given_back_spends_an_attempt() -> None:
    policy = Policy(idle="requeue", idle_warn_seconds=1, idle_reclaim_seconds=1)
    world = World(body=config_body(policy=policy)).running(retry=Retry(max_attempts=5))
    idle = RunIdle(kind="run_idle", run_id=world.run.run_id, idle_seconds=60)
    world.commit(idle, ms=60_000)
    (revoked,) = [r for r in world.commit(idle, ms=60_000).records if isinstance(r, Revoked)]
    assert revoked.reason.code is Code.IDLE
    assert again(world).strike


def asked(world: World, code: Code) -> Reason:
    """The present run has ended as its own script asked."""
    reason = Reason(code=code, detail="scancel by the script, in a-0")
    world.commit(made(world.run.run_id, 1))
    world.commit(started(world.run.run_id))
    world.commit(ended(world.run.run_id, reason))
    return reason


def test_a_job_that_its_own_script_cancels_is_cancelled_and_says_by_whom() -> None:
    world = World(node_seen("node-a")).allocated(retry=Retry(max_attempts=9, on_failure=True))
    reason = asked(world, Code.CANCELLED_BY_SCRIPT)
    (last,) = [r for r in world.commit(run_absent(world.run.run_id)).records if isinstance(r, Finished)]
    assert (last.phase, last.reason) == ("cancelled", reason)


def test_a_script_that_begins_its_job_anew_again_and_again_waits_longer_each_time_up_to_a_minute() -> None:
    world, pauses = World().allocated(retry=Retry(max_attempts=1)), []
    for _ in range(9):
        asked(world, Code.REQUEUED_BY_SCRIPT)
        back = again(world)
        pauses.append((back.not_before - world.ts) // 1000)
        assert not back.strike
        world.place(ms=60_000)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_requeue_by_the_script_is_no_trouble_that_others_make() -> None:
    """Ten of them, and then one refusal by a node: that one alone counts to the hold."""
    world = World(node_seen("node-a"), node_seen("node-b")).allocated(retry=Retry(max_attempts=1))
    for _ in range(10):
        asked(world, Code.REQUEUED_BY_SCRIPT)
        assert not again(world).trouble
        world.place(ms=60_000)
    end(world, Code.POD_REFUSED_BY_NODE)
    assert again(world).trouble
    assert (world.job.troubles, world.job.held) == (1, False)


def test_a_session_that_says_that_nobody_uses_it_is_paused_and_waits_for_a_word() -> None:
    world = World(node_seen("node-a")).allocated(retry=Retry(max_attempts=1))
    reason = asked(world, Code.PAUSED_AS_IDLE)
    back = again(world)
    assert (back.strike, back.trouble, back.reason) == (False, False, reason)
    assert (world.job.held, world.job.operator_hold, world.job.hold) == (True, False, reason)
    world.commit(HoldRequested(kind="hold_requested", job_id=world.job.job_id, tenant="lab", undo=True))
    assert (world.job.held, world.job.hold) == (False, None)


def test_a_session_that_ends_itself_as_nobody_uses_it_is_cancelled_by_that_name() -> None:
    world = World(node_seen("node-a")).allocated(retry=Retry(max_attempts=9, on_failure=True))
    reason = asked(world, Code.ENDED_AS_IDLE)
    (last,) = [r for r in world.commit(run_absent(world.run.run_id)).records if isinstance(r, Finished)]
    assert (last.phase, last.reason) == ("cancelled", reason)


@pytest.mark.parametrize("session", [None, Session(kind="notebook")])
def test_a_requeue_for_idle_gpus_pauses_a_session_since_it_would_be_idle_again(session: Session | None) -> None:
    world = World(node_seen("node-a"), body=config_body(policy=IDLE)).allocated(session=session)
    run = world.run.run_id
    world.commit(made(run, 1))
    world.commit(started(run))
    world.commit(RunIdle(kind="run_idle", run_id=run, idle_seconds=60))
    world.commit(RunIdle(kind="run_idle", run_id=run, idle_seconds=120), ms=60_000)
    assert again(world).reason.code is Code.IDLE
    assert world.job.held is (session is not None)


def test_a_cancel_by_the_script_holds_while_the_run_is_stopped_for_others() -> None:
    world = World(node_seen("node-a")).allocated()
    run = world.run.run_id
    world.commit(made(run, 1))
    world.commit(started(run))
    world.commit(DrainRequested(kind="drain_requested", node="node-a", evict=True))
    assert world.run.then == "requeue"
    world.commit(ended(run, Reason(code=Code.CANCELLED_BY_SCRIPT)))
    assert world.run.then == "cancelled"
    (last,) = [r for r in world.commit(run_absent(run)).records if isinstance(r, Finished)]
    assert last.phase == "cancelled"

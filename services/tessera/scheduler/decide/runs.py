"""Facts about runs: made, bound, started, ended, idle, lost, absent; and what a deadline ends."""

from typing import Literal

from tessera.domain.entities import Earmark, Job, Run
from tessera.domain.idle import idle_policy
from tessera.domain.state import State
from tessera.domain.work.checkpoints import is_known, is_used_again
from tessera.domain.work.phases import Phase
from tessera.domain.work.starting import given_ms
from tessera.domain.work.stops import may_end_instead
from tessera.engine.placement.capacity import stopped_ts
from tessera.engine.preemption.rules import find_stuck, in_the_way, is_unneeded
from tessera.engine.queueing.readiness import explain_missing_pods
from tessera.scheduler.decide.arrays import cancel_run, hold_failing_array
from tessera.scheduler.decide.draft import SCHEDULER, Draft, judges, record_waiting
from tessera.scheduler.decide.elastic import go_on_without
from tessera.scheduler.decide.jobs import end_as_owner, give_up_earmark, record_closed
from tessera.scheduler.decide.nodes import back_off, failed_quickly, note_end
from tessera.scheduler.decide.restarts import keep_place
from tessera_schemas.facts import (
    BindFailed,
    CheckpointReported,
    CheckpointSaved,
    EvictionBlocked,
    PodsBack,
    PodsBound,
    PodsGone,
    PodsLost,
    PodsMade,
    RunAbsent,
    RunEnded,
    RunIdle,
    RunStarted,
    RunUntouched,
    RunUsed,
    StartDelayed,
)
from tessera_schemas.job import RoleReach
from tessera_schemas.ledger import (
    BackInLine,
    Bound,
    Delayed,
    EarmarkEnded,
    Finished,
    Held,
    OutOfLine,
    Permitted,
    Released,
    Requeued,
    Revoked,
    Saved,
    Spared,
    Started,
    UseNoted,
    Warned,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import GPU_USE_FROM, STARTS_TELL_ALL_FROM
from tessera_schemas.work.run_ends import EVICTIONS, Limit, PauseRule, RunEnd, end_of

NODES_NAMED = 4
SHORT_PAUSE_MAX_SECONDS = 60
"""Longest pause after a run that was broken by anything but its program."""
AVOID_MAX = 64
"""Nodes that one record names as having failed a run."""
TROUBLES_AT_ONCE = 5
"""So many such runs in a row are followed by no pause, where somebody stops pods whose program is well."""


def is_start_due(state: State, ts: int) -> bool:
    """Whether a run, or a pod that one grew by, is past its start's deadline at `ts`, however it was watched."""
    due = state.index.start_by
    if due and due[0][0] <= ts:
        return True
    extras = (extra for run in state.runs.found(state.index.elastic) for extra in run.extra)
    return any(0 < extra.deadline <= ts for extra in extras)


def end_overdue(draft: Draft, facts_wait: bool, starts_since: int) -> None:
    """
    End runs that did not start in time, unless facts that say so may wait, and earmarks past their deadline.

    A run has its whole time from `starts_since` on, when a gap ended in which no start could be seen.
    """
    state = draft.state
    for deadline, run_id in () if facts_wait else list(state.index.start_by.irange(maximum=(state.ts, "~"))):
        if draft.full:
            return
        run = state.runs.get(run_id)
        # Time in which nobody looked does not count (ADR 0042): a pod that started while the stream of facts was away
        # would be stopped for silence that was ours.
        watched = run is not None and state.ts >= starts_since + given_ms(state, run)
        if run is not None and watched and not run.started and not run.stopping:
            _end_late(draft, run, _why_late(state, run, (deadline - run.allocated_ts) // 1000))
    for mark in sorted(state.earmarks.values(), key=lambda m: m.owner):
        if mark.deadline <= state.ts:
            draft.add(EarmarkEnded(kind="earmark_ended", owner=mark.owner, why="deadline"))
        # An earmark's own deadline needs no fact, since none can save it; whether a run hangs does, since its absence
        # may have been told and not been read.
        elif not facts_wait and (stuck := find_stuck(state, mark)) is not None:
            _give_up_on(draft, mark, stuck)


def _give_up_on(draft: Draft, mark: Earmark, stuck: Run) -> None:
    """No job waits on for room under a run that does not stop; what the run holds stays held until it is absent."""
    state = draft.state
    seconds = (state.ts - stopped_ts(state, stuck)) // 1000
    nodes = sorted({placement.node for placement in stuck.places})
    where = ", ".join(nodes[:NODES_NAMED]) + (" and others" if len(nodes) > NODES_NAMED else "")
    reason = Reason(code=Code.DOES_NOT_STOP, numbers={"stopping_seconds": seconds}, detail=f"on {where}")
    draft.add(EarmarkEnded(kind="earmark_ended", owner=mark.owner, why="stuck"))
    if stuck.stopping:  # what shrinks goes on: its job waits for nothing
        record_waiting(draft, stuck.job_id, reason)
    # A job may wait for its own stuck run, and is told once.
    if mark.owner != stuck.job_id:
        record_waiting(draft, mark.owner, reason)


def _end_late(draft: Draft, run: Run, reason: Reason) -> None:
    """Stop a run that has not started in time; a node that starts nothing takes no others for a while."""
    end = end_of(reason.code)
    revoke(draft, run, reason, "deadline", avoid=run.slow_nodes if end.avoids else ())
    for node in run.slow_nodes if end.backs_off else ():
        back_off(draft, node, reason)


def _why_late(state: State, run: Run, seconds: int) -> Reason:
    """Why a run has not started in time, as its binder says; what several nodes do at once is no node's doing."""
    numbers = {"seconds": seconds}
    if run.delay is None:
        return Reason(code=Code.START_TIMEOUT, numbers=numbers)
    # Two nodes that start nothing at once point at what they share, such as a registry. Blaming each would back off a
    # whole pool, node by node, for one cause.
    return _judge_several_nodes(state, run.delay.model_copy(update={"numbers": run.delay.numbers | numbers}))


def _judge_several_nodes(state: State, reason: Reason, nodes: tuple[str, ...] = ()) -> Reason:
    """The reason, or that starts stall where these nodes and others start nothing at once."""
    slow = _nodes_that_start_nothing(state) | {*nodes} if reason.code is Code.START_TIMEOUT else set()
    if len(slow) < 2:
        return reason
    return reason.model_copy(update={"code": Code.STARTS_STALL, "numbers": reason.numbers | {"nodes": len(slow)}})


def _nodes_that_start_nothing(state: State) -> set[str]:
    """The nodes on which pods of any run do not start, by the kubelet and not by what they ask for."""
    waiting = (state.runs.get(run_id) for _, run_id in state.index.start_by)
    # Only runs that have not started and whose binder has said why: silence about a node is no evidence against it.
    late = (run for run in waiting if run is not None and run.delay is not None and not run.started)
    return {node for run in late if run.delay and run.delay.code is Code.START_TIMEOUT for node in run.slow_nodes}


def revoke(
    draft: Draft,
    run: Run,
    reason: Reason,
    by: str,
    avoid: tuple[str, ...] = (),
    within: tuple[RoleReach, ...] = (),
    observed: str = "",
) -> None:
    """Stop a run; its job is tried again unless its own program failed too often."""
    job = draft.state.jobs.get(run.job_id)
    # Decided when the run is stopped, not when it is gone: what the job does next is then in the record, and no fact in
    # between can change it.
    again = job is not None and may_try_again(draft.state, job, run, reason.code)
    then: Literal["requeue", "failed", "cancelled"] = "requeue" if again else "failed"
    draft.add(
        Revoked(
            kind="revoked",
            run_id=run.run_id,
            reason=reason,
            then="cancelled" if reason.code is Code.CANCELLED_BY_SCRIPT else then,
            by=by,
            avoid=avoid,
            within=within,
            observed=observed,
        )
    )


def may_try_again(state: State, job: Job, run: Run, code: Code) -> bool:
    """Whether the job is tried again after a run that ended for `code`: only its own program's failures end it."""
    # Only the program's own failures spend attempts (ADR 0043): a month of node upgrades would else end a job that
    # never failed.
    if end_of(code).limit is not Limit.FAIL:
        return True
    if not job.retry.on_failure:
        return False
    return _strikes(state, job, run) + 1 < job.retry.max_attempts and in_time(state, job, run)


def has_held(state: State, run: Run) -> bool:
    """Whether the run worked so long, or saved so much, that the budgets of its job are full again."""
    steady_ms = state.tree.policy.steady_seconds * 1000
    ended = run.stopped_ts or state.ts
    # A run that never started has held nothing, however long it took. Otherwise slow image pulls would fill the budget
    # again.
    return run.started and (run.saved_ts > 0 or ended - run.started_ts >= steady_ms)


def _strikes(state: State, job: Job, run: Run) -> int:
    return 0 if has_held(state, run) else job.strikes


def in_time(state: State, job: Job, run: Run) -> bool:
    """Whether the time in which the job may be tried again has not run out; it begins anew with a run that held."""
    # A budget for trying is not spent by working: a training that fails in its third week has tried once.
    return has_held(state, run) or state.ts < job.first_ts + job.retry.give_up_seconds * 1000


def pause_ms(job: Job, end: RunEnd, strikes: int, troubles: int, runs: int) -> int:
    """
    Time that the job waits for its next attempt, after so many counted attempts and troubles in a row before, and so
    many runs.
    """
    if end.pause is PauseRule.OWN:
        # The shift is bounded before the minimum is taken, since many strikes would make an integer of as many bits. A
        # first pause above the maximum is the sender's word and stays.
        seconds = job.retry.backoff_seconds << min(strikes, 20)
        return min(seconds, max(job.retry.backoff_max_seconds, job.retry.backoff_seconds)) * 1000
    first = {PauseRule.SHORT: 0, PauseRule.LATE: TROUBLES_AT_ONCE, PauseRule.RUNS: 0}.get(end.pause)
    troubles = runs if end.pause is PauseRule.RUNS else troubles
    if first is None or troubles < first:
        return 0
    # Six doublings pass the maximum of a minute: more would only make larger numbers to cut.
    return min(1 << min(troubles - first, 6), SHORT_PAUSE_MAX_SECONDS) * 1000


def active_run(draft: Draft, run_id: str) -> Run | None:
    """The run, if it has not ended and is not being stopped."""
    run = draft.state.runs.get(run_id)
    return None if run is None or run.stopping else run


@judges(PodsMade)
def on_pods_made(draft: Draft, index: int, fact: PodsMade) -> None:
    """One permit per run, ever: it names the pods that may be bound. What a run grew by has its own, per rank."""
    run = active_run(draft, fact.run_id)
    if fact.ranks:
        _permit_more(draft, run, fact)
        return
    # A second set of pods is never permitted: a binder that comes back and makes pods anew would else have two gangs
    # under one run.
    if run is not None and not run.uids and len(fact.uids) == len(run.placements):
        draft.add(Permitted(kind="permitted", run_id=run.run_id, uids=fact.uids))


def _permit_more(draft: Draft, run: Run | None, fact: PodsMade) -> None:
    """Permit surplus pods that are still wanted; some may have been given up while they were made."""
    if run is None or not len(set(fact.ranks)) == len(fact.ranks) == len(fact.uids):
        return
    # Only ranks without a UID: a permit that is given stays with the pod that it names.
    open_ = {extra.placement.rank for extra in run.extra if not extra.uid and not extra.leaving}
    made = {rank: uid for rank, uid in zip(fact.ranks, fact.uids, strict=True) if rank in open_}
    if made:
        draft.add(Permitted(kind="permitted", run_id=run.run_id, uids=tuple(made.values()), ranks=tuple(made)))


@judges(PodsLost)
def on_pods_lost(draft: Draft, index: int, fact: PodsLost) -> None:
    """Go on without surplus pods that failed; only the gang is all or nothing."""
    if (run := active_run(draft, fact.run_id)) is not None:
        go_on_without(draft, run, fact.ranks, fact.reason, "binder")


@judges(PodsBound)
def on_pods_bound(draft: Draft, index: int, fact: PodsBound) -> None:
    """Records that a permitted run's pods are bound, once."""
    run = active_run(draft, fact.run_id)
    if run is not None and run.uids and not run.bound:
        draft.add(Bound(kind="bound", run_id=run.run_id))


@judges(BindFailed)
def on_bind_failed(draft: Draft, index: int, fact: BindFailed) -> None:
    """Revokes a run whose pods could not be bound, unless the run has started."""
    run = active_run(draft, fact.run_id)
    # A run that has started has bound all its pods: the failure is an old one, told late.
    if run is None or run.started:
        return
    reason = _judge_several_nodes(draft.state, fact.reason, fact.nodes)
    end = end_of(reason.code)
    revoke(draft, run, reason, "binder", avoid=fact.nodes if end.avoids else (), within=fact.within)
    for node in fact.nodes if end.backs_off else ():
        back_off(draft, node, reason)


@judges(StartDelayed)
def on_start_delayed(draft: Draft, index: int, fact: StartDelayed) -> None:
    """
    Records why a bound run has not started. While its nodes work on it its clock stands still: it gets the whole time
    again, but no more often than once in an eighth of it.
    """
    run, state = active_run(draft, fact.run_id), draft.state
    if run is None or run.started or not run.uids:
        return
    whole = given_ms(state, run)
    # An eighth bounds the records of a slow start to eight per whole time, and costs a run that then hangs at most that
    # much.
    moves = fact.works and state.ts + whole - run.deadline >= whole // 8
    # Repeated looks of the binder say the same. Only what moves the deadline or tells another reason gets into the
    # ledger.
    if not moves and (fact.reason, fact.nodes) == (run.delay, run.slow_nodes):
        return
    deadline = state.ts + whole if moves else run.deadline
    draft.add(Delayed(kind="delayed", run_id=run.run_id, deadline=deadline, reason=fact.reason, nodes=fact.nodes))


@judges(RunStarted)
def on_run_started(draft: Draft, index: int, fact: RunStarted | RunEnded) -> None:
    """Records that a permitted run's pods all run, once; whoever saw that first says nothing else of their bind."""
    run = active_run(draft, fact.run_id)
    if run is not None and run.uids and not run.started:
        if not run.bound and draft.state.format >= STARTS_TELL_ALL_FROM:
            draft.add(Bound(kind="bound", run_id=run.run_id))
        draft.add(Started(kind="started", run_id=run.run_id))


@judges(RunEnded)
def on_run_ended(draft: Draft, index: int, fact: RunEnded) -> None:
    """All pods succeeded: the job is done. One did not: the gang is over and what is left of it is stopped."""
    run = draft.state.runs.get(fact.run_id)
    # No permit, no pods of ours: whatever ended then, it was none of this run.
    if run is None or run.over or not run.uids:
        return
    if run.revoked is not None:
        _end_instead(draft, run, run.revoked, fact)
        return
    if fact.reason is not None:
        revoke(draft, run, fact.reason, "binder", avoid=_failing(run, fact))
        for node in _nodes_of(run, fact.rank):
            note_end(draft, run, node, fact.reason)
        return
    # A short program may end between two looks. Its start is recorded all the same, so that each run that succeeded has
    # started.
    if not run.started:
        on_run_started(draft, index, fact)
    draft.add(Finished(kind="finished", job_id=run.job_id, phase="succeeded", exit_code=0))


def _nodes_of(run: Run, rank: int) -> tuple[str, ...]:
    return tuple(place.node for place in run.all_placements if place.rank == rank)


def _end_instead(draft: Draft, run: Run, revoked: Reason, fact: RunEnded) -> None:
    """The end of a run that was to be stopped, and of which nothing had been, where it may count instead."""
    # A script may cancel its job while others stop the run: they wanted it to begin anew, and its owner does not.
    if fact.reason is not None and fact.reason.code is Code.CANCELLED_BY_SCRIPT:
        if run.then == "requeue":
            give_up_earmark(draft, run.job_id)
            cancel_run(draft, run, fact.reason, "binder", now=False)
        return
    # The end is the program's own only where nothing of the run had been touched yet; later it may as well be our
    # signal.
    if not may_end_instead(run):
        return
    if fact.reason is None:
        give_up_earmark(draft, run.job_id)
        draft.add(Finished(kind="finished", job_id=run.job_id, phase="succeeded", exit_code=0))
        return
    job, before = draft.state.jobs.get(run.job_id), end_of(revoked.code)
    # Where a node was lost, other pods of the gang may fail for that. A time limit was reached all the same.
    observed = before.notice or fact.reason.code is Code.TIME_LIMIT
    if job is None or not end_of(fact.reason.code).learns or before.learns or not observed:
        return
    again = may_try_again(draft.state, job, run, fact.reason.code)
    then: Literal["requeue", "failed", "cancelled"] = "failed"
    if again and run.then != "failed":
        then = "cancelled" if run.then == "cancelled" else "requeue"
    give_up_earmark(draft, run.job_id)
    draft.add(
        Revoked(
            kind="revoked",
            run_id=run.run_id,
            reason=fact.reason,
            then=then,
            by="binder",
            avoid=_failing(run, fact),
            ended=True,
        )
    )


def _failing(run: Run, fact: RunEnded) -> tuple[str, ...]:
    """
    The nodes on which the pods failed that broke the run, or whose kubelets did not take them: something may be wrong
    there that is in no book here, such as a disk or a GPU. The job's next attempt avoids them while there is room on
    others.
    """
    if fact.reason is None or not end_of(fact.reason.code).avoids:
        return ()
    broke = [place.node for place in run.all_placements if place.rank == fact.rank or place.node in fact.nodes]
    return tuple(dict.fromkeys(broke))[:AVOID_MAX]


@judges(EvictionBlocked)
def on_eviction_blocked(draft: Draft, index: int, fact: EvictionBlocked) -> None:
    """Record why a run's eviction is blocked; only the reasons of its job and of jobs that wait for the room change."""
    run = draft.state.runs.get(fact.run_id)
    if run is not None and run.revoked is not None:
        record_waiting(draft, run.job_id, fact.reason)


@judges(RunUntouched)
def on_run_untouched(draft: Draft, index: int, fact: RunUntouched) -> None:
    """A plan that cannot be carried out is undone: whoever it has not touched goes on, and the room is common again."""
    run = draft.state.runs.get(fact.run_id)
    # The fact names the stop that it is about: one about an earlier stop, told late, must not undo the present one.
    if run is None or run.revoked is None or run.stopped_ts != fact.revoked_ts:
        return
    if fact.reason.code is Code.STOP_NOT_NEEDED:
        # Somebody may have come to count on its room since that was said.
        if not is_unneeded(draft.state, run):
            return
    elif run.revoked.code not in EVICTIONS or run.then != "requeue":
        return  # it is to stop for its own sake, and waits until it may be evicted
    # The earmarks end before the run goes on: it keeps the devices that they were counting on.
    marks = in_the_way(draft.state, run)
    for mark in marks:
        draft.add(EarmarkEnded(kind="earmark_ended", owner=mark.owner, why="blocked"))
    draft.add(Spared(kind="spared", run_id=run.run_id, reason=fact.reason, kept=fact.kept))
    for mark in marks:
        # Owners whose plan named this run are told why; for the others only the room is gone, and their next look says
        # the rest.
        if run.run_id in mark.victims:
            record_waiting(draft, mark.owner, fact.reason)


@judges(RunAbsent)
def on_run_absent(draft: Draft, index: int, fact: RunAbsent) -> None:
    """Releases the run's capacity; only now may the job start again or end."""
    state = draft.state
    run = state.runs.get(fact.run_id)
    if run is not None and fact.ranks:
        leaving = {extra.placement.rank for extra in run.extra if extra.leaving}
        # Only ranks that may go: a fact about pods that nobody asked to leave must not free devices under them.
        gone = tuple(sorted((leaving | run.releasable) & set(fact.ranks)))
        if gone:
            draft.add(Released(kind="released", run_id=run.run_id, ranks=gone))
        return
    # Absence of a run that nobody stops is no end: pods that are not made yet are absent, too. What was lost comes as a
    # fact of its own.
    if run is None or not run.stopping:
        return
    # Release first, then the job's next step: it may be placed again in this same message, on the devices that just
    # became free.
    draft.add(Released(kind="released", run_id=run.run_id))
    job = state.jobs.get(run.job_id)
    if job is None or run.revoked is None:
        return
    if run.then == "requeue" and job.owner_end is not None:
        end_as_owner(draft, job, job.owner_end.reason, run.revoked)
        return
    if run.then == "requeue":
        _requeue(draft, job, run, run.revoked)
        return
    draft.add(
        Finished(
            kind="finished",
            job_id=job.job_id,
            phase="cancelled" if run.then == "cancelled" else "failed",
            reason=_final_reason(state, job, run),
            exit_code=run.revoked.numbers.get("exit_code"),
            quick=run.then == "failed" and failed_quickly(run),
        )
    )
    # The failure is counted by the record above, so that the array is judged afterwards.
    if job.task_of:
        hold_failing_array(draft, job.task_of)


def _requeue(draft: Draft, job: Job, run: Run, reason: Reason) -> None:
    """Back into its queue, or on hold where others have broken too many of its runs in a row."""
    state, end, fresh = draft.state, end_of(reason.code), has_held(draft.state, run)
    # The pause is reckoned by what came before this run, and forgotten altogether after one that held: a long good run
    # ends every series.
    strikes, troubles, runs = (0, 0, 0) if fresh else (job.strikes, job.troubles, job.attempt - 1)
    pause, trouble = pause_ms(job, end, strikes, troubles, runs), end.pause in (PauseRule.SHORT, PauseRule.LATE)
    draft.add(
        Requeued(
            kind="requeued",
            job_id=job.job_id,
            not_before=state.ts + pause if pause else 0,
            reason=reason,
            strike=end.spends,
            trouble=trouble,
            fresh=fresh,
        )
    )
    # On hold, not failed: whoever broke these runs was not the program, and a release forgives them (ADR 0043).
    if end.limit is Limit.HOLD and troubles + 1 >= state.tree.policy.requeues_max and not job.held:
        draft.add(Held(kind="held", job_id=job.job_id, by=SCHEDULER))
        numbers = {"runs_in_a_row": troubles + 1} | reason.numbers
        why = Reason(code=Code.HELD_AFTER_REQUEUES, numbers=numbers, detail=f"last: {reason.sentence()}"[:1024])
        record_waiting(draft, job.job_id, why)
    elif job.hold is not None:
        record_waiting(draft, job.job_id, job.hold)
    elif job.adopted is not None:
        record_waiting(draft, job.job_id, explain_missing_pods(job))
    record_closed(draft, job.job_id, job.queue)
    keep_place(draft, run, end, pause, strikes + troubles)


@judges(PodsBack)
def on_pods_back(draft: Draft, index: int, fact: PodsBack) -> None:
    """The pods of an adopted job are there again, are others, or are of an owner that survives another eviction."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or job.adopted is None or job.phase is not Phase.QUEUED:
        return
    news = None if fact.preemptible == job.preemptible else fact.preemptible
    budget = None if fact.budget == job.adopted.budget else fact.budget
    # The binder repeats what it sees: a record only where something is another.
    if not job.away and news is None and budget is None and fact.uids == job.adopted.uids:
        return
    back = BackInLine(kind="back_in_line", job_id=job.job_id, preemptible=news, uids=fact.uids, budget=budget)
    draft.add(back)
    if job.away and not job.held:
        record_waiting(draft, job.job_id, Reason(code=Code.WAITING_FOR_TURN))
        record_closed(draft, job.job_id, job.queue)


@judges(PodsGone)
def on_pods_gone(draft: Draft, index: int, fact: PodsGone) -> None:
    """No devices wait for pods that are not there; the job keeps its place."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or job.adopted is None or job.away or job.phase is not Phase.QUEUED:
        return
    draft.add(OutOfLine(kind="out_of_line", job_id=job.job_id))
    if not job.held:
        record_waiting(draft, job.job_id, explain_missing_pods(job))


def _final_reason(state: State, job: Job, run: Run) -> Reason:
    """Why the job ended: the last run's reason, or that its attempts ran out with it."""
    last = run.revoked or Reason(code=Code.CANCELLED)
    # Time before attempts: where both have run out, more attempts would not have helped.
    if run.then == "failed" and last.code is not Code.IDLE and not in_time(state, job, run):
        numbers = {"attempts": job.attempt, "give_up_seconds": job.retry.give_up_seconds} | last.numbers
        return Reason(code=Code.RETRY_TIME_EXHAUSTED, numbers=numbers, detail=f"last: {last.sentence()}"[:1024])
    if run.then == "failed" and job.retry.max_attempts > 1 and _strikes(state, job, run) + 1 >= job.retry.max_attempts:
        numbers = {"attempts": job.attempt} | last.numbers
        return Reason(code=Code.ATTEMPTS_EXHAUSTED, numbers=numbers, detail=f"last: {last.sentence()}"[:1024])
    # A cancel that came while the run was stopping for another reason leaves no detail of its own.
    cancelled = last.code in (Code.CANCELLED, Code.CANCELLED_BY_SCRIPT)
    return last if run.then == "failed" or cancelled else Reason(code=Code.CANCELLED)


@judges(RunIdle)
def on_run_idle(draft: Draft, index: int, fact: RunIdle) -> None:
    """Warn first; what is still idle long after the warning gives its devices back, if job, queue or policy say so."""
    run = active_run(draft, fact.run_id)
    if run is None or not run.started:
        return
    policy = idle_policy(draft.state.tree, run.queue, draft.state.jobs.get(run.job_id))
    if policy.action == "off":
        return
    # A warning stands before any taking, and a run that works again takes it back: so a pause between two phases costs
    # nothing, and who loses its devices was told so in time.
    if not run.idle_ts:
        if fact.idle_seconds >= policy.warn_seconds:
            draft.add(Warned(kind="warned", run_id=run.run_id, idle_seconds=fact.idle_seconds))
    elif fact.idle_seconds < policy.warn_seconds:
        draft.add(Warned(kind="warned", run_id=run.run_id, idle_seconds=0))
    # Counted from the warning by ledger time, not by the seconds of the fact: a clock that jumps cannot skip the time
    # between warning and taking.
    elif policy.takes and draft.state.ts - run.idle_ts >= policy.reclaim_seconds * 1000:
        reason = Reason(code=Code.IDLE, numbers={"idle_seconds": fact.idle_seconds})
        then = "failed" if policy.action == "fail" else "requeue"
        draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=reason, then=then, by="reclamation"))


@judges(RunUsed)
def on_run_used(draft: Draft, index: int, fact: RunUsed) -> None:
    """
    Takes over a measurement that covers more than the one that is known, of a run until its release.

    Facts say sums, and so a repeat, an older fact, and one of a replica that has seen less of the run change nothing.
    """
    run, state = draft.state.runs.get(fact.run_id), draft.state
    if run is None or not run.started or state.format < GPU_USE_FROM:
        return
    known = 0 if run.gpu_use is None else run.gpu_use.measured_gpu_milli_ms
    job = state.jobs.get(run.job_id) or state.ended.get(run.job_id)
    held = 0 if job is None else job.gpu_milli_ms
    held += 0 if run.over else run.amount.gpu_milli * (state.ts - run.uncounted_ts)
    # More than its job ever held is no measurement of it, whatever a source says.
    if known < fact.use.measured_gpu_milli_ms <= held:
        draft.add(UseNoted(kind="use_noted", fact=index, run_id=run.run_id))


@judges(CheckpointSaved)
def on_checkpoint_saved(draft: Draft, index: int, fact: CheckpointSaved) -> None:
    """Also from a run that is being stopped: saving is what its notice is for."""
    _save(draft, fact.run_id, fact.path, fact.at)


@judges(CheckpointReported)
def on_checkpoint_reported(draft: Draft, index: int, fact: CheckpointReported) -> None:
    """
    Takes a reported checkpoint as if the job's pod had said it. An earlier attempt's does not count for the present
    one. A known path counts again with its new time: trainers keep two places in turn, or one.
    """
    job = draft.state.jobs.get(fact.job_id)
    # Attempt 0 is a sender that does not know which one it is; what names another attempt comes from pods that are
    # gone.
    if job is not None and job.tenant == fact.tenant and fact.attempt in (0, job.attempt):
        run = draft.state.runs.get(job.run_id)
        _save(draft, job.run_id, fact.path, fact.at, again=run is not None and is_used_again(run, draft.state.ts))


def _save(draft: Draft, run_id: str, path: str, at: str, again: bool = False) -> None:
    """
    A checkpoint that pods show is new once per run, whichever of them do: a late look at an old one must neither end a
    notice in which nothing was saved, nor become the place where the next attempt goes on.
    """
    run = draft.state.runs.get(run_id)
    if run is None or not run.started or run.over or draft.state.jobs.get(run.job_id) is None:
        return
    if again or not is_known(run, path, at):
        draft.add(Saved(kind="saved", run_id=run.run_id, path=path, at=at))

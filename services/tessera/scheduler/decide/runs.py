"""Facts about runs: made, bound, started, ended, idle, lost, absent; and what a deadline ends."""

from typing import Literal

from tessera.domain.entities import Earmark, Job, Run
from tessera.domain.quota.idle import idle_policy
from tessera.domain.state import State
from tessera.domain.work.dependencies import explain_detached
from tessera.domain.work.gang import RestartingCopy
from tessera.domain.work.starting import find_awaited, given_ms
from tessera.domain.work.stops import may_end_instead, stopped_ts
from tessera.engine.preemption.group_restarts import is_said_of_former_pod
from tessera.engine.preemption.ladder import choose_rung, failing_nodes
from tessera.engine.preemption.retries import fails_by, final_reason, find_rule, has_held, may_try_again, pause_ms
from tessera.engine.preemption.rules import find_stuck, in_the_way, is_unneeded
from tessera.engine.queueing.readiness import explain_missing_pods
from tessera.scheduler.decide.arrays import cancel_run, hold_failing_array
from tessera.scheduler.decide.draft import SCHEDULER, Draft, give_up_earmark, judges, record_waiting
from tessera.scheduler.decide.elastic import go_on_without, grow_by_shift
from tessera.scheduler.decide.jobs import end_as_owner, record_closed
from tessera.scheduler.decide.machines.nodes import back_off, failed_quickly, note_end
from tessera.scheduler.decide.moves import is_answer_due
from tessera.scheduler.decide.restarts import keep_place, restart_group
from tessera_schemas.facts import (
    BindFailed,
    EvictionBlocked,
    PodsBound,
    PodsLost,
    PodsMade,
    RunAbsent,
    RunEnded,
    RunIdle,
    RunStarted,
    RunUntouched,
    StartDelayed,
)
from tessera_schemas.ledger import (
    Bound,
    Delayed,
    EarmarkEnded,
    Finished,
    Held,
    Permitted,
    Released,
    Requeued,
    Revoked,
    Spared,
    Started,
    Warned,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import STARTS_TELL_ALL_FROM
from tessera_schemas.work.run_ends import CANCELS_FROM_WITHIN, EVICTIONS, Limit, RunEnd, end_of

NODES_NAMED = 4


def is_start_due(state: State, ts: int) -> bool:
    """
    Whether a run, or a pod that one grew by, is past its start's deadline at `ts`, or an offer past that of its answer,
    however it was watched; or a job can no longer end by its own.
    """
    due, missed = state.index.start_by, state.index.latest_starts
    if (missed and missed[0][0] < ts) or is_answer_due(state, ts):
        return True
    if (due and due[0][0] <= ts) or any(_late_copies(run, ts) for run in state.runs.found(state.index.restarting)):
        return True
    return any(0 < extra.deadline <= ts for run in state.runs.found(state.index.elastic) for extra in run.extra)


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
    for run in () if facts_wait else state.runs.found(sorted(state.index.restarting)):
        late = _late_copies(run, state.ts)
        if late and not run.stopping and not draft.full and state.ts >= starts_since + given_ms(state, run):
            numbers = {"seconds": (state.ts - late[0].ts) // 1000, "restarts": late[0].count}
            detail = f"group {late[0].group}, copy {late[0].copy}"
            _end_late(draft, run, Reason(code=Code.START_TIMEOUT, numbers=numbers, detail=detail))
    for mark in sorted(state.earmarks.values(), key=lambda m: m.owner):
        if mark.deadline <= state.ts:
            draft.add(EarmarkEnded(kind="earmark_ended", owner=mark.owner, why="deadline"))
        # An earmark's own deadline needs no fact, since none can save it; whether a run hangs does, since its absence
        # may have been told and not been read.
        elif not facts_wait and (stuck := find_stuck(state, mark)) is not None:
            _give_up_on(draft, mark, stuck)


def _late_copies(run: Run, ts: int) -> list[RestartingCopy]:
    """Copies of groups that were to start again and do not run in time."""
    return [copy for copy in run.restarts if 0 < copy.deadline <= ts]


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
    revoke(draft, run, reason, "deadline", failing=run.slow_nodes)
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
    failing: tuple[str, ...] = (),
    told: RunEnded | BindFailed | None = None,
    observed: str = "",
) -> None:
    """
    Stop a run; its job is tried again unless its own program failed too often, or as a rule of it says.

    `failing` are the nodes that failed it, and `told` is the fact about its pod, where it was one that ended it.
    """
    job = draft.state.jobs.get(run.job_id)
    rule = _find_rule(job, run, reason, told)
    # Decided when the run is stopped, not when it is gone: what the job does next is then in the record, and no fact in
    # between can change it.
    again = job is not None and may_try_again(draft.state, job, run, reason.code, rule)
    then: Literal["requeue", "failed", "cancelled"] = "requeue" if again else "failed"
    avoid = failing if _end_by(job, rule, reason.code).avoids else ()
    # A rule says itself whether the nodes are avoided; the ladder is for the failures that no rule is about.
    climbs = again and not rule
    rung = choose_rung(draft.state, job, reason.code, avoid, has_held(draft.state, run)) if climbs else None
    draft.add(
        Revoked(
            kind="revoked",
            run_id=run.run_id,
            reason=reason,
            then="cancelled" if reason.code in CANCELS_FROM_WITHIN else then,
            by=by,
            avoid=avoid if rung is None else rung.nodes,
            within=told.within if isinstance(told, BindFailed) else (),
            observed=observed,
            rule=rule,
        )
    )
    if rung is not None:
        draft.add(rung)


def _find_rule(job: Job | None, run: Run, reason: Reason | None, told: RunEnded | BindFailed | None) -> int:
    rank, oom = None if told is None else told.rank, isinstance(told, RunEnded) and told.oom
    return find_rule(job, run, reason, rank, oom)


def _end_by(job: Job | None, rule: int, code: Code) -> RunEnd:
    return end_of(code) if job is None else job.retry.end_by(rule, code)


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
    if run is not None and not run.uids and len(fact.uids) == len(run.placements) - run.late:
        draft.add(Permitted(kind="permitted", run_id=run.run_id, uids=fact.uids))


def _permit_more(draft: Draft, run: Run | None, fact: PodsMade) -> None:
    """Permit late pods, and surplus ones that are still wanted: some may have been given up while they were made."""
    if run is None or not len(set(fact.ranks)) == len(fact.ranks) == len(fact.uids):
        return
    # Only ranks without a UID: a permit that is given stays with the pod that it names.
    open_ = {extra.placement.rank for extra in run.extra if not extra.uid and not extra.leaving}
    open_ |= {*find_awaited(run)} if run.started else set()
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
    revoke(draft, run, reason, "binder", failing=fact.nodes, told=fact)
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
    if run is None or run.over or not run.uids or is_said_of_former_pod(run, fact.rank, fact.uid):
        return
    if run.revoked is not None:
        _end_instead(draft, run, run.revoked, fact)
        return
    job = draft.state.jobs.get(run.job_id)
    # A program that its owner's rule fails is not started again by its group either.
    by_rule = fails_by(job, _find_rule(job, run, fact.reason, fact))
    if fact.reason is not None and not by_rule and restart_group(draft, run, fact):
        return
    if fact.reason is not None:
        revoke(draft, run, fact.reason, "binder", failing=failing_nodes(run, fact), told=fact)
        for node in _nodes_of(run, fact.rank):
            note_end(draft, run, node, fact.reason)
        return
    # A short program may end between two looks. Its start is recorded all the same, so that each run that succeeded has
    # started.
    if not run.started:
        on_run_started(draft, index, fact)
    if draft.state.is_replica(run.job_id):
        revoke(draft, run, Reason(code=Code.REPLICA_ENDED), "binder")
        return
    draft.add(Finished(kind="finished", job_id=run.job_id, phase="succeeded", exit_code=0))


def _nodes_of(run: Run, rank: int) -> tuple[str, ...]:
    return tuple(place.node for place in run.all_placements if place.rank == rank)


def _end_instead(draft: Draft, run: Run, revoked: Reason, fact: RunEnded) -> None:
    """The end of a run that was to be stopped, and of which nothing had been, where it may count instead."""
    # A script may cancel its job while others stop the run: they wanted it to begin anew, and its owner does not.
    if fact.reason is not None and fact.reason.code in CANCELS_FROM_WITHIN:
        if run.then == "requeue":
            give_up_earmark(draft, run.job_id)
            cancel_run(draft, run, fact.reason, "binder", now=False)
        return
    # The end is the program's own only where nothing of the run had been touched yet; later it may as well be our
    # signal.
    if not may_end_instead(run) or (fact.reason is None and draft.state.is_replica(run.job_id)):
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
    rule = _find_rule(job, run, fact.reason, fact)
    again = may_try_again(draft.state, job, run, fact.reason.code, rule)
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
            avoid=failing_nodes(run, fact) if _end_by(job, rule, fact.reason.code).avoids else (),
            ended=True,
            rule=rule,
        )
    )


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
            grow_by_shift(draft, run)
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
            reason=final_reason(state, job, run),
            exit_code=run.revoked.numbers.get("exit_code"),
            quick=run.then == "failed" and failed_quickly(run),
            rule=run.rule if run.then == "failed" else 0,
        )
    )
    # The failure is counted by the record above, so that the array is judged afterwards.
    if job.task_of:
        hold_failing_array(draft, job.task_of)


def is_paused_by(job: Job, code: Code) -> bool:
    """Whether a job that is queued again for this reason is put on hold, as a session that nobody uses."""
    # In line again it would hold GPUs for nobody. Users' own pods come back as another job, whatever is said of this.
    is_idle_session = code is Code.IDLE and job.session is not None and job.adopted is None
    return code is Code.PAUSED_AS_IDLE or is_idle_session


def _requeue(draft: Draft, job: Job, run: Run, reason: Reason) -> None:
    """Back into its queue, or on hold where others have broken too many of its runs in a row."""
    state, end, fresh = draft.state, job.retry.end_by(run.rule, reason.code), has_held(draft.state, run)
    reason = job.retry.told_by(run.rule, reason)
    # The pause is reckoned by what came before this run, and forgotten altogether after one that held: a long good run
    # ends every series.
    strikes, troubles, runs = (0, 0, 0) if fresh else (job.strikes, job.troubles, job.attempt - 1)
    pause = pause_ms(job, end, strikes, troubles, runs)
    draft.add(
        Requeued(
            kind="requeued",
            job_id=job.job_id,
            not_before=state.ts + pause if pause else 0,
            reason=reason,
            strike=end.spends,
            trouble=end.troubles,
            fresh=fresh,
            rule=run.rule,
        )
    )
    if is_paused_by(job, reason.code) and not job.held:
        draft.add(Held(kind="held", job_id=job.job_id, by=SCHEDULER))
        record_waiting(draft, job.job_id, reason.model_copy(update={"code": Code.PAUSED_AS_IDLE}))
    # On hold, not failed: whoever broke these runs was not the program, and a release forgives them (ADR 0043).
    elif end.limit is Limit.HOLD and troubles + 1 >= state.tree.policy.requeues_max and not job.held:
        draft.add(Held(kind="held", job_id=job.job_id, by=SCHEDULER))
        numbers = {"runs_in_a_row": troubles + 1} | reason.numbers
        why = Reason(code=Code.HELD_AFTER_REQUEUES, numbers=numbers, detail=f"last: {reason.sentence()}"[:1024])
        record_waiting(draft, job.job_id, why)
    elif job.hold is not None:
        record_waiting(draft, job.job_id, job.hold)
    elif job.adopted is not None:
        record_waiting(draft, job.job_id, explain_missing_pods(job))
    elif job.detached and (away := explain_detached(state, job)) is not None:
        record_waiting(draft, job.job_id, away)
    record_closed(draft, job.job_id, job.queue)
    keep_place(draft, run, end, pause, strikes + troubles)


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

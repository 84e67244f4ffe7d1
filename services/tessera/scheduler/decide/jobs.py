"""Facts about jobs that have not started: admitted, refused, cancelled, held, given another priority."""

from collections.abc import Sequence
from typing import Any

from tessera.domain.entities import RESTART, Job
from tessera.domain.folding.steps import known
from tessera.domain.quota.queue_settings import time_limit_fault
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.ahead.promising import choose_promise
from tessera.engine.queueing.entry import entry_faults, key_conflict
from tessera.engine.queueing.readiness import no_place_in_line, not_in_line
from tessera.engine.queueing.updates import rollout_faults, scale_fault
from tessera.scheduler.decide.arrays import cancel_run, close_array, live_tasks
from tessera.scheduler.decide.draft import Draft, give_up_earmark, judges, record_waiting
from tessera_schemas.facts import (
    REFUSED_MAX,
    REFUSED_PER_TENANT,
    CancelRequested,
    HoldRequested,
    JobAdmitted,
    JobRefused,
    MoveRequested,
    OwnerEnded,
    PriorityRequested,
    RequeueRequested,
    WorkRefused,
)
from tessera_schemas.ledger import (
    Finished,
    Held,
    JobMoved,
    JobQueued,
    JobTurnedAway,
    OwnerEndNoted,
    PrioritySet,
    RefusalNoted,
    Revoked,
    ServiceScaled,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import OPERATOR_HOLDS_FROM, OWNER_ENDS_FROM, REQUEUES_FROM
from tessera_schemas.shard.records import RolloutRequested, ScaleRequested, ServiceRollout
from tessera_schemas.work.arrays import FAMILY

OF_A_QUEUE = (Code.NO_SUCH_QUEUE, Code.QUEUE_STOPPED, Code.BUDGET_SPENT, Code.BEHIND_QUEUE_HEAD, Code.WAITING_FOR_QUOTA)
"""Reasons that are about the queue that a job is in."""


@judges(JobAdmitted)
def on_job_admitted(draft: Draft, index: int, fact: JobAdmitted) -> None:
    """Queues an admitted job; turns it away over a limit, an unknown level, or another spec under a known key."""
    state = draft.state
    # The id follows from the key, so that a job that is known is a repeat: nothing happens, unless the content is
    # another. Then somebody uses one key for two jobs, and silence would make the second one vanish.
    if known(state, fact.job_id):
        seen_job = state.jobs.get(fact.job_id) or state.ended.get(fact.job_id)
        if seen_job is not None and seen_job.spec_hash != fact.digest():
            _turn_away(draft, index, key_conflict(fact.key))
        return
    against = entry_faults(state, fact, draft.new_arrays)
    if against:
        _turn_away(draft, index, *against)
        return
    promise = choose_promise(state, fact, draft.next_number) if fact.spec.start_by_ts else None
    if isinstance(promise, Reason):
        _turn_away(draft, index, promise)
        return
    draft.add(JobQueued(kind="job_queued", fact=index, job_id=fact.job_id, number=draft.next_number))
    if promise is not None:
        draft.add(promise)
    if fact.spec.array is not None:
        draft.new_arrays[fact.job_id[:FAMILY]] = fact.job_id
    if fact.held:
        draft.add(Held(kind="held", job_id=fact.job_id, by=fact.tenant))
        record_waiting(draft, fact.job_id, Reason(code=Code.ON_HOLD))
    elif waits := _waits(draft, fact.job_id):
        record_waiting(draft, fact.job_id, waits)
    record_closed(draft, fact.job_id, fact.spec.queue)


def _waits(draft: Draft, job_id: str) -> Reason | None:
    """Why a job is not in line, if it is not."""
    job = draft.state.jobs.get(job_id)
    return None if job is None else not_in_line(job, draft.state.ts)


def record_closed(draft: Draft, job_id: str, queue: str) -> None:
    """Record why the job waits when its queue or tenant is absent, or its queue stopped; no pass would do so."""
    tree, job = draft.state.tree, draft.state.jobs.get(job_id)
    if job is None:
        return
    absent = no_place_in_line(tree, job)
    if absent is not None:
        record_waiting(draft, job_id, absent)
    elif (stopped := tree.stopped(queue)) is not None:
        record_waiting(draft, job_id, Reason(code=Code.QUEUE_STOPPED, field=f"queues.{stopped}"))


def record_stranded(draft: Draft) -> None:
    """Jobs whose queue or tenant is gone stand in no line, so that nothing else would tell them."""
    state = draft.state
    # Strays are kept by the index: all jobs need not be asked in each message whether their queue is still there.
    stranded = [
        job
        for job in state.jobs.found(state.index.strays)
        if job.phase is Phase.QUEUED
        and not state.tree.takes(job)
        and (job.reason is None or job.reason.code not in (Code.NO_SUCH_QUEUE, Code.NO_SUCH_TENANT))
    ]
    for job in sorted(stranded, key=lambda job: job.job_id):
        if draft.full:
            return
        record_closed(draft, job.job_id, job.queue)


def _turn_away(draft: Draft, index: int, *reasons: Reason) -> None:
    draft.add(JobTurnedAway(kind="job_turned_away", fact=index, reasons=reasons))


@judges(JobRefused)
def on_job_refused(draft: Draft, index: int, fact: JobRefused) -> None:
    """Records that admission refused a job."""
    _turn_away(draft, index)


@judges(CancelRequested)
def on_cancel_requested(draft: Draft, index: int, fact: CancelRequested) -> None:
    """Another tenant's job is treated as one that does not exist."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or fact.tenant not in ("", job.tenant):
        return
    reason = Reason(code=Code.CANCELLED, detail=fact.why)
    if job.array is not None:
        close_array(draft, job, reason, fact.now)
        return
    give_up_earmark(draft, job.job_id)
    if job.phase is Phase.QUEUED:
        draft.add(Finished(kind="finished", job_id=job.job_id, phase="cancelled", reason=reason))
        return
    run = draft.state.runs.get(job.run_id)
    if run is not None:
        cancel_run(draft, run, reason, fact.tenant or "operator", fact.now)


def end_missed(draft: Draft) -> None:
    """End the jobs that can no longer end by their deadline, the earliest first; a run that has begun is none."""
    state = draft.state
    for latest, job_id in list(state.index.latest_starts.irange(maximum=(state.ts - 1, "~"))):
        if draft.full:
            return
        give_up_earmark(draft, job_id)
        numbers = {"latest_start_ts": latest, "late_seconds": (state.ts - latest + 999) // 1000}
        reason = Reason(code=Code.DEADLINE_MISSED, field="deadline_ts", numbers=numbers)
        draft.add(Finished(kind="finished", job_id=job_id, phase="cancelled", reason=reason))


@judges(OwnerEnded)
def on_owner_ended(draft: Draft, index: int, fact: OwnerEnded) -> None:
    """The job ends as its owner has: now if it waits, else once its run is released."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or job.adopted is None or draft.state.format < OWNER_ENDS_FROM:
        return
    if job.phase is Phase.QUEUED:
        end_as_owner(draft, job, fact.reason, job.last_end)
    elif job.owner_end is None:
        draft.add(OwnerEndNoted(kind="owner_end_noted", fact=index, job_id=job.job_id))


def end_as_owner(draft: Draft, job: Job, failed: Reason | None, last: Reason | None) -> None:
    """End a job without a run as its owner has ended; a failure with what is known of the `last` run's end."""
    give_up_earmark(draft, job.job_id)
    if failed is None:
        draft.add(Finished(kind="finished", job_id=job.job_id, phase="succeeded", exit_code=0))
        return
    if last is not None:
        # A kubelet counts the pod's own deadline; its owner then says only that the pod failed.
        code = Code.TIME_LIMIT if last.code is Code.TIME_LIMIT else failed.code
        said = "; ".join(filter(None, (failed.detail, f"last: {last.sentence()}")))
        failed = Reason(code=code, field=failed.field, numbers=last.numbers, detail=said[:1024])
    exit_code = failed.numbers.get("exit_code")
    draft.add(Finished(kind="finished", job_id=job.job_id, phase="failed", reason=failed, exit_code=exit_code))


@judges(HoldRequested)
def on_hold_requested(draft: Draft, index: int, fact: HoldRequested) -> None:
    """A hold keeps the job from its next start; what runs goes on."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or fact.tenant not in ("", job.tenant):
        return
    if job.array is not None:
        for task in live_tasks(draft, job.job_id):
            if task.phase is Phase.QUEUED and not draft.full:
                _hold(draft, task, fact)
    _hold(draft, job, fact)


def _hold(draft: Draft, job: Job, fact: HoldRequested) -> None:
    """An operator's hold takes the place of a tenant's, and no tenant lets it go."""
    # Ledgers of earlier formats know one kind of hold. There everybody lets go of everybody's, as when they were
    # written.
    by_operator = not fact.tenant and draft.state.format >= OPERATOR_HOLDS_FROM
    if fact.undo:
        changes = job.held and (by_operator or not job.operator_hold)
    else:
        changes = not job.held or (by_operator and not job.operator_hold)
    if not changes:
        return
    waits = job.phase is Phase.QUEUED
    if not fact.undo:
        give_up_earmark(draft, job.job_id)
    operator, by = by_operator and not fact.undo, fact.tenant or "operator"
    draft.add(Held(kind="held", job_id=job.job_id, by=by, undo=fact.undo, operator=operator))
    if fact.undo and (name := resume_class(draft.state, job)):
        draft.add(PrioritySet(kind="priority_set", job_id=job.job_id, priority_class=name))
    if waits:
        now = draft.state.jobs.found((job.job_id,))[0]
        record_waiting(draft, job.job_id, now.hold or _waits(draft, job.job_id) or Reason(code=Code.WAITING_FOR_TURN))


def resume_class(state: State, job: Job) -> str:
    """The higher class in which a session that ran before waits once it is released; "" where there is none."""
    tree = state.tree
    name = tree.defaults.sessions.resume_class
    if name is None or name not in tree.priorities or job.session is None or job.adopted is not None:
        return ""
    return name if job.attempt and tree.priority(name) > tree.priority_of(job) else ""


@judges(MoveRequested)
def on_move_requested(draft: Draft, index: int, fact: MoveRequested) -> None:
    """A waiting job goes to another queue that takes jobs of its tenant, an array with all of it that waits."""
    job, queue = draft.state.jobs.get(fact.job_id), draft.state.tree.queues.get(fact.queue)
    if job is None or queue is None or fact.tenant not in ("", job.tenant) or job.phase is not Phase.QUEUED:
        return
    if draft.state.tree.pool(fact.queue) is None or (queue.tenants and job.tenant not in queue.tenants):
        return
    for each in (job, *live_tasks(draft, job.job_id)):
        if each.queue == fact.queue or each.phase is not Phase.QUEUED:
            continue
        if fact.tenant and time_limit_fault(draft.state.tree, fact.queue, job.tenant, each.time_limit_seconds):
            continue  # no way around the queue's longest time limit; an operator may
        # The room was made of what the old queue may have. In the new one the job may have no claim to it, and would
        # start past its order.
        give_up_earmark(draft, each.job_id)
        draft.add(JobMoved(kind="job_moved", job_id=each.job_id, queue=fact.queue, by=fact.tenant or "operator"))
        record_open(draft, each.job_id)


def record_open(draft: Draft, job_id: str) -> None:
    """The job has come to a queue that takes jobs: what was said of its former queue does not hold any more."""
    job = draft.state.jobs.get(job_id)
    if job is None or job.phase is not Phase.QUEUED:
        return
    if job.reason is not None and job.reason.code in OF_A_QUEUE:
        record_waiting(draft, job_id, _waits(draft, job_id) or Reason(code=Code.WAITING_FOR_TURN))
    record_closed(draft, job_id, job.queue)


@judges(PriorityRequested)
def on_priority_requested(draft: Draft, index: int, fact: PriorityRequested) -> None:
    """Adopted work keeps the priority that Kubernetes gave it."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or fact.tenant not in ("", job.tenant) or job.priority_class == fact.priority_class or job.adopted:
        return
    if fact.priority_class not in draft.state.tree.priorities:
        return
    for each in (job, *live_tasks(draft, job.job_id)):
        if each.priority_class != fact.priority_class and (each is job or each.phase is Phase.QUEUED):
            _give_up_place(draft, each.job_id, fact.priority_class)
            draft.add(PrioritySet(kind="priority_set", job_id=each.job_id, priority_class=fact.priority_class))


def _give_up_place(draft: Draft, job_id: str, priority_class: str) -> None:
    """Ends what is kept for a job in a lower class: those whom it evicts may be of its new class or above."""
    state, mark = draft.state, draft.state.earmarks.get(job_id)
    lower = state.tree.priority(priority_class) < state.tree.priority_of(state.jobs.get(job_id))
    if mark is not None and mark.cause in (RESTART, "preemption") and lower:
        give_up_earmark(draft, job_id)


@judges(RequeueRequested)
def on_requeue_requested(draft: Draft, index: int, fact: RequeueRequested) -> None:
    """The job's run is stopped and the job goes back in line, of an array each task that runs; what waits stays so."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or fact.tenant not in ("", job.tenant) or draft.state.format < REQUEUES_FROM:
        return
    reason, by = Reason(code=Code.REQUEUE_ASKED), fact.tenant or "operator"
    for each in (job, *live_tasks(draft, job.job_id)):
        run = draft.state.runs.get(each.run_id)
        if run is not None and not (run.stopping or run.over):
            draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=reason, then="requeue", by=by))


@judges(ScaleRequested)
def on_scale_requested(draft: Draft, index: int, fact: ScaleRequested) -> None:
    """A service gets another number of replicas; what follows from that the next messages bring about."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or job.array is None or fact.tenant not in ("", job.tenant):
        return
    if scale_fault(job, fact.replicas) is None and job.array.wanted != fact.replicas:
        by = fact.tenant or "operator"
        draft.add(ServiceScaled(kind="service_scaled", job_id=job.job_id, replicas=fact.replicas, by=by))


@judges(RolloutRequested)
def on_rollout_requested(draft: Draft, index: int, fact: RolloutRequested) -> None:
    """A service gets another revision; its replicas get it one after the other, by the messages that follow."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or job.array is None or fact.tenant not in ("", job.tenant):
        return
    if rollout_faults(job, fact.revision, fact.undo, fact.programs):
        return
    begun: dict[str, Any] = {"state": "begun", "revision": job.array.revision + 1, "fact": index}
    by = fact.tenant or "operator"
    draft.add(ServiceRollout(kind="service_rollout", job_id=job.job_id, by=by, **begun))


@judges(WorkRefused)
def on_work_refused(draft: Draft, index: int, fact: WorkRefused) -> None:
    """Noted when it is news. Of a tenant with too many the first are shown, and the next as these are mended."""
    known = draft.state.refused.get(fact.work_id)
    # A withdrawal of what was never noted says nothing. The bound is on new ones alone: a refusal that is known is
    # always brought up to date, or it would be shown for ever.
    if known is None and (not fact.reasons or _is_full(draft.state, fact.tenant)):
        return
    if known is None or (known.tenant == fact.tenant and _codes(known.reasons) != _codes(fact.reasons)):
        draft.add(RefusalNoted(kind="refusal_noted", fact=index))


def _is_full(state: State, tenant: str) -> bool:
    of_tenant = sum(work.tenant == tenant for work in state.refused.values())
    return of_tenant >= REFUSED_PER_TENANT or len(state.refused) >= REFUSED_MAX


def _codes(reasons: Sequence[Reason]) -> list[tuple[str, str]]:
    """Numbers change with each look."""
    return [(reason.code, reason.field) for reason in reasons]

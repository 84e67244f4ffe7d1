"""Facts about jobs that have not started: admitted, refused, cancelled, held, given another priority."""

from tessera.domain.entities import Use
from tessera.domain.fold_steps import known
from tessera.domain.levels import unknown_levels
from tessera.domain.phases import Phase
from tessera.domain.state import State
from tessera.scheduler.decide.draft import Draft, judges, say_waiting
from tessera_schemas.facts import CancelRequested, HoldRequested, JobAdmitted, JobRefused, PriorityRequested
from tessera_schemas.ledger import EarmarkEnded, Finished, Held, JobQueued, JobTurnedAway, PrioritySet, Revoked
from tessera_schemas.reasons import Code, Reason

COUNTABLE = 2**62  # sums of a tenant's jobs; the canonical form of the state holds no integer above 64 bits


@judges(JobAdmitted)
def on_job_admitted(draft: Draft, index: int, fact: JobAdmitted) -> None:
    """Queues an admitted job; turns it away over a limit, an unknown level, or another spec under a known key."""
    state = draft.state
    if known(state, fact.job_id):
        known_job = state.jobs.get(fact.job_id) or state.ended.get(fact.job_id)
        if known_job is not None and known_job.spec_hash != fact.digest():
            _turn_away(draft, index, Reason(code=Code.IDEMPOTENCY_CONFLICT, field="key", detail=fact.key))
        return
    over = _over_limit(state, fact)
    # Admission saw an older configuration, perhaps.
    against = [*([] if over is None else [over]), *unknown_levels(fact.spec.roles, state.tree.levels)]
    if against:
        _turn_away(draft, index, *against)
        return
    draft.add(JobQueued(kind="job_queued", fact=index, job_id=fact.job_id))
    if fact.held:
        draft.add(Held(kind="held", job_id=fact.job_id, by=fact.tenant))
        say_waiting(draft, fact.job_id, Reason(code=Code.ON_HOLD))
    say_closed(draft, fact.job_id, fact.spec.queue)


def say_closed(draft: Draft, job_id: str, queue: str) -> None:
    """Record why the job waits when its queue is absent or stopped; no pass over the queue would do so."""
    tree = draft.state.tree
    if tree.pool(queue) is None:
        say_waiting(draft, job_id, Reason(code=Code.NO_SUCH_QUEUE, field="queue", detail=queue))
    elif (stopped := tree.stopped(queue)) is not None:
        say_waiting(draft, job_id, Reason(code=Code.QUEUE_STOPPED, field=f"queues.{stopped}"))


def say_stranded(draft: Draft) -> None:
    """Jobs whose queue is gone stand in no line, so that nothing else would tell them."""
    state = draft.state
    stranded = [
        job
        for job_id in state.index.orphaned
        if (job := state.jobs.get(job_id)) is not None
        and job.phase is Phase.QUEUED
        and state.tree.pool(job.queue) is None
        and (job.reason is None or job.reason.code is not Code.NO_SUCH_QUEUE)
    ]
    for job in sorted(stranded, key=lambda job: job.job_id):
        if draft.full:
            return
        say_closed(draft, job.job_id, job.queue)


def _over_limit(state: State, fact: JobAdmitted) -> Reason | None:
    """Limits that count: here and not in admission, whose replicas race."""
    use = state.tenant_use.get(fact.tenant) or Use(fact.tenant)
    for name in ("cpu_milli", "memory_bytes"):
        more = sum(role.gang * getattr(role, name) for role in fact.spec.roles)
        if getattr(use.amount, name) + more > COUNTABLE:
            return Reason(code=Code.LIMIT_EXCEEDED, field=name, detail="more than can be counted")
    tenant = state.tree.tenants.get(fact.tenant)
    if tenant is None:
        return None
    limits, jobs, gpu_milli = tenant.limits, use.jobs, use.amount.gpu_milli
    if limits.jobs is not None and jobs + 1 > limits.jobs:
        return Reason(code=Code.LIMIT_EXCEEDED, field="limits.jobs", numbers={"jobs": jobs, "limit": limits.jobs})
    wanted = fact.spec.gpu_milli()
    if limits.gpus is not None and wanted and gpu_milli + wanted > limits.gpus * 1000:
        numbers = {"gpu_milli": gpu_milli, "wanted_gpu_milli": wanted, "limit_gpu_milli": limits.gpus * 1000}
        return Reason(code=Code.LIMIT_EXCEEDED, field="limits.gpus", numbers=numbers)
    return None


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
    give_up_earmark(draft, job.job_id)
    if job.phase is Phase.QUEUED:
        draft.add(Finished(kind="finished", job_id=job.job_id, phase="cancelled", reason=reason))
        return
    run = draft.state.runs.get(job.run_id)
    if run is None or run.over:
        return
    hurries = fact.now and not run.hurried
    if not run.stopping or run.then == "requeue" or hurries:
        by, then = fact.tenant or "operator", "failed" if run.then == "failed" else "cancelled"
        draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=reason, then=then, by=by, now=hurries))


def give_up_earmark(draft: Draft, owner: str) -> None:
    """End the job's earmark; the room is free for all again."""
    if draft.state.earmarks.get(owner) is not None:
        draft.add(EarmarkEnded(kind="earmark_ended", owner=owner, why="owner_gone"))


@judges(HoldRequested)
def on_hold_requested(draft: Draft, index: int, fact: HoldRequested) -> None:
    """A hold keeps the job from its next start; what runs goes on."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or fact.tenant not in ("", job.tenant) or job.held is not fact.undo:
        return
    waits = job.phase is Phase.QUEUED
    if not fact.undo:
        give_up_earmark(draft, job.job_id)
    draft.add(Held(kind="held", job_id=job.job_id, by=fact.tenant or "operator", undo=fact.undo))
    if waits:
        say_waiting(draft, job.job_id, Reason(code=Code.WAITING_FOR_TURN if fact.undo else Code.ON_HOLD))


@judges(PriorityRequested)
def on_priority_requested(draft: Draft, index: int, fact: PriorityRequested) -> None:
    """Adopted work keeps the priority that Kubernetes gave it."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or fact.tenant not in ("", job.tenant) or job.priority_class == fact.priority_class or job.adopted:
        return
    if fact.priority_class not in draft.state.tree.priorities:
        return
    draft.add(PrioritySet(kind="priority_set", job_id=job.job_id, priority_class=fact.priority_class))

"""Facts that ask for other values in the spec of a job: carried out, or refused in the ledger with all reasons."""

from tessera.domain.entities import Job
from tessera.domain.work.phases import Phase
from tessera.engine.queueing.readiness import not_in_line
from tessera.engine.queueing.updates import news_of, news_of_task, update_faults, waiting_tasks
from tessera.scheduler.decide.draft import Draft, judges, record_waiting
from tessera.scheduler.decide.jobs import give_up_earmark, record_closed
from tessera_schemas.facts import UpdateRequested
from tessera_schemas.ledger import JobTurnedAway, JobUpdated, Waiting
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import UPDATES_FROM
from tessera_schemas.work.spec_changes import SpecChanges

OF_THE_SPEC = (Code.BEGIN_TIME, Code.DEPENDENCY_NOT_MET)
"""Reasons to wait that a change of the spec may make void, or true."""


@judges(UpdateRequested)
def on_update_requested(draft: Draft, index: int, fact: UpdateRequested) -> None:
    """A waiting job gets all of it, an array with its tasks that wait; a run at most a lower time limit."""
    if draft.state.format < UPDATES_FROM:
        return
    job = draft.state.jobs.get(fact.job_id)
    if job is None or fact.tenant not in ("", job.tenant):
        _refuse(draft, index, [_absent(draft, fact)])
        return
    against = update_faults(draft.state, job, fact.changes, by_tenant=bool(fact.tenant))
    if against:
        _refuse(draft, index, against)
        return
    by, tasks = fact.tenant or "operator", waiting_tasks(draft.state, job)
    _update(draft, job, news_of(draft.state, job, fact.changes), by)
    for task in tasks:
        _update(draft, task, news_of_task(draft.state, task, fact.changes), by)


def _absent(draft: Draft, fact: UpdateRequested) -> Reason:
    """Another tenant's job is treated as one that does not exist."""
    ended = draft.state.ended.get(fact.job_id)
    if ended is not None and fact.tenant in ("", ended.tenant):
        return Reason(code=Code.ALREADY_ENDED, field="job_id", detail=ended.phase.value)
    return Reason(code=Code.NO_SUCH_JOB, field="job_id")


def _refuse(draft: Draft, index: int, against: list[Reason]) -> None:
    """The record names no absent job: its event is public to the sender, and the job may be another tenant's."""
    reasons = (why.model_copy(update={"detail": ""}) if why.code is Code.NO_SUCH_JOB else why for why in against)
    draft.add(JobTurnedAway(kind="job_turned_away", fact=index, reasons=tuple(reasons)))


def _update(draft: Draft, job: Job, changes: SpecChanges | None, by: str) -> None:
    if changes is None:
        return
    # Room that is kept for a job which now waits for a time or for another job would stand idle up to its deadline.
    leaves_line = changes.after or (changes.begin_ts or 0) > draft.state.ts
    if leaves_line and job.phase is Phase.QUEUED:
        give_up_earmark(draft, job.job_id)
    draft.add(JobUpdated(kind="job_updated", job_id=job.job_id, changes=changes, by=by))
    if changes.after is not None or changes.begin_ts is not None:
        _tell_why(draft, job.job_id)


def _tell_why(draft: Draft, job_id: str) -> None:
    """The reason to wait, where what was said of another job or another time does not hold any more."""
    job = draft.state.jobs.found((job_id,))[0]
    waits = job.hold or not_in_line(job, draft.state.ts)
    if waits is None and job.reason is not None and job.reason.code in OF_THE_SPEC:
        record_waiting(draft, job_id, Reason(code=Code.WAITING_FOR_TURN))
        record_closed(draft, job_id, job.queue)
    elif waits is not None and waits != job.reason:
        draft.add(Waiting(kind="waiting", job_id=job_id, reason=waits))

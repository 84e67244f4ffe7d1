"""
Facts that ask for other values in the spec of a job, or for another size of its pods: carried out, or refused in the
ledger with all reasons; and facts that say what was measured of the GPUs of its run, and where it has saved its work.
"""

from tessera.domain.entities import Job
from tessera.domain.work.checkpoints import is_known, is_used_again
from tessera.domain.work.phases import Phase
from tessera.engine.preemption.resizes import ResizePlan, plan_resize
from tessera.engine.queueing.readiness import not_in_line
from tessera.engine.queueing.updates import news_of, news_of_task, update_faults, waiting_tasks
from tessera.scheduler.decide.draft import Draft, give_up_earmark, judges, record_waiting
from tessera.scheduler.decide.jobs import record_closed
from tessera.scheduler.decide.moves import answer_by_checkpoint
from tessera_schemas.facts import CheckpointReported, CheckpointSaved, RunUsed, UpdateRequested
from tessera_schemas.ledger import JobTurnedAway, JobUpdated, Saved, UseNoted, Waiting
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import GPU_USE_FROM, SESSION_WARNINGS_FROM, UPDATES_FROM
from tessera_schemas.shard.records import (
    PodsResized,
    ResizeBegun,
    ResizeEnded,
    ResizeRequested,
    SessionUnused,
    SessionWarned,
)
from tessera_schemas.work.spec_changes import SpecChanges

OF_THE_SPEC = (Code.BEGIN_TIME, Code.DEPENDENCY_NOT_MET)
"""Reasons to wait that a change of the spec may make void, or true."""


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


@judges(SessionUnused)
def on_session_unused(draft: Draft, index: int, fact: SessionUnused) -> None:
    """The warning of a session's pod, and its end, once each: the pod itself stops, by the rule of its job."""
    run, state = draft.state.runs.get(fact.run_id), draft.state
    job = None if run is None else state.jobs.get(run.job_id)
    if run is None or job is None or job.session is None or state.format < SESSION_WARNINGS_FROM:
        return
    goes_on = run.started and not run.over and run.revoked is None
    if goes_on and bool(job.session.idle_seconds) and fact.again == bool(run.unused_until):
        stops_ts = 0 if fact.again else state.ts + job.session.warning_seconds * 1000
        draft.add(SessionWarned(kind="session_warned", run_id=run.run_id, stops_ts=stops_ts))


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


@judges(ResizeRequested)
def on_resize_requested(draft: Draft, index: int, fact: ResizeRequested) -> None:
    """Let the pods of a run have another size, or refuse that with all reasons; the size that they have is no news."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or fact.tenant not in ("", job.tenant):
        _refuse(draft, index, [_absent(draft, fact)])
        return
    found = plan_resize(draft.state, job, fact.size)
    if not isinstance(found, ResizePlan):
        _refuse(draft, index, found)
    elif found.to is not None:
        by, amounts = fact.tenant or "operator", found.to.model_dump()
        draft.add(ResizeBegun(kind="resize_begun", run_id=job.run_id, request=fact.key, by=by, **amounts))


@judges(PodsResized)
def on_pods_resized(draft: Draft, index: int, fact: PodsResized) -> None:
    """The end of the resize that is under way, or its way back; what is told of another one is late."""
    run = draft.state.runs.get(fact.run_id)
    resize = None if run is None or run.stopping else run.resize
    if resize is None or resize.request != fact.key or (fact.reason is not None and resize.is_back):
        return
    size = (resize.to if fact.reason is None else resize.before).model_dump()
    ended = ResizeEnded(kind="resize_ended", run_id=fact.run_id, request=fact.key, reason=fact.reason, **size)
    draft.add(ended)


def _absent(draft: Draft, fact: UpdateRequested | ResizeRequested) -> Reason:
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
        answer_by_checkpoint(draft, run.run_id)

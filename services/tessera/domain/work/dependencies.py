"""Whether what a job waits for of other jobs has come true, can never come true, or is open. Pure."""

from collections.abc import Sequence
from typing import Any, Literal

from tessera.domain.entities import EndedJob, Job
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.domain.work.task_array import TaskArray
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import ENDED_ARRAYS_FROM
from tessera_schemas.work.arrays import FAMILY, Dependency, has_task, index_of, ranges_from


def array_of(state: State, job_id: str) -> str | None:
    """The tasks of a live or remembered array, as written; None for any other job."""
    job: Job | EndedJob | None = state.jobs.get(job_id) or state.ended.get(job_id)
    return None if job is None or job.array is None else job.array.tasks


def own_dependencies(state: State, after: Sequence[Dependency]) -> tuple[Dependency, ...]:
    """Conditions on the job itself; of a job that is no array `aftercorr` asks no more than `afterok`."""
    return tuple(
        each if each.condition != "aftercorr" else each.model_copy(update={"condition": "afterok"})
        for each in after
        if each.condition != "aftercorr" or array_of(state, each.job or "") is None
    )


def corresponding_arrays(state: State, after: Sequence[Dependency]) -> tuple[str, ...]:
    """The arrays whose tasks the tasks of this one wait for, each for that of its own index."""
    named = [each.job for each in after if each.condition == "aftercorr"]
    return tuple(job for job in named if job is not None and array_of(state, job) is not None)


def array_of_task(state: State, job_id: str) -> Job | EndedJob | None:
    """The array of which this could be a task's id: a live one, or one that is remembered as cut short."""
    found = state.relations.families.get(job_id[:FAMILY], "")
    if not found and state.format >= ENDED_ARRAYS_FROM:
        found = state.remembered.cut_short(job_id)
    job = state.jobs.get(found) or state.ended.get(found)
    return None if job is None or job.array is None else job


def unqueued_task(array: Job | EndedJob | None, job_id: str) -> TaskArray | None:
    """The array, where this is the id of one of its tasks that was not queued (yet)."""
    if array is None or array.array is None or array.job_id[:FAMILY] != job_id[:FAMILY]:
        return None
    left = ranges_from(array.array.tasks, array.array.queued)
    return array.array if left and has_task(left, index_of(job_id)) else None


def awaited_by(job: Job) -> dict[str, Any]:
    """Fields of the job's view about other jobs that it goes by."""
    return {"after": job.after, "attached_to": "" if job.attached is None else job.attached.job}


def settled(state: State, job: Job, dependency: Dependency) -> bool | None:
    """True once it holds, False when it never will, None while that is open."""
    if dependency.job is None:
        return None if state.relations.has_older_namesake(state.jobs, job) else True
    other = state.jobs.get(dependency.job)
    if other is not None:
        return True if dependency.condition == "after" and _has_started(other) else None
    ended = state.ended.get(dependency.job)
    array = array_of_task(state, dependency.job) if ended is None else None
    if (tasks := unqueued_task(array, dependency.job)) is not None:
        # Cancelled with its array. One that ended before it queued any, as by what it waited for, was never closed.
        is_open = tasks.closed is None and isinstance(array, Job)
        return None if is_open else dependency.condition != "afterok"
    if dependency.condition in ("after", "afterany"):
        return True
    if ended is None:
        return False  # how it ended is forgotten
    return (ended.phase is Phase.SUCCEEDED) is (dependency.condition == "afterok")


def is_decided(state: State, job_id: str) -> bool:
    """Whether any of what the live job waits for holds or never will."""
    job = state.jobs.get(job_id)
    if job is None:
        return False
    return attachment_step(state, job) is not None or any(settled(state, job, each) is not None for each in job.after)


def attachment_step(state: State, job: Job) -> Literal["attach", "detach", "end"] | None:
    """
    Step that follows for an attached job from how the job that it is attached to stands; None where nothing does.

    It is in line and runs while the other one runs, and ends with that one; with `on_detach` cancel, with its run.
    """
    if job.attached is None:
        return None
    target = state.jobs.get(job.attached.job)
    if target is not None and target.phase is Phase.RUNNING:
        return "attach" if job.detached else None
    if target is None or (job.attached.on_detach == "cancel" and not job.detached):
        run = state.runs.get(job.run_id)
        return None if run is not None and (run.over or run.then in ("cancelled", "failed")) else "end"
    return None if job.detached else "detach"


def explain_detached(state: State, job: Job) -> Reason | None:
    """Why an attached job waits or was stopped: that the other one does not run, or has ended; None where it runs."""
    target = None if job.attached is None else state.jobs.get(job.attached.job)
    if job.attached is None or (target is not None and target.phase is Phase.RUNNING):
        return None
    ended = state.ended.get(job.attached.job) if target is None else None
    name = target.name if target is not None else ended.name if ended is not None else ""
    how = target.phase if target is not None else ended.phase if ended is not None else "ended"
    detail = f"{name} ({job.attached.job}) {how}".strip()
    return Reason(code=Code.TARGET_NOT_RUNNING if target else Code.TARGET_ENDED, field="attach_to", detail=detail)


def _has_started(job: Job) -> bool:
    """Whether a run of it has started; of an array, whether the last of its tasks has its devices."""
    return job.started_ts > 0 if job.array is None else not job.array.left and not job.array.waiting

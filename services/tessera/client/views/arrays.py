"""A job array as lists and screens show it: how far it is, and which of its tasks failed and why."""

from collections.abc import Sequence

from tessera.client.connect.shard_views import ENDED, ShardViews
from tessera_schemas.views import ArrayView, JobView

SHOWN = 20
"""Failed tasks that a screen names; `-o json` names all."""
FAILED = "failed"


def count_tasks(array: ArrayView) -> str:
    """Counts by phase, without what there is none of, tasks to come as waiting; of a service, its size."""
    if array.max_replicas:
        size = f"{array.min_replicas} guaranteed, at most {array.max_replicas}"
        if array.revision > 1:
            size += f"; revision {array.revision}" + (f", {array.rollout}" if array.rollout else "")
        return f"{array.running} of {array.replicas} replicas run ({size})"
    ended = array.succeeded + array.failed + array.cancelled
    counts = {
        "running": array.running,
        "waiting": array.count - array.running - ended,
        "succeeded": array.succeeded,
        FAILED: array.failed,
        "cancelled": array.cancelled,
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def phase_now(job: JobView) -> str:
    """Phase of a job; of an array, which itself never runs, `running` while any task does."""
    return "running" if job.array is not None and job.array.running and job.phase not in ENDED else job.phase


async def failed_tasks(views: ShardViews, job: JobView) -> Sequence[JobView]:
    """The tasks of an array that failed, by index; none of another job."""
    return await views.tasks(job, FAILED) if job.array is not None and job.array.failed else ()


def failed_lines(job: JobView, failed: Sequence[JobView]) -> list[str]:
    """Lines that name failed tasks with their reasons; those that lists show no more are counted."""
    if job.array is None or not job.array.failed:
        return []
    lines = [f"{job.array.failed} of {job.array.count} tasks failed:"]
    for task in failed[:SHOWN]:
        code = "" if task.exit_code is None else f"exit code {task.exit_code}"
        why = "" if task.reason is None else task.reason.sentence()
        lines.append(f"  - task {task.task}: {'; '.join(filter(None, [code, why]))}")
    more = job.array.failed - min(len(failed), SHOWN)
    return [*lines, *([f"  - and {more} more; `-o json` names those that lists still show"] if more else [])]


def array_lines(job: JobView, failed: Sequence[JobView]) -> list[str]:
    """Progress of an array, and its failed tasks."""
    if job.array is None:
        return []
    if job.array.max_replicas:
        return [f"A service: {count_tasks(job.array)}.", *failed_lines(job, failed)]
    return [f"Of its {job.array.count} tasks: {count_tasks(job.array)}.", *failed_lines(job, failed)]

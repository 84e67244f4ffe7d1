"""
Whether a job would wait for itself, by way of others. Pure.

At its submit a job names older jobs alone, so that none can; a change of what it waits for, or of its name, may.
"""

from collections.abc import Iterator

from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera_schemas.work.arrays import FAMILY


def waits_for_itself(state: State, job: Job) -> bool:
    """Whether the job, as it would be, waits for another that waits for it; as of before the present message."""
    seen, open_ids = set[str](), list(_waits_for(state, job, job))
    while open_ids:
        other = open_ids.pop()
        if other == job.job_id:
            return True
        if other not in seen:
            seen.add(other)
            live = state.jobs.get(other)
            open_ids += [] if live is None else _waits_for(state, live, job)
    return False


def _waits_for(state: State, job: Job, changed: Job) -> Iterator[str]:
    """Ids of live jobs that a job waits for: of an array also its tasks, and instead of a task to come its array."""
    for each in job.after:
        if each.job is None:
            yield from (other.job_id for other in state.relations.older_namesakes(state.jobs, job))
            if _is_older_namesake(changed, job):
                yield changed.job_id
        elif state.jobs.get(each.job) is not None:
            yield each.job
        else:
            yield state.relations.families.get(each.job[:FAMILY], "")
    if job.attached is not None:
        yield job.attached.job
    if job.array is not None:
        yield from job.array.follows
        yield from state.relations.tasks.get(job.job_id, ())


def _is_older_namesake(other: Job, job: Job) -> bool:
    """Whether `singleton` makes the job wait for the other one."""
    alike = (other.tenant, other.user, other.name) == (job.tenant, job.user, job.name)
    return alike and not other.task_of and (other.taken_n, other.fact_index) < (job.taken_n, job.fact_index)

"""Jobs by what people call them, from the fold: a list may lack the job that was submitted a moment ago."""

from heapq import nsmallest

from tessera.domain.entities import EndedJob, Job
from tessera.domain.state import State

ID_PREFIX_MIN = 4
"""Characters by which a job may be named that are the beginning of its id."""
NAMED_MAX = 100
"""Jobs that are found by one name; live ones first, then the newest."""


def ids_named(state: State, tenant: str | None, named: str) -> list[str]:
    """
    Ids of jobs, and of refused work, that are called so: by name, number, or the beginning of the id.

    Of `tenant` alone, None for all. Live jobs come first, then refused work, then ended jobs, the newest first.
    """
    known: list[tuple[int, int, str]] = []
    for rank, jobs in ((0, state.jobs), (2, state.ended)):
        known += [
            (rank, -job.submitted_ts, job.job_id)
            for job in jobs.values()
            if tenant in (None, job.tenant) and _is_called(job, named)
        ]
    known += [
        (1, -work.since_ts, work.work_id)
        for work in state.refused.values()
        if tenant in (None, work.tenant) and (named == work.owner.rpartition("/")[2] or _begins(work.work_id, named))
    ]
    return [job_id for _, _, job_id in nsmallest(NAMED_MAX, known)]


def _is_called(job: Job | EndedJob, named: str) -> bool:
    return named == job.name or named == str(job.number) or _begins(job.job_id, named)


def _begins(job_id: str, named: str) -> bool:
    return len(named) >= ID_PREFIX_MIN and job_id.startswith(named)

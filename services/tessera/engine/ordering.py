"""
Who is next: priority class first, then age, per pool; jobs in back-off are left out until their time.

A later job may start before an earlier one that does not fit (Kueue's BestEffortFIFO).
"""

from itertools import islice

from tessera.domain.state import State
from tessera_schemas.orders import HEADS_MAX


def order(state: State, pool: str, ts: int) -> tuple[str, ...]:
    """The ids of the next jobs of the pool as of `state` and the time `ts`, at most 512."""
    index, jobs = state.index, state.jobs
    if not index.retry_at:
        return tuple(islice(index.line(pool), HEADS_MAX))
    eligible = (job_id for job_id in index.line(pool) if (job := jobs.get(job_id)) is not None and job.not_before <= ts)
    return tuple(islice(eligible, HEADS_MAX))


def next_retry(state: State, ts: int) -> int | None:
    """When the next job in back-off becomes eligible; None when none is waiting."""
    later = state.index.retry_at.irange((ts + 1,))
    return next((not_before for not_before, _ in later), None)

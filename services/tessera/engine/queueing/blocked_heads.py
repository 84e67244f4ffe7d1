"""Blocked heads: the next waiting jobs that others keep waiting, for which making room may pay."""

from itertools import islice

from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.engine.queueing.ordering import order_jobs
from tessera_schemas.reasons import Code

STUCK = (Code.NO_FIT, Code.WAITING_FOR_QUOTA, Code.RESERVED, Code.DOES_NOT_STOP)
"""What others' leaving would change. The committer has tried such a job and said so."""


def stuck_heads(state: State, ts: int, heads: int) -> list[Job]:
    """Jobs that found no room or quota, among the first `heads` of each pool without an earmark, in their order."""
    found: list[Job] = []
    for pool in sorted(state.tree.queues_of):
        first = (job for job_id in order_jobs(state, pool, ts) if (job := state.jobs.get(job_id)) is not None)
        waiting = (job for job in first if state.earmarks.get(job.job_id) is None)
        found += [job for job in islice(waiting, heads) if job.reason is not None and job.reason.code in STUCK]
    return found

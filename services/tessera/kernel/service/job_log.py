"""
Lines of a log about one job: each service says under the job's id what it did, once a step and not once a look.

Whoever searches the logs of all services for an id finds the job's way through them.
"""

from collections.abc import Iterable

import structlog

from tessera_schemas.facts import AnyFact
from tessera_schemas.ledger import (
    JOB_OF,
    Allocated,
    AnyRecord,
    Finished,
    JobQueued,
    Released,
    Requeued,
    Revoked,
    Started,
)

STEPS = frozenset({JobQueued, Allocated, Started, Revoked, Requeued, Released, Finished})
"""Records that move a job on."""

log = structlog.get_logger()


def log_fact(fact: AnyFact) -> None:
    """Say that a fact about a job is stored; nothing for one about something else."""
    run = getattr(fact, "run_id", "")
    job = run.rpartition("-")[0] or getattr(fact, "job_id", "")
    if job:
        log.info("fact_published", fact=fact.kind, job=job, **({"run": run} if run else {}))


def log_steps(n: int, records: Iterable[AnyRecord]) -> None:
    """Say what message `n` of the ledger did with jobs."""
    bound = log.bind()
    for record in records:
        if type(record) in STEPS:
            bound.info("job_step", record=record.kind, job=JOB_OF[type(record)](record), n=n)

"""Specs of live jobs, read from the ledger message that took the job in: the state has what decisions need alone."""

from tessera.domain.entities import Job
from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ports import Ledger
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.job import JobSpec


async def read_spec(ledger: Ledger, job: Job) -> JobSpec | None:
    """The spec of a live job, of a task that of its array; None where the message is not there. Raises Transient."""
    message = await ledger.read(job.taken_n)
    if message is None:
        return None
    fact = decode_entry(message).message.facts[job.fact_index].fact
    return fact.spec if isinstance(fact, JobAdmitted) and fact.job_id == (job.task_of or job.job_id) else None

"""Specs of jobs, read from the ledger message that took the job in: the state has what decisions need alone."""

from tessera.domain.entities import EndedJob, Job
from tessera.domain.work.current_spec import with_programs
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ports import Ledger
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import JobQueued, LedgerMessage
from tessera_schemas.shard.records import RolloutRequested


async def read_spec(ledger: Ledger, job: Job) -> JobSpec | None:
    """The spec of a live job, of a task that of its array; None where the message is not there. Raises Transient."""
    message = await ledger.read(job.taken_n)
    if message is None:
        return None
    fact, submitted = decode_entry(message).message.facts[job.fact_index].fact, job.task_of or job.job_id
    if not isinstance(fact, JobAdmitted) or fact.job_id != submitted:
        return None
    return await with_revision(ledger, job, fact.spec)


async def with_revision(ledger: Ledger, job: Job | EndedJob, spec: JobSpec) -> JobSpec | None:
    """The spec that was submitted with the programs of the job's revision; None where their message is not there."""
    if not job.spec_at:
        return spec
    n, index = job.spec_at
    message = await ledger.read(n)
    if message is None:
        return None
    fact = decode_entry(message).message.facts[index].fact
    if not isinstance(fact, RolloutRequested) or fact.job_id != (job.task_of or job.job_id):
        return None
    return with_programs(spec, fact.programs)


async def find_admitted(ledger: Ledger, job_id: str, submitted_ts: int) -> JobAdmitted | None:
    """
    The fact by which a job or array was taken in, also long after its end, when nothing but its time is remembered.

    The message is found by its time, since times in a ledger never decrease; some twenty are read for it. None where
    it has left the ledger by a roll-over. Raises Transient.
    """
    tail = await ledger.tail()
    last = 0 if tail is None else tail.seq
    n = await find_first_since(ledger, await ledger.first(), last, submitted_ts)
    while n <= last:
        message = await _read(ledger, n)
        if message.ts > submitted_ts:
            return None
        for record in message.records:
            if isinstance(record, JobQueued) and record.job_id == job_id:
                fact = message.facts[record.fact].fact
                return fact if isinstance(fact, JobAdmitted) else None
        n += 1
    return None


async def find_first_since(ledger: Ledger, first: int, last: int, ts: int) -> int:
    """Number of the first message from `first` to `last` that is of `ts` or later, `last` + 1 for none."""
    while first <= last:
        middle = (first + last) // 2
        if (await _read(ledger, middle)).ts < ts:
            first = middle + 1
        else:
            last = middle - 1
    return first


async def _read(ledger: Ledger, n: int) -> LedgerMessage:
    message = await ledger.read(n)
    if message is None:
        raise Transient(f"ledger message {n} is not there: a replica lags, or the ledger is rolled over just now")
    return decode_entry(message).message

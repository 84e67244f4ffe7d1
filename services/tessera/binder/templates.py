"""The job specs that the binder needs: remembered while fresh, else fetched from the ledger that holds them."""

from collections import OrderedDict

from tessera.domain.entities import Job
from tessera.kernel.errors import InvariantViolation
from tessera.kernel.ports import Ledger
from tessera.kernel.shard import Entry, decode_entry
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import JobQueued

REMEMBERED = 4096


class Templates:
    """Specs by job id, at most `REMEMBERED` of them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._specs: OrderedDict[str, JobSpec] = OrderedDict()

    def note(self, entry: Entry) -> None:
        """Remember the specs that this entry took in."""
        for record in entry.message.records:
            if type(record) is JobQueued:
                fact = entry.message.facts[record.fact].fact
                if isinstance(fact, JobAdmitted):
                    self._remember(record.job_id, fact.spec)

    async def of(self, job: Job) -> JobSpec:
        """The spec of a live job, from memory or from ledger message `job.taken_n`."""
        known = self._specs.get(job.job_id)
        if known is not None:
            return known
        message = await self._ledger.read(job.taken_n)
        if message is not None:
            fact = decode_entry(message).message.facts[job.fact_index].fact
            if isinstance(fact, JobAdmitted) and fact.job_id == job.job_id:
                self._remember(job.job_id, fact.spec)
                return fact.spec
        raise InvariantViolation(f"ledger message {job.taken_n} does not hold job {job.job_id}")

    def _remember(self, job_id: str, spec: JobSpec) -> None:
        self._specs[job_id] = spec
        if len(self._specs) > REMEMBERED:
            self._specs.popitem(last=False)

"""The job specs that the binder needs: remembered while fresh, else fetched from the ledger that holds them."""

from collections import OrderedDict

from tessera.domain.entities import Job
from tessera.domain.work.current_spec import current_spec
from tessera.kernel.errors import InvariantViolation, Transient
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.ledger.specs import read_spec
from tessera.kernel.ports import Ledger
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import JobQueued

REMEMBERED, BYTES_MAX = 4096, 32 * 2**20
"""As many specs, and as many bytes of them, as are remembered; a spec may have 400 KB."""


class Templates:
    """
    Specs by job id, as the bytes that a ledger message has of them: so what they take is known exactly.

    Reading one again costs microseconds, and is needed once or twice in the life of a run.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._specs: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def note(self, entry: Entry) -> None:
        """Remember the specs that this entry took in; the pods of adopted jobs are there already."""
        for record in entry.message.records:
            if type(record) is JobQueued:
                fact = entry.message.facts[record.fact].fact
                if isinstance(fact, JobAdmitted) and fact.adopted is None:
                    self._remember(record.job_id, fact.spec)

    async def of(self, job: Job) -> JobSpec:
        """
        The spec of a live job as it is now, of a task that of its array, from memory or ledger message `job.taken_n`.
        """
        submitted = ".".join((job.task_of or job.job_id, *map(str, job.spec_at)))
        known = self._specs.get(submitted)
        if known is not None:
            return current_spec(job, JobSpec.model_validate_json(known))
        spec = await read_spec(self._ledger, job)
        if spec is None and job.spec_at:
            # Its programs came a moment ago, and a replica of the stream may lag; those of a submit were told before.
            raise Transient(f"ledger message {job.spec_at[0]} with the programs of job {job.job_id} is not there yet")
        if spec is None:
            raise InvariantViolation(f"ledger message {job.taken_n} does not hold job {job.job_id}")
        self._remember(submitted, spec)
        return current_spec(job, spec)

    def _remember(self, job_id: str, spec: JobSpec) -> None:
        stored = spec.to_bytes()
        if len(stored) > BYTES_MAX:
            return
        self._bytes += len(stored) - len(self._specs.pop(job_id, b""))
        self._specs[job_id] = stored
        while self._bytes > BYTES_MAX or len(self._specs) > REMEMBERED:
            self._bytes -= len(self._specs.popitem(last=False)[1])

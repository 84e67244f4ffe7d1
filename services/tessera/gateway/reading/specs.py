"""Specs of jobs, live ones and those that have ended, as the ledger has them."""

from tessera.domain.entities import EndedJob, Job
from tessera.domain.work.current_spec import current_spec
from tessera.gateway.entrance.problems import Refusal, refused
from tessera.kernel.ledger.specs import find_admitted, read_spec, with_revision
from tessera.kernel.ports import Ledger
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code
from tessera_schemas.work.adopted import Adopted


class Specs:
    """Reads each from the ledger anew: it is asked for rarely."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def of(self, job: Job | EndedJob) -> JobSpec:
        """
        The spec that was submitted, with what was changed since.

        Raises Refusal for a task and for work of Kubernetes, whose specs are not their own, and where the ledger has it
        no more.
        """
        if job.task_of:
            raise _not_its_own(f"it is array {job.task_of}'s")
        if isinstance(job, Job):
            _check_submitted(job.adopted)
            spec = await read_spec(self._ledger, job)
            if spec is None:
                raise refused(Code.UNAVAILABLE, "spec", "the ledger message of the job is not there yet")
            return current_spec(job, spec)
        fact = await find_admitted(self._ledger, job.job_id, job.submitted_ts)
        if fact is None:
            raise refused(Code.ROLLED_OVER, "spec", "", {"submitted_ts": job.submitted_ts})
        _check_submitted(fact.adopted)
        spec = await with_revision(self._ledger, job, fact.spec)
        if spec is None:
            raise refused(Code.ROLLED_OVER, "spec", "", {"submitted_ts": job.submitted_ts})
        return current_spec(job, spec)


def _check_submitted(adopted: Adopted | None) -> None:
    if adopted is not None:
        raise _not_its_own(f"{adopted.owner} is written in Kubernetes")


def _not_its_own(why: str) -> Refusal:
    return refused(Code.INVALID_FIELD, "job_id", f"it has no spec of its own: {why}")

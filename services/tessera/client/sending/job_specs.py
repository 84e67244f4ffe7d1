"""The spec of a job, live or ended: from the gateway, or for an operator without one from the ledger itself."""

from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.domain.work.current_spec import with_changes
from tessera_schemas.base import Json
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.views import JobView


async def read_current_spec(where: Where, job: JobView) -> Json:
    """
    The spec with what changed since its submit, of a task that of its array. Raises Failure, Transient.

    Raises Refused for work that users made in Kubernetes, and where the ledger has the spec no more.
    """
    if job.owner:
        raise Refused((_in_kubernetes(job.owner),))
    job_id = job.task_of or job.job_id
    if where.api is not None:
        from tessera.client.connect.api import path_of

        spec: Json = (await where.api.get(path_of(job_id, "spec")))["spec"]
        return _with_changes(JobSpec.model_validate(spec), job) if job.task_of else spec
    if not where.can_be(OPERATOR):
        raise Failure(
            Exit.USAGE, f"job {job.job_id}: only an operator reads specs in the ledger; log in: `tessera login URL`"
        )
    return _with_changes(await _in_ledger(where, job_id, job.submitted_ts), job)


def _with_changes(spec: JobSpec, job: JobView) -> Json:
    """The spec with the job's own changes, which of a task may be others than its array's."""
    now = spec if job.changes is None else with_changes(spec, job.changes)
    return now.model_dump(mode="json", exclude_none=True)


async def _in_ledger(where: Where, job_id: str, submitted_ts: int) -> JobSpec:
    from tessera.client.ledger.reading import stored_ledger
    from tessera.kernel.ledger.specs import find_admitted

    async with stored_ledger(where) as ledger:
        fact = await find_admitted(ledger.ledger, job_id, submitted_ts)
    if fact is None:
        raise Refused((Reason(code=Code.ROLLED_OVER, field="spec", numbers={"submitted_ts": submitted_ts}),))
    if fact.adopted is not None:
        raise Refused((_in_kubernetes(fact.adopted.owner),))
    return fact.spec


def _in_kubernetes(owner: str) -> Reason:
    detail = f"it has no spec of its own: {owner} is written in Kubernetes"
    return Reason(code=Code.INVALID_FIELD, field="job_id", detail=detail)

"""An explanation for whoever asks: tenants see no name that is not theirs."""

import re
from collections.abc import Iterator

from tessera.domain.state import State
from tessera.engine.explain.explanation import explain
from tessera.engine.queueing.readiness import startable
from tessera.gateway.models import Explained, LinePlace
from tessera.gateway.problems import refused
from tessera_schemas.reasons import Code, PublicReason

RUN = re.compile(r"\b([a-z2-7]{20})(?:-[0-9]{1,6})?\b(?: \(queue [a-z0-9-]{1,63}\))?")


def explained(state: State, job_id: str, tenant: str | None, now_ms: int) -> Explained:
    """For a job that `tenant` may see; None is an operator, who sees all names. Raises Refusal."""
    answer = explain(state, job_id, now_ms, tenant)
    if answer is None:
        raise refused(Code.NO_SUCH_JOB, "job_id")
    reason = None if answer.reason is None else answer.reason.model_dump()
    if reason is not None:
        reason["detail"] = for_eyes_of(tenant, reason["detail"], state)
    return Explained(
        as_of=answer.as_of,
        job_id=answer.job.job_id,
        name=answer.job.name,
        phase=answer.phase,
        sentence=for_eyes_of(tenant, answer.sentence(), state),
        reason=None if reason is None else PublicReason.model_validate(reason),
        position=answer.position,
        in_line=answer.in_line,
        notes=tuple(for_eyes_of(tenant, note, state) for note in answer.notes),
    )


def places_in_line(state: State, pool: str, tenant: str | None) -> Iterator[LinePlace]:
    """Jobs of a pool's newest order that still wait; of those hidden from `tenant` only place, queue, size and wait."""
    newest = state.lines.get(pool)
    jobs = (job for job in state.jobs.found(newest.jobs if newest else ()) if startable(state, job))
    for position, job in enumerate(jobs, start=1):
        own = tenant is None or job.tenant == tenant
        why = "" if job.reason is None or not own else for_eyes_of(tenant, job.reason.sentence(), state)
        yield LinePlace(
            pool=pool,
            position=position,
            queue=job.queue,
            gpu_milli=job.amount.gpu_milli,
            submitted_ts=job.submitted_ts,
            job_id=job.job_id if own else "",
            name=job.name if own else "",
            tenant=job.tenant if own else "",
            why=why,
        )


def for_eyes_of(tenant: str | None, text: str, state: State) -> str:
    """The text with every job or run of another tenant, and the queue beside it, taken out."""

    def shown(found: re.Match[str]) -> str:
        known = state.jobs.get(found[1]) or state.ended.get(found[1])
        return found[0] if tenant is None or known is None or known.tenant == tenant else "another tenant"

    return RUN.sub(shown, text)

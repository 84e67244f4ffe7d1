"""An explanation for whoever asks: tenants see no name that is not theirs."""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, TypeVar

from tessera.domain.entities import EndedJob, Job, RefusedWork
from tessera.domain.state import State
from tessera.engine.explain.blockers import Holder
from tessera.engine.explain.changed_spec import KINDS
from tessera.engine.explain.explanation import explain
from tessera.engine.queueing.expected_starts import expected_starts
from tessera.engine.queueing.ordering import PoolLine
from tessera.engine.queueing.readiness import startable
from tessera.engine.queueing.shares import would_borrow
from tessera.gateway.operations.models import Explained, LinePlace, ShownChange, ShownHolder
from tessera.kernel.ports import Clock
from tessera_schemas.reasons import PublicReason, Reason
from tessera_schemas.shard.quotes import StartQuote
from tessera_schemas.views import LineStart

KEPT_MAX, KEPT_SECONDS = 256, 1.0
T = TypeVar("T")
RUN = re.compile(r"\b([a-z2-7]{20})(?:-[0-9]{1,6})?\b(?: \(queue [a-z0-9-]{1,63}\))?")


class KeptAnswers:
    """
    Answers that were computed from the state, by what was asked for, so that whoever asks again costs nothing.

    They are of one record of the ledger, the next one forgets them all; and a second old at most, since they say how
    long things take from now on.
    """

    def __init__(self, state: State, clock: Clock) -> None:
        self._state, self._clock, self._n = state, clock, state.n
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    def of(self, compute: Callable[..., T], *asked: Hashable) -> T:
        """The answer that is kept for these arguments, else the one that is computed now."""
        if self._n != self._state.n or len(self._kept) >= KEPT_MAX:
            self._n = self._state.n
            self._kept.clear()
        now = self._clock.monotonic()
        until, answer = self._kept.get((compute.__name__, *asked), (now, None))
        if now >= until:
            answer = compute(*asked)
            self._kept[compute.__name__, *asked] = now + KEPT_SECONDS, answer
        return answer  # type: ignore[no-any-return]


def explained(state: State, job_id: str, tenant: str | None, now_ms: int) -> Explained | None:
    """
    Explanation of a job that `tenant` may see, None an operator, who sees all names; None for one that nobody knows.
    """
    answer = explain(state, job_id, now_ms, tenant)
    if answer is None:
        return None

    def shown(text: str) -> str:
        return hide_other_tenants(tenant, text, state)

    def public(reason: Reason) -> PublicReason:
        return PublicReason.model_validate({**reason.model_dump(), "detail": shown(reason.detail)})

    return Explained(
        as_of=answer.as_of,
        taken_n=getattr(answer.job, "taken_n", 0),
        job_id=answer.job.job_id,
        name=answer.job.name,
        phase=answer.phase,
        sentence=shown(answer.sentence()),
        reason=None if answer.reason is None else public(answer.reason),
        position=answer.position,
        in_line=answer.in_line,
        notes=tuple(map(shown, answer.notes)),
        queue=answer.job.queue,
        pool=answer.pool,
        others=tuple(map(public, answer.others)),
        said=tuple(map(shown, answer.sentences)),
        holders=tuple(_holder(holder) for holder in answer.holders.named),
        other_holders=tuple(others.describe() for others in answer.holders.others),
        changes=tuple(
            ShownChange.model_validate(
                {
                    **asdict(change),
                    "text": shown(change.describe()),
                    "submittable": tenant is not None and change.kind in KINDS and _is_submitted(answer.job),
                }
            )
            for change in answer.changes
        ),
        tried=answer.tried,
    )


def _is_submitted(job: Job | EndedJob | RefusedWork) -> bool:
    # Whether somebody sent the job's spec: one of Kubernetes has none, and a task that of its array.
    return isinstance(job, Job) and job.adopted is None and not job.task_of


def _holder(holder: Holder) -> ShownHolder:
    return ShownHolder.model_validate({**asdict(holder), "text": holder.describe()})


def line_of(state: State, pool: str) -> list[Job]:
    """Jobs of a pool's newest order that still wait, the next one first."""
    newest = state.lines.get(pool)
    return [job for job in state.jobs.found(newest.jobs if newest else ()) if startable(state, job)]


def known_starts(state: State, pool: str, now_ms: int) -> dict[str, LineStart]:
    """Expected starts by job id, without those that rest on runs of whose length nothing is known."""
    then = state.overlay()
    then.ts = max(state.ts, now_ms)
    found = expected_starts(then, pool, line_of(then, pool))
    then.check_base()
    return {
        job_id: LineStart.model_validate(
            {"at_ts": start.at_ts, "rests_on": start.rests_on, "nodes": start.nodes, "words": start.words(then.ts)}
        )
        for job_id, start in found.items()
        if not start.is_guess
    }


def list_positions(
    state: State,
    pool: str,
    tenant: str | None,
    starts: Mapping[str, LineStart] = MappingProxyType({}),
    quote_of: Callable[[str], StartQuote | None] = lambda job_id: None,
) -> Iterator[LinePlace]:
    """Jobs of a pool's newest order that still wait; of those hidden from `tenant` only place, queue, size and wait."""
    told: dict[Hashable, str] = {}

    def why_of(reason: Reason) -> str:
        # Most jobs of a line wait for the same reason, whose sentence takes longer to make than all else about a place.
        same = reason.code, reason.field, reason.detail, *reason.numbers.items()
        if same not in told:
            told[same] = hide_other_tenants(tenant, reason.sentence(), state)
        return told[same]

    line = PoolLine(state, pool, state.ts)
    for position, job in enumerate(line_of(state, pool), start=1):
        own = tenant is None or job.tenant == tenant
        yield LinePlace(
            pool=pool,
            position=position,
            queue=job.queue,
            gpu_milli=job.amount.gpu_milli,
            submitted_ts=job.submitted_ts,
            earlier_ms=job.earlier_ms,
            borrows=job.queue in state.tree.queues and would_borrow(line, job),
            job_id=job.job_id if own else "",
            name=job.name if own else "",
            tenant=job.tenant if own else "",
            user=job.user if own else "",
            why=why_of(job.reason) if own and job.reason is not None else "",
            expected_start=starts.get(job.job_id) if own else None,
            quote=quote_of(job.job_id) if own else None,
        )


def hide_other_tenants(tenant: str | None, text: str, state: State) -> str:
    """The text with every job or run of another tenant, and the queue beside it, taken out."""

    def shown(found: re.Match[str]) -> str:
        known = state.jobs.get(found[1]) or state.ended.get(found[1])
        return found[0] if tenant is None or known is None or known.tenant == tenant else "another tenant"

    return RUN.sub(shown, text)

"""Why a job stands where it stands, asked of whoever may say so: the gateway, or for an operator the ledger itself."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera.client import ordering
from tessera.client.outcomes import Exit, Failure
from tessera.client.where import Where
from tessera.kernel.clock import SystemClock
from tessera_schemas.subjects import OPERATOR

if TYPE_CHECKING:
    from tessera.client.api import Api
    from tessera.client.story import StoryLine
    from tessera.engine.explain.explanation import Explanation

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FoundExplanation:
    """
    An explanation from the ledger as of record `as_of`, with the job's story, and until when runs last at most by id.

    `answer` is None for a job that was never taken in or is forgotten.
    """

    answer: "Explanation | None"
    story: "list[StoryLine]"
    until: dict[str, int]
    as_of: int
    now_ms: int


async def explain_for_programs(where: Where, job: str, identity: str | None = None) -> Json:
    """Explanation as `tessera explain -o json` prints it. Raises Failure, Refused, Transient."""
    if where.api is not None and identity is None:
        return await explain_by_api(where, where.api, job)
    from tessera.client.explain import explained

    found = await explain_from_ledger(where, job, identity)
    return {"as_of": found.as_of, **explained(found.answer, found.story, found.until)}


async def explain_by_api(where: Where, api: "Api", job: str) -> Json:
    """Answer of the gateway, which folds the ledger itself; the story is that of the job's public events."""
    from tessera.client.api import path_of
    from tessera.client.events_by_api import events_by_api, reason_of
    from tessera_schemas.events import short_type

    job_id = await ordering.find_job_id(where, job)
    found = await api.get(path_of(job_id, "explain"))
    story = [
        {
            "id": event.id,
            "time": event.time,
            "event": short_type(event.type).rpartition(".")[0],
            "why": reason_of(event),
        }
        async for event in events_by_api(api, job_id)
    ]
    return {**found, "story": story}


async def explain_from_ledger(where: Where, job: str, identity: str | None) -> FoundExplanation:
    """Folds the ledger, as the operator may. Raises Failure for a job that whoever asks does not know."""
    from tessera.client.explain import explain, time_limits
    from tessera.client.reading import ledger_of

    viewer = _viewer(where, identity)
    async with where.bus(where.identity(OPERATOR)) as bus:
        ledger = ledger_of(bus, where.shard)
        job_id = await ordering.find_job_id(where, job)
        state, now = (await ledger.folded()).state, SystemClock().now_ms()
        known = state.jobs.get(job_id) or state.ended.get(job_id) or state.refused.get(job_id)
        if viewer is not None and (known is None or known.tenant != viewer):
            raise _unknown(job)
        answer = explain(state, job_id, now, viewer)
        lines = await ledger.story(job_id, getattr(known, "taken_n", 1), all_names=viewer is None)
        until = {} if answer is None else await time_limits(ledger.ledger, answer.holders)
    if answer is None and not lines:
        raise _unknown(job)
    return FoundExplanation(answer, lines, until, state.n, now)


def _unknown(job: str) -> Failure:
    return Failure(Exit.NOT_FOUND, f"job {job}: the ledger knows none with this id or name; see `tessera ls`")


def _viewer(where: Where, identity: str | None) -> str | None:
    """Tenant that it is shown to; None for an operator. Only an operator can read the ledger."""
    if not where.can_be(OPERATOR):
        raise Failure(Exit.USAGE, "explain: only the operator reads the ledger; log in by HTTP: `tessera login URL`")
    return None if identity in (None, OPERATOR) else where.tenant(identity).identity.name

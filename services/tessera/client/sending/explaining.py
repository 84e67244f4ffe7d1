"""Why a job stands where it stands, asked of the gateway, or for an operator without one of the ledger itself."""

from contextlib import aclosing, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from tessera.client.connect.api import Api, path_of
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.sending import ordering
from tessera.client.views.explain import UNKNOWN, gone_sentence
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.base import Json
from tessera_schemas.subjects import OPERATOR

if TYPE_CHECKING:
    from tessera.client.ledger.reading import StoredLedger

GATEWAY_TRIES, GATEWAY_POLL_SECONDS = 5, 0.1  # a busy one folds what was just decided a moment later

FIRST_EVENT = "job.admitted"
"""The event with which the story of each job that was taken in begins, a task's as well."""


async def explain_job(where: Where, job: str, identity: str | None = None) -> Json:
    """
    The gateway's explanation with the job's story, as `tessera explain -o json` prints it.

    Raises Failure, Refused, Transient.
    """
    if where.api is not None and identity is None:
        return await _explain_by_token(where, where.api, job)
    return await _explain_as_operator(where, job, identity)


async def _explain_by_token(where: Where, api: Api, job: str) -> Json:
    """The story is that of the job's public events: nobody reads the ledger by token."""
    from tessera.client.connect.api import events_by_api, reason_of
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
    return {**found, "story": [*await _gone(api, found, story), *story]}


async def _gone(api: Api, found: Json, story: list[Json]) -> list[Json]:
    """In place of the job's first events, where they grew too old for their stream: an entry that says so."""
    from tessera.client.connect.api import events_by_api

    taken_n = found.get("taken_n") or 0
    if not taken_n or any(each["event"] == FIRST_EVENT for each in story):
        return []
    if story:
        return [{"id": "", "time": story[0]["time"], "event": "", "why": gone_sentence(taken_n)}]
    async with aclosing(events_by_api(api)) as kept:  # those of a job that was just taken in may be on their way
        oldest = await anext(kept, None)
    if oldest is None or int(oldest.id.partition(".")[0]) <= taken_n:
        return []
    return [{"id": "", "time": oldest.time, "event": "", "why": gone_sentence(taken_n)}]


async def _explain_as_operator(where: Where, job: str, identity: str | None) -> Json:
    """The story is the ledger's. Raises Failure for a job that whoever asks does not know."""
    from tessera.client.ledger.reading import stored_ledger

    viewer = _viewer(where, identity)
    async with stored_ledger(where) as ledger:
        job_id = await ordering.find_job_id(where, job)
        found = await answer_of_gateway(where, job_id, await ledger.count()) if viewer is None else None
        if found is None:
            found = await _answer_of_fold(ledger, job_id, viewer)
        known, every = found["phase"] != UNKNOWN, viewer is None
        lines = await ledger.story(job_id, found.get("taken_n") or 1, all_names=every) if known or every else []
        if known and (gap := await ledger.gap_before(found.get("taken_n") or 1)) is not None:
            lines = [gap, *lines]
    if not known and not lines:
        raise Failure(Exit.NOT_FOUND, f"job {job}: the ledger knows none with this id or name; see `tessera ls`")
    return {**found, "story": [asdict(line) for line in lines]}


async def answer_of_gateway(where: Where, job_id: str, head: int) -> Json | None:
    """
    The answer of a gateway that has folded the ledger up to `head`, in a tenth of the time that folding takes here.

    None where none is at hand for an operator, it is away, halted or behind, or does not know the job.
    """
    if where.gateway is None:
        return None
    api = Api(where.gateway)
    with suppress(Failure, Refused, Transient):
        if (await api.get("/v1/me"))["tenant"]:
            return None  # it would leave out the others' names
        for _ in range(GATEWAY_TRIES):
            found = await api.get(path_of(job_id, "explain"))
            if found["as_of"] >= head:
                return found
            await SystemClock().sleep(GATEWAY_POLL_SECONDS)
    return None


async def _answer_of_fold(ledger: "StoredLedger", job_id: str, viewer: str | None) -> Json:
    """The same answer from a state that is folded here."""
    from tessera.gateway.reading.explaining import explained

    state = (await ledger.folded()).state
    known = state.jobs.get(job_id) or state.ended.get(job_id) or state.refused.get(job_id)
    is_shown = known is not None and viewer in (None, known.tenant)
    answer = explained(state, job_id, viewer, SystemClock().now_ms()) if is_shown else None
    return {"as_of": state.n, "phase": UNKNOWN} if answer is None else answer.model_dump(mode="json")


def _viewer(where: Where, identity: str | None) -> str | None:
    """Tenant that it is shown to; None for an operator. Only an operator can read the ledger."""
    if not where.can_be(OPERATOR):
        raise Failure(Exit.USAGE, "explain: only the operator reads the ledger; log in by HTTP: `tessera login URL`")
    return None if identity in (None, OPERATOR) else where.tenant(identity).identity.name

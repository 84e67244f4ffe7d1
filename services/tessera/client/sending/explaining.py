"""Why a job stands where it stands, as the gateway tells it, with the story that the job's events tell."""

from contextlib import aclosing

from tessera.client.connect.api import Api, events_by_api, path_of
from tessera.client.connect.connecting import api_of
from tessera.client.connect.where import Where
from tessera.client.sending import ordering
from tessera.client.views.event_story import told_by
from tessera.client.views.explain import gone_sentence
from tessera_schemas.base import Json
from tessera_schemas.events import short_type

FIRST_EVENT = "job.admitted"
"""The event with which the story of each job that was taken in begins, a task's as well."""


async def explain_job(where: Where, job: str, identity: str | None = None) -> Json:
    """
    The gateway's explanation with the job's story, as `tessera explain -o json` prints it.

    The story is that of the job's public events, which grow too old; `tessera ledger story` has all that is recorded.
    Raises Failure, Refused, Transient.
    """
    api, job_id = api_of(where, identity), await ordering.find_job_id(where, job)
    found = await api.get(path_of(job_id, "explain"))
    story = [
        {
            "id": event.id,
            "time": event.time,
            "event": short_type(event.type).rpartition(".")[0],
            "why": told_by(event),
        }
        async for event in events_by_api(api, job_id)
    ]
    return {**found, "story": [*await _gone(api, found, story), *story]}


async def _gone(api: Api, found: Json, story: list[Json]) -> list[Json]:
    """In place of the job's first events, where they grew too old for their stream: an entry that says so."""
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

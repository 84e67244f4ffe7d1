"""Public events as the gateway streams them to a token, stored ones first."""

from collections.abc import AsyncGenerator, Callable

from tessera.client.connect.api import Api
from tessera_schemas.events import CloudEvent
from tessera_schemas.reasons import PublicReason


async def events_by_api(
    api: Api,
    job: str | None = None,
    *,
    tenant: str | None = None,
    after: int | None = 0,
    follow: bool = False,
    lost: Callable[[str], None] | None = None,
) -> AsyncGenerator[CloudEvent]:
    """
    Events after the one with this number, 0: all that are kept, None: those to come.

    Without `follow` it ends with the newest event that is stored as it begins, None then means all that are kept, and a
    connection that is lost before raises Transient. With `lost` it outlives the gateway, as `Api.events` does.
    """
    more = {} if follow else {"follow": "false"}
    async for event in api.events(after, lost, tenant=tenant, job=job, **more):
        yield CloudEvent.model_validate(event, extra="ignore")


def reason_of(event: CloudEvent) -> str:
    """The first reason that an event gives, as a sentence, or what was noted of a submit; "" for neither."""
    notes = event.data.get("notes")
    if isinstance(notes, list) and notes:
        return "; ".join(map(str, notes))
    reason = event.data.get("reason")
    if reason is None:
        reasons = event.data.get("reasons")
        reason = reasons[0] if isinstance(reasons, list) and reasons else None
    return PublicReason.model_validate(reason).sentence() if isinstance(reason, dict) else ""

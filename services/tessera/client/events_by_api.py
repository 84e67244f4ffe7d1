"""Public events as the gateway streams them to a token, stored ones first."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from tessera.client.api import Api
from tessera_schemas.events import CloudEvent
from tessera_schemas.reasons import PublicReason

IDLE_SECONDS = 1.0
"""Silence after which all stored events have come."""


async def events_by_api(
    api: Api,
    job: str | None = None,
    *,
    tenant: str | None = None,
    after: int | None = 0,
    follow: bool = False,
    lost: Callable[[str], None] | None = None,
) -> AsyncIterator[CloudEvent]:
    """
    Events after the one with this number, 0: all that are kept, None: those to come. Ends unless it follows.

    With `lost` it outlives the gateway, as `Api.events` does.
    """
    source = api.events(after, lost, tenant=tenant, job=job)
    with suppress(StopAsyncIteration, TimeoutError):
        while True:
            async with asyncio.timeout(None if follow else IDLE_SECONDS):
                event = await anext(source)
            yield CloudEvent.model_validate(event, extra="ignore")


def reason_of(event: CloudEvent) -> str:
    """The first reason that an event gives, as a sentence; "" without one."""
    reason = event.data.get("reason")
    if reason is None:
        reasons = event.data.get("reasons")
        reason = reasons[0] if isinstance(reasons, list) and reasons else None
    return PublicReason.model_validate(reason).sentence() if isinstance(reason, dict) else ""

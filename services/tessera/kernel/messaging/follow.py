"""
The ordered loop: batches of a stream, in order, to one handler that stores its cursor with its result.

A batch that fails for now is tried again, the same batch, until it works: nothing is skipped and nothing overtakes.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from tessera.kernel.errors import Transient
from tessera.kernel.ports import Clock, Follow, Message
from tessera.kernel.tasks.waiting import closed_at, wait_for

BATCH = 256
BACKOFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # the last one for ever after

log = structlog.get_logger()


async def follow(
    source: Follow,
    handle: Callable[[list[Message]], Awaitable[None]],
    *,
    stop: asyncio.Event,
    clock: Clock,
    limit: int = BATCH,
) -> None:
    """
    Hand every message of `source` to `handle` until `stop`, then close the source.

    Transient is retried with back-off. Everything else goes to the caller: Conflict (decide anew from a fresh cursor),
    Poison (only the handler knows what may be passed over) and InvariantViolation (halt).
    """
    async with closed_at(stop, source):
        failures = 0
        while not stop.is_set():
            try:
                batch = await source.next(limit)
            except Transient as error:
                failures = await _back_off(error, failures, stop, clock)
                continue
            failures = 0
            if batch:
                await _handle_until_done(batch, handle, stop, clock)


async def _handle_until_done(
    batch: list[Message], handle: Callable[[list[Message]], Awaitable[None]], stop: asyncio.Event, clock: Clock
) -> None:
    failures = 0
    while not (failures and stop.is_set()):
        try:
            await handle(batch)
        except Transient as error:
            failures = await _back_off(error, failures, stop, clock)
        else:
            return


async def _back_off(error: Transient, failures: int, stop: asyncio.Event, clock: Clock) -> int:
    log.warning("follow_retries", error=str(error), failures=failures + 1)
    await wait_for(stop, clock, BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
    return failures + 1

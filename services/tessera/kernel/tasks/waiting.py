"""Waiting on the injected clock, spread over those who wait for the same, and closing a source when it is time."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from tessera.kernel.ports import Clock

MORE_SECONDS = 5.0
_PARTS = 1 << 16


async def wait_for(event: asyncio.Event, clock: Clock, seconds: float) -> bool:
    """True as soon as `event` is set, False after `seconds` without it."""
    if event.is_set():
        return True
    first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(_: object) -> None:
        if not first.done():
            first.set_result(None)

    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    for wait in waits:
        wait.add_done_callback(settle)
    try:
        await first
    finally:
        for wait in waits:
            wait.cancel()
    return event.is_set()


class Closable(Protocol):
    async def close(self) -> None:
        """End the source, so that a `next` that is waiting returns."""


@asynccontextmanager
async def closed_at(stop: asyncio.Event, source: Closable) -> AsyncIterator[None]:
    """
    Close `source` as soon as `stop` is set, or else at the end of the block.

    Its `next` returns when it is closed, so that a loop needs no time-out to notice that it should stop.
    """

    async def close_at_stop() -> None:
        await stop.wait()
        await source.close()

    closer = asyncio.ensure_future(close_at_stop())
    try:
        yield
    finally:
        if stop.is_set():
            await closer
        else:
            closer.cancel()
            await source.close()


def spread(seconds: float, *who: object) -> float:
    """`seconds` and up to half as much again, at most 5 s more, by who waits and for what."""
    digest = hashlib.blake2b("/".join(map(str, who)).encode(), digest_size=2).digest()
    return seconds + min(seconds / 2, MORE_SECONDS) * int.from_bytes(digest, "big") / _PARTS

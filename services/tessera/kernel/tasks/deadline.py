"""
Deadlines that look at the socket before they strike.

A loop that was busy or got no CPU finds its timers due together with the answers that came meanwhile, and uvloop runs
timers first: an answer that lies in the socket would count as none, and the work it crowns would be done again, under
more load than before. It may also lie behind much that was sent before it, part of it still with the peer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

LOOKS = 4  # turns of silence in a row; a loop that stands still loses one of them, whatever the time


class Deadline:
    """
    Calls `on_expiry` once, unless cancelled: `seconds` from now, then after as long again without anything received.

    `count_received` grows with what is read from the connection. `on_due` is called when the time is over: it may ask
    the peer for a sign that all was sent, and expire when that comes.
    """

    def __init__(
        self,
        seconds: float,
        on_expiry: Callable[[], None],
        count_received: Callable[[], int] = int,
        on_due: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop, self._look_seconds, self._looks = asyncio.get_running_loop(), seconds / LOOKS, LOOKS
        self._on_expiry, self._count_received, self._on_due = on_expiry, count_received, on_due
        self._received_before = 0
        self._handle: asyncio.Handle = self._loop.call_later(seconds, self._due)

    def cancel(self) -> None:
        """Keep the strike from coming; nothing happens when the strike has come."""
        self._handle.cancel()

    def _due(self) -> None:
        self._received_before = self._count_received()
        self._handle = self._loop.call_later(self._look_seconds, self._look)
        self._on_due()

    def _look(self) -> None:
        count_received = self._count_received()
        self._looks = LOOKS if count_received != self._received_before else self._looks - 1
        self._received_before = count_received
        if self._looks == 0:
            self._on_expiry()
        else:
            self._handle = self._loop.call_later(self._look_seconds, self._look)


@asynccontextmanager
async def time_limit(seconds: float) -> AsyncIterator[None]:
    """Time limit like `asyncio.timeout`, by such a deadline; for a peer that is asked one thing at a time."""
    async with asyncio.timeout(None) as limit:
        deadline = Deadline(seconds, lambda: limit.reschedule(0))
        try:
            yield
        finally:
            deadline.cancel()

"""
Deadlines that look at the socket before they strike.

A loop that was busy or got no CPU finds its timers due together with the answers that came meanwhile, and uvloop runs
timers first: an answer that lies in the socket would count as none, and the work it crowns would be done again, under
more load than before. A deadline here lets the loop go around a few times first, and on while answers are being read.
"""

import asyncio
from collections.abc import Callable

LOOK_TURNS = 8  # of the loop without anything new: from a readable socket to a handled message it takes two or three


class Deadline:
    """
    Calls `strike` once, `seconds` from now or somewhat later, unless cancelled.

    `heard` is a count that grows with what is read from the connection: while it does, the deadline waits, but no
    longer than another `seconds`.
    """

    def __init__(self, seconds: float, strike: Callable[[], None], heard: Callable[[], int]) -> None:
        self._loop, self._seconds, self._strike, self._heard = asyncio.get_running_loop(), seconds, strike, heard
        self._before = self._turns = 0
        self._until = 0.0
        self._handle: asyncio.Handle = self._loop.call_later(seconds, self._due)

    def cancel(self) -> None:
        self._handle.cancel()

    def _due(self) -> None:
        self._until = self._loop.time() + self._seconds
        self._before, self._turns = self._heard(), LOOK_TURNS
        self._look()

    def _look(self) -> None:
        heard = self._heard()
        if heard != self._before and self._loop.time() < self._until:
            self._before, self._turns = heard, LOOK_TURNS
        if self._turns == 0:
            self._strike()
            return
        self._turns -= 1
        self._handle = self._loop.call_soon(self._look)

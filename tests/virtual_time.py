"""A clock that stands still until a test moves it; what sleeps wakes in order, and everything settles in between."""

import asyncio
import heapq
import itertools

from tessera.kernel.clock import SystemClock

SETTLE_ROUNDS = 50


class VirtualClock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.ahead_ms = 0  # of the wall clock alone
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return round(self.now * 1000) + self.ahead_ms

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), woken))
        await woken

    def pause(self, seconds: float) -> None:
        """Let `seconds` pass in which nobody does anything, as if every process had been stopped."""
        self.now += seconds
        self._sleepers = [(max(at, self.now), number, woken) for at, number, woken in self._sleepers]
        heapq.heapify(self._sleepers)

    async def run(self, seconds: float = 0.0) -> None:
        """Let `seconds` pass and everybody do what they do meanwhile."""
        until = self.now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            at, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                self.now = at
                woken.set_result(None)
                await settle()
        self.now = until


async def settle() -> None:
    for _ in range(SETTLE_ROUNDS):
        await asyncio.sleep(0)


class ImpatientClock(SystemClock):
    """Real time, but every wait lets others run and is over; what was waited for is written down."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds:
            self.waits.append(seconds)
        await super().sleep(0)

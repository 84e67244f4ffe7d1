"""
Time of the loop by tenant: one loop answers all, and a request may keep it for a microsecond or for half a second.

What a request's own steps computed is measured and charged afterwards, to its tenant, whatever its token; an operator
is charged by the token. Whoever owes is refused, or, once it is served, waits between two steps until that is paid.
Requests of one caller take turns, so that many at once cost nobody else more than one of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from aiohttp import web

from tessera.gateway.entrance.problems import refused
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.clock import thread_seconds
from tessera.kernel.messaging.rates import MILLION, TokenBucket
from tessera.kernel.ports import Clock
from tessera_schemas.reasons import Code

T = TypeVar("T")
Timer = Callable[[], float]
US_OF_MS = 1000


class MeteredSteps(Generic[T], Awaitable[T]):
    """A coroutine that is awaited and says of each of its steps how many microseconds of the loop it took."""

    def __init__(self, work: Coroutine[Any, Any, T], timer: Timer, took: Callable[[int], None]) -> None:
        self._work, self._timer, self._took = work, timer, took

    def __await__(self) -> Generator[Any, Any, T]:
        step, value = self._work.send, None
        while True:
            began = self._timer()
            try:
                awaited = step(value)
            except StopIteration as end:
                done: T = end.value
                return done
            finally:
                self._took(int((self._timer() - began) * MILLION))
            try:
                step, value = self._work.send, (yield awaited)
            except BaseException as error:  # what is thrown into us is thrown into it
                step, value = self._work.throw, error


class LoopShare:
    """One caller's part of the loop, in microseconds."""

    def __init__(self, settings: GatewaySettings, clock: Clock, timer: Timer | None = None) -> None:
        self._timer, self._line = timer or thread_seconds, asyncio.Lock()
        self._clock, self._ms_per_second, self._last_us = clock, settings.loop_ms_per_second, 0
        self._bucket = TokenBucket(settings.loop_ms_per_second * US_OF_MS, settings.loop_ms_burst * US_OF_MS)

    async def serve(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this and charge each of its steps."""
        spent = list[int]()

        def took(step_us: int) -> None:
            spent.append(step_us)
            self._bucket.charge(int(self._clock.monotonic() * MILLION), step_us)

        try:
            return await MeteredSteps(work, self._timer, took)
        finally:
            self._last_us = sum(spent)

    def check(self) -> None:
        """Raises Refusal while something is owed."""
        if owed_us := self._owed_us():
            numbers = {"charged_ms": self._last_us // US_OF_MS, "ms_per_second": self._ms_per_second}
            said = "of the time that requests take: charged_ms for the last one; what is owed is paid first"
            raise refused(Code.RATE_LIMITED, "", said, numbers, -(-owed_us // MILLION))

    async def turn(self) -> None:
        """Wait until nothing is owed, in line with this caller's other requests; others go on between any two."""
        async with self._line:
            while owed_us := self._owed_us():
                await self._clock.sleep(owed_us / MILLION)
            await self._clock.sleep(0)  # whoever came meanwhile is before the next one of this caller

    def _owed_us(self) -> int:
        return self._bucket.wait_us(int(self._clock.monotonic() * MILLION), 0)


SHARE: web.RequestKey[LoopShare] = web.RequestKey("loop_share", LoopShare)

"""An asyncio loop whose time jumps: nothing waits, and the same program runs the same way every time."""

import asyncio
import selectors
from contextvars import Context
from typing import Any

TICK_SECONDS = 1e-6
"""No timer in the future is nearer: below the loop's resolution it would come due without any time having passed."""

EPOCH_MS = 1_700_000_035_000
"""Wall-clock milliseconds at which a simulated run begins: at night, five seconds before 22:14."""


class Deadlock(Exception):
    """No task is ready and no timer is due: every task waits for another."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for files, it lets the time pass at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual seconds from 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now

    def call_at(  # type: ignore[override]  # the stub's variadic signature cannot be repeated in Python 3.11
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Calls back at a virtual time; a time ahead is at least TICK_SECONDS away."""
        now = self.time()
        return super().call_at(max(when, now + TICK_SECONDS) if when > now else when, callback, *args, context=context)


class VirtualClock:
    """The Clock port on a VirtualLoop; `skew_ms` makes one service's wall clock wrong."""

    def __init__(self, loop: VirtualLoop, skew_ms: int = 0, epoch_ms: int = EPOCH_MS) -> None:
        self._loop, self._epoch_ms, self.skew_ms = loop, epoch_ms, skew_ms

    def now_ms(self) -> int:
        """Wall clock in milliseconds since 1970, wrong by `skew_ms`."""
        return self._epoch_ms + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        """Virtual seconds, which no skew touches."""
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """Waits so many virtual seconds."""
        await asyncio.sleep(seconds)  # noqa: TID251  # the loop is the clock here

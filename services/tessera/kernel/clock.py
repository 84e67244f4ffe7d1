"""The system's clock behind the Clock port; with `ids` the only module that asks the machine for time or chance."""

import asyncio
import time


class SystemClock:
    """Wall time, monotonic time and real waiting."""

    def now_ms(self) -> int:
        """Wall clock in milliseconds since the Unix epoch; an administrator or NTP may set the clock back."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since a moment that the machine chose; only differences mean anything."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait in real time while the event loop serves others; 0 lets the others run once."""
        await asyncio.sleep(seconds)


def thread_seconds() -> float:
    """CPU time that this thread has taken; what others took of the machine meanwhile is not in it."""
    return time.thread_time()

"""The system's clock behind the Clock port; with `ids` the only module that asks the machine for time or chance."""

import asyncio
import time


class SystemClock:
    """Wall time, monotonic time and real waiting."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

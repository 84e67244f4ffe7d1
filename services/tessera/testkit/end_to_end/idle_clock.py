"""
A virtual clock on which looks by the clock alone are left out while a shard is idle.

Every service looks several times a second whether something is to be done. Between two jobs of a trace lie hours, and
each of these looks finds what the one before found. An hour of them takes seconds of CPU; without them, next to none.
"""

from collections.abc import Callable

from tessera.testkit.sim.loop import VirtualClock, VirtualLoop

SLEEP_SECONDS_MAX = 1800.0
"""Leases must last longer."""


class IdleClock(VirtualClock):
    """`idle_seconds` says how long nothing will come from outside, and is 0 while something is going on."""

    def __init__(self, loop: VirtualLoop, idle_seconds: Callable[[], float], skew_ms: int = 0) -> None:
        super().__init__(loop, skew_ms=skew_ms)
        self._idle_seconds = idle_seconds

    async def sleep(self, seconds: float) -> None:
        """Sleeps as often as the idle time has room for: whoever looks by the clock keeps to its beat."""
        times = int(min(self._idle_seconds(), SLEEP_SECONDS_MAX) / seconds) if seconds > 0 else 1
        await super().sleep(seconds * max(1, times))

"""
Since when a process has looked at the world without a gap: what it has not looked at is not known.

Every deadline that is counted in memory runs only over such time. A gap is any: a server that does not answer, a
watch or a ledger that is behind, a process that was stopped and goes on. After it every count begins anew, with a look.
"""

from collections.abc import Awaitable, Callable

import structlog

from tessera.kernel.errors import KernelError
from tessera.kernel.ports import ApiError, Clock

LOOK_SECONDS = 1.0
FIRST_LOOKS_SECONDS = 0.25
"""Until a look is good."""
GAP_SECONDS = 5.0
"""Two looks that are further apart leave time between them of which nothing is known."""

log = structlog.get_logger()


class Freshness:
    """Counted by the process's own monotonic clock, which nobody sets."""

    def __init__(self, clock: Clock, gap_seconds: float = GAP_SECONDS) -> None:
        self._clock, self._gap_seconds = clock, gap_seconds
        self._since = clock.monotonic()
        self._looked: float | None = None
        self._why = "nothing was looked at yet"

    def looked(self) -> None:
        """Notes a look at which everything was as it should be."""
        self._since = self.since
        self._looked = self._clock.monotonic()

    def failed(self, why: str) -> None:
        """Notes why the last look was none."""
        self._why = why

    def lost(self) -> None:
        """Notes that what was known until now counts no more."""
        self._since, self._looked = self._clock.monotonic(), None

    @property
    def is_fresh(self) -> bool:
        """Whether the last good look was a moment ago."""
        return self._looked is not None and self._clock.monotonic() - self._looked <= self._gap_seconds

    @property
    def since(self) -> float:
        """Monotonic seconds from which on there was no gap; now, where there is one."""
        return self._since if self.is_fresh else self._clock.monotonic()

    def seconds(self, first: float) -> float:
        """For how many seconds something has been so that was first seen at `first`, as far as it was looked at."""
        return self._clock.monotonic() - max(first, self.since)

    def problem(self) -> str | None:
        """Why this process cannot do its work now, in words; None while it is fresh."""
        if self.is_fresh:
            return None
        since = "" if self._looked is None else f" for {self._clock.monotonic() - self._looked:.0f} s"
        return f"no good look at the ledger and the API server{since} ({self._why}): no deadline runs"


async def keep_looking(freshness: Freshness, clock: Clock, look: Callable[[], Awaitable[bool]]) -> None:
    """Looks again and again, for ever; a look that fails, or finds something behind, is none."""
    was_fresh = False
    while True:
        try:
            if await look():
                freshness.looked()
            else:
                freshness.failed("a copy, or what was folded of the ledger, is behind")
        except (KernelError, ApiError) as error:
            log.info("look_failed", error=str(error))
            freshness.failed(str(error))
        if freshness.is_fresh is not was_fresh:
            was_fresh = freshness.is_fresh
            log.info("looks_go_on" if was_fresh else "looks_broke_off", deadlines="run" if was_fresh else "stand still")
        await clock.sleep(LOOK_SECONDS if was_fresh else FIRST_LOOKS_SECONDS)

"""
GPUs of a pool over time: amounts of thousandths of a GPU, summed over milliseconds in steps of five minutes. Pure.

A sum is exact for the amounts it is given; how often they are looked at is the caller's business.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

STEP_MS = 300_000
KEPT_MS = 7 * 86_400_000
GPU_SECOND = 1_000_000
"""One GPU for one second, in thousandths of a GPU times milliseconds."""


@dataclass(frozen=True, slots=True)
class PoolUse:
    """
    Thousandths of GPUs of a pool at one moment: `held` by tenant, `idle` by cause, and `unused`, the part of the held
    ones whose runs were warned that they use none.
    """

    pool: str
    held: tuple[tuple[str, int], ...]
    unused: int
    idle: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class UseSum:
    """Thousandths of a GPU times milliseconds; `restarts` and `lost` are by tenant and reason."""

    counted_ms: int = 0
    held: Counter[str] = field(default_factory=Counter)
    unused: int = 0
    idle: Counter[str] = field(default_factory=Counter)
    restarts: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, use: PoolUse, ms: int) -> None:
        """Counts an amount that lasted for so many milliseconds."""
        self.counted_ms += ms
        self.unused += use.unused * ms
        for tenant, milli in use.held:
            self.held[tenant] += milli * ms
        for cause, milli in use.idle:
            self.idle[cause] += milli * ms


def steps_between(from_ts: int, to_ts: int) -> Iterator[tuple[int, int, int]]:
    """Start of each step that the time between touches, where the time ends in it, and how much; the last `KEPT_MS`."""
    at = max(from_ts, to_ts - KEPT_MS)
    while at < to_ts:
        start = at - at % STEP_MS
        end = min(to_ts, start + STEP_MS)
        yield start, end, end - at
        at = end

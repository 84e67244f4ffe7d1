"""How often somebody may ask: a token bucket each. Pure; time is an argument."""

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """
    Holds up to `burst` and fills by `per_second`. Counted in millionths, so that no float is added up.

    A clock that goes back fills nothing.
    """

    per_second: int
    burst: int
    filled_at_us: int = 0
    held_u: int = -1

    def take(self, now_us: int) -> int:
        """0 when one was there to take; else in how many microseconds there is one."""
        full = self.burst * 1_000_000
        if self.held_u < 0:
            self.held_u, self.filled_at_us = full, now_us
        elapsed = max(0, now_us - self.filled_at_us)
        self.held_u = min(full, self.held_u + elapsed * self.per_second)
        self.filled_at_us = max(self.filled_at_us, now_us)
        if self.held_u >= 1_000_000:
            self.held_u -= 1_000_000
            return 0
        return -(-(1_000_000 - self.held_u) // self.per_second)


class Buckets:
    """One bucket per name; names come from configuration, so that there are only so many."""

    def __init__(self, per_second: int, burst: int) -> None:
        self._per_second, self._burst = per_second, burst
        self._held: dict[str, Bucket] = {}

    def wait_seconds(self, name: str, now: float) -> int:
        """0 when `name` may go on; else after how many whole seconds it should try again."""
        bucket = self._held.setdefault(name, Bucket(self._per_second, self._burst))
        return -(-bucket.take(int(now * 1_000_000)) // 1_000_000)

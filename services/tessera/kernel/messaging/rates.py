"""Rate limits: a token bucket each. Pure; time is an argument."""

from dataclasses import dataclass

MILLION = 1_000_000


@dataclass(slots=True)
class TokenBucket:
    """
    Holds up to `burst` and fills by `per_second`. Counted in millionths, so that no float is added up.

    A clock that goes back fills nothing.
    """

    per_second: int
    burst: int
    filled_at_us: int = 0
    held_u: int | None = None

    def take(self, now_us: int, amount: int = 1) -> int:
        """0 when as much was there to take; else in how many microseconds there is."""
        wait_us = self.wait_us(now_us, amount)
        if not wait_us:
            self.held_u = self._held(now_us) - amount * MILLION
        return wait_us

    def charge(self, now_us: int, amount: int) -> None:
        """Take what was used already, of which nobody knew how much it would be: below zero it is owed."""
        self.held_u = self._held(now_us) - amount * MILLION

    def wait_us(self, now_us: int, amount: int = 1) -> int:
        """
        Microseconds until `take` would succeed; takes nothing.

        What is larger than the bucket waits for a full one and leaves a debt: it is not kept out for ever.
        """
        missing = min(amount, self.burst) * MILLION - self._held(now_us)
        return 0 if missing <= 0 else -(-missing // self.per_second)

    def _held(self, now_us: int) -> int:
        full = self.burst * MILLION
        if self.held_u is None:
            self.held_u, self.filled_at_us = full, now_us
        elapsed = max(0, now_us - self.filled_at_us)
        self.held_u = min(full, self.held_u + elapsed * self.per_second)
        self.filled_at_us = max(self.filled_at_us, now_us)
        return self.held_u


class Buckets:
    """One bucket per name; names come from configuration, so that there are only so many."""

    def __init__(self, per_second: int, burst: int) -> None:
        self._per_second, self._burst = per_second, burst
        self._held: dict[str, TokenBucket] = {}

    def wait_seconds(self, name: str, now: float) -> int:
        """0 when `name` may go on; else after how many whole seconds it should try again."""
        bucket = self._held.setdefault(name, TokenBucket(self._per_second, self._burst))
        return -(-bucket.take(int(now * MILLION)) // MILLION)

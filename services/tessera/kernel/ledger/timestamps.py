"""The `ts` of ledger messages: the wall clock, but never back, and never standing still while real time passes."""

from tessera.kernel.ports import Clock


class LedgerTime:
    """
    A wall clock that is set back an hour must not stop every timer of the shard for an hour.

    So ledger time also follows the monotonic clock from wherever it stood: it is the furthest of the newest `ts`, the
    wall clock, and that.
    """

    def __init__(self, clock: Clock, ts: int) -> None:
        self._clock = clock
        self._ts, self._at = ts, clock.monotonic()

    def now(self, newest_ts: int) -> int:
        """Milliseconds since the Unix epoch; at least `newest_ts`."""
        at = self._clock.monotonic()
        steady = self._ts + int((at - self._at) * 1000)
        ts = max(newest_ts, self._clock.now_ms(), steady)
        if ts > steady:  # else the fractions of milliseconds would be lost call by call
            self._ts, self._at = ts, at
        return ts

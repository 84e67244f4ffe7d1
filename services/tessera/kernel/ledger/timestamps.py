"""
The time of the ledger beside a wall clock: the `ts` of its messages never goes back, and the difference is measured.
"""

from collections import deque

import structlog

from tessera.kernel.ports import Clock
from tessera.kernel.service.context import Ports


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


SAMPLES_MAX, SAMPLES_MIN = 16, 3
WARN_SECONDS = 5.0
LIVE_SECONDS = 0.02
"""A message that was waited for this long was written a moment ago; others may have lain in the stream."""

log = structlog.get_logger()


class Skew:
    """A delay only ever adds to the difference, so that the smallest of the newest ones is the nearest."""

    def __init__(self, ports: Ports) -> None:
        self._clock, self._metrics = ports.clock, ports.metrics
        self._samples: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._told = False

    def note(self, ts: int) -> None:
        """Takes in the time of a message, in milliseconds, that was written a moment ago."""
        self._samples.append((self._clock.now_ms() - ts) / 1000)
        if len(self._samples) < SAMPLES_MIN:
            return
        seconds = min(self._samples)
        self._metrics.clock_skew.set(seconds)
        if (abs(seconds) > WARN_SECONDS) is not self._told:
            self._told = not self._told
            say = log.warning if self._told else log.info
            say("clock_skewed" if self._told else "clock_right_again", ahead_of_the_ledger_seconds=round(seconds, 3))

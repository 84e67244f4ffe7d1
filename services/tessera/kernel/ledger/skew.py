"""
The difference between a process's wall clock and the ledger's time, as its newest messages show it.

No deadline rests on it: each is judged by one clock. It is told since people read both clocks, and since a committer
whose clock is ahead takes the ledger's time with it, for good.
"""

from collections import deque

import structlog

from tessera.kernel.service.context import Ports

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

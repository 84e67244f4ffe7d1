"""
Arrivals of the near future, drawn from those of the past: whole hours of it, as they were.

Jobs come in bursts, of a team that sends a hundred at once, and more of them by day. Rates by hour of the week would
spread each burst evenly; so hours of past days are drawn together, at the same time of day, of the same day of the week
as far as there are enough. All times are milliseconds of the ledger.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, Self

from tessera.engine.quoting.chance import Draws
from tessera.engine.quoting.pool_now import JobShape, read_shape

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BLOCK_MS = 4 * HOUR_MS
DAYS_MAX = 28
ARRIVALS_MAX = 65_536


class PastArrivals:
    """Jobs as they were submitted, the newest `ARRIVALS_MAX` of the last `DAYS_MAX` days."""

    def __init__(self, since_ts: int | None = None) -> None:
        self._times: list[int] = []
        self._shapes: list[JobShape] = []
        self._since = since_ts

    def note(self, ts: int, shape: JobShape) -> None:
        """A job was submitted; times never fall."""
        if self._since is None:
            self._since = ts
        self._times.append(ts)
        self._shapes.append(shape)
        if len(self._times) > ARRIVALS_MAX * 5 // 4:
            del self._times[:-ARRIVALS_MAX], self._shapes[:-ARRIVALS_MAX]
            self._since = self._times[0]

    def as_now(self) -> Self:
        """A copy that later submits leave as it is."""
        made = type(self)(self._since)
        made._times, made._shapes = self._times.copy(), self._shapes.copy()
        return made

    def stored(self) -> dict[str, Any]:
        """Values of all of it, as JSON holds them: each shape once, times as distances."""
        # A month has a few hundred shapes, and sixty thousand submits.
        numbers: dict[JobShape, int] = {}
        rows = [numbers.setdefault(shape, len(numbers)) for shape in self._shapes]
        steps = [at - before for before, at in zip([0, *self._times], self._times, strict=False)]
        return {"since": self._since, "shapes": list(numbers), "rows": rows, "steps": steps}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Read stored values back. Raises KeyError, IndexError, TypeError or ValueError for anything else."""
        made = cls(stored["since"])
        shapes = [read_shape(shape) for shape in stored["shapes"]]
        made._times = list(accumulate(stored["steps"]))
        made._shapes = [shapes[at] for at in stored["rows"]]
        if len(made._times) != len(made._shapes):
            raise ValueError("as many times as shapes")
        return made

    def drawn(self, ts: int, chance: Draws) -> Iterator[tuple[int, JobShape]]:
        """Submits after `ts`, without end; none where less than a block's time has been seen."""
        # Each block is drawn by itself: a burst stays whole, and the same days do not follow each other for ever.
        begin = ts
        while (offset := self._offset(begin, ts, chance)) is not None:
            end = begin + BLOCK_MS
            low = bisect_left(self._times, begin - offset + 1)
            high = bisect_left(self._times, end - offset + 1)
            for at in range(low, high):
                yield self._times[at] + offset, self._shapes[at]
            begin = end

    def _offset(self, begin: int, ts: int, chance: Draws) -> int | None:
        """Distance into the past of the hours that stand for the block that begins then."""
        if self._since is None:
            return None
        # Whole days back, to hours that are wholly past and wholly known.
        least = -(-(begin + BLOCK_MS - ts) // DAY_MS)
        most = min((begin - self._since) // DAY_MS, least + DAYS_MAX - 1)
        if most >= least:
            return (least + chance.below(most - least + 1)) * DAY_MS
        # In the first day no hours of this time of day are known. Others are better than none: nobody who comes would
        # pass anybody, and each wait would be told too short.
        known = ts - BLOCK_MS - self._since
        return None if known < 0 else begin - self._since - chance.below(known + 1)

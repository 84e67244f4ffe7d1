"""
Quotes that are corrected by their record: each bound of a quote is moved until it holds as often as it says.

A quote is kept when it is given. Of each of its bounds it turns out whether it held: when the job starts by then, or,
for a job that waits yet, when its time has passed, which is long before the start. A bound that has failed moves up for
those who come later, and one that has held moves down, so much less that both balance once it holds as often as it
should (quantile tracking, on the logarithm of the wait). So nothing is assumed of the waits: in the long run the share
that held is off by at most the way that an offset has gone, over the size of a step and the number of quotes, whatever
comes. Who waits yet is not left out, and no window of scores is remembered.

Three things beside that. Bursts: quotes that were given before the first of them was scored are all off by the same,
and the more of a class have been scored since a quote was given, the less its own score moves. Classes: a class of jobs
has offsets of its own, which weigh more the more of its jobs were scored, beside those of all. Beginnings: quotes are
told wider than they are drawn before anything is known, since what is drawn knows only what was seen so far.

Sources: Gibbs and Candès, Adaptive Conformal Inference Under Distribution Shift, NeurIPS 2021; Angelopoulos, Candès and
Tibshirani, Conformal PID Control for Time Series Prediction, NeurIPS 2023 (quantile tracking).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Self

from tessera.engine.quoting import LEVELS, Quote
from tessera.engine.quoting.chance import LEAST_MS, LOG_UNIT, log_of, wait_of
from tessera.engine.quoting.pool_now import JobClass

STEPS = tuple(LOG_UNIT * (250 + abs(level - 500)) // 5000 for level in LEVELS)
"""
By how much each bound moves when it has failed, times the chance that it was to hold with: the median by a twentieth of
an octave, the ends by about thrice that. Scores lie close together around the median, where a step is noise, and far
apart at the ends.
"""
BURST = 20
"""After so many scores of its class a quote that was given before them moves a bound half as far."""
OWN_SCORES = 20
"""With how many scores of its own a class weighs as much as all together."""
WIDER = tuple(LOG_UNIT * (level - 500) // 2000 for level in LEVELS)
"""Where offsets begin: the ends of an interval of 95 % a quarter of an octave outwards, all others in proportion."""
MOST_LOG = 40 * LOG_UNIT
STALE_MOST = 64
"""Bounds of quotes that are over are taken out once there are more of them than of open ones, and than this."""

EVERYBODY: JobClass = ()


@dataclass(slots=True)
class _Offsets:
    """By how much each bound is moved, in thousandths of a part of a logarithm; how many of each have been scored."""

    moved: list[int] = field(default_factory=lambda: [0] * len(LEVELS))
    # A tuple that is replaced: the open quotes of a burst then share one.
    scored: tuple[int, ...] = (0,) * len(LEVELS)
    started: int = 0


@dataclass(slots=True)
class _Open:
    """A quote whose job waits: its first `failed` bounds have passed. `scored` is its class's, when it was given."""

    number: int
    job_class: JobClass
    ts: int
    told: tuple[int, ...]
    scored: tuple[int, ...]
    failed: int = 0


class QuoteBook:
    """
    Open quotes, and what has been learnt from earlier ones. Equal sequences of calls give equal corrections.

    A call costs the logarithm of the number of open quotes, and a few steps for each bound that has passed since the
    last one.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        # A heap: from when on a bound has failed, the number of its quote, and the job.
        self._bounds: list[tuple[int, int, str]] = []
        self._classes: dict[JobClass, _Offsets] = {EVERYBODY: _Offsets()}
        self._given = 0

    def give(self, drawn: Quote, job_class: JobClass) -> Quote:
        """
        The quote as it is told: what was drawn, corrected by the scores so far.

        It is open from now on. Of a job that waits under a quote already, that one stays open and is scored: if later
        ones took its place, those of jobs that start soon would be scored, and none of the others.
        """
        self._look(drawn.ts)
        own = self._classes.setdefault(job_class, _Offsets())
        told = self._corrected(drawn, own)
        if drawn.job_id not in self._open:
            self._given += 1
            given = self._open[drawn.job_id] = _Open(self._given, job_class, drawn.ts, told, own.scored)
            self._watch(drawn.job_id, given)
        return drawn._replace(waits_ms=told)

    def correct(self, drawn: Quote, job_class: JobClass) -> Quote:
        """The quote corrected by the scores so far, and not kept: of a job that is not in line."""
        self._look(drawn.ts)
        return drawn._replace(waits_ms=self._corrected(drawn, self._classes.get(job_class) or _Offsets()))

    @property
    def open_jobs(self) -> tuple[str, ...]:
        """Jobs whose quotes are not scored yet."""
        return tuple(self._open)

    def is_open(self, job_id: str) -> bool:
        """Whether the job has a quote that is not scored yet."""
        return job_id in self._open

    def stored(self) -> dict[str, Any]:
        """Values of all of it, as JSON holds them."""
        return {
            "given": self._given,
            "open": [
                [job, one.number, one.job_class, one.ts, one.told, one.scored, one.failed]
                for job, one in self._open.items()
            ],
            "classes": [[name, each.moved, each.scored, each.started] for name, each in self._classes.items()],
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Read stored values back. Raises KeyError, TypeError or ValueError for anything else."""
        made = cls()
        made._given = stored["given"]
        for name, moved, scored, started in stored["classes"]:
            made._classes[tuple(name)] = _Offsets(list(_levels(moved)), _levels(scored), started)
        for job, number, name, ts, told, scored, failed in stored["open"]:
            own = tuple(name)
            made._classes.setdefault(own, _Offsets())
            made._open[job] = _Open(number, own, ts, _levels(told), _levels(scored), failed)
            # What is noted twice or out of its order in the heap is passed over: the number tells.
            made._watch(job, made._open[job])
        return made

    def started(self, job_id: str, ts: int) -> None:
        """The job has started, and its quote is scored."""
        self._look(ts)
        found = self._open.pop(job_id, None)
        if found is None:
            return
        # Those bounds have held that have not failed until now.
        for at in range(found.failed, len(LEVELS)):
            self._score(found, at, held=True)
        self._classes[found.job_class].started += 1
        self._forget()

    def dropped(self, job_id: str) -> None:
        """The job will not start: nothing more is learnt of its quote."""
        self._open.pop(job_id, None)
        self._forget()

    def _watch(self, job_id: str, quote: _Open) -> None:
        """Note when the next bound of the quote will have failed; a quote is noted once, however many bounds it has."""
        if quote.failed < len(LEVELS):
            heappush(self._bounds, (quote.ts + quote.told[quote.failed] + 1, quote.number, job_id))

    def _look(self, ts: int) -> None:
        """Score the bounds of open quotes that have passed until now."""
        while self._bounds and self._bounds[0][0] <= ts:
            _, number, job_id = heappop(self._bounds)
            # Of a quote that is over a bound is still noted; the number tells it from a later one of the same job.
            found = self._open.get(job_id)
            if found is not None and found.number == number:
                self._score(found, found.failed, held=False)
                found.failed += 1
                self._watch(job_id, found)

    def _forget(self) -> None:
        """Take out bounds of quotes that are over: some would pass years from now."""
        if len(self._bounds) > 2 * len(self._open) + STALE_MOST:
            kept = [each for each in self._bounds if each[2] in self._open and self._open[each[2]].number == each[1]]
            heapify(kept)
            self._bounds = kept

    def _score(self, quote: _Open, at: int, held: bool) -> None:
        own, everybody = self._classes[quote.job_class], self._classes[EVERYBODY]
        scored = own.scored
        own.scored = (*scored[:at], scored[at] + 1, *scored[at + 1 :])
        # Nothing below it can be told: offsets that went on falling would take as long to come back.
        if held and quote.told[at] <= LEAST_MS:
            return
        step = STEPS[at] * (1000 - LEVELS[at] if held else LEVELS[at])
        step = step * BURST // (BURST + scored[at] - quote.scored[at])
        # Both by the whole step: those of all then serve a class that is new as well as they did those before it.
        for offsets in (own, everybody):
            offsets.moved[at] += -step if held else step

    def _corrected(self, drawn: Quote, own: _Offsets) -> tuple[int, ...]:
        # Each level is moved by itself: a scale that is right in the middle may be far off at the ends. What then
        # crosses is put in order.
        told, least, everybody = [], log_of(LEAST_MS), self._classes[EVERYBODY]
        for at, wait in enumerate(drawn.waits_ms):
            moved = own.moved[at] * own.started + everybody.moved[at] * OWN_SCORES
            moved = WIDER[at] + moved // (own.started + OWN_SCORES) // 1000
            least = max(least, min(MOST_LOG, log_of(wait) + moved))
            told.append(wait_of(least))
        return tuple(told)


def _levels(stored: Sequence[int]) -> tuple[int, ...]:
    if len(stored) != len(LEVELS):
        raise ValueError(f"{len(stored)} levels, not {len(LEVELS)}")
    return tuple(stored)

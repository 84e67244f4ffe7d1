"""
Scores of quotes, and quantiles that are corrected by them: conformal prediction on the logarithm of the wait.

A quote is kept when it is given and scored when its job starts. By how much the wait exceeded the quoted quantile, as a
difference of logarithms, is the score of that quantile; the next quote is moved by the quantile of these scores. Jobs
that wait yet are scored too, as later than now: who counts those alone that have started learns from short waits only.
So the quantile is that of Kaplan and Meier, for scores of which some are known to be larger than a number. Jobs of a
class have scores of their own, which weigh more the more there are. What is left of a drift a step corrects: each time
a bound is passed it is moved up, and each time one holds, down, so that in the long run as many hold as are to.

Sources: Romano, Patterson and Candès, Conformalized Quantile Regression, NeurIPS 2019; Angelopoulos, Candès and
Tibshirani, Conformal PID Control for Time Series Prediction, NeurIPS 2023; Kaplan and Meier, JASA 1958.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from tessera.engine.quoting import LEVELS, Quote
from tessera.engine.quoting.chance import LOG_UNIT, log_of, wait_of
from tessera.engine.quoting.pool_now import JobClass

SCORES_MAX = 400
"""Scores that are remembered of a class, and of all."""
WINDOW_MS = 21 * 24 * 3_600_000
OWN_SCORES = 60
"""With how many scores of its own a class weighs as much as all together."""
STEP = 24
"""Parts of a logarithm by which a passed bound moves, times the chance that it was to hold with."""
MOST_LOG = 40 * LOG_UNIT


class Score(NamedTuple):
    """Logarithms of the wait and of the waits that were drawn for each of `LEVELS`; `known_ts` is when it was known."""

    known_ts: int
    wait: int
    drawn: tuple[int, ...]


class _Open(NamedTuple):
    job_class: JobClass
    ts: int
    drawn: tuple[int, ...]
    told: tuple[int, ...]
    passed: set[int]


class QuoteBook:
    """Open quotes and the scores of the last weeks. Equal sequences of calls give equal corrections."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._scores: dict[JobClass, deque[Score]] = {}
        self._moved: dict[JobClass, list[int]] = {}

    def give(self, drawn: Quote, job_class: JobClass) -> Quote:
        """The quote as it is told: what was drawn, corrected by the scores so far; it is open from now on."""
        # What was drawn is kept beside what was told: scores correct the one, and say of the other whether it held.
        told = self.correct(drawn, job_class)
        logs = tuple(log_of(wait) for wait in drawn.waits_ms)
        self._open[drawn.job_id] = _Open(
            job_class, drawn.ts, logs, tuple(log_of(wait) for wait in told.waits_ms), set()
        )
        return told

    def correct(self, drawn: Quote, job_class: JobClass) -> Quote:
        """The quote corrected by the scores so far, and not kept."""
        self._look(drawn.ts)
        logs = tuple(log_of(wait) for wait in drawn.waits_ms)
        told = self._corrected(logs, job_class, drawn.ts)
        return drawn._replace(waits_ms=tuple(wait_of(log) for log in told))

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
            "open": [[job, *found[:4], sorted(found.passed)] for job, found in self._open.items()],
            "scores": [[name, list(scores)] for name, scores in self._scores.items()],
            "moved": [[name, moved] for name, moved in self._moved.items()],
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Read stored values back. Raises KeyError, TypeError or ValueError for anything else."""
        made = cls()
        for job, name, ts, drawn, told, passed in stored["open"]:
            made._open[job] = _Open(tuple(name), ts, _levels(drawn), _levels(told), set(passed))
        for name, scores in stored["scores"]:
            read = [Score(known, wait, _levels(drawn)) for known, wait, drawn in scores]
            made._scores[tuple(name)] = deque(read, maxlen=SCORES_MAX)
        made._moved = {tuple(name): list(_levels(moved)) for name, moved in stored["moved"]}
        return made

    def started(self, job_id: str, ts: int) -> None:
        """The job has started, and its quote is scored."""
        found = self._open.pop(job_id, None)
        if found is None:
            return
        self._look(ts)
        # On logarithms a factor counts alike for a minute and for a day: waits span five powers of ten.
        wait = log_of(ts - found.ts)
        for at, told in enumerate(found.told):
            # A bound that was passed before is known to have failed since then, and counts once.
            if at not in found.passed:
                self._step(found.job_class, at, wait > told)
        # Under the empty name stand the scores of all, which serve classes that have few.
        for name in ((), found.job_class):
            scores = self._scores.setdefault(name, deque(maxlen=SCORES_MAX))
            scores.append(Score(ts, wait, found.drawn))

    def dropped(self, job_id: str) -> None:
        """The job will not start: nothing is learnt of its quote."""
        self._open.pop(job_id, None)

    def _look(self, ts: int) -> None:
        """Open quotes whose bound has passed are known to have failed it, long before their jobs start."""
        for each in self._open.values():
            waited = log_of(ts - each.ts)
            for at, told in enumerate(each.told):
                if waited > told and at not in each.passed:
                    each.passed.add(at)
                    self._step(each.job_class, at, True)

    def _step(self, job_class: JobClass, at: int, passed: bool) -> None:
        for name in ((), job_class):
            moved = self._moved.setdefault(name, [0] * len(LEVELS))
            moved[at] += STEP * (LEVELS[at] if passed else LEVELS[at] - 1000) // 1000

    def _corrected(self, logs: Sequence[int], job_class: JobClass, ts: int) -> tuple[int, ...]:
        everybody = self._known((), ts)
        # Open quotes of any age: the oldest are those of the longest waits, without which no tail is known.
        mine = self._known(job_class, ts)
        weight = len(self._scores.get(job_class, ()))
        # Each level is corrected by itself: a scale that is right in the middle may be far off at the ends. What then
        # crosses is put in order.
        told, least = [], 0
        for at, log in enumerate(logs):
            own, general = quantile_of_scores(mine, at), quantile_of_scores(everybody, at)
            move = (own * weight + general * OWN_SCORES) // (weight + OWN_SCORES)
            steps, mine_steps = self._moved.get((), NONE)[at], self._moved.get(job_class, NONE)[at]
            move += (mine_steps * weight + steps * OWN_SCORES) // (weight + OWN_SCORES)
            least = max(least, min(MOST_LOG, log + move))
            told.append(least)
        return tuple(told)

    def _known(self, job_class: JobClass, ts: int) -> list[tuple[Score, bool]]:
        """Scores of a class of the last weeks, and whether each is known wholly; those of open quotes are not."""
        scores = [(score, True) for score in self._scores.get(job_class, ()) if score.known_ts > ts - WINDOW_MS]
        # Open quotes of any age: the oldest are those of the longest waits, without which no tail is known.
        mine = (each for each in self._open.values() if not job_class or each.job_class == job_class)
        return scores + [(Score(ts, log_of(ts - each.ts), each.drawn), False) for each in mine]


NONE = [0] * len(LEVELS)


def _levels(stored: Sequence[int]) -> tuple[int, ...]:
    if len(stored) != len(LEVELS):
        raise ValueError(f"{len(stored)} levels, not {len(LEVELS)}")
    return tuple(stored)


def quantile_of_scores(scores: Iterable[tuple[Score, bool]], at: int) -> int:
    """
    Quantile of the scores of one of `LEVELS`, by Kaplan and Meier; the largest known where too few are known.

    A score that is not known wholly is larger than what is known of it.
    """
    by_size = sorted((score.wait - score.drawn[at], not known) for score, known in scores)
    left, found, many = 1 << 40, 0, len(by_size)
    # Shares are rounded down or up by one part each: of ten scores the fifth is the median.
    wanted = (1000 - LEVELS[at] << 40) // 1000
    for passed, (size, is_open) in enumerate(by_size):
        # Who is known in part stays at risk up to what is known, and is then left out, without an end.
        if not is_open:
            left -= left // (many - passed)
            found = size
            if left <= wanted + many:
                break
    return found

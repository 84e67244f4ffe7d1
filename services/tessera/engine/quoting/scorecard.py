"""
Quotes as people are told them, and scorecards: shares of starts within what was told, and median errors beside those
of naive predictors.

In: scored quotes. Out: thousandths and milliseconds, for people, a metric and a picture. Pure.
"""

from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

from tessera.engine.quoting import LEVELS, Quote
from tessera.engine.quoting.naive import NaiveWaits
from tessera.engine.quoting.record import ScoredQuote
from tessera_schemas.base import INT_MAX
from tessera_schemas.shard.quotes import StartQuote

TOLD = (100, 500, 800, 950)
"""Chances, in thousandths, of the times that `StartQuote` has."""
BOUNDS = (500, 800, 950)
"""Chances, in thousandths, by which people are told a start."""
INTERVALS = {800: (100, 900), 950: (25, 975)}
"""Intervals by the chance, in thousandths, to hold the start: between which of `LEVELS` they lie."""


class Scorecard(NamedTuple):
    """
    Scores of `quotes` quotes: thousandths of them that held, by each of `BOUNDS` and in each of `INTERVALS`, and median
    absolute errors of the medians, of the quotes and of each naive predictor.
    """

    quotes: int
    held_by: tuple[tuple[int, int], ...]
    held_in: tuple[tuple[int, int], ...]
    error_ms: int
    naive_error_ms: NaiveWaits


def as_told(quote: Quote) -> StartQuote:
    """The quote as times, for people."""
    at = {f"by_{level // 10}_ts": min(INT_MAX, quote.ts + quote.wait_at(level)) for level in TOLD}
    return StartQuote(ts=quote.ts, evicted_permille=quote.evicted_permille, **at)


def scorecard(scored: Sequence[ScoredQuote]) -> Scorecard:
    """Scores of these quotes; all of them 0 where there are none."""
    by = tuple((level, _share(scored, 0, level)) for level in BOUNDS)
    within = tuple((chance, _share(scored, *levels)) for chance, levels in INTERVALS.items())
    # Medians of errors and not means: one job that waits a month would else be the score of all.
    middle = LEVELS.index(500)
    errors = [_error([one.given.naive[at] for one in scored], scored) for at in range(len(NaiveWaits._fields))]
    error = _error([one.given.told[middle] for one in scored], scored)
    return Scorecard(len(scored), by, within, error, NaiveWaits(*errors))


def _share(scored: Sequence[ScoredQuote], low: int, high: int) -> int:
    # A quote has no bound at 0, below which nobody starts.
    least, most = LEVELS.index(low) if low else None, LEVELS.index(high)
    held = sum(
        (least is None or one.given.told[least] <= one.wait_ms) and one.wait_ms <= one.given.told[most]
        for one in scored
    )
    return 1000 * held // max(1, len(scored))


def _error(told: Sequence[int], scored: Sequence[ScoredQuote]) -> int:
    return median_low([abs(each - one.wait_ms) for each, one in zip(told, scored, strict=True)]) if scored else 0

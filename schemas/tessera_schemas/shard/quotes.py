"""
Quotes: the times by which jobs that wait start with given chances, as projection keeps them in Redis.

They are drawn from the state of a moment and no part of the views: a Redis that lost them has new ones within seconds.
"""

from typing import Annotated

from pydantic import Field

from tessera_schemas.base import Count, Lenient, Millis
from tessera_schemas.text.units import format_age

TOLD_MAX_MS = 30 * 86_400_000
"""A start that is further ahead is told as one that is not within that time."""

Permille = Annotated[int, Field(ge=0, le=1000, description="Thousandths")]


class StartQuote(Lenient):
    """
    Times by which a job has started with a chance of 10, 50, 80 and 95 %, as of `ts`.

    A job has started once it has its devices; its images are pulled after that.
    """

    ts: Millis
    by_10_ts: Annotated[Millis, Field(description="Time before which only one in ten such jobs starts")]
    by_50_ts: Annotated[Millis, Field(description="Time by which it starts as likely as not")]
    by_80_ts: Annotated[Millis, Field(description="Time by which four in five such jobs start")]
    by_95_ts: Annotated[Millis, Field(description="Time by which nineteen in twenty such jobs start")]
    evicted_permille: Annotated[
        Permille, Field(description="Chance that its run is stopped for others before its end, in thousandths")
    ] = 0
    words: Annotated[str, Field(description="The bounds in words, as of the answer")] = ""

    def in_words(self, now_ms: int) -> str:
        """The bounds as people are told them: `in 12m (50 %), by 40m (80 %), not within 30 days (95 %)`."""
        if self.by_95_ts < now_ms + 1000:
            return "now"
        bounds = (("in", self.by_50_ts, 50), ("by", self.by_80_ts, 80), ("by", self.by_95_ts, 95))
        return ", ".join(f"{bound_words(ts, now_ms, word)} ({chance} %)" for word, ts, chance in bounds)


def bound_words(ts: int, now_ms: int, word: str = "") -> str:
    """One bound from now on: `in 12m`, `now`, or that it is not within thirty days."""
    ahead = ts - now_ms
    if ahead > TOLD_MAX_MS:
        return f"not within {TOLD_MAX_MS // 86_400_000} days"
    return f"{word} {format_age(ahead)}".strip() if ahead >= 1000 else "now"


class QuoteScores(Lenient):
    """
    Scores of the last weeks' quotes: thousandths that held by bound and interval, and median errors, of started jobs.

    The naive predictors are the work ahead over the GPUs, the same with what runs have left, and the median of the last
    waits of such jobs.
    """

    quotes: Count
    held_by_50: Permille
    held_by_80: Permille
    held_by_95: Permille
    held_in_80: Annotated[Permille, Field(description="Starts between the bounds of 10 and 90 %")]
    held_in_95: Annotated[Permille, Field(description="Starts between the bounds of 2.5 and 97.5 %")]
    error_ms: Annotated[Count, Field(description="Median absolute error of the bound of 50 %")]
    naive_ahead_ms: Count
    naive_running_ms: Count
    naive_class_ms: Count


class KeptQuotes(Lenient):
    """Quotes of all jobs that wait for GPUs, by job id, and the scores of each pool's earlier ones."""

    n: Annotated[Count, Field(description="Ledger message up to which the state was known")]
    ts: Millis
    quotes: dict[str, StartQuote]
    scores: Annotated[dict[str, QuoteScores], Field(default_factory=dict)]

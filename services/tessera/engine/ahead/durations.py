"""
Expected run time of a job, learnt from jobs that ended (`domain.runtimes`, which the fold keeps).

All times are milliseconds. A job of which nothing is known is assumed to run for `UNKNOWN`.
"""

from tessera.domain.runtimes import (
    BUCKETS,
    RUNS_MAX,
    UNKNOWN,
    WEIGHT,
    JobKind,
    Sketch,
    bucket,
    expected,
    kind_of,
    known_rows,
    learn,
)
from tessera.domain.table import Table

__all__ = [
    "BUCKETS",
    "FORECAST_PERMILLE",
    "RUNS_MAX",
    "UNKNOWN",
    "WEIGHT",
    "JobKind",
    "Sketch",
    "bucket",
    "expected",
    "is_learnt",
    "kind_of",
    "learn",
    "quantile",
    "upper",
]

FORECAST_PERMILLE = 900
"""The quantile of the learnt runtimes by which a job counts as ended where room is kept ahead."""


def quantile(rows: Table[Sketch], kind: JobKind, permille: int, elapsed_ms: int = 0) -> int:
    """
    The whole runtime that `permille` of the runs stay below, among those of this kind that ran for `elapsed_ms`.

    Always above `elapsed_ms`. The finest kind answers that had a run as long; when none had one, twice what has
    elapsed.
    """
    for row in known_rows(rows, kind):
        # Only runs that lasted longer than this one has: those that ended earlier say nothing any more about it.
        longer = [(at, count) for at, count in row.counts if upper(at) > elapsed_ms]
        wanted, passed = permille * sum(count for _, count in longer), 0
        for at, count in longer:
            passed += count
            if passed * 1000 >= wanted:
                return upper(at)
    return max(UNKNOWN, 2 * elapsed_ms)


def is_learnt(rows: Table[Sketch], kind: JobKind, elapsed_ms: int) -> bool:
    """Whether `quantile` answers by runs that were seen, and not by an assumption."""
    return any(upper(at) > elapsed_ms for row in known_rows(rows, kind) for at, _ in row.counts)


def upper(at: int) -> int:
    """The first runtime above the bucket."""
    # Buckets double with every second step, with one step between: the upper ends are 3 and 4 halves of a power of two
    # in turn, by shifts alone.
    return max(2, ((3 + at % 2) << (at // 2)) >> 1)

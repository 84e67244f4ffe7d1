"""
Expected run time of a job, learnt from jobs that ended (`domain.runtimes`, which the fold keeps).

All times are milliseconds. A job of which nothing is known is assumed to run for `UNKNOWN`.
"""

from collections.abc import Iterator

from tessera.domain.runtimes import BUCKETS, RUNS_MAX, WEIGHT, JobKind, Sketch, bucket, kind_of, learn
from tessera.domain.table import Table

__all__ = [
    "BUCKETS",
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

UNKNOWN = 2 * 3_600_000
"""What a job is taken to run as long as nothing is known, not even about others of its size."""

PRIOR_RUNS = 4
"""With how many runs of its own a kind weighs as much as the coarser kind above it."""


def expected(rows: Table[Sketch], kind: JobKind) -> int:
    """The mean that runs of this kind had; a kind with few runs is drawn towards the coarser one above it."""
    mean = UNKNOWN
    # From the coarsest kind to the finest: each one's mean counts as a few runs in the next. With no runs of its own a
    # kind has its parent's mean, with many its own, and nothing jumps in between.
    for row in reversed(list(_known(rows, kind))):
        total = sum(_middle(at) * count for at, count in row.counts)
        mean = (total + mean * PRIOR_RUNS * WEIGHT) // (row.weight + PRIOR_RUNS * WEIGHT)
    return mean


def quantile(rows: Table[Sketch], kind: JobKind, permille: int, elapsed_ms: int = 0) -> int:
    """
    The whole runtime that `permille` of the runs stay below, among those of this kind that ran for `elapsed_ms`.

    Always above `elapsed_ms`. The finest kind answers that had a run as long; when none had one, twice what has
    elapsed.
    """
    for row in _known(rows, kind):
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
    return any(upper(at) > elapsed_ms for row in _known(rows, kind) for at, _ in row.counts)


def _known(rows: Table[Sketch], kind: JobKind) -> Iterator[Sketch]:
    for key in kind.row_keys():
        row = rows.get(key)
        if row is not None:
            yield row


def upper(at: int) -> int:
    """The first runtime above the bucket."""
    # Buckets double with every second step, with one step between: the upper ends are 3 and 4 halves of a power of two
    # in turn, by shifts alone.
    return max(2, ((3 + at % 2) << (at // 2)) >> 1)


def _middle(at: int) -> int:
    return ((5 + 2 * (at % 2)) << (at // 2)) >> 2

"""
How long jobs run, learnt from those that ended: integer state that the fold can hold, and quantiles out of it.

Taken in: each run at its end, in the order of the ledger, and nothing before it. For each kind of job (tenant, queue,
name, GPUs) and for the coarser kinds above it one sketch is kept: counts in buckets of half an octave, so that an
answer is at most 50 % above the truth. A sketch forgets: when it has counted `RUNS_MAX` runs all counts are halved,
since what a team runs changes within days. State is bounded: `ROWS_MAX` sketches of at most `BUCKETS` buckets; the one
that is untouched for longest makes way. All times are milliseconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tessera.domain.table import Table

RUNS_MAX = 32
WEIGHT = 16  # of one run; halving leaves whole numbers for some generations, then drops the run
ROWS_MAX = 4096
RUNTIME_MAX = 2**40 - 1  # 34 years; longer counts as this
BUCKETS = 80

UNKNOWN = 2 * 3_600_000
"""What a job is taken to run as long as nothing is known, not even about others of its size."""

PRIOR_RUNS = 4
"""With how many runs of its own a kind weighs as much as the coarser kind above it."""


class Kind(NamedTuple):
    """What is known of a job before it runs that tells how long it will. An unnamed job has the name ""."""

    tenant: str
    queue: str
    name: str
    gpus: int

    def row_keys(self) -> tuple[str, ...]:
        """The rows that speak of this kind, the finest first. The parts are names, which hold no slash."""
        fine = f"{self.tenant}/{self.queue}/{self.name}/{self.gpus}"
        return tuple(dict.fromkeys((fine, f"{self.tenant}/{self.queue}//{self.gpus}", f"///{self.gpus}")))


@dataclass(frozen=True, slots=True)
class Sketch:
    """Weights by bucket, ascending, none of them 0; `last_ts` is when the last run that it counts ended."""

    counts: tuple[tuple[int, int], ...]
    last_ts: int

    @property
    def weight(self) -> int:
        return sum(count for _, count in self.counts)


def learn(rows: Table[Sketch], kind: Kind, runtime_ms: int, ts: int) -> None:
    """Count a run that ended at `ts`. Equal sequences of calls give equal rows."""
    at = bucket(runtime_ms)
    for key in kind.row_keys():
        row = rows.get(key)
        if row is None and len(rows) >= ROWS_MAX:
            rows.drop(min((old.last_ts, name) for name, old in rows.items())[1])
        rows.put(key, _counted(row, at, ts))


def _counted(row: Sketch | None, at: int, ts: int) -> Sketch:
    counts = dict(row.counts) if row else {}
    counts[at] = counts.get(at, 0) + WEIGHT
    if sum(counts.values()) >= RUNS_MAX * WEIGHT:
        counts = {key: count // 2 for key, count in counts.items() if count > 1}
    return Sketch(tuple(sorted(counts.items())), ts)


def expected(rows: Table[Sketch], kind: Kind) -> int:
    """The mean that runs of this kind had; a kind with few runs is drawn towards the coarser one above it."""
    mean = UNKNOWN
    for row in reversed(list(_known(rows, kind))):
        total = sum(_middle(at) * count for at, count in row.counts)
        mean = (total + mean * PRIOR_RUNS * WEIGHT) // (row.weight + PRIOR_RUNS * WEIGHT)
    return mean


def quantile(rows: Table[Sketch], kind: Kind, permille: int, elapsed_ms: int = 0) -> int:
    """
    The whole runtime that `permille` of the runs stay below, among those of this kind that ran for `elapsed_ms`.

    Always above `elapsed_ms`. The finest kind answers that had a run as long; when none had one, twice what has
    elapsed.
    """
    for row in _known(rows, kind):
        longer = [(at, count) for at, count in row.counts if upper(at) > elapsed_ms]
        wanted, passed = permille * sum(count for _, count in longer), 0
        for at, count in longer:
            passed += count
            if passed * 1000 >= wanted:
                return upper(at)
    return max(UNKNOWN, 2 * elapsed_ms)


def _known(rows: Table[Sketch], kind: Kind) -> Iterator[Sketch]:
    for key in kind.row_keys():
        row = rows.get(key)
        if row is not None:
            yield row


def bucket(runtime_ms: int) -> int:
    """Half-octaves: 2k holds [2^k, 1.5·2^k) and 2k+1 holds [1.5·2^k, 2^(k+1)); below 1 ms counts as 1 ms."""
    length = max(1, min(runtime_ms, RUNTIME_MAX))
    octave = length.bit_length() - 1
    return 2 * octave + ((length >> (octave - 1)) & 1 if octave else 0)


def upper(at: int) -> int:
    """The first runtime above the bucket."""
    return max(2, ((3 + at % 2) << (at // 2)) >> 1)


def _middle(at: int) -> int:
    return ((5 + 2 * (at % 2)) << (at // 2)) >> 2

"""
Expected run times, learnt from runs that ended by themselves: integer state of the fold.

Taken in: each run at its end, in the order of the ledger, and nothing before it. For each kind of job (tenant, queue,
name, GPUs) and for the coarser kinds above it one sketch is kept: counts in buckets of half an octave, so that an
answer is at most 50 % above the truth. A sketch forgets: when it has counted `RUNS_MAX` runs all counts are halved,
since what a team runs changes within days. State is bounded: `ROWS_MAX` sketches of at most `BUCKETS` buckets; those
that are untouched for longest make way. All times are milliseconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tessera.domain.devices.resources import WHOLE_GPU
from tessera.domain.entities import Job
from tessera.domain.table import Table

RUNS_MAX = 32
WEIGHT = 16  # of one run; halving leaves whole numbers for some generations, then drops the run
ROWS_MAX = 4096
PART_DROPPED = 8  # of full rows one in so many makes way at once: to look for one each time costs too much
RUNTIME_MAX = 2**40 - 1  # 34 years; longer counts as this
BUCKETS = 80
UNKNOWN = 2 * 3_600_000
"""What a job is taken to run as long as nothing is known, not even about others of its size."""

PRIOR_RUNS = 4
"""With how many runs of its own a kind weighs as much as the coarser kind above it."""


class JobKind(NamedTuple):
    """Features of a job, known before it runs, that predict its run time. An unnamed job has the name ""."""

    tenant: str
    queue: str
    name: str
    gpus: int

    def row_keys(self) -> tuple[str, ...]:
        """The rows that speak of this kind, the finest first. The parts are names, which hold no slash."""
        fine = f"{self.tenant}/{self.queue}/{self.name}/{self.gpus}"
        return tuple(dict.fromkeys((fine, f"{self.tenant}/{self.queue}//{self.gpus}", f"///{self.gpus}")))


def kind_of(job: Job) -> JobKind:
    """Shares of a GPU count as a GPU."""
    return JobKind(job.tenant, job.queue, job.name, -(-job.amount.gpu_milli // WHOLE_GPU))


@dataclass(frozen=True, slots=True)
class Sketch:
    """Weights by bucket, ascending, none of them 0; `last_ts` is when the last run that it counts ended."""

    key: str
    counts: tuple[tuple[int, int], ...]
    last_ts: int

    @property
    def weight(self) -> int:
        """Sum of the counts of all buckets: the runs that the sketch has not forgotten."""
        return sum(count for _, count in self.counts)


def learn(rows: Table[Sketch], kind: JobKind, runtime_ms: int, ts: int) -> None:
    """Count a run that ended at `ts`. Equal sequences of calls give equal rows."""
    at = bucket(runtime_ms)
    for key in kind.row_keys():
        row = rows.get(key)
        if row is None and len(rows) >= ROWS_MAX:
            for _, name in sorted((old.last_ts, name) for name, old in rows.items())[: -(-ROWS_MAX // PART_DROPPED)]:
                rows.drop(name)
        rows.put(key, Sketch(key, _counted(row, at), ts))


def _counted(row: Sketch | None, at: int) -> tuple[tuple[int, int], ...]:
    counts = dict(row.counts) if row else {}
    counts[at] = counts.get(at, 0) + WEIGHT
    if sum(counts.values()) >= RUNS_MAX * WEIGHT:
        counts = {key: count // 2 for key, count in counts.items() if count > 1}
    return tuple(sorted(counts.items()))


def bucket(runtime_ms: int) -> int:
    """Half-octaves: 2k holds [2^k, 1.5·2^k) and 2k+1 holds [1.5·2^k, 2^(k+1)); below 1 ms counts as 1 ms."""
    length = max(1, min(runtime_ms, RUNTIME_MAX))
    octave = length.bit_length() - 1
    return 2 * octave + ((length >> (octave - 1)) & 1 if octave else 0)


def expected(rows: Table[Sketch], kind: JobKind) -> int:
    """The mean that runs of this kind had; a kind with few runs is drawn towards the coarser one above it."""
    mean = UNKNOWN
    # From the coarsest kind to the finest: each one's mean counts as a few runs in the next. With no runs of its own a
    # kind has its parent's mean, with many its own, and nothing jumps in between.
    for row in reversed(list(known_rows(rows, kind))):
        total = sum(_middle(at) * count for at, count in row.counts)
        mean = (total + mean * PRIOR_RUNS * WEIGHT) // (row.weight + PRIOR_RUNS * WEIGHT)
    return mean


def known_rows(rows: Table[Sketch], kind: JobKind) -> Iterator[Sketch]:
    """The sketches that speak of this kind, the finest first."""
    for key in kind.row_keys():
        row = rows.get(key)
        if row is not None:
            yield row


def _middle(at: int) -> int:
    return ((5 + 2 * (at % 2)) << (at // 2)) >> 2

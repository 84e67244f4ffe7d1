"""
Naive predictors of waits, beside which quotes are judged: the work ahead over the GPUs, and the last waits of a class.

A quote that is no better than these is not worth its work. Pure, in integers; waits are milliseconds.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median_low
from typing import Any, NamedTuple, Self

from tessera.domain.runtimes import JobKind, Sketch
from tessera.domain.table import Table
from tessera.engine.ahead.durations import expected
from tessera.engine.quoting.pool_now import JobClass, PoolNow, WaitingNow

LAST_JOBS = 50


class NaiveWaits(NamedTuple):
    """
    Waits as they would be if the GPU time of the jobs ahead, of theirs and the runs' rest, took all GPUs one after the
    other; and the median of the last waits of the job's class.
    """

    ahead: int
    ahead_and_running: int
    last_of_class: int


class LastWaits:
    """Waits of the last `LAST_JOBS` jobs of each class that waited."""

    def __init__(self) -> None:
        self._waits: dict[JobClass, deque[int]] = defaultdict(lambda: deque(maxlen=LAST_JOBS))

    def note(self, job_class: JobClass, wait_ms: int) -> None:
        """A job has started; one that did not wait says nothing of those that do."""
        if wait_ms:
            self._waits[job_class].append(wait_ms)

    def median_of(self, job_class: JobClass) -> int:
        """Median wait of the class; 0 where nobody waited."""
        # `get`, since a class that is only asked about must not come to be.
        waits = self._waits.get(job_class)
        return median_low(waits) if waits else 0

    def stored(self) -> list[Any]:
        """Values of all of it, as JSON holds them."""
        return [[name, list(waits)] for name, waits in self._waits.items()]

    @classmethod
    def read(cls, stored: Sequence[Any]) -> Self:
        """Read stored values back. Raises TypeError or ValueError for anything else."""
        made = cls()
        for name, waits in stored:
            made._waits[tuple(name)].extend(int(wait) for wait in waits)
        return made


def naive_waits(now: PoolNow, sketches: Table[Sketch]) -> dict[str, tuple[int, int]]:
    """Work ahead of each waiting job over the GPUs, without and with what the runs are expected to have left."""
    lengths: dict[JobKind, int] = {}

    def length_of(kind: JobKind) -> int:
        if kind not in lengths:
            lengths[kind] = expected(sketches, kind)
        return lengths[kind]

    def place(job: WaitingNow) -> tuple[int, int, str]:
        length, waited = length_of(job.shape.kind), now.ts - job.submitted_ts
        queue = now.queues.get(job.shape.path[0])
        by_length = queue is not None and queue.order == "expected"
        index = job.shape.gpus * length * length // max(1, length + waited) if by_length else 0
        return index, job.submitted_ts, job.job_id

    # All GPUs are taken to work on the line alone, one job after the other: no fragments, no gangs.
    gpus = max(1, sum(node.gpus for node in now.nodes))
    left = sum(run.shape.gpus * max(0, length_of(run.shape.kind) - (now.ts - run.started_ts)) for run in now.runs)
    found, ahead = dict[str, tuple[int, int]](), 0
    for job in sorted(now.waiting, key=place):
        found[job.job_id] = ahead // gpus, (ahead + left) // gpus
        ahead += job.shape.gpus * length_of(job.shape.kind)
    return found

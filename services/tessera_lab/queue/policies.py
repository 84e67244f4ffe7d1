"""
The policies of the queueing replay: each learns of arrivals and ends, and says who starts.

`fifo`, `skip` and `sjf-oracle` are the baselines that were published for these jobs. The others are configurations of
the live engine.
"""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from tessera_lab.queue.configured import ALONE, by_arrival
from tessera_lab.queue.live import LiveEngine
from tessera_lab.traces.philly import TraceJob


class QueueingPolicy(Protocol):
    """A policy at work. Times are milliseconds, jobs are named by their line."""

    def arrived(self, job: TraceJob) -> None:
        """A job was submitted."""

    def ended(self, job: TraceJob, now_ms: int) -> None:
        """A job's GPUs are free again."""

    def started(self, now_ms: int) -> Sequence[int]:
        """The lines of the jobs that start now; they hold their GPUs from here on."""

    def stopped(self) -> Sequence[int]:
        """The lines of the jobs that the last call of `started` stopped first, to be started anew."""


Rank = Callable[[TraceJob], tuple[int, ...]]


class InOrder:
    """
    Best fit in a fixed order: strict, or passing over what does not fit.

    A gang of up to a node's GPUs lies on one node, a larger one on wholly free nodes, of which the last keeps a rest.
    """

    def __init__(self, rank: Rank, skip: bool, sizes: Sequence[int]) -> None:
        self._sizes, self._free = sizes, list(sizes)
        self._placed: dict[int, list[tuple[int, int]]] = {}  # line → (node, GPUs)
        self._rank, self._skip = rank, skip
        self._waiting: dict[int, list[tuple[tuple[int, ...], int, TraceJob]]] = {}  # by GPUs when skipping, else one

    def arrived(self, job: TraceJob) -> None:
        """Puts the job where its rank says."""
        insort(self._waiting.setdefault(job.gpus if self._skip else 0, []), (self._rank(job), job.line, job))

    def ended(self, job: TraceJob, now_ms: int) -> None:
        """Frees the job's GPUs."""
        for node, gpus in self._placed.pop(job.line):
            self._free[node] += gpus

    def started(self, now_ms: int) -> Sequence[int]:
        """Equal needs get equal answers while room shrinks: jobs of one size are done with their first refusal."""
        begun, waiting = [], {key: jobs for key, jobs in self._waiting.items() if jobs}
        while waiting:
            first = min(waiting, key=lambda key: waiting[key][0][:2])
            job = waiting[first][0][2]
            if not self._start(job):
                del waiting[first]
                continue
            begun.append(job.line)
            waiting[first].pop(0)
            if not waiting[first]:
                del waiting[first]
        return begun

    def stopped(self) -> Sequence[int]:
        """Stopped jobs: none, since nothing is preempted."""
        return ()

    def _start(self, job: TraceJob) -> bool:
        places = self._on_one(job.gpus) if job.gpus <= max(self._sizes) else self._on_whole_nodes(job.gpus)
        for node, gpus in places:
            self._free[node] -= gpus
        if places:
            self._placed[job.line] = places
        return bool(places)

    def _on_one(self, gpus: int) -> list[tuple[int, int]]:
        fits = [(free, node) for node, free in enumerate(self._free) if free >= gpus]
        return [(min(fits)[1], gpus)] if fits else []

    def _on_whole_nodes(self, gpus: int) -> list[tuple[int, int]]:
        places: list[tuple[int, int]] = []
        for node, size in enumerate(self._sizes):
            if self._free[node] == size:
                places.append((node, min(gpus, size)))
                gpus -= size
                if gpus <= 0:
                    return places
        return []


def by_duration(job: TraceJob) -> tuple[int, ...]:
    """Shortest first, which nobody knows before the job has ended."""
    return job.duration_s, job.submit_s


Maker = Callable[[Sequence[int], Sequence[TraceJob]], QueueingPolicy]
"""Takes the sizes of the nodes and what ended before the replay begins."""

POLICIES: Mapping[str, Maker] = {
    "fifo": lambda sizes, _: InOrder(by_arrival, False, sizes),
    "skip": lambda sizes, _: InOrder(by_arrival, True, sizes),
    "sjf-oracle": lambda sizes, _: InOrder(by_duration, False, sizes),
    **{name: partial(LiveEngine, name) for name in ALONE if name not in ("fifo", "skip")},
}

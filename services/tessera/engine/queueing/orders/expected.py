"""
The order that makes the mean wait small without starving anybody: least expected GPU time first.

A job that is expected to hold few GPUs for a short time lets many others wait little. Runtimes are those that the fold
has learnt, bounded by the job's time limit. A job that has waited `order_patience_seconds` is due: due jobs go before
all others of their class, the oldest first, so that shorter ones pass a job no longer than that. The order follows from
the state and the time alone.
"""

from collections.abc import Iterable, Iterator
from heapq import merge

from tessera.domain.entities import Job
from tessera.domain.runtimes import JobKind, Sketch, kind_of
from tessera.domain.state import InLine, Lane, State
from tessera.domain.table import Table
from tessera.engine.queueing.durations import expected
from tessera.engine.queueing.orders.line import JobLine

Turn = tuple[int, bool, int, InLine]
"""-priority, whether others may still pass it, expected GPU time in milliseconds (0 when due), and its age."""


def order(line: JobLine, state: State, ts: int) -> Iterator[InLine]:
    """Jobs of a lane are expected to take the same and stand by age; the order is the merge of the lanes."""
    for *_, place in merge(*(_turns(state, ts, lane, places) for lane, places in line.by_lane.items())):
        yield place


def is_due(state: State, job: Job, ts: int) -> bool:
    """Whether the job has waited so long that no job with a shorter expected runtime goes before it any more."""
    return ts - job.submitted_ts >= state.tree.policy.order_patience_seconds * 1000


def expected_runtime(rows: Table[Sketch], kind: JobKind, limit_ms: int) -> int:
    """Milliseconds that jobs of the kind ran on average, as far as that is known, but no longer than the limit."""
    mean = expected(rows, kind)
    return min(mean, limit_ms) if limit_ms else mean


def expected_gpu_time(rows: Table[Sketch], kind: JobKind, limit_ms: int) -> int:
    """GPU milliseconds; a job without GPUs counts as one with one, since it keeps CPUs from others as long."""
    return max(1, kind.gpus) * expected_runtime(rows, kind, limit_ms)


def expected_of(state: State, job: Job) -> int:
    """GPU milliseconds that the job is expected to take."""
    return expected_gpu_time(state.runtimes, kind_of(job), job.time_limit_seconds * 1000)


def _turns(state: State, ts: int, lane: Lane, places: Iterable[InLine]) -> Iterator[Turn]:
    minus_priority, kind, limit_ms = lane
    gpu_ms = expected_gpu_time(state.runtimes, kind, limit_ms)
    for place in places:
        job = state.jobs.get(place[-1])
        if job is not None:
            due = is_due(state, job, ts)
            yield minus_priority, not due, 0 if due else gpu_ms, place

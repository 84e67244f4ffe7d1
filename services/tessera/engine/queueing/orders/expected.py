"""
Shortest expected first, without starving anybody: least expected GPU time over the slowdown that a wait makes.

A job that is expected to hold few GPUs for a short time lets many others wait little, so its index is the GPU time that
it is expected to take. The index falls as the job waits, by its slowdown: (expected runtime + wait) / expected runtime,
which is what a wait means to a job of that length. Runtimes are those that the fold has learnt, bounded by the job's
time limit. A job that has waited `order_patience_seconds` is due: due jobs go before all others of their class, the
oldest first, so that others pass a job no longer than that. The order follows from the state and the time alone.

Source: the slowdown is Hansen's response ratio (Operating System Principles, 1973). What else was tried stands in
docs/research/lab.md.
"""

from collections.abc import Iterator

from tessera.domain.entities import Job
from tessera.domain.folding.line_keys import Bucket, QueuedJob
from tessera.domain.runtimes import JobKind, Sketch, kind_of
from tessera.domain.state import State
from tessera.domain.table import Table
from tessera.engine.ahead.durations import expected
from tessera.engine.queueing.orders import WaitingJobs, patience
from tessera.engine.queueing.orders.age import OLDER
from tessera.engine.queueing.orders.patience import WAITED, RankOf, order_by
from tessera_schemas.text.units import format_age

SHORTER = "expected to take less GPU time, as waits are counted"
BEFORE = (WAITED, SHORTER, OLDER)


def order(waiting: WaitingJobs, state: State, ts: int) -> Iterator[QueuedJob]:
    """Jobs of a bucket are expected to take the same and stand by age; the order is the merge of the buckets."""

    def rank_in(bucket: Bucket) -> RankOf:
        _, kind, limit_ms, _ = bucket
        runtime_ms = expected_runtime(state.runtimes, kind, limit_ms)
        return lambda job: _index(kind, runtime_ms, ts - job.submitted_ts)

    return order_by(waiting, state, ts, rank_in)


def why_before(state: State, job: Job, other: Job) -> str:
    """The reason why another job stands before this one at the state's time."""
    return patience.why_before(state, job, other, SHORTER, lambda each: index_of(state, each, state.ts))


def describe(state: State, job: Job) -> Iterator[str]:
    """Says how long the job is expected to run, and until when shorter jobs pass it."""
    kind, limit = kind_of(job), job.time_limit_seconds * 1000
    runtime = expected_runtime(state.runtimes, kind, limit)
    learnt = any(state.runtimes.get(key) is not None for key in kind.row_keys())
    why = "its time limit" if runtime == limit else "how long such jobs ran" if learnt else "nothing known of such jobs"
    gpus = f" on {kind.gpus} GPU{'s' * (kind.gpus != 1)}" if kind.gpus else ""
    patience = format_age(state.tree.policy.order_patience_seconds * 1000)
    yield (
        f"It is expected to run for {format_age(runtime)}{gpus}, by {why}. Jobs of its class that are expected to take "
        f"less GPU time go before it; its own counts for less as it waits, half after a wait as long as it is "
        f"expected to run. Nobody younger passes it once it has waited for {patience}."
    )


def expected_runtime(rows: Table[Sketch], kind: JobKind, limit_ms: int) -> int:
    """Milliseconds that jobs of the kind ran on average, as far as that is known, but no longer than the limit."""
    mean = expected(rows, kind)
    return min(mean, limit_ms) if limit_ms else mean


def index_of(state: State, job: Job, ts: int) -> int:
    """GPU milliseconds that the job is expected to take, over the slowdown that its wait until `ts` has made."""
    kind = kind_of(job)
    return _index(kind, expected_runtime(state.runtimes, kind, job.time_limit_seconds * 1000), ts - job.submitted_ts)


def _index(kind: JobKind, runtime_ms: int, waited_ms: int) -> int:
    """A job without GPUs counts as one with one, since it keeps CPUs from others as long."""
    return max(1, kind.gpus) * runtime_ms * runtime_ms // (runtime_ms + max(0, waited_ms))

"""
Patience of orders that let younger jobs pass: who has waited for so long is due, and goes by age before all others.

What an order adds is the rank of a job that is not due; of equal ranks the older job goes first.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import merge

from tessera.domain.entities import Job
from tessera.domain.folding.line_keys import Bucket, QueuedJob
from tessera.domain.state import State
from tessera.engine.queueing.orders import WaitingJobs
from tessera.engine.queueing.orders.age import OLDER

WAITED = "that have waited longer than the shard's patience"

RankOf = Callable[[Job], int]
"""Rank of a job that is not due; within a bucket it never falls from an older job to a younger one."""


def is_due(state: State, job: Job, ts: int) -> bool:
    """Whether the job has waited so long that no younger job of its class goes before it any more."""
    return ts - job.submitted_ts >= state.tree.policy.order_patience_seconds * 1000


def order_by(waiting: WaitingJobs, state: State, ts: int, rank_in: Callable[[Bucket], RankOf]) -> Iterator[QueuedJob]:
    """The merge of the buckets: the higher class first, then who is due by age, then the others by their rank."""
    buckets = (_keys(state, ts, bucket[0], rank_in(bucket), places) for bucket, places in waiting.by_bucket.items())
    for *_, place in merge(*buckets):
        yield place


def why_before(state: State, job: Job, other: Job, word: str, rank: RankOf) -> str:
    """The reason why another job stands before this one at the state's time; `word` where its rank puts it there."""
    if is_due(state, job, state.ts):
        return OLDER
    if is_due(state, other, state.ts):
        return WAITED
    return word if rank(other) < rank(job) else OLDER


def _keys(
    state: State, ts: int, minus_priority: int, rank: RankOf, places: Iterable[QueuedJob]
) -> Iterator[tuple[int, bool, int, QueuedJob]]:
    # Who is due comes first in a bucket, as the oldest of it: its keys ascend, as a merge needs them.
    for place in places:
        job = state.jobs.get(place[-1])
        if job is not None:
            due = is_due(state, job, ts)
            yield minus_priority, not due, 0 if due else rank(job), place

"""
Earliest deadline first, then the jobs without a deadline, the oldest first.

Of jobs that one machine could all end in time this order ends all in time; who can no longer meet its deadline is not
among them, since the committer ends it. A job that has waited `order_patience_seconds` is due, as under `expected`: due
jobs go before all others of their class, the oldest first, so that a stream of deadlines starves nobody.

Source: Liu and Layland, Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment, JACM 1973.
"""

from collections.abc import Iterable, Iterator
from heapq import merge

from tessera.domain.entities import Job
from tessera.domain.folding.line_keys import Bucket, QueuedJob
from tessera.domain.state import State
from tessera.engine.queueing.orders import WaitingJobs
from tessera.engine.queueing.orders.age import OLDER
from tessera.engine.queueing.orders.expected import WAITED, is_due
from tessera_schemas.base import INT_MAX
from tessera_schemas.text.units import format_age

EARLIER = "with an earlier deadline"
BEFORE = (WAITED, EARLIER, OLDER)


def order(waiting: WaitingJobs, state: State, ts: int) -> Iterator[QueuedJob]:
    """Jobs of a bucket have one deadline and stand by age; the order is the merge of the buckets."""
    for *_, place in merge(*(_keys(state, ts, bucket, places) for bucket, places in waiting.by_bucket.items())):
        yield place


def why_before(state: State, job: Job, other: Job) -> str:
    """The reason why another job stands before this one at the state's time."""
    # By the same keys as the line: who is due goes by age alone, and before who is not.
    if is_due(state, job, state.ts):
        return OLDER
    if is_due(state, other, state.ts):
        return WAITED
    return EARLIER if _last(other.deadline_ts) < _last(job.deadline_ts) else OLDER


def describe(state: State, job: Job) -> Iterator[str]:
    """Says until when earlier deadlines pass the job."""
    patience = format_age(state.tree.policy.order_patience_seconds * 1000)
    mine = "Jobs of its class with an earlier deadline" if job.deadline_ts else "Jobs of its class with a deadline"
    yield f"{mine} go before it. Nobody younger passes it once it has waited for {patience}."


def _last(deadline_ts: int) -> int:
    return deadline_ts or INT_MAX


def _keys(
    state: State, ts: int, bucket: Bucket, places: Iterable[QueuedJob]
) -> Iterator[tuple[int, bool, int, QueuedJob]]:
    # Those that are due come first in a bucket, the oldest of it: its keys ascend, as a merge needs them.
    minus_priority, _, _, deadline_ts = bucket
    for place in places:
        job = state.jobs.get(place[-1])
        if job is not None:
            due = is_due(state, job, ts)
            yield minus_priority, not due, 0 if due else _last(deadline_ts), place

"""
Earliest deadline first, then the jobs without a deadline, the oldest first.

Of jobs that one machine could all end in time this order ends all in time; who can no longer meet its deadline is not
among them, since the committer ends it. A job that has waited `order_patience_seconds` is due, as under `expected`: due
jobs go before all others of their class, the oldest first, so that a stream of deadlines starves nobody.

Source: Liu and Layland, Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment, JACM 1973.
"""

from collections.abc import Iterator

from tessera.domain.entities import Job
from tessera.domain.folding.line_keys import QueuedJob
from tessera.domain.state import State
from tessera.engine.queueing.orders import WaitingJobs, patience
from tessera.engine.queueing.orders.age import OLDER
from tessera.engine.queueing.orders.patience import WAITED, order_by
from tessera_schemas.base import INT_MAX
from tessera_schemas.text.units import format_age

EARLIER = "with an earlier deadline"
BEFORE = (WAITED, EARLIER, OLDER)


def order(waiting: WaitingJobs, state: State, ts: int) -> Iterator[QueuedJob]:
    """Jobs of a bucket have one deadline and stand by age; the order is the merge of the buckets."""
    return order_by(waiting, state, ts, lambda _: last_end)


def why_before(state: State, job: Job, other: Job) -> str:
    """The reason why another job stands before this one at the state's time."""
    return patience.why_before(state, job, other, EARLIER, last_end)


def describe(state: State, job: Job) -> Iterator[str]:
    """Says until when earlier deadlines pass the job."""
    patience = format_age(state.tree.policy.order_patience_seconds * 1000)
    mine = "Jobs of its class with an earlier deadline" if job.deadline_ts else "Jobs of its class with a deadline"
    yield f"{mine} go before it. Nobody younger passes it once it has waited for {patience}."


def last_end(job: Job) -> int:
    """Deadline of the job, in milliseconds; without one it stands behind all that have one."""
    return job.deadline_ts or INT_MAX

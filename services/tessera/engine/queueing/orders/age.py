"""The oldest first."""

from collections.abc import Iterable

from tessera.domain.state import QueuedJob, State
from tessera.engine.queueing.orders.waiting_jobs import WaitingJobs


def order(waiting: WaitingJobs, state: State, ts: int) -> Iterable[QueuedJob]:
    """The higher class first, then the older job, as the index has them."""
    return waiting.by_age

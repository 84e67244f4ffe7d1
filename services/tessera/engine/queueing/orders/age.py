"""The oldest first."""

from collections.abc import Iterable, Iterator

from tessera.domain.entities import Job
from tessera.domain.folding.line_keys import QueuedJob
from tessera.domain.state import State
from tessera.engine.queueing.orders import WaitingJobs

OLDER = "older"
BEFORE = (OLDER,)


def order(waiting: WaitingJobs, state: State, ts: int) -> Iterable[QueuedJob]:
    """The higher class first, then the older job, as the index has them."""
    return waiting.by_age


def why_before(state: State, job: Job, other: Job) -> str:
    """Age alone puts another job before this one."""
    return OLDER


def describe(state: State, job: Job) -> Iterator[str]:
    """Says nothing: "older" says it all."""
    yield from ()

"""Progress of a job array in the state: a cursor and counters, however many tasks it has. Pure."""

from dataclasses import dataclass

from tessera.domain.storing.fast import fast_init
from tessera.domain.storing.later import later
from tessera_schemas.reasons import Reason
from tessera_schemas.work.arrays import task_count

WAITING_MAX = 256
"""Tasks of one array that wait at once: half of the longest order, so that no array alone fills it."""
WAITING_WITH_ASIDE_MAX = 4 * WAITING_MAX
"""The same with those that are aside, which would else be jobs in memory without a bound."""


@fast_init
@dataclass(frozen=True, slots=True)
class TaskArray:
    """
    An array's tasks: the first `queued` of them were made jobs, and of these `live` have not ended.

    `waiting` of the live ones have no run, and `aside` of these are held or were tried before, so that they may be in
    back-off: no slot is kept for them. The last `failing` that ended failed within seconds. `closed` is why no more
    are queued, None while nothing keeps them; `hurried`: its tasks stop without their notice.
    Each task waits for the success of the task of its index in the arrays that it `follows`.
    """

    tasks: str
    limit: int
    queued: int = 0
    waiting: int = 0
    live: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    closed: Reason | None = None
    follows: tuple[str, ...] = ()
    failing: int = later(0)
    hurried: bool = later(False)
    aside: int = later(0)

    @property
    def count(self) -> int:
        """Number of tasks, of whatever fate."""
        return task_count(self.tasks)

    @property
    def left(self) -> int:
        """Number of tasks that may still be queued."""
        return 0 if self.closed is not None else self.count - self.queued

    @property
    def has_room(self) -> bool:
        """Whether another task may be queued now."""
        if not self.left or self.waiting - self.aside >= WAITING_MAX or self.waiting >= WAITING_WITH_ASIDE_MAX:
            return False
        return not 0 < self.limit <= self.live - self.aside

    @property
    def running(self) -> int:
        """Number of tasks that have a run."""
        return self.live - self.waiting

    @property
    def is_full(self) -> bool:
        """Whether as many tasks have a run as the limit allows, so that no other starts."""
        return 0 < self.limit <= self.running

    @property
    def is_over(self) -> bool:
        """Whether all tasks that there will be have ended."""
        return not self.left and not self.live

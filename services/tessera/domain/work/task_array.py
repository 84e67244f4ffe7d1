"""Progress of a job array in the state: a cursor and counters, however many tasks it has. Pure."""

from dataclasses import dataclass

from tessera.domain.storing.fast import fast_init
from tessera.domain.storing.later import later
from tessera_schemas.reasons import Reason
from tessera_schemas.work.arrays import task_count

WAITING_MAX = 256
"""Tasks of one array that wait at once: half of the longest order, so that no array alone fills it."""


@fast_init
@dataclass(frozen=True, slots=True)
class TaskArray:
    """
    An array's tasks: the first `queued` of them were made jobs, and of these `live` have not ended.

    `waiting` of the live ones have no run. The last `failing` that ended failed within seconds. `closed` is why no more
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
        return self.left > 0 and self.waiting < WAITING_MAX and not 0 < self.limit <= self.live

    @property
    def is_over(self) -> bool:
        """Whether all tasks that there will be have ended."""
        return not self.left and not self.live

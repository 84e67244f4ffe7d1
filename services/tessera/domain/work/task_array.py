"""Progress of a job array in the state: a cursor and counters, however many tasks it has. Pure."""

from dataclasses import dataclass
from typing import Literal

from tessera.domain.storing.fast import fast_init
from tessera.domain.storing.later import later
from tessera_schemas.reasons import Reason
from tessera_schemas.work.arrays import TASKS_MAX, task_count

WAITING_MAX = 256
"""Tasks of one array that wait at once: half of the longest order, so that no array alone fills it."""
WAITING_WITH_ASIDE_MAX = 4 * WAITING_MAX
"""The same with those that are aside, which would else be jobs in memory without a bound."""


FAILED_STARTS_MAX = 3
"""After so many failures in a row of replicas of a new revision its rollout stops."""


@fast_init
@dataclass(frozen=True, slots=True)
class Rollout:
    """
    The last rollout of a service: `revision` replaces what its replicas ran before, said by `before` (`Job.spec_at`).

    It goes on until it is `done`, or `stopped` for a reason: `failures` runs of the new revision failed in a row.
    """

    revision: int
    max_surge: int
    max_unavailable: int
    min_ready_seconds: int
    before: tuple[int, ...] = ()
    failures: int = 0
    done: bool = False
    stopped: Reason | None = None

    @property
    def goes_on(self) -> bool:
        """Whether older replicas are still to be replaced."""
        return not self.done and self.stopped is None


@fast_init
@dataclass(frozen=True, slots=True)
class TaskArray:
    """
    An array's tasks: the first `queued` of them were made jobs, and of these `live` have not ended.

    `waiting` of the live ones have no run, and `aside` of these are held or were tried before, so that they may be in
    back-off: no slot is kept for them. The last `failing` that ended failed within seconds. `closed` is why no more
    are queued, None while nothing keeps them; `hurried`: its tasks stop without their notice.
    Each task waits for the success of the task of its index in the arrays that it `follows`.

    The tasks of a service are its replicas: `least` to `most` of them, and `wanted` now. Live ones beyond that are held
    (`parked`) until it wants them again. There is always another task, and so no end before the array is closed. While
    a `rollout` goes on there may be a few more than it wants.
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
    least: int = later(0)
    most: int = later(0)
    wanted: int = later(0)
    parked: int = later(0)
    rollout: Rollout | None = later(None)

    @property
    def count(self) -> int:
        """Number of tasks, of whatever fate; of a service the most that it may have at once."""
        return self.most or task_count(self.tasks)

    @property
    def is_service(self) -> bool:
        """Whether the tasks are replicas of a service."""
        return self.most > 0

    @property
    def too_many(self) -> int:
        """Number of replicas beyond those that the service wants; below 0: so many are missing."""
        return self.live - self.parked - self.wanted

    @property
    def revision(self) -> int:
        """Number of the revision of a service: 1 for what was submitted."""
        return 1 if self.rollout is None else self.rollout.revision

    @property
    def rollout_state(self) -> Literal["", "rolling", "stopped"]:
        """Whether a rollout goes on, or stopped; "" where every replica has the revision."""
        if self.rollout is None or self.rollout.done:
            return ""
        return "rolling" if self.rollout.stopped is None else "stopped"

    @property
    def surge(self) -> int:
        """Most replicas that there may be now beyond those that are wanted."""
        return self.rollout.max_surge if self.rollout is not None and self.rollout.goes_on else 0

    def missing(self, surge: int) -> int:
        """Number of replicas that a service lacks, with so many beyond those that it wants."""
        return max(0, surge - self.too_many)

    @property
    def left(self) -> int:
        """Number of tasks that may still be queued, of a service those that are missing."""
        if self.is_service:
            return self.missing(self.surge) if self.closed is None and self.queued < TASKS_MAX else 0
        return 0 if self.closed is not None else self.count - self.queued

    @property
    def has_room(self) -> bool:
        """Whether another task may be queued now."""
        if self.is_service:
            return self.left > self.parked
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
        return not self.left and not self.live and (not self.is_service or self.closed is not None)

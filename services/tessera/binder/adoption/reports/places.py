"""
Positions of jobs in their pool's order, and how often waiting pods get new numbers.

Positions are those of the newest order in the ledger. They change all the time: a pod shows the one of its last
condition, a group is renewed once a minute at most, and all groups together a few a second.
"""

from tessera.binder.bounded import BoundedDict
from tessera.domain.entities import Job, QueueOrder
from tessera.domain.state import State
from tessera.kernel.ports import Clock
from tessera_schemas.shard.orders import HEADS_MAX

RENEWED_SECONDS = 60.0
SECONDS_EACH, AT_ONCE = 0.2, 8
PODS_RENEWED = 8
"""Of a gang so many are told its new place; the others keep what they said."""
REMEMBERED = 16_384


class QueuePositions:
    """Index of each pool's newest order, made when it is first asked for."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._indexed: dict[str, tuple[QueueOrder, dict[str, int]]] = {}

    def position_of(self, job: Job) -> int | None:
        """Position, 1 is the next; None for a job in no order: it may not start, or too many are before it."""
        pool = self._state.tree.pool(job.queue)
        order = None if pool is None else self._state.lines.get(pool)
        if order is None:
            return None
        known = self._indexed.get(order.pool)
        # The very order that was indexed: a new one is another object, and an index for each question would cost as
        # much as the whole line.
        if known is None or known[0] is not order:
            known = self._indexed[order.pool] = order, {job_id: place for place, job_id in enumerate(order.jobs, 1)}
        return known[1].get(job.job_id)

    def describe(self, job: Job) -> str:
        """The position for people; "" where there is none."""
        pool, place = self._state.tree.pool(job.queue), self.position_of(job)
        if place is not None:
            return f"place {place} in the line of pool {pool}"
        order = None if pool is None else self._state.lines.get(pool)
        stands = not job.kept_out and job.not_before <= self._state.ts
        is_full = order is not None and len(order.jobs) >= HEADS_MAX
        return f"behind the first {HEADS_MAX} in the line of pool {pool}" if stands and is_full else ""


class Renewal:
    """Times at which a waiting group's condition may be written again with new numbers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renewed_at: BoundedDict[str, float] = BoundedDict(REMEMBERED)
        self._next = 0.0

    def is_due(self, group_id: str) -> bool:
        """Tell whether to renew the group: a minute has passed since the last time, or the first question."""
        now = self._clock.monotonic()
        return now >= self._renewed_at.setdefault(group_id, now) + RENEWED_SECONDS and now >= self._next

    def spend(self, group_id: str, writes: int) -> None:
        """Charge a look at the group and its writes."""
        now = self._clock.monotonic()
        self._renewed_at[group_id] = now
        # A bucket as one time: each write moves it by a share of a second, and quiet saves up a few writes at most.
        self._next = max(self._next, now - AT_ONCE * SECONDS_EACH) + writes * SECONDS_EACH

    def forget(self, group_id: str) -> None:
        """Forgets when the group was last told, as of a group that is no more."""
        self._renewed_at.pop(group_id, None)

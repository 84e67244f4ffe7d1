"""One pass over a pool's order: where its jobs may start. `ReservingPass` does the same around reservations."""

from collections.abc import Iterable

from tessera.domain.entities import Job
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.engine.placement.capacity import nodes_for
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.queueing.starting import Choice, choose
from tessera.engine.scoring.policies import find_scoring_policy
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Reason

CapacityCache = dict[tuple[str, str], FreeCapacity]
"""
What earlier passes found out about the nodes of each pool and flavor. Whoever decides message after message hands the
same one in again; a decision is equal with any cache, since each entry is compared with the nodes before it serves.
"""


class SchedulingPass:
    """Quota by queue, room by flavor and avoided nodes."""

    def __init__(self, state: State, pool: str, known: CapacityCache) -> None:
        self._state, self._pool, self._known = state, pool, known
        self._book: QuotaBook | None = None
        self._rooms: dict[tuple[str, tuple[str, ...]], FreeCapacity] = {}

    def find(self, job: Job) -> Choice | Reason:
        """Choose where the job may start now, or say why it may not; nothing is taken."""
        self._book = self._book or self._state.quota_book()
        return choose(
            self._state.tree, self._book, job, lambda roles, flavor, avoid: self.room(flavor, avoid).find(roles)
        )

    def reserves(self, job: Job) -> bool:
        """Whether the job has to be asked itself, even where equal ones got their answer."""
        return False

    def count_outlived(self, job: Job) -> int:
        """Number of reservations that begin before the job ends; equal jobs with an equal number get one answer."""
        return 0

    def may_borrow(self, job: Job) -> bool:
        """Whether quota of other queues may be had for the job."""
        return self._state.tree.revocable(job)

    def take_reasons(self) -> Iterable[tuple[str, Reason]]:
        """New reasons of jobs before this one, since the last call."""
        return ()

    def room(self, flavor: str, avoid: tuple[str, ...]) -> FreeCapacity:
        """Free capacity as of the current state."""
        room = self._rooms.get((flavor, avoid))
        if room is None:
            room = self._rooms[flavor, avoid] = self._room(flavor, avoid)
        return room

    def _room(self, flavor: str, avoid: tuple[str, ...]) -> FreeCapacity:
        """Free capacity of the pass before, updated where nodes changed; else computed anew."""
        nodes = nodes_for(self._state, self._pool, flavor, avoid)
        scoring = find_scoring_policy(self._state, self._pool)
        room = None if avoid else self._known.get((self._pool, flavor))
        if room is not None and room.renewed(nodes, scoring):
            return room
        room = FreeCapacity(nodes, scoring=scoring)
        if not avoid:
            self._known[self._pool, flavor] = room
        return room

    def taken(self, job: Job, flavor: str, placements: tuple[Placement, ...]) -> None:
        """The job was allocated there: the only room there is knows it too, several are made anew."""
        if self._book is not None:
            self._book.start(job, flavor)
        if len(self._rooms) > 1:
            self._rooms.clear()
        for room in self._rooms.values():
            room.take(job.roles, placements)

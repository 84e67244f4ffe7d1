"""
Room kept for blocked jobs during one pass over a pool's line, and who may start beside it.

The first jobs that find no room, as many as the policy says, get a reservation: from when on and where they can start
(`engine.queueing.reservations`). Nothing of it is held: whoever has ended by then may have the same room now, and a job
that runs longer may have what is free both now and then. Quota counts as used from now on, as if the job had started
at its turn.

Nobody is asked before somebody could be in the way: while nobody after them fits, blocked jobs cost nothing.
"""

from collections.abc import Iterator

from tessera.domain.devices.resources import RoleNeed
from tessera.domain.entities import Job
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.queueing.reservations import (
    Forecast,
    Opening,
    Reservation,
    find_opening,
    hide_reserved,
    make_reservation,
)
from tessera.engine.queueing.scheduling_pass import CapacityCache, SchedulingPass
from tessera.engine.queueing.starting import Choice, choose
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement

HOPELESS_MAX = 4
"""So many blocked jobs for which no end of a run makes room are looked at in one pass, besides those that have it."""


class ReservingPass(SchedulingPass):
    """A pass with reservations for the first jobs that find no room, which later ones may not delay."""

    def __init__(self, state: State, pool: str, known: CapacityCache) -> None:
        super().__init__(state, pool, known)
        self._policy = state.tree.policy
        self._forecast = Forecast(state)
        self._blocked: list[tuple[Job, Reason]] = []  # in the order of the line; nobody has looked for room ahead yet
        self._hopeless = 0
        self._reservations: list[Reservation] = []
        self._used: QuotaBook | None = None  # with what is kept; made with the first reservation
        self._left: dict[tuple[str, tuple[str, ...], int], FreeCapacity] = {}  # by how many reservations a job outlives
        self._behind: dict[tuple[str, bool, tuple[RoleNeed, ...], tuple[str, ...], int], Reason] = {}
        self._reasons: list[tuple[str, Reason]] = []

    def reserves(self, job: Job) -> bool:
        """Whether the job would get a reservation if it found no room, so that it has to be asked itself."""
        depth = self._policy.backfill_depth
        # Jobs that were noted count as if each needed a try of its own, so that the number of forecasts in a pass is
        # bounded before any of them is made.
        left = depth - len(self._reservations) + HOPELESS_MAX - self._hopeless - len(self._blocked)
        return len(self._reservations) < depth and left > 0 and self._waited(job, "patience")

    def count_outlived(self, job: Job) -> int:
        """The number of reservations that begin before the job ends; equal jobs with an equal number get one answer."""
        return len(self._outlived(job))

    def take_reasons(self) -> Iterator[tuple[str, Reason]]:
        """New reasons of blocked jobs since the last call."""
        while self._reasons:
            yield self._reasons.pop(0)

    def still_blocked(self, job: Job) -> bool:
        """Returns False: whether a job gets a reservation depends on the time."""
        return False

    def refusal(self, job: Job) -> Code | None:
        """The code of the reason that `find` would give, as far as that is known without a search; else None."""
        kind = job.queue, self.may_borrow(job), job.roles, job.avoid, self.count_outlived(job)
        if kind in self._behind:
            return Code.BEHIND_RESERVATION
        return None if self.reserves(job) else super().refusal(job)

    def find(self, job: Job) -> Choice | Reason:
        """Choose where the job may start now without delaying any reservation, or say why it may not."""
        # The answer to an equal job stands until there is another reservation: what starts in between takes room and
        # gives none.
        known = self._behind.get((job.queue, self.may_borrow(job), job.roles, job.avoid, self.count_outlived(job)))
        if known is not None:
            return known
        # First as if nothing were reserved. Only a job that fits that way can be in anybody's way, and only then are
        # the blocked ones worth a forecast.
        verdict = super().find(job)
        if isinstance(verdict, Reason):
            return self._note_blocked(job, verdict)
        self._look_ahead()
        return self._choose_around(job, verdict) if self._reservations else verdict

    def taken(self, job: Job, flavor: str, placements: tuple[Placement, ...]) -> None:
        """The job was allocated there."""
        super().taken(job, flavor, placements)
        if self._used is None:
            return
        self._used.start(job, flavor)
        # Only for reservations that begin while the job still runs is its room gone then; a job that has ended by that
        # time takes nothing from them.
        for reservation in self._outlived(job):
            job.gang.take(reservation.nodes_then, placements)
        # Only nodes of this start are hidden anew: all others are as they were, and a pass starts many jobs.
        changed = {placement.node for placement in placements}
        for (flavor_of, avoid, outlived), capacity in self._left.items():
            whole = self.capacity(flavor_of, avoid).nodes
            # A count names the reservations since they are sorted by their beginnings: whoever outlives three outlives
            # the first three. This is why jobs with equal counts may share one view of the room.
            first = self._reservations[:outlived]
            for name in changed & whole.keys():
                capacity.put(hide_reserved(whole[name], first))

    def _note_blocked(self, job: Job, verdict: Reason) -> Reason:
        """Note a blocked job. A reason `Reserved` stands until reservations are computed anew."""
        if verdict.code is not Code.NO_FIT or not self.reserves(job):
            return verdict
        self._blocked.append((job, verdict))
        return job.reason if job.reason is not None and job.reason.code is Code.RESERVED else verdict

    def _waited(self, job: Job, what: str) -> bool:
        seconds: int = getattr(self._policy, f"backfill_{what}_seconds")
        return self._state.ts - job.submitted_ts >= seconds * 1000

    def _look_ahead(self) -> None:
        """Keep room for the blocked jobs so far. Since they were asked, nobody has started."""
        for job, verdict in self._blocked:
            # Past the depth nobody gets one, yet the verdict is told: whoever was noted must have an answer in this
            # pass.
            reservation = self._reserve(job) if len(self._reservations) < self._policy.backfill_depth else None
            if reservation is None:
                self._hopeless += 1
                self._reasons.append((job.job_id, verdict))
                continue
            self._reservations.append(reservation)
            # A new reservation may begin before earlier ones, so that every count of outlived ones means others: views
            # and answers by count are void.
            self._reservations.sort(key=lambda other: (other.at, other.job.job_id))
            self._behind.clear()
            self._left.clear()
            seconds = (reservation.at - self._state.ts + 999) // 1000
            numbers = {"from_ts": reservation.at, "seconds": seconds, "pods": len(reservation.placements)}
            self._reasons.append((job.job_id, Reason(code=Code.RESERVED, field=verdict.field, numbers=numbers)))
        self._blocked.clear()

    def _reserve(self, job: Job) -> Reservation | None:
        """The soonest room of all flavors that have quota for it."""
        self._used = book = self._used or self._state.quota_book()
        best: tuple[int, int, str, Opening] | None = None
        for at, flavor in enumerate(self._state.tree.flavors_for(job.queue, job.amount)):
            opening = None if book.lacks(job, flavor) else self._opening(job, flavor)
            # Strictly sooner: of equal beginnings the flavor that the queue prefers stays.
            if opening is not None and (best is None or opening.at < best[0]):
                best = opening.at, at, flavor, opening
        if best is None:
            return None
        _, _, flavor, opening = best
        book.start(job, flavor)
        return make_reservation(job, flavor, opening, self._reservations, self._waited(job, "closing"))

    def _opening(self, job: Job, flavor: str) -> Opening | None:
        capacity = self.capacity(flavor, ())
        nodes = dict(capacity.nodes)
        # Earlier reservations count as running from now on. That may put this one later than it could be, and never on
        # room that was promised to another.
        for other in self._reservations:
            other.job.gang.take(nodes, other.placements)
        return find_opening(job.roles, nodes, self._forecast.ends_on(nodes), capacity.places)

    def _outlived(self, job: Job) -> list[Reservation]:
        """The reservations that begin before the job ends, the first one first."""
        if not self._reservations:
            return []
        until = self._state.ts + self._forecast.runtime(job)
        return [reservation for reservation in self._reservations if reservation.at < until]

    def _capacity_left(self, flavor: str, avoid: tuple[str, ...], outlived: list[Reservation]) -> FreeCapacity:
        """Free capacity for a job that runs beyond the start of the reservations `outlived`."""
        key = flavor, avoid, len(outlived)
        capacity = self._left.get(key)
        if capacity is None:
            whole = self.capacity(flavor, avoid)
            capacity = self._left[key] = FreeCapacity(
                (hide_reserved(node, outlived) for node in whole.nodes.values()), whole.places
            )
        return capacity

    def _choose_around(self, job: Job, verdict: Choice) -> Choice | Reason:
        """Choose nodes where the job delays no reservation; `verdict` is the choice that ignores them."""
        outlived, book = self._outlived(job), self._used
        assert book is not None  # some room is kept
        closed = any(reservation.closes for reservation in self._reservations)
        # Who ends before any reservation begins cannot delay one; its choice stands, if the quota that is set aside
        # leaves enough for it.
        if not closed and not outlived and book.lacks(job, verdict[0]) is None:
            return verdict

        def place(roles: tuple[RoleNeed, ...], flavor: str, avoid: tuple[str, ...]) -> tuple[Placement, ...] | Reason:
            return self._capacity_left(flavor, avoid, outlived).find(roles)

        # Close to a job that has waited very long nobody starts: expectations may be wrong, and this bound is what
        # keeps wrong ones from starving it (ADR 0014).
        found = None if closed else choose(self._state.tree, book, job, place)
        if found is not None and not isinstance(found, Reason):
            return found
        numbers = {
            "jobs_with_reserved_room": len(self._reservations),
            "from_ts": min(reservation.at for reservation in outlived or self._reservations),
            "expected_end_ts": self._state.ts + self._forecast.runtime(job),
        }
        field = found.field if found is not None and found.code is Code.WAITING_FOR_QUOTA else ""
        reason = Reason(code=Code.BEHIND_RESERVATION, field=field, numbers=numbers)
        self._behind[job.queue, self.may_borrow(job), job.roles, job.avoid, len(outlived)] = reason
        return reason

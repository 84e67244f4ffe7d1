"""
Quota closed for owners, and room kept for blocked jobs, in one pass over a pool's line; and who may start beside it.

While an owner waits within its nominal quota, nobody begins to borrow what it lacks, under every policy on backfill.

The first jobs that find no room or no quota, as many as the policy says on any set of nodes, get a reservation: from
when on and where they can start (`engine.queueing.timeline`). Nothing of it is held: whoever has ended by then may have
the same room and quota now, and a job that runs longer may have what is free both now and then.

Room that was kept once stays kept while the line's order moves: a job that was told `Reserved` is entered first, unless
a blocked job is before it that is of a higher class, or older in the same line.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from tessera.domain.devices.resources import Amount, RoleNeed
from tessera.domain.entities import Job
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.queueing.own_place import own_place
from tessera.engine.queueing.readiness import awaits_placement, is_reserved, quota_reason, rests, startable
from tessera.engine.queueing.reservations import Reservation, hide_reserved
from tessera.engine.queueing.scheduling_pass import CapacityCache, SchedulingPass
from tessera.engine.queueing.starting import Choice, choose
from tessera.engine.queueing.timeline import BLOCKED, KINDS_MAX
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import PASSED_MAX, Passed, Placement

TOLD = (*BLOCKED, Code.RESERVED)  # to an owner that waits for room or quota

BlockedKind = tuple[str, bool, tuple[RoleNeed, ...], tuple[str, ...], str]
"""What jobs have in common for which the same room is sought."""


def is_restarting(state: State, job: Job) -> bool:
    """Whether the job may start and keeps its own place: it waits in line for what it lacks, with the rest in hand."""
    return own_place(state, job.job_id) is not None and startable(state, job)


class OwnerPass(SchedulingPass):
    """A pass in which who waits within its nominal quota closes what it lacks to borrowers (I3)."""

    def __init__(self, state: State, pool: str, known: CapacityCache) -> None:
        super().__init__(state, pool, known)
        self._ahead = self.timeline()
        self._told: dict[str, Job] = {}  # who waits, and may be an owner: looked at once somebody could borrow
        self._owners: QuotaBook | None = None  # with what waiting owners ask for; made with the first of them
        self._claims: dict[str, str] = {}  # flavors on which they ask for it, by job
        self._beyond: set[tuple[str, Amount]] = set()

    def begin(self, jobs: Sequence[Job]) -> None:
        """Know who waits since before: nobody who stands before an owner, by class or an old order, borrows first."""
        queues = self._state.tree.queues
        waiting = (job for job in jobs if job.reason is not None and job.reason.code in TOLD)
        self._told = {job.job_id: job for job in waiting if queues[job.queue].parent is not None}

    def note_refused(self, job: Job, code: Code) -> None:
        """Know that the job does not start now; whether it is an owner is asked when it matters."""
        if code in TOLD and self._state.tree.queues[job.queue].parent is not None:
            self._told.setdefault(job.job_id, job)

    def taken(self, job: Job, flavor: str, placements: tuple[Placement, ...]) -> None:
        """The job was allocated there."""
        super().taken(job, flavor, placements)
        self._told.pop(job.job_id, None)
        if self._owners is not None:
            if (claimed := self._claims.pop(job.job_id, None)) is not None:
                self._owners.end(job, job.queue, claimed, job.amount)
            self._owners.start(job, flavor)

    def _choose_place(
        self, job: Job, roles: tuple[RoleNeed, ...], flavor: str, avoid: tuple[str, ...]
    ) -> tuple[Placement, ...] | Reason:
        """Place on nodes of the flavor, unless the job would borrow what a waiting owner lacks."""
        return self.closed_by_owner(job, flavor) or super()._choose_place(job, roles, flavor, avoid)

    def _lacks_place(self, job: Job, roles: tuple[RoleNeed, ...], flavor: str) -> Code | None:
        """As counts say; or as a search said before, unless the job would borrow what a waiting owner lacks."""
        # A committer that has just begun remembers no search, and is told of the owner (`_choose_place`).
        if (short := self.capacity(flavor, ()).shortage(job.gang)) is not None or self.closed_by_owner(job, flavor):
            return short
        return super()._lacks_place(job, roles, flavor)

    def closed_by_owner(self, job: Job, flavor: str) -> Reason | None:
        """The reason against a job that would borrow what a waiting owner lacks of the flavor; None for any other."""
        if not self._quota_book().borrows(job.queue, flavor, job.amount):
            return None
        self._look_for_owners()
        over = None if self._owners is None else self._owners.lacks(job, flavor)
        if over is None:
            return None
        return quota_reason(over).model_copy(update={"detail": "an owner within its nominal quota waits for it"})

    def _look_for_owners(self) -> None:
        """Add what each of those who wait asks for, if that is within its nominal quota with all owners before it."""
        told, self._told = self._told, {}
        for job_id, job in told.items():
            # Beyond its nominal quota the job is a borrower itself, and so are equal ones: books only fill up.
            kind = job.queue, job.amount
            if job_id in self._claims or kind in self._beyond or not awaits_placement(self._state, job):
                continue
            book, flavors = self._owners or self._quota_book(), self._state.tree.flavors_for(job.queue, job.amount)
            own = [flavor for flavor in flavors if not book.borrows(job.queue, flavor, job.amount)]
            if not own:
                self._beyond.add(kind)
            # For whom no end makes room on the nodes of a flavor, nothing of it is closed.
            elif (claimed := next((f for f in own if self._ahead.can_ever(job, f)), None)) is not None:
                self._owners = self._owners or book.copy()
                self._owners.start(job, claimed)
                self._claims[job_id] = claimed


class ReservingPass(OwnerPass):
    """A pass with reservations for the first jobs that find no room, which later ones may not delay."""

    def __init__(self, state: State, pool: str, known: CapacityCache) -> None:
        super().__init__(state, pool, known)
        self._policy = state.tree.policy
        self._blocked: list[tuple[Job, Reason]] = []  # nobody has looked for room ahead yet
        self._kinds = Counter[BlockedKind]()
        self._never: set[BlockedKind] = set()
        self._kept: set[str] = set()  # jobs that have been told that room is kept for them
        self._place: dict[str, int] = {}
        # By what reservations a job outlives, and the nodes that are shut to it.
        self._left: dict[tuple[str, tuple[str, ...], int, frozenset[str]], FreeCapacity] = {}
        self._behind: dict[tuple[BlockedKind, int], Reason] = {}
        self._reasons: list[tuple[str, Reason]] = []

    def begin(self, jobs: Sequence[Job]) -> None:
        """Keep the room that was kept before for jobs of the line."""
        super().begin(jobs)
        self._place = {job.job_id: place for place, job in enumerate(jobs)}
        for job in jobs:
            if job.reason is None or not is_reserved(job):
                continue
            if awaits_placement(self._state, job) or is_restarting(self._state, job):
                self._kept.add(job.job_id)
                self._blocked.append((job, job.reason))

    def reserves(self, job: Job) -> bool:
        """Whether the job would get a reservation if it found no room, so that it has to be asked itself."""
        if job.job_id in self._kept:
            return True
        if len(self._kinds) >= KINDS_MAX:
            return False
        kind = self._kind(job)
        return (
            kind not in self._never
            and self._kinds[kind] < self._policy.backfill_depth
            and self._waited(job, "patience")
            and not self._ahead.is_deep(job)
            # Who waits for nodes that are out, or too small, fills none of the places.
            and self.could_hold(job.queue, job.gang)
        )

    def count_outlived(self, job: Job) -> int:
        """Standing with bookings, and the reservations that begin before the job ends, as bits."""
        return (super().count_outlived(job) << len(self._ahead.reservations)) + self._bits(job)

    def _bits(self, job: Job) -> int:
        """The reservations that begin before the job ends."""
        # Bits and not a number: a job of a higher class outlives others than one of a lower class does, and equal
        # numbers would give both one answer.
        outlived = self._outlived(job)
        return sum(1 << place for place, each in enumerate(self._ahead.reservations) if each in outlived)

    def take_reasons(self) -> Iterator[tuple[str, Reason]]:
        """New reasons of blocked jobs since the last call."""
        while self._reasons:
            yield self._reasons.pop(0)

    def still_blocked(self, job: Job) -> bool:
        """Whether that is so and the job gets no reservation either, which depends on the time."""
        # Who rests, or was told to stand behind a reservation, leaves by another way: it is not refused for room.
        behind = self._behind and (self._kind(job), self.count_outlived(job)) in self._behind
        return not (behind or rests(self._state, job) or self.reserves(job)) and super().still_blocked(job)

    def refusal(self, job: Job) -> Code | None:
        """The code of the reason that `find` would give, as far as that is known without a search; else None."""
        if (self._kind(job), self.count_outlived(job)) in self._behind:
            return Code.BEHIND_RESERVATION
        return None if self.reserves(job) else super().refusal(job)

    def find(self, job: Job) -> Choice | Reason:
        """Choose where the job may start now without delaying any reservation, or say why it may not."""
        if job.job_id in self._kept:
            return self._find_kept(job)
        # The answer to an equal job stands until there is another reservation: what starts in between takes room and
        # gives none.
        known = self._behind.get((self._kind(job), self.count_outlived(job)))
        if known is not None:
            return known
        # First as if nothing were reserved. Only a job that fits that way can be in anybody's way, and only then are
        # the blocked ones worth a forecast.
        verdict = super().find(job)
        if isinstance(verdict, Reason):
            return self._note_blocked(job, verdict)
        self._look_ahead()
        return self._choose_around(job, verdict) if self._ahead.reservations else verdict

    def _find_kept(self, job: Job) -> Choice | Reason:
        """Answer for a job for which room is kept: it may have that, and no other's."""
        verdict = super().find(job)
        if isinstance(verdict, Reason):
            return job.reason or verdict  # it is told anew when reservations are made
        # Its own room is free for it alone; the others are entered again, since they were sought around it.
        self._blocked = [entry for entry in self._blocked if entry[0] is not job]
        self._void(besides=job)
        self._look_ahead()
        found = self._choose_around(job, verdict) if self._ahead.reservations else verdict
        if isinstance(found, Reason):
            self._blocked.append((job, job.reason or found))
            return job.reason or found
        return found

    def let_go(self, job: Job) -> None:
        """Keep no room for the job any more; entered all the same, it would be told two reasons in every message."""
        if job.job_id in self._kept:
            self._kept.remove(job.job_id)
            if any(each.job is job for each in self._ahead.reservations):
                self._void(besides=job)
            self._blocked = [entry for entry in self._blocked if entry[0] is not job]

    def taken(self, job: Job, flavor: str, placements: tuple[Placement, ...]) -> None:
        """The job was allocated there."""
        super().taken(job, flavor, placements)
        self._kept.discard(job.job_id)
        # Who lets it pass may have been kept the room that it takes: that is sought anew.
        outlived = self._outlived(job)
        if any(each not in outlived for each in self._outlived_of_any_class(job)):
            self._void()  # it may lie where room was kept
            return
        # Only for reservations that begin while the job still runs is its room gone then; a job that has ended by that
        # time takes nothing from them.
        for reservation in outlived:
            job.gang.take(reservation.nodes_then, placements)
            if reservation.book_then is not None:
                reservation.book_then.start(job, flavor)
        # Only nodes of this start, and of networks that it has devices of, are hidden anew: all others are as they
        # were, and a pass starts many jobs.
        for (flavor_of, avoid, bits, shut), capacity in self._left.items():
            whole = self.capacity(flavor_of, avoid, shut)
            first = [each for place, each in enumerate(self._ahead.reservations) if bits >> place & 1]
            for name in whole.changing(placements):
                capacity.put(hide_reserved(whole.nodes[name], first))

    def passed_by(self, job: Job, blocked: Sequence[Job]) -> tuple[Passed, ...]:
        """Name first the jobs for whom room is kept, the others as far as there is space."""
        outlived, at = {each.job.job_id for each in self._outlived(job)}, self._at(job)
        kept = [each.job.job_id for each in self._ahead.reservations if self._at(each.job) < at]
        # Who outlives none of a beginning cannot delay it; else it was found beside what is kept (`_choose_around`).
        reserved = [Passed(each, "beside" if each in outlived else "ends_before") for each in kept]
        others = super().passed_by(job, [each for each in blocked if each.job_id not in kept])
        return (*reserved, *others)[:PASSED_MAX]

    def note_refused(self, job: Job, code: Code) -> None:
        """Note besides a gang that lacks a part of its own place: nobody takes that piece by piece, the rest idle."""
        if own_place(self._state, job.job_id) is not None:
            self._note_blocked(job, job.reason or Reason(code=code))
        else:
            super().note_refused(job, code)

    def _note_blocked(self, job: Job, verdict: Reason) -> Reason:
        """Note a blocked job. A reason `Reserved` stands until reservations are computed anew."""
        if verdict.code in BLOCKED and self.reserves(job):
            self._kinds[self._kind(job)] += 1
            self._blocked.append((job, verdict))
        return verdict

    def _waited(self, job: Job, what: str) -> bool:
        seconds: int = getattr(self._policy, f"backfill_{what}_seconds")
        return self._state.ts - job.submitted_ts >= seconds * 1000

    def _kind(self, job: Job) -> BlockedKind:
        return job.queue, self.may_borrow(job), job.roles, job.avoid, job.booking

    def _void(self, besides: Job | None = None) -> None:
        """Reservations are made anew when somebody may be in their way again; those for whom they were stay noted."""
        # All of them: each knows of the others what has begun by its own time, so that none can be taken out alone.
        noted = [
            (each.job, each.job.reason or Reason(code=Code.NO_FIT))
            for each in self._ahead.reservations
            if each.job is not besides
        ]
        self._blocked = [*noted, *self._blocked]
        self._ahead.reservations.clear()
        self._behind.clear()
        self._left.clear()

    def _look_ahead(self) -> None:
        """Keep room for the blocked jobs so far, those first for whom it was kept before."""
        if not self._blocked:
            return
        noted, self._blocked = self._blocked, []
        # With each start fair share may put somebody else first. If room moved on with the order, two that take turns
        # would both be passed for ever.
        others = [job for job, _ in noted if job.job_id not in self._kept]

        def turn(entry: tuple[Job, Reason]) -> tuple[bool, int, str]:
            job, at = entry[0], self._at(entry[0])
            kept = job.job_id in self._kept
            return not kept or any(self._at(o) < at and self._yields(job, o) for o in others), at, job.job_id

        for job, verdict in sorted(noted, key=turn):
            if not self._enter(job):
                self._kept.discard(job.job_id)
                self._reasons.append((job.job_id, self._why_now(job, verdict)))

    def _at(self, job: Job) -> int:
        return self._place.get(job.job_id, len(self._place))

    def _why_now(self, job: Job, verdict: Reason) -> Reason:
        """Why the job does not start, told without the room that is kept for it no more."""
        found = super().find(job) if verdict.code is Code.RESERVED else verdict
        return found if isinstance(found, Reason) else Reason(code=Code.NO_FIT)

    def _enter(self, job: Job) -> bool:
        """Whether room is kept for the job from now on."""
        if self._ahead.is_deep(job):
            return False
        # What no end helps stays so within a pass: starts only take room.
        found = None if self._kind(job) in self._never else self._ahead.enter(job, self._waited(job, "closing"))
        if found is None:
            self._never.add(self._kind(job))
            return False
        reservation, _ = found
        # A new reservation may begin before earlier ones, so that bits of outlived ones mean others: views and answers
        # by them are void.
        self._behind.clear()
        self._left.clear()
        seconds = (reservation.at - self._state.ts + 999) // 1000
        numbers = {"from_ts": reservation.at, "seconds": seconds, "pods": len(reservation.placements)}
        field = job.reason.field if job.reason is not None and job.reason.code is not Code.RESERVED else ""
        self._reasons.append((job.job_id, Reason(code=Code.RESERVED, field=field, numbers=numbers)))
        return True

    def _outlived_of_any_class(self, job: Job) -> list[Reservation]:
        """The reservations that begin before the job ends, the first one first."""
        if not self._ahead.reservations:
            return []
        until = self._state.ts + self._ahead.forecast.runtime(job)
        return [each for each in self._ahead.reservations if each.at < until and each.job is not job]

    def _outlived(self, job: Job) -> list[Reservation]:
        """Reservations that the job may not delay: all but who is behind it in the line and lets it pass."""
        at = self._at(job)
        return [
            each
            for each in self._outlived_of_any_class(job)
            if self._at(each.job) < at or not self._yields(each.job, job)
        ]

    def _yields(self, kept: Job, job: Job) -> bool:
        """Whether room that was kept is let go for a job before it: of a higher class, or older of the same line."""
        tree = self._state.tree
        if tree.priority_of(job) != tree.priority_of(kept):
            return tree.priority_of(job) > tree.priority_of(kept)
        # Among jobs that share nothing age alone decides and no start turns it round: the older one was evicted, held
        # or moved while the other was told.
        same = (job.queue, job.tenant, job.user) == (kept.queue, kept.tenant, kept.user)
        return same and tree.queues[job.queue].order == "age"

    def _capacity_left(
        self, flavor: str, avoid: tuple[str, ...], outlived: list[Reservation], bits: int, shut: frozenset[str]
    ) -> FreeCapacity:
        """Free capacity for a job that runs beyond the start of the reservations `outlived`; nodes are `shut` to it."""
        key = flavor, avoid, bits, shut
        capacity = self._left.get(key)
        if capacity is None:
            whole = self.capacity(flavor, avoid, shut)
            capacity = self._left[key] = FreeCapacity(
                (hide_reserved(node, outlived) for node in whole.nodes.values()), whole.places
            )
        return capacity

    def _choose_around(self, job: Job, verdict: Choice) -> Choice | Reason:
        """Choose nodes where the job delays no reservation; `verdict` is the choice that ignores them."""
        outlived, bits, shut = self._outlived(job), self._bits(job), self._booked.shut(job)
        closed = any(reservation.closes for reservation in self._ahead.reservations)
        # Who ends before any reservation begins cannot delay one, in nodes or in quota: its choice stands.
        if not closed and not outlived:
            return verdict

        def place(roles: tuple[RoleNeed, ...], flavor: str, avoid: tuple[str, ...]) -> tuple[Placement, ...] | Reason:
            # Quota that is there now may be the head's by the time it starts: asked at each beginning that it outlives.
            books = (reservation.book_then for reservation in outlived)
            over = next((o for book in books if book is not None and (o := book.lacks(job, flavor)) is not None), None)
            against = self.closed_by_owner(job, flavor) or (None if over is None else quota_reason(over))
            return against or self._capacity_left(flavor, avoid, outlived, bits, shut).find(roles)

        # Close to a job that has waited very long nobody starts: expectations may be wrong, and this bound is what
        # keeps wrong ones from starving it (ADR 0014).
        found = None if closed else choose(self._state.tree, self._quota_book(), job, place)
        if found is not None and not isinstance(found, Reason):
            return found
        numbers = {
            "jobs_with_reserved_room": len(self._ahead.reservations),
            "from_ts": min(reservation.at for reservation in outlived or self._ahead.reservations),
            "expected_end_ts": self._state.ts + self._ahead.forecast.runtime(job),
        }
        field = found.field if found is not None and found.code is Code.WAITING_FOR_QUOTA else ""
        reason = Reason(code=Code.BEHIND_RESERVATION, field=field, numbers=numbers)
        self._behind[self._kind(job), self.count_outlived(job)] = reason
        return reason

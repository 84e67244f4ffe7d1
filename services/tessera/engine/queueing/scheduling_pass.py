"""One pass over a pool's order: where its jobs may start. `ReservingPass` does the same around reservations."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tessera.domain.devices.resources import NOTHING, Amount, RoleNeed
from tessera.domain.entities import Earmark, Job
from tessera.domain.queues import QueueTree, QuotaBook
from tessera.domain.state import State
from tessera.domain.work.gang import Gang
from tessera.engine.ahead.booked_nodes import NOBODY, BookedNodes, booked_reason
from tessera.engine.placement.capacity import ClosedNodes, nodes_for, nodes_without
from tessera.engine.placement.fits import BundleKind
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.placement.rows.shortage import lone_kind
from tessera.engine.queueing.starting import Choice, choose, refusal
from tessera.engine.queueing.timeline import RoomAhead, RoomTimeline, may_meet
from tessera.engine.scoring.policies import find_scoring_policy
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Passed, Placement

VIEWS_MAX = 64
"""Number of views of the nodes that are kept from pass to pass."""
JOBS_MAX = 8_192
"""Number of refused jobs that are remembered, jobs that have gone included; beyond, all are asked about again."""


@dataclass(slots=True, eq=False)
class BlockedGroup:
    """
    Jobs of one queue whose pods are equal within a job, suit the same nodes and take `gpus` whole GPUs each, 1 or more.

    `most` is the most of each resource that a job of the group asked for: where there is quota for that, all have it.
    """

    queue: str
    flavor: str
    kind: BundleKind
    gpus: int
    most: Amount = NOTHING


@dataclass(slots=True, eq=False)
class BlockedJob:
    """A job that was refused for want of room, with its only flavor; it had quota under the use `held`."""

    job: Job
    gang: Gang
    flavor: str
    held: Mapping[str, Amount]
    group: BlockedGroup | None


@dataclass(slots=True)
class BlockedJobs:
    """
    Jobs that were refused for want of room, under these quotas.

    `held` is what counts as used in each queue, earmarks included.
    """

    tree: QueueTree
    held: Mapping[str, Amount]
    jobs: dict[str, BlockedJob] = field(default_factory=dict)
    groups: dict[tuple[object, ...], BlockedGroup] = field(default_factory=dict)

    def note(self, job: Job, flavor: str) -> None:
        """Remember the job, which has quota under the use of now."""
        group, kind = None, lone_kind(job.gang)
        if kind is not None and kind.whole.gpus and job.reason is not None and job.reason.code is Code.NO_FIT:
            key = job.queue, flavor, kind.never, kind.whole.gpus
            group = self.groups.setdefault(key, BlockedGroup(job.queue, flavor, kind, kind.whole.gpus))
            group.most = group.most.most(job.amount)
        self.jobs[job.job_id] = BlockedJob(job, job.gang, flavor, self.held, group)


class CapacityCache(dict[tuple[str, str, bool, bool, frozenset[str]], FreeCapacity]):
    """
    Findings of earlier passes about the nodes of each pool and flavor, and the jobs that they refused.

    Whoever decides message after message hands the same one in again; a decision is equal with any cache, since each
    entry is compared with the nodes before it serves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocked: dict[str, BlockedJobs] = {}
        self._closed: ClosedNodes = {}

    def renewed(
        self,
        state: State,
        pool: str,
        flavor: str,
        avoid: tuple[str, ...] = (),
        without: Sequence[Earmark] = (),
        with_spares: bool = False,
        shut: frozenset[str] = NOBODY,
    ) -> FreeCapacity:
        """
        Free capacity of the pass before, updated where nodes changed; else computed anew. Spares are part of it for
        jobs that may start on them alone, and nodes that are `shut` for none.
        """
        # Without some earmarks, for one question, it is a second view: the first one remembers what was searched in
        # vain, and would forget it for the gain.
        if len(self._closed) > 2 * len(state.nodes):
            self._closed.clear()  # of nodes that are no more
        nodes = nodes_for(state, pool, flavor, avoid, with_spares, shut, self._closed)
        scoring = find_scoring_policy(state, pool)
        if without:
            less = nodes_without(state, *without)
            nodes = [less.get(node.name, node) for node in nodes]
        if avoid:
            return FreeCapacity(nodes, scoring=scoring)
        known = self.get(key := (pool, flavor, bool(without), with_spares, shut))
        if shut and known is None and len(self) > VIEWS_MAX:
            self.clear()  # with time other windows are next, and their nodes are no more asked about
        if known is None or not known.renewed(nodes, scoring):
            known = self[key] = FreeCapacity(nodes, scoring=scoring)
        return known


class SchedulingPass:
    """Quota by queue, room by flavor and avoided nodes."""

    def __init__(self, state: State, pool: str, known: CapacityCache | None = None) -> None:
        self._state, self._pool, self._known = state, pool, CapacityCache() if known is None else known
        self._book: QuotaBook | None = None
        self._booked = BookedNodes(state, pool)
        self._capacities: dict[tuple[str, tuple[str, ...], frozenset[str]], FreeCapacity] = {}
        self._standing: BlockedJobs | None = None
        self._lacks_room: dict[tuple[Gang, str], bool] = {}
        self._groups_blocked: dict[BlockedGroup, bool] = {}

    def _quota_book(self) -> QuotaBook:
        """Use and lending of quota in this pass, made when first asked for."""
        self._book = self._book or self._state.quota_book()
        return self._book

    def timeline(self) -> RoomTimeline:
        """The pool's timeline without any reservation, over what is free in this pass."""
        return RoomTimeline.of(self._state, self._pool, self._room_of, self._quota_book, self._booked)

    def _room_of(self, flavor: str) -> RoomAhead:
        return (capacity := self.capacity(flavor, ())).nodes, capacity.places

    def find(self, job: Job) -> Choice | Reason:
        """Choose where the job may start now, or say why it may not; nothing is taken."""
        return choose(
            self._state.tree,
            self._quota_book(),
            job,
            lambda roles, flavor, avoid: self._choose_place(job, roles, flavor, avoid),
        )

    def _choose_place(
        self, job: Job, roles: tuple[RoleNeed, ...], flavor: str, avoid: tuple[str, ...]
    ) -> tuple[Placement, ...] | Reason:
        """Place the job's gang on the free nodes of a flavor, some left out; or say why not."""
        found = self.capacity(flavor, avoid, self._booked.shut(job)).find(roles)
        if not isinstance(found, Reason):
            return found

        # A second search, and only for who is kept from nodes: whom it does not help is told what is really missing.
        def has_room() -> bool:
            return not isinstance(self.capacity(flavor, avoid).find(roles), Reason)

        return booked_reason(self._state, self._booked, job, has_room) or found

    def passed_by(self, job: Job, blocked: Sequence[Job]) -> tuple[Passed, ...]:
        """Say why the job may start before those that were `blocked` before it; asked before it is `taken`."""
        return tuple(Passed(each.job_id, "unreserved" if may_meet(job, each) else "beside") for each in blocked)

    def refusal(self, job: Job) -> Code | None:
        """The code of the reason that `find` would give, as far as that is known without a search; else None."""
        return refusal(
            self._state.tree, self._quota_book(), job, lambda roles, flavor: self._lacks_place(job, roles, flavor)
        )

    def _lacks_place(self, job: Job, roles: tuple[RoleNeed, ...], flavor: str) -> Code | None:
        """The code of the reason that `_choose_place` would give, as far as that is known without a search."""
        return self.capacity(flavor, ()).refusal(roles)

    def still_blocked(self, job: Job) -> bool:
        """Whether the same job was refused before, told so, and the same follows now from quota and counts alone."""
        # It depends on the job itself, the quotas and their use, and on whether a node gained room for its pods. A
        # start takes room and quota, and gives none: who lacks room then still does, unless it lacks quota by now.
        blocked = self._standing or self._standing_now()
        found = blocked.jobs.get(job.job_id)
        # The very same object: jobs are frozen, so that any change of one is another object, and identity is the whole
        # comparison.
        if found is None or found.job is not job or job.reason is None:
            return False
        capacity = self.capacity(found.flavor, ())
        if (group := found.group) is not None:
            known = self._groups_blocked.get(group)
            if self._is_group_blocked(group, capacity) if known is None else known:
                capacity.note_short(found.gang)
                return True
        if found.held is not blocked.held:
            if self._quota_book().lacks(job, found.flavor) is not None:
                return False
            found.held = blocked.held
        return capacity.shortage(found.gang) is job.reason.code

    def _is_group_blocked(self, group: BlockedGroup, capacity: FreeCapacity) -> bool:
        """Whether all of the group have quota, and no node has the GPUs for a single pod of any."""
        # Of a full pool that is all there is to know, however many kinds of jobs wait for it. Else each kind is asked
        # for what it lacks. Who joins the group after it was asked has just been refused, and comes no second time.
        known = self._groups_blocked[group] = capacity.lacks_whole_gpus(group.kind, group.gpus) and (
            self._quota_book().over(group.queue, group.flavor, group.most) is None
        )
        return known

    def _standing_now(self) -> BlockedJobs:
        """The jobs of the passes before, while the quotas are what they were, and what counts as used now."""
        tree, held = self._state.tree, self._quota_book().held
        found = self._known.blocked.get(self._pool)
        if found is None or found.tree is not tree or len(found.jobs) >= JOBS_MAX:
            found = self._known.blocked[self._pool] = BlockedJobs(tree, held)
        # Another object means another use, under which nobody's quota is known.
        elif found.held != held:
            found.held = held
        self._standing = found
        return found

    def note_blocked(self, job: Job) -> None:
        """
        Remember the refusal of a job for want of room, which `refusal` gave, for later passes.

        Who lacks quota is not asked about room: its gang may be refused for room later in the pass, with other numbers.
        The quota of a job that may not be evicted depends on which runs may not be, besides: such jobs are left out.
        """
        if job.reason is not None and job.reason.code is Code.WAITING_FOR_QUOTA:
            return
        tree = self._state.tree
        flavors = tree.flavors_for(job.queue, job.amount)
        may_borrow = tree.revocable(job) or tree.queues[job.queue].parent is None
        # With several flavors the reason depends on which of them has quota at the time; only one flavor makes it a
        # question of room alone.
        if self._standing is not None and len(flavors) == 1 and may_borrow:
            self._standing.note(job, flavors[0])

    def may_start(self, queues: Collection[str], gang: Gang, revocable: bool) -> Collection[str]:
        """The queues whose jobs of the gang have quota, and room as far as counts say, by the state alone."""
        # Room is asked first: on a full pool it refuses nearly all, at a tenth of the price of quota.
        if not self._state.tree.has_flavor_quotas and self._lacks(gang, ""):
            return ()
        return [queue for queue in queues if self._has_quota_and_room(queue, gang, firm=not revocable)]

    def _has_quota_and_room(self, queue: str, gang: Gang, firm: bool) -> bool:
        over, flavors = self._quota_book().over, self._state.tree.flavors_for(queue, gang.amount)
        return any(not self._lacks(gang, f) and over(queue, f, gang.amount, firm) is None for f in flavors)

    def _lacks(self, gang: Gang, flavor: str) -> bool:
        lacks = self._lacks_room.get((gang, flavor))
        if lacks is None:
            lacks = self._lacks_room[gang, flavor] = self.capacity(flavor, ()).is_short(gang)
        return lacks

    def holding(self, queues: Collection[str], gang: Gang, revocable: bool) -> Collection[str]:
        """The queues for whose jobs of the gang `could_hold` is true."""
        if not self._state.tree.has_flavor_quotas:
            return queues if self.capacity("", ()).could_hold(gang) else ()
        return [queue for queue in queues if self.could_hold(queue, gang)]

    def could_hold(self, queue: str, gang: Gang) -> bool:
        """Whether the nodes of some flavor could hold the gang if all pods were gone, as far as counts say."""
        # Necessary and not enough: whom sums let through, the exact searches refuse, at the price of a search.
        flavors = self._state.tree.flavors_for(queue, gang.amount)
        return any(self.capacity(flavor, ()).could_hold(gang) for flavor in flavors)

    def needs_search(self, job: Job) -> bool:
        """
        Whether only a search shows if the job may start, or its new reason: a function of the state alone.

        It does not when quota, counts or sums refuse the job as it was told.
        """

        def lacks(roles: tuple[RoleNeed, ...], flavor: str) -> Code | None:
            return Code.NO_FIT if self.capacity(flavor, ()).is_short_in_all(roles) else None

        if job.reason is None:
            return True
        return refusal(self._state.tree, self._quota_book(), job, lacks) is not job.reason.code

    def looks(self, job: Job) -> int:
        """Number of looks at a pod or a node that a search takes at most, about: a function of the state alone."""
        flavors = self._state.tree.flavors_for(job.queue, job.amount)
        return sum(self.capacity(flavor, ()).looks(job.roles) for flavor in flavors)

    def reserves(self, job: Job) -> bool:
        """Whether the job has to be asked itself, even where equal ones got their answer."""
        return False

    def count_outlived(self, job: Job) -> int:
        """A number of what begins before the job ends; equal jobs with an equal number get one answer."""
        return self._booked.standing(job)

    def may_borrow(self, job: Job) -> bool:
        """Whether quota of other queues may be had for the job."""
        return self._state.tree.revocable(job)

    def let_go(self, job: Job) -> None:
        """Know that the job does not start now, whatever room there is: none is kept for it."""

    def take_reasons(self) -> Iterable[tuple[str, Reason]]:
        """New reasons of jobs before this one, since the last call."""
        return ()

    def capacity(self, flavor: str, avoid: tuple[str, ...], shut: frozenset[str] = NOBODY) -> FreeCapacity:
        """Free capacity as of the current state."""
        capacity = self._capacities.get((flavor, avoid, shut))
        if capacity is None:
            capacity = self._known.renewed(self._state, self._pool, flavor, avoid, shut=shut)
            self._capacities[flavor, avoid, shut] = capacity
        return capacity

    def taken(self, job: Job, flavor: str, placements: tuple[Placement, ...]) -> None:
        """The job was allocated there: the only room there is knows it too, several are made anew."""
        self._standing = None  # under the use of before
        if (blocked := self._known.blocked.get(self._pool)) is not None:
            blocked.jobs.pop(job.job_id, None)
        self._lacks_room.clear()
        self._groups_blocked.clear()
        if self._book is not None:
            self._book.start(job, flavor)
        # Several views overlap on the same nodes, by flavors and by nodes to avoid; one that was not told would give
        # the room away twice.
        if len(self._capacities) > 1:
            self._capacities.clear()
        for capacity in self._capacities.values():
            capacity.take(job.roles, placements)

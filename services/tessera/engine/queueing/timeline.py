"""
Room ahead, in nodes and in quota: from when on, and where, blocked jobs start, and what they take from then on. Pure.

A head of the line is entered with the nodes and the quota that it will take *from when it starts*. Who has ended by
then, or uses what the head leaves, passes; who would still run is held against the nodes and the quota as they are
then. Made from a state at its `ts`, never stored in it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tessera.domain.devices.resources import Node
from tessera.domain.entities import Job, Run
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.domain.work.gang import Gang
from tessera.engine.ahead.booked_nodes import BookedNodes
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.gangs import place_gang
from tessera.engine.queueing.own_place import own_place
from tessera.engine.queueing.reservations import (
    ExpectedEnd,
    Forecast,
    Opening,
    QuotaAhead,
    Reservation,
    find_opening,
    make_reservation,
    spare_free_now,
)
from tessera_schemas.reasons import Code, Reason

KINDS_MAX = 16
"""So many kinds of blocked jobs are looked at; a kind for which no end makes room is tried once."""
BLOCKED = (Code.NO_FIT, Code.WAITING_FOR_QUOTA, Code.NODES_BOOKED)
"""Why a job waits for what the ends of runs, or of bookings, give back."""

Models = frozenset[str]
"""GPU models; none stands for any."""
RoomAhead = tuple[dict[str, Node], FeasibleNodes]
"""Nodes of a flavor as they are now, and what is known about them."""


@dataclass(slots=True)
class RoomTimeline:
    """
    Reservations of one pool, the first to begin first; `depth` of them on any set of nodes.

    `room` gives the nodes of a flavor, `book` use and lending of quota, both as of now.
    """

    state: State
    pool: str
    depth: int
    room: Callable[[str], RoomAhead]
    book: Callable[[], QuotaBook]
    booked: BookedNodes
    forecast: Forecast
    reservations: list[Reservation]
    possible: dict[tuple[Gang, str], bool] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        state: State,
        pool: str,
        room: Callable[[str], RoomAhead],
        book: Callable[[], QuotaBook],
        booked: BookedNodes,
    ) -> "RoomTimeline":
        """The pool's timeline without any reservation."""
        return cls(state, pool, state.tree.policy.backfill_depth, room, book, booked, Forecast(state, booked), [])

    def is_deep(self, job: Job) -> bool:
        """Whether room is kept already for as many jobs as the policy says, among those that could use its nodes."""
        return len(self.rivals_of(job)) >= self.depth

    def rivals_of(self, job: Job) -> list[Job]:
        """The jobs for which room is kept, among those that could use its nodes."""
        # Two models have no node in common: a head that waits a day for one must not open the other to everybody.
        return [reservation.job for reservation in self.reservations if may_meet(reservation.job, job)]

    def enter(self, job: Job, closes: bool = False) -> tuple[Reservation, list[ExpectedEnd]] | None:
        """
        Keep the soonest room of all flavors for the job, and say by which ends of runs; None where no end makes any.

        A job that had room kept before may have it now already, which is then kept from now on.
        """
        best: tuple[int, int, str, Opening, list[ExpectedEnd]] | None = None
        for at, flavor in enumerate(self.state.tree.flavors_for(job.queue, job.amount)):
            opening, ends = self._opening(job, flavor)
            # Strictly sooner: of equal beginnings the flavor that the queue prefers stays.
            if opening is not None and (best is None or opening.at < best[0]):
                best = opening.at, at, flavor, opening, ends
        if best is None:
            return None
        _, _, flavor, opening, ends = best
        made = make_reservation(job, flavor, opening, self.reservations, closes)
        self.reservations.append(made)
        self.reservations.sort(key=lambda other: (other.at, other.job.job_id))
        return made, ends

    def can_ever(self, job: Job, flavor: str) -> bool:
        """Whether the gang has room on nodes of the flavor once every run and every earmark there is gone."""
        # Asked once for equal gangs: an array for a drained model costs one look.
        if (known := self.possible.get((job.gang, flavor))) is not None:
            return known
        nodes, places = self.room(flavor)
        # Nodes that are drained or not ready stay out: no end of a run brings them back.
        empty = dict(nodes)
        for run in self.state.runs.values():
            run.gang.take(empty, run.places, -1)
        for mark in self.state.earmarks.values():
            mark.gang.take(empty, mark.placements, -1)
        found = self.possible[job.gang, flavor] = not isinstance(place_gang(job.roles, empty, places), Reason)
        return found

    def _opening(self, job: Job, flavor: str) -> tuple[Opening | None, list[ExpectedEnd]]:
        whole, places = self.room(flavor)
        nodes, book = self._without_own_places(job, whole)
        # Earlier reservations count on their nodes as running from now on. That may put this one later than it could
        # be, and never on room that was promised to another. In quota they count from when they begin: two heads of two
        # models would else take it from each other for as long as the later one waits.
        for other in self.reservations:
            other.job.gang.take(nodes, other.placements)
            # Until they are taken their GPUs are free, and CPU is kept beside them.
            nodes |= {p.node: nodes[p.node].promising(whole[p.node].idle) for p in other.placements if p.node in nodes}
        # Ends elsewhere count as well where they give back quota of the job's tree.
        ends = self.forecast.ends_on(nodes, self._queues_beside(job))
        if self.booked:  # at the ends of windows, too, there is more room, and for whom they are at their starts
            ends = sorted((*ends, *self.booked.changes()), key=lambda end: end[0])
        quota = QuotaAhead(book, self._end, lambda at, book: self._quota_at(job, flavor, at, book))
        found = find_opening(job.roles, nodes, ends, places, quota, self.state.ts, partial(self.booked.shut, job))
        # What is free of a gang's own place it is to take, and nothing in its stead.
        if found is not None and own_place(self.state, job.job_id) is None:
            found = spare_free_now(job.roles, found, nodes, places)
        return found, ends

    def _without_own_places(self, job: Job, whole: dict[str, Node]) -> tuple[dict[str, Node], QuotaBook]:
        """Nodes and book as they were without what the job, and those for whom room is kept, hold of their own."""
        # A gang's own place is a part of the room that is kept for it: it would else count twice.
        who = (job, *(reservation.job for reservation in self.reservations))
        own = [(each, mark) for each in who if (mark := own_place(self.state, each.job_id))]
        nodes, book = dict(whole), self.book().copy() if own else self.book()
        for each, mark in own:
            mark.gang.take(nodes, mark.placements, -1)
            book.end(each, each.queue, mark.flavor, each.amount)
        return nodes, book

    def _quota_at(self, job: Job, flavor: str, at: int, book: QuotaBook) -> QuotaBook | None:
        """The book with what has begun by `at`, if the job may start then and delays nobody who begins later."""
        # Who begins later is asked at its own beginning: between two of them runs only end, so that quota only grows.
        then, until = book.copy(), at + self.forecast.runtime(job)
        for other in self.reservations:
            if other.at <= at:
                then.start(other.job, other.flavor)
            elif other.at < until and other.book_then is not None and other.book_then.lacks(job, flavor) is not None:
                return None
        return then if then.lacks(job, flavor) is None else None

    def _queues_beside(self, job: Job) -> frozenset[str]:
        """Queues of the job's tree: what their runs hold, wherever they run, counts for its quota."""
        roots = self.state.tree.roots
        root = roots[job.queue]
        return frozenset(queue for queue, other in roots.items() if other == root)

    def _end(self, book: QuotaBook, run: Run) -> None:
        """The run gives back its quota."""
        job = self.state.jobs.get(run.job_id)
        if run.queue in self.state.tree.queues:
            # What is being stopped counts among no firm work any more.
            book.end(None if run.stopping else job, run.queue, run.flavor, run.amount)


def models_of(job: Job) -> Models:
    """GPU models on which the job may run; empty: any, or it needs no GPU."""
    named = [role.need.gpu_models for role in job.roles if role.need.gpus or role.need.gpu_milli]
    return frozenset(model for models in named for model in models) if all(named) else frozenset()


def may_meet(one: Job, other: Job) -> bool:
    """Whether both could use the same nodes, as far as GPU models say."""
    models, others = models_of(one), models_of(other)
    return not (models and others and models.isdisjoint(others))

"""
Room ahead: from when on, and where, a job that finds no room now can start, once runs have ended that are expected to.

A run ends by its time limit, else when `FORECAST_PERMILLE` of such runs had ended by what was learnt; one that outlives
that is expected to run as long again, step by step, or with a limit is about to be stopped. Nothing here is written to
the state: it is computed again in each pass, as a function of the state and its `ts`. Integer milliseconds.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tessera.domain.devices.networks import pools_drawn, reached
from tessera.domain.devices.offers import Taken
from tessera.domain.devices.resources import Node, RoleNeed, least_devices
from tessera.domain.entities import Job, Run
from tessera.domain.queues import QuotaBook
from tessera.domain.runtimes import JobKind, kind_of
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.stops import is_stuck
from tessera.engine.ahead.booked_nodes import NOBODY, BookedNodes
from tessera.engine.ahead.durations import FORECAST_PERMILLE, is_learnt, quantile
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.gangs import place_gang
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement

ExpectedEnd = tuple[int, Sequence[Run]]
"""A time, and the runs that are expected to have left then."""


class Forecast:
    """Expected ends of runs, as of one state. Equal jobs are judged once."""

    def __init__(self, state: State, booked: BookedNodes | None = None) -> None:
        self._state, self._booked = state, booked
        self._known: dict[tuple[JobKind, int], int] = {}

    def runtime(self, job: Job) -> int:
        """Expected run time of the job, from its start."""
        kind, limit = kind_of(job), job.time_limit_seconds * 1000
        known = self._known.get((kind, limit))
        if known is None:
            known = self._known[kind, limit] = limit or quantile(self._state.runtimes, kind, FORECAST_PERMILLE)
        return known

    def ends_on(self, nodes: Mapping[str, Node], queues: Collection[str] = ()) -> list[ExpectedEnd]:
        """
        The ends of the runs that hold something on `nodes`, or quota of these queues, ascending, without those that
        nobody expects to end.
        """
        ends = [
            (end, run.run_id, run)
            for run in self._state.runs.values()
            if (run.queue in queues or any(place.node in nodes for place in run.places))
            and (end := self.end(run)) is not None
        ]
        # By id within one time, so that equal states give equal lists; runs of one time are one group, since room
        # between them is never there.
        ends.sort()
        return [(at, [run for _, _, run in group]) for at, group in groupby(ends, key=lambda entry: entry[0])]

    def end(self, run: Run) -> int | None:
        """
        Expected time at which the run's resources come back; always after now. None: unknown.

        Runs that are stuck are ignored, as in plans (`leaving`).
        """
        state, job = self._state, self._state.jobs.get(run.job_id)
        if run.stopping or job is None:
            # Soon, and never in the past: an end at or before now would be an opening that is not open.
            return None if is_stuck(state, run) else state.ts + 1
        start = run.started_ts or run.allocated_ts
        end = start + self.runtime(job)
        # It is told to leave by then, however long it is expected to run.
        if self._booked and (leaves := self._booked.leaves_by(run, run.nodes)) is not None:
            return max(state.ts + 1, min(leaves[0], end if end > state.ts else leaves[0]))
        if end > state.ts:
            return end
        # Past its limit: it is about to be stopped.
        if job.time_limit_seconds:
            return state.ts + 1
        # It outlived the estimate. What is expected of it grows by as long again, step by step (Tsafrir et al. 2007):
        # a jump to what the longest ones took would let everybody with a shorter limit onto its room meanwhile.
        expected = end - start
        while start + expected <= state.ts:
            expected *= 2
        return start + expected

    def is_limited(self, run: Run) -> bool:
        """Whether the run ends by its time limit."""
        job = self._state.jobs.get(run.job_id)
        return job is not None and job.time_limit_seconds > 0

    def is_learnt(self, run: Run) -> bool:
        """Whether runs of its kind, or of a coarser one, were seen that ran at least as long as it is expected to."""
        state, job = self._state, self._state.jobs.get(run.job_id)
        if job is None:
            return False
        start = run.started_ts or run.allocated_ts
        elapsed = 0 if start + self.runtime(job) > state.ts else state.ts - start
        return is_learnt(state.runtimes, kind_of(job), elapsed)


@dataclass(frozen=True, slots=True)
class QuotaAhead:
    """
    Quota that a gang needs as well, from `book`, which is that of now. `end` takes a run out of a book.

    `at` makes the book of a time out of the one without the runs that have ended by then; None: the gang has no quota
    at that time.
    """

    book: QuotaBook
    end: Callable[[QuotaBook, Run], None]
    at: Callable[[int, QuotaBook], QuotaBook | None]


@dataclass(frozen=True, slots=True)
class Opening:
    """
    From `at` on the gang has room at `placements`; `nodes` are all nodes as they are then, without the gang.

    `book` is use and lending of quota at that time, without the gang, where quota was asked for. `shut` nodes are kept
    from it then, by bookings.
    """

    at: int
    placements: tuple[Placement, ...]
    nodes: dict[str, Node]
    book: QuotaBook | None = None
    shut: frozenset[str] = NOBODY


@dataclass(frozen=True, slots=True)
class Later:
    """Nodes and quota after the first `count` ends, with which the gang does not fit."""

    count: int
    nodes: dict[str, Node]
    book: QuotaBook | None


@dataclass(frozen=True, slots=True)
class Trying:
    """A gang that is tried on nodes, and in quota where that is asked for, as they are after some of `ends`."""

    roles: tuple[RoleNeed, ...]
    ends: Sequence[ExpectedEnd]
    places: FeasibleNodes
    quota: QuotaAhead | None
    shut: Callable[[int], frozenset[str]] | None = None

    def after(self, base: Later, count: int, at: int) -> Opening | Later:
        """The opening at the time `at`, after `count` ends; else what there is then, to go on from."""
        # Each try goes on from the nodes of the last one that failed, so that no end is applied twice on the way up.
        nodes, book = dict(base.nodes), None if base.book is None else base.book.copy()
        for _, runs in self.ends[base.count : count]:
            for run in runs:
                run.gang.take(nodes, run.places, -1)
                if self.quota is not None and book is not None:
                    self.quota.end(book, run)
        then = None
        if self.quota is not None and book is not None:
            then = self.quota.at(at, book)
            if then is None:
                return Later(count, nodes, book)
        # What bookings keep depends on the time that is tried, not on which runs have ended: asked of each anew, and
        # never written into the nodes from which the next try goes on.
        shut = NOBODY if self.shut is None else self.shut(at)
        open_nodes = {**nodes, **_closed(nodes, shut)} if shut else nodes
        found = place_gang(self.roles, open_nodes, self.places)
        return Later(count, nodes, book) if isinstance(found, Reason) else Opening(at, found, nodes, then, shut)


def _closed(nodes: Mapping[str, Node], shut: Collection[str]) -> dict[str, Node]:
    """Shut nodes of these, with no place for a pod."""
    return {name: replace(nodes[name], pods_free=0) for name in shut if name in nodes}


def find_opening(
    roles: tuple[RoleNeed, ...],
    nodes: dict[str, Node],
    ends: Sequence[ExpectedEnd],
    places: FeasibleNodes,
    quota: QuotaAhead | None = None,
    now: int | None = None,
    shut: Callable[[int], frozenset[str]] | None = None,
) -> Opening | None:
    """
    The first of `ends` at which the gang has room, and quota where that is asked for; None when it never has.

    `shut` says which nodes are kept from it if it starts at a time. With `now` it may be that time already; without,
    the gang is known to find no room on `nodes` yet. It means: try one end after the other. What has fit once fits
    later too, as far as best fit finds it and no booking keeps its nodes then, so that doubling steps and then halving
    ones do: the tries are as many as twice the digits of the number of ends.
    """
    trying, base = Trying(roles, ends, places, quota, shut), Later(0, nodes, None if quota is None else quota.book)
    if now is not None and isinstance(found := trying.after(base, 0, now), Opening):
        return found
    # Up by doubling steps: most openings are a few ends away, and each try places the whole gang.
    best: Opening | None = None
    high = 0
    while best is None:
        if base.count == len(ends):
            return None
        high = min(2 * base.count + 1, len(ends))
        answer = trying.after(base, high, ends[high - 1][0])
        if isinstance(answer, Opening):
            best = answer
        else:
            base = answer
    while high - base.count > 1:
        middle = (base.count + high) // 2
        answer = trying.after(base, middle, ends[middle - 1][0])
        if isinstance(answer, Opening):
            high, best = middle, answer
        else:
            base = answer
    return best


def spare_free_now(
    roles: tuple[RoleNeed, ...], opening: Opening, nodes: Mapping[str, Node], places: FeasibleNodes
) -> Opening:
    """
    The same opening on the nodes with the least free now, as few as hold the gang; `nodes` are those of now.

    What is free now stays open to who delays nobody, as far as what will be freed is enough.
    """
    # The usual case of a full pool, in which nothing has to be spared: no gang is placed again.
    if not any(any(nodes[place.node].gpu_free) for place in opening.placements):
        return opening
    fullest = sorted(nodes, key=lambda name: (sum(nodes[name].gpu_free), nodes[name].cpu_free, name))
    shut = _closed(opening.nodes, opening.nodes)
    fullest = [name for name in fullest if name not in opening.shut]

    def place(many: int) -> tuple[Placement, ...] | Reason:
        return place_gang(roles, {**shut, **{name: opening.nodes[name] for name in fullest[:many]}}, places)

    # Halving steps: with more nodes the gang has room all the more.
    many = bisect_left(range(len(fullest)), True, key=lambda count: not isinstance(place(count), Reason))
    found = place(many)
    return opening if isinstance(found, Reason) else replace(opening, placements=found)


@dataclass(frozen=True, slots=True)
class Reservation:
    """
    Room that is kept for a job: from `at` on, at `placements` on nodes of `flavor`.

    `nodes_then` are the nodes of the placements, and of networks that these draw on, as they are at `at`, with it and
    with the other reservations that have begun by then, and `book_then` likewise what counts as used of quotas: what
    is free there now and then, a job that runs beyond `at` may have.
    """

    job: Job
    at: int
    flavor: str
    placements: tuple[Placement, ...]
    nodes_then: dict[str, Node]
    closes: bool = False
    book_then: QuotaBook | None = None


def make_reservation(
    job: Job, flavor: str, opening: Opening, others: Sequence[Reservation], closes: bool = False
) -> Reservation:
    """
    Keep the room of `opening` for the job, beside `others`, which know of it too.

    Contract: `opening` was sought on nodes from which the placements of the others had been taken, all of them.
    """
    # Only the reservation's own nodes, and those of its networks: everywhere else a job that outlives its beginning
    # takes nothing from it.
    nodes_then = {place.node: opening.nodes[place.node] for place in opening.placements}
    if pools := pools_drawn(opening.placements):
        nodes_then |= {node.name: node for node in reached(opening.nodes.values(), pools)}
    job.gang.take(nodes_then, opening.placements)
    # Of quotas the opening's book has what began before; who begins later is told below.
    book_then = opening.book
    if book_then is not None:
        book_then.start(job, flavor)
    for other in others:
        # Each of two reservations knows of the other what has begun by its own time: the earlier one must not count the
        # later one's pods, which are not there yet, and the later one must count the earlier one's.
        if other.at > opening.at:  # it has not begun: it was left out of where to look, and does not count yet
            other.job.gang.take(nodes_then, other.placements, -1)
            job.gang.take(other.nodes_then, opening.placements)
            if other.book_then is not None:
                other.book_then.start(job, flavor)
    return Reservation(job, opening.at, flavor, opening.placements, nodes_then, closes, book_then)


def hide_reserved(node: Node, kept: Sequence[Reservation]) -> Node:
    """`node` with only so much free as a job may have that outlives the beginning of all of `kept`."""
    for reservation in kept:
        nodes_then = reservation.nodes_then.get(node.name)
        if nodes_then is not None:
            node = _least(node, nodes_then)
    return node


def _least(one: Node, other: Node) -> Node:
    """Capacity that is free on both."""
    # What is free both now and then: a job that runs across that moment needs the same devices on both sides of it, so
    # that GPUs and slices are compared one by one and only the rest as amounts.
    both = replace(
        one,
        cpu_free=min(one.cpu_free, other.cpu_free),
        memory_free=min(one.memory_free, other.memory_free),
        pods_free=min(one.pods_free, other.pods_free),
        gpu_free=tuple(map(min, one.gpu_free, other.gpu_free)),
        devices_free=least_devices(one.devices_free, other.devices_free),
        mig_taken=tuple(tuple(map(max, *slices)) for slices in zip(one.mig_taken, other.mig_taken, strict=True)),
        drawn=_at_either(one.drawn, other.drawn),
        drawn_elsewhere=_at_either(one.drawn_elsewhere, other.drawn_elsewhere),
    )
    # CPU is kept beside GPUs that are free at either time, though no job may have them across both.
    return both.promising(max(one.idle, other.idle))


def _at_either(now: Taken, then: Taken) -> Taken:
    """Devices that are had at either time, each as often as at the one where more claims have it."""
    return now if now == then else tuple(sorted((Counter(now) | Counter(then)).elements()))

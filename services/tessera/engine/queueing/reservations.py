"""
Room ahead: from when on, and where, a job that finds no room now can start, once runs have ended that are expected to.

A run ends by its time limit, else when `PERMILLE` of such runs had ended by what was learnt; one that outlives that is
judged by those that ran as long, or with a limit is about to be stopped. Nothing here is written to the state: it is
computed again in each pass, as a function of the state and its `ts`. Integer milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tessera.domain.devices.resources import Node, RoleNeed
from tessera.domain.entities import Job, Run
from tessera.domain.runtimes import JobKind, kind_of
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.engine.placement.capacity import is_stuck
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.gangs import place_gang
from tessera.engine.queueing.durations import is_learnt, quantile
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement

PERMILLE = 900
"""The quantile of the learnt runtimes by which a job counts as ended."""

ExpectedEnd = tuple[int, Sequence[Run]]
"""A time, and the runs that are expected to have left then."""


class Forecast:
    """Expected ends of runs, as of one state. Equal jobs are judged once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[tuple[JobKind, int], int] = {}

    def runtime(self, job: Job) -> int:
        """Expected run time of the job, from its start."""
        kind, limit = kind_of(job), job.time_limit_seconds * 1000
        known = self._known.get((kind, limit))
        if known is None:
            known = self._known[kind, limit] = limit or quantile(self._state.runtimes, kind, PERMILLE)
        return known

    def ends_on(self, nodes: Mapping[str, Node]) -> list[ExpectedEnd]:
        """The ends of the runs that hold something on `nodes`, ascending, without those that nobody expects to end."""
        ends = [
            (end, run.run_id, run)
            for run in self._state.runs.values()
            if any(place.node in nodes for place in run.places) and (end := self.end(run)) is not None
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
        if end > state.ts:
            return end
        # Past its limit: it is about to be stopped.
        if job.time_limit_seconds:
            return state.ts + 1
        # It outlived the estimate, which says that it is one of the long ones: only those that ran as long tell of it.
        return start + quantile(state.runtimes, kind_of(job), PERMILLE, state.ts - start)

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
class Opening:
    """From `at` on the gang has room at `placements`; `nodes` are all nodes as they are then, without the gang."""

    at: int
    placements: tuple[Placement, ...]
    nodes: dict[str, Node]


def find_opening(
    roles: tuple[RoleNeed, ...], nodes: dict[str, Node], ends: Sequence[ExpectedEnd], places: FeasibleNodes
) -> Opening | None:
    """
    The first of `ends` at which the gang, which finds no room on `nodes` now, has some; None when it never has.

    It means: try one end after the other. What has fit once fits later too, as far as best fit finds it, so that
    doubling steps and then halving ones do: the tries are as many as twice the digits of the number of ends.
    """

    def tried(base: dict[str, Node], first: int, last: int) -> Opening | dict[str, Node]:
        # Each try goes on from the nodes of the last one that failed, so that no end is applied twice on the way up.
        later = dict(base)
        for _, runs in ends[first:last]:
            for run in runs:
                run.gang.take(later, run.places, -1)
        found = place_gang(roles, later, places)
        return later if isinstance(found, Reason) else Opening(ends[last - 1][0], found, later)

    low, high, base = 0, 0, nodes  # with the first `low` ends it does not fit
    best: Opening | None = None
    while best is None:
        if low == len(ends):
            return None
        high = min(2 * low + 1, len(ends))
        answer = tried(base, low, high)
        if isinstance(answer, Opening):
            best = answer
        else:
            low, base = high, answer
    while high - low > 1:
        middle = (low + high) // 2
        answer = tried(base, low, middle)
        if isinstance(answer, Opening):
            high, best = middle, answer
        else:
            low, base = middle, answer
    return best


@dataclass(frozen=True, slots=True)
class Reservation:
    """
    Room that is kept for a job: from `at` on, at `placements` on nodes of `flavor`.

    `nodes_then` are the nodes of the placements as they are at `at`, with it and with the other reservations that have
    begun by then: what is free there now and then, a job that runs beyond `at` may have.
    """

    job: Job
    at: int
    flavor: str
    placements: tuple[Placement, ...]
    nodes_then: dict[str, Node]
    closes: bool = False


def make_reservation(
    job: Job, flavor: str, opening: Opening, others: Sequence[Reservation], closes: bool = False
) -> Reservation:
    """
    Keep the room of `opening` for the job, beside `others`, which know of it too.

    Contract: `opening` was sought on nodes from which the placements of the others had been taken, all of them.
    """
    # Only the reservation's own nodes: everywhere else a job that outlives its beginning takes nothing from it.
    nodes_then = {place.node: opening.nodes[place.node] for place in opening.placements}
    job.gang.take(nodes_then, opening.placements)
    for other in others:
        # Each of two reservations knows of the other what has begun by its own time: the earlier one must not count the
        # later one's pods, which are not there yet, and the later one must count the earlier one's.
        if other.at > opening.at:  # it has not begun: it was left out of where to look, and does not count yet
            other.job.gang.take(nodes_then, other.placements, -1)
            job.gang.take(other.nodes_then, opening.placements)
    return Reservation(job, opening.at, flavor, opening.placements, nodes_then, closes)


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
    there = dict(other.devices_free)
    return replace(
        one,
        cpu_free=min(one.cpu_free, other.cpu_free),
        memory_free=min(one.memory_free, other.memory_free),
        pods_free=min(one.pods_free, other.pods_free),
        gpu_free=tuple(map(min, one.gpu_free, other.gpu_free)),
        devices_free=tuple((name, min(free, there.get(name, 0))) for name, free in one.devices_free),
        mig_taken=tuple(tuple(map(max, *slices)) for slices in zip(one.mig_taken, other.mig_taken, strict=True)),
    )

"""
Rules that keep GPUs of a pool idle, although they can be had and jobs wait. Pure.

Of each queue the first jobs are asked what keeps them, as the committer would: a rule counts for as many GPUs as the
jobs ask for that would start at once without it. What is left over is in pieces that somebody who waits does not fit,
or wanted by nobody.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from tessera.domain.devices.free_slots import Unclaimed
from tessera.domain.devices.held_back import HeldBack, HoldsBack
from tessera.domain.entities import Job
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.engine.placement.free_slots import unclaimed
from tessera.engine.placement.gangs import place_gang
from tessera.engine.queueing.readiness import awaits_placement, is_reserved, named_in_line
from tessera.engine.queueing.scheduling_pass import SchedulingPass
from tessera_schemas.reasons import Code, Reason

JOBS_MAX = 512
"""So many waiting jobs of each queue are asked."""
KINDS_MAX = 16
"""So many kinds of jobs of each queue are tried on the nodes; others count as needing more at once."""
NO_ROOM = (Code.NO_FIT, Code.NO_NODES, Code.RESERVED)
"""Whoever was told so is not tried: the committer has looked for room since any came free."""


def held_back(state: State, pool: str, free_milli: int) -> tuple[HeldBack, ...]:
    """The rules by which `free_milli`, the thousandths of GPUs that can be had, are idle; they add up to that."""
    if free_milli <= 0:
        return ()
    asked = _Asked(state, pool)
    wanted: dict[tuple[HoldsBack, str], tuple[int, Job]] = {}
    # One job stands for all that find no room: any of them shows that the pieces are too small.
    large: Job | None = None
    for job in asked.waiting():
        found = asked.rule_of(job)
        if found is None:
            large = large or job
        else:
            milli, named = wanted.get(found, (0, _named(state, pool, job, found[0])))
            wanted[found] = milli + job.amount.gpu_milli, named
    # In the order of the rules and never twice: two rules that hold back the same GPU would else add up to more than
    # there is.
    left, answer = free_milli, list[HeldBack]()
    for (rule, queue), (milli, job) in sorted(wanted.items(), key=lambda entry: (_ORDER[entry[0][0]], entry[0][1])):
        if taken := min(left, milli):
            left -= taken
            answer.append(HeldBack(rule, taken, queue, job.job_id, job.name, job.tenant))
    if left and large is not None:
        answer.append(HeldBack(HoldsBack.PIECES, left, large.queue, large.job_id, large.name, large.tenant))
    elif left:
        abandoned = not wanted and unclaimed(state, pool) is Unclaimed.ABANDONED
        answer.append(HeldBack(HoldsBack.ABANDONED if abandoned else HoldsBack.NOTHING_WAITS, left))
    return tuple(answer)


_ORDER = {rule: place for place, rule in enumerate(HoldsBack)}


def _named(state: State, pool: str, job: Job, rule: HoldsBack) -> Job:
    """The job behind which this one waits, where the rule has one; else the job itself."""
    if rule is HoldsBack.KEPT:
        return next(filter(is_reserved, named_in_line(state, pool)), job)
    if rule is HoldsBack.STRICT:
        return next((each for each in state.jobs.found(place[-1] for place in state.index.waiting[job.queue][:1])), job)
    return job


class _Asked:
    """The pool's nodes and quotas now; each kind of job is placed once."""

    def __init__(self, state: State, pool: str) -> None:
        self._state, self._pool = state, pool
        self._book: QuotaBook | None = None
        self._room = SchedulingPass(state, pool).timeline().room
        self._fits: dict[tuple[object, ...], bool] = {}
        self._tried = Counter[str]()

    def waiting(self) -> Iterator[Job]:
        """The first jobs of each queue of the pool that ask for GPUs and could start, but for a rule."""
        state = self._state
        for queue in sorted(state.tree.queues_of.get(self._pool, ())):
            places = islice(state.index.waiting.get(queue, ()), JOBS_MAX)
            for job in state.jobs.found(place[-1] for place in places):
                stopped = state.tree.stopped(queue) is not None
                if job.amount.gpu_milli and job.not_before <= state.ts and (stopped or awaits_placement(state, job)):
                    yield job

    def rule_of(self, job: Job) -> tuple[HoldsBack, str] | None:
        """The rule without which the job would start at once, and the queue to name; None where it finds no room."""
        state, tree = self._state, self._state.tree
        flavors = tree.flavors_for(job.queue, job.amount)
        code = None if job.reason is None else job.reason.code
        roomy = [] if code in NO_ROOM else [flavor for flavor in flavors if self._finds_room(job, flavor)]
        if not roomy:
            return None
        # A stopped queue before quota, as gates come before room: opening it is the first thing that would have to
        # happen.
        stopped = tree.stopped(job.queue)
        if stopped is not None:
            return HoldsBack.STOPPED, stopped
        self._book = self._book or state.quota_book()
        lacks = [self._book.lacks(job, flavor) for flavor in roomy]
        if all(lacks):
            return HoldsBack.QUOTA, next(over.queue for over in lacks if over is not None)
        rules = {
            Code.BEHIND_RESERVATION: HoldsBack.KEPT,
            Code.NODES_BOOKED: HoldsBack.KEPT,
            Code.WAITING_FOR_WINDOW: HoldsBack.KEPT,
            Code.WAITING_FOR_QUOTA: HoldsBack.OWNER,
            Code.BEHIND_QUEUE_HEAD: HoldsBack.STRICT,
        }
        return (rules[code], job.queue) if code in rules else (HoldsBack.TURN, job.queue)

    def _finds_room(self, job: Job, flavor: str) -> bool:
        kind = flavor, job.roles
        known = self._fits.get(kind)
        if known is None:
            # A try places a whole gang: its cost is bounded for each queue, so that one with many shapes hides none of
            # the others.
            if self._tried[job.queue] >= KINDS_MAX:
                return False
            self._tried[job.queue] += 1
            known = self._fits[kind] = not isinstance(place_gang(job.roles, *self._room(flavor)), Reason)
        return known

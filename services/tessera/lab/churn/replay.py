"""
One run: a trace's pods come and go on its cluster under one policy, and each hour is added up.

A run begins in a steady state, in which a policy has worked for months. So `tessera` has seen one pass of arrivals
before, and from then on sees each pod when it arrives and prices the mix anew at fixed counts of arrivals. Without the
pass it would put pods that run for months down before it knows anything, and no warm-up would undo that. `fgd` is
given the trace's popularity of kinds, as in its paper. No policy knows how long a pod will run.
At the end the books are audited: every arrival runs, waits, was refused or has ended, and every device, CPU and byte
that is taken is taken by a pod that runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessera.engine.pricing.arrays import WHOLE, Ints
from tessera.engine.pricing.fragmentation import PublishedWorkload, fragmented, typical, workload
from tessera.engine.pricing.learner import Learner
from tessera.engine.pricing.packer import Packer
from tessera.engine.pricing.policies import DEFAULT
from tessera.lab.churn.book import ARRIVED, CLOCK, ENDED, HOUR_MS, LOST, NEVER, REFUSED, WAITING, Book, open_book
from tessera.lab.churn.lifetimes import Timed
from tessera.lab.churn.moving import Mover
from tessera.lab.churn.offered import Offered, offer
from tessera.lab.churn.pooled import run_pool
from tessera.lab.churn.running import run_until
from tessera.lab.pack.replay import PreparedTrace, empty_packer, stage

DAY_HOURS = 24


class Unbalanced(Exception):
    """The books do not add up: the run is worth nothing."""


@dataclass(frozen=True, slots=True)
class Span:
    """Length of a run; the warm-up is not counted."""

    warmup_days: int = 2
    days: int = 5

    @property
    def warmup_hours(self) -> int:
        return self.warmup_days * DAY_HOURS

    @property
    def hours(self) -> int:
        return (self.warmup_days + self.days) * DAY_HOURS


@dataclass(frozen=True, slots=True)
class ChurnOutcome:
    """
    Outcome of a run. `hours` is (hours, 4), see `book`; `fragmented_unit` is by what its last column is divided.

    `moves`: pods moved, room opened for how many, and thousandths of GPU times seconds to be done again.
    """

    arrived: int
    running: int
    waiting: int
    refused: int
    ended: int
    moves: tuple[int, int, int]
    hours: Ints
    fragmented_unit: int


class Ready:
    """A trace and one load and seed, ready for any policy: all see the same arrivals."""

    def __init__(self, timed: Timed, load_percent: int, seed: int, span: Span) -> None:
        self.timed, self.seed, self.span = timed, seed, span
        self.stage: PreparedTrace = stage(timed.trace)
        self.offered: Offered = offer(timed, load_percent, seed, span.hours * HOUR_MS)
        self.classes = tuple(dict.fromkeys(self.stage.asks))
        numbers = {ask: number for number, ask in enumerate(self.classes)}
        self.one_pass: Ints = np.array([numbers[ask] for ask in self.stage.asks], np.int64)
        self.t = self.one_pass[self.offered.pod]

    def packer(self, policy: str) -> Packer:
        packer = empty_packer(self.stage, policy, self.seed)
        for ask in self.classes:
            packer.add_class(ask)
        return packer

    def book(self, packer: Packer) -> Book:
        possible = [any(packer.fits(t, n) for n in range(packer.size.nodes)) for t in range(len(self.classes))]
        offered = self.offered
        return open_book(self.t, offered.at_ms, offered.life_ms, np.array(possible, np.int64), self.span.hours)


def replay(ready: Ready, policy: str, defragment: bool) -> ChurnOutcome:
    """Raises: Unbalanced."""
    packer, measure = ready.packer(policy), _measure(ready.stage)
    empty = [packer.room(n) for n in range(packer.size.nodes)]
    book = ready.book(packer)
    by_node = np.array([fragmented(packer.core.nodes, measure, n) for n in range(packer.size.nodes)], np.int64)
    book.now[LOST] = by_node.sum()
    mover = Mover(packer, book, measure, by_node) if defragment else None
    _run(packer, book, measure, by_node, mover, ready)
    outcome = _outcome(book, mover, measure.total)
    _audit(packer, book, outcome, empty)
    return outcome


def _run(
    packer: Packer, book: Book, measure: PublishedWorkload, by_node: Ints, mover: Mover | None, ready: Ready
) -> None:
    """To the end of the last hour; between events the mix is priced anew and the mover has its turn."""
    learner = Learner(packer) if packer.policy == DEFAULT else None
    if learner:
        learner.see(ready.one_pass)
    else:
        packer.know(typical(ready.stage.counts))
    end = len(book.hours) * HOUR_MS
    while book.now[CLOCK] < end:
        stop = min(end, mover.next_ms) if mover else end
        first = int(book.now[ARRIVED])
        due = first + learner.due_in if learner else len(book.t)
        run_until(packer.core, book, measure, by_node, stop, due)
        if learner and book.now[ARRIVED] > first:
            learner.see(book.t[first : book.now[ARRIVED]])
        if mover and book.now[CLOCK] == mover.next_ms:
            mover.take_turn()


def bound(ready: Ready) -> ChurnOutcome:
    """The same arrivals on one pool of everything, see `pooled`."""
    nodes = ready.timed.trace.nodes
    sums = sum(n.cpu_milli for n in nodes), sum(n.memory_mib for n in nodes), sum(n.gpus for n in nodes) * WHOLE
    packer = ready.packer("bestfit")
    book = ready.book(packer)
    run_pool(np.array(sums, np.int64), packer.core.classes, book, len(book.hours) * HOUR_MS)
    return _outcome(book, None, 1)


def _measure(ready: PreparedTrace) -> PublishedWorkload:
    """The typical workload of the whole trace, which the published fragmentation is measured against."""
    return workload(typical(ready.counts), len(ready.models), max(node.gpus for node in ready.trace.nodes))


def _outcome(book: Book, mover: Mover | None, unit: int) -> ChurnOutcome:
    arrived, ended, refused, waiting = (int(book.now[which]) for which in (ARRIVED, ENDED, REFUSED, WAITING))
    running = int((book.node != NEVER).sum())
    if arrived != running + waiting + refused + ended:
        raise Unbalanced(f"{arrived} arrived, but {running} run, {waiting} wait, {refused} refused, {ended} ended")
    moves = (mover.moved, mover.opened, mover.lost_milli_seconds) if mover else (0, 0, 0)
    return ChurnOutcome(arrived, running, waiting, refused, ended, moves, book.hours, unit)


def _audit(packer: Packer, book: Book, outcome: ChurnOutcome, empty: Sequence[object]) -> None:
    """Give everything that runs back to the packer: every node must then be as empty as it was."""
    if (packer.core.nodes.free < 0)[packer.core.nodes.free != -1].any() or (packer.core.nodes.cpu < 0).any():
        raise Unbalanced("a device or a node holds more than it has")
    nodes = packer.core.nodes
    for job in np.flatnonzero(book.node != NEVER).tolist():
        t, n = int(book.t[job]), int(book.node[job])
        ask = packer.asks[t]
        nodes.cpu[n] += ask.cpu
        nodes.memory[n] += ask.memory
        nodes.pods[n] += 1
        slots = [slot for slot in range(packer.size.devices) if int(book.devices[job]) >> slot & 1]
        if len(slots) != ask.devices:
            raise Unbalanced(f"arrival {job} holds {len(slots)} devices and asked for {ask.devices}")
        nodes.free[n, slots] += ask.milli
    wrong = [n for n in range(packer.size.nodes) if packer.room(n) != empty[n]]
    if wrong:
        raise Unbalanced(f"node {wrong[0]} holds something that no pod took: {packer.room(wrong[0])}")

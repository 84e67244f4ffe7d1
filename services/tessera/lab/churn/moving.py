"""
A simple mover: every quarter of an hour it opens room for pods that wait, by moving the cheapest pods elsewhere.

A move costs what has to be done again since the last checkpoint, taken as 15 minutes of the moved pod's GPUs (half of
a usual half hour); the pod runs that much longer. The gain is what the waiting pod would otherwise go on waiting, of
which nothing is known but this: who has waited long waits long. So as many seconds are taken as it has waited already,
and nothing moves unless the gain is larger than the cost. Places for all victims are taken before anything moves; if
one finds none, nothing moves. Every pod may be moved: that is an assumption, since the trace does not say.
"""

from typing import NamedTuple

import numpy as np

from tessera.engine.pricing.arrays import WHOLE, Ints
from tessera.engine.pricing.choosing import touch
from tessera.engine.pricing.fragmentation import PublishedWorkload
from tessera.engine.pricing.packer import Ask, Packer, Place
from tessera.lab.churn.book import CLOCK, HOUR_MS, NEVER, SERIAL_BITS, WAITING, Book, leave_queue, push, start
from tessera.lab.churn.running import fill, measure_again

PERIOD_MS = HOUR_MS // 4
REDONE_S = 900
CLASSES_PER_TURN = 8
NODES_PER_CLASS = 6
MS = 1000
TOO_MUCH = 1 << 40


class MoverPlan(NamedTuple):
    """Victims leave node `n`; the waiting pod of class `t` takes it."""

    t: int
    n: int
    victims: tuple[int, ...]  # arrivals


class Mover:
    def __init__(self, packer: Packer, book: Book, measure: PublishedWorkload, by_node: Ints) -> None:
        self._packer, self._book, self._measure, self._by_node = packer, book, measure, by_node
        self._running = np.zeros(0, np.int64)  # arrivals; read once a turn and after each move
        self.next_ms = PERIOD_MS
        self.moved = self.opened = self.lost_milli_seconds = 0

    def take_turn(self) -> None:
        """Try the classes whose first pod waits longest, each on the nodes where least must move."""
        self.next_ms += PERIOD_MS
        if not self._book.now[WAITING]:
            return
        self._running = np.flatnonzero(self._book.node != NEVER)
        waiting = np.flatnonzero(self._book.first != NEVER).tolist()
        by_wait = sorted(waiting, key=lambda t: int(self._book.first[t]))
        for t in by_wait[:CLASSES_PER_TURN]:
            self._open_for(t)

    def _open_for(self, t: int) -> None:
        for n in cheapest_nodes(self._packer, t):
            if self._book.first[t] == NEVER:
                return
            here = self._running[self._book.node[self._running] == n].tolist()
            victims = choose_victims(self._packer, self._book, t, n, here)
            if victims and self._worth_it(t, victims) and self._carry_out(MoverPlan(t, n, tuple(victims))):
                return

    def _worth_it(self, t: int, victims: list[int]) -> bool:
        job = int(self._book.first[t])
        waited_s = int(self._book.now[CLOCK] - self._book.at[job]) // MS
        cost = sum(_milli(self._packer.asks[self._book.t[victim]]) for victim in victims) * REDONE_S
        return _milli(self._packer.asks[t]) * waited_s > cost

    def _carry_out(self, plan: MoverPlan) -> bool:
        """Move all victims and start who waited, or leave everything as it was."""
        targets = self._targets(plan)
        if targets is None:
            return False
        packer, book = self._packer, self._book
        for victim, place in zip(plan.victims, targets, strict=True):
            self._leave(victim, place)
        milli = _milli(packer.asks[plan.t])
        opened = packer.place(plan.t)
        if opened is None:
            raise AssertionError(f"no room was opened on node {plan.n}")
        start(book, leave_queue(book, plan.t, milli), opened.node, opened.devices, milli)
        fill(packer.core, book, plan.n)
        for n in sorted({plan.n, opened.node, *(target.node for target in targets)}):
            measure_again(packer.core, book, self._measure, self._by_node, n)
        self.opened += 1
        self._running = np.flatnonzero(book.node != NEVER)
        return True

    def _targets(self, plan: MoverPlan) -> list[Place] | None:
        """A place on other nodes for each victim, the largest first, all taken; None if one finds none."""
        packer, found = self._packer, list[Place]()
        packer.remove_node(plan.n)
        for victim in plan.victims:
            place = packer.place(int(self._book.t[victim]))
            if place is None:
                break
            found.append(place)
        packer.core.nodes.live[plan.n] = 1
        touch(packer.core, plan.n)
        if len(found) == len(plan.victims):
            return found
        for victim, place in zip(plan.victims, found, strict=False):
            packer.release(int(self._book.t[victim]), place)
        return None

    def _leave(self, victim: int, place: Place) -> None:
        book, t = self._book, int(self._book.t[victim])
        self._packer.release(t, Place(int(book.node[victim]), int(book.devices[victim])))
        book.node[victim], book.devices[victim] = place
        book.end[victim] += REDONE_S * MS
        push(book, int(book.end[victim]) << SERIAL_BITS | victim)
        self.moved += 1
        self.lost_milli_seconds += REDONE_S * _milli(self._packer.asks[t])


def _milli(ask: Ask) -> int:
    return ask.devices * ask.milli


def cheapest_nodes(packer: Packer, t: int) -> list[int]:
    """Nodes that could hold the class, those first where the fewest GPUs, then the least CPU, would have to leave."""
    nodes, ask = packer.core.nodes, packer.asks[t]
    device = np.arange(nodes.free.shape[1]) < nodes.gpus[:, None]
    used = np.sort(np.where(device, WHOLE - nodes.free, TOO_MUCH), axis=1)
    if ask.milli < WHOLE:
        leaves = np.maximum(0, used[:, 0] - (WHOLE - ask.milli))
    else:
        leaves = used[:, : ask.devices].sum(axis=1) if ask.devices <= used.shape[1] else np.full(len(used), TOO_MUCH)
    if not ask.devices:
        leaves = np.zeros(len(used), np.int64)
    model = np.array([ask.models == 0 or ask.models >> int(m) & 1 for m in range(packer.size.models)])
    possible = (nodes.live == 1) & model[nodes.model] & (leaves < min(TOO_MUCH, _milli(ask) or TOO_MUCH))
    order = np.lexsort((nodes.order, np.maximum(0, ask.cpu - nodes.cpu), leaves))
    return [int(n) for n in order if possible[n]][:NODES_PER_CLASS]


def choose_victims(packer: Packer, book: Book, t: int, n: int, here: list[int]) -> list[int]:
    """
    Pods on the node whose leaving makes the class fit, the largest first; none where it cannot be.

    The devices that have least to lose are cleared first; then the pods with the fewest GPUs make room for CPU and
    memory.
    """
    ask, free = packer.asks[t], list(packer.room(n).free)
    holds = {job: packer.asks[book.t[job]] for job in here}
    smallest = sorted(here, key=lambda job: (_milli(holds[job]), -holds[job].cpu, job))
    devices = sorted(range(len(free)), key=lambda slot: (-free[slot], slot))[: max(1, ask.devices)]
    chosen: list[int] = []

    def enough() -> bool:
        cpu = packer.room(n).cpu + sum(holds[job].cpu for job in chosen)
        memory = packer.room(n).memory + sum(holds[job].memory for job in chosen)
        return bool(cpu >= ask.cpu and memory >= ask.memory)

    for slot in devices if ask.devices else ():
        on_it = [job for job in smallest if int(book.devices[job]) >> slot & 1]
        left = free[slot] + sum(holds[job].milli for job in chosen if int(book.devices[job]) >> slot & 1)
        for job in on_it:
            if left >= ask.milli:
                break
            if job not in chosen:
                chosen.append(job)
                left += holds[job].milli
        if left < ask.milli:
            return []
    for job in smallest:
        if enough():
            break
        if job not in chosen:
            chosen.append(job)
    return sorted(chosen, key=lambda job: (-_milli(holds[job]), job)) if enough() else []

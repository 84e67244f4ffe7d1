"""
A queue that may reorder: which of the waiting pods goes next.

Up to `waiting` pods are chosen from; whenever there are as many, one is placed: the one whose price exceeds most what
its best node loses by it, per GPU. So a pod for which a place is perfect goes first, and one that would spoil a node
waits for a better one. Nobody is passed by more than `delay` arrivals: then it goes, wherever that is. A pod that fits
nowhere is dropped when it is met, since nothing leaves; nothing is dropped that fits.
"""

from typing import NamedTuple

import numpy as np

from tessera.engine.pricing.arrays import Ints
from tessera.engine.pricing.best import score_of
from tessera.engine.pricing.choosing import NOWHERE, Core, best_node
from tessera.engine.pricing.compiled import compiled
from tessera.engine.pricing.dual_prices import rounded
from tessera.engine.pricing.packer import Ask
from tessera.engine.pricing.worth_tables import Table

LEAST_MILLI = 200  # a smaller share counts as one, else the smallest would always go first


class Window(NamedTuple):
    """Number of pods that may wait, and of later arrivals that may pass one of them."""

    waiting: int = 64
    delay: int = 256


PUBLISHED = Window()


class WaitingLine(NamedTuple):
    """Waiting pods, the oldest first: class and number of arrival."""

    classes: Ints
    arrival: Ints
    length: Ints  # (1,)


def empty_line(window: Window) -> WaitingLine:
    return WaitingLine(
        np.zeros(window.waiting + 1, np.int64), np.zeros(window.waiting + 1, np.int64), np.zeros(1, np.int64)
    )


def prices_of(asks: list[Ask], prices: Table, classes: int) -> Ints:
    """The price of each class, in millionths of a GPU; 0 for what has none."""
    known, found = dict(prices), np.zeros(classes, np.int64)
    for t, ask in enumerate(asks):
        found[t] = known.get(rounded(ask.kind), 0)
    return found


@compiled
def next_to_go(core: Core, price: Ints, line: WaitingLine) -> int:
    """The place in line of the pod with the largest gain per GPU; the oldest of equals. One that fits nowhere first."""
    best, highest, c = -1, np.int64(0), core.classes
    for at in range(line.length[0]):
        t = line.classes[at]
        if np.any(line.classes[:at] == t):
            continue
        if best_node(core, t) == NOWHERE:
            return at
        gain = price[t] + score_of(core.best.keys[t, core.best.starts[-1]])
        gain = gain * 1000 // max(c.devices[t] * c.milli[t], LEAST_MILLI)
        if best < 0 or gain > highest:
            best, highest = at, gain
    return best


@compiled
def join(line: WaitingLine, t: int, arrival: int) -> None:
    at = line.length[0]
    line.classes[at], line.arrival[at] = t, arrival
    line.length[0] = at + 1


@compiled
def next_due(core: Core, price: Ints, line: WaitingLine, waiting: int, delay: int, arrival: int) -> int:
    """The place in line of who must go now that this arrival has joined; NOWHERE when all may wait on."""
    if line.length[0] == 0:
        return NOWHERE
    if arrival - line.arrival[0] >= delay:
        return 0
    return next_to_go(core, price, line) if line.length[0] >= waiting else NOWHERE


@compiled
def leave(line: WaitingLine, at: int) -> None:
    last = line.length[0] - 1
    line.classes[at:last] = line.classes[at + 1 : last + 1].copy()
    line.arrival[at:last] = line.arrival[at + 1 : last + 1].copy()
    line.length[0] = last

"""
The best node of each class, without looking at all nodes.

Each class keeps one key per node, `score` above `order`, and the maxima of groups of 16 keys, of 16 groups, and so on:
a changed key costs a few groups, the best is read at the top. Keys are unique, so that the best node does not depend
on what was changed in which order. A class catches up with the nodes changed since it was last asked only when asked
again, and looks once at a node that changed several times.
"""

from typing import NamedTuple

import numpy as np

from tessera.engine.pricing.arrays import Ints
from tessera.engine.pricing.compiled import compiled_lean

FAN = 16
ORDER_BITS = 24
ORDER_MASK = (1 << ORDER_BITS) - 1
OFFSET = 1 << 38  # scores lie between -OFFSET and OFFSET
NO_KEY = -1


class Best(NamedTuple):
    keys: Ints  # (classes, cells): the keys of the nodes, then the maxima of 16, …, last the best
    starts: Ints  # where each layer begins
    cursor: Ints  # (classes,): changes seen; -1: nothing yet
    changes: Ints  # ring of changed nodes
    counts: Ints  # (2,): changes so far, catch-ups so far
    stamp: Ints  # (nodes,): the catch-up that last looked at it


def no_best(classes: int, nodes: int) -> Best:
    """Index for so many classes and nodes in which no key is known yet."""
    starts, size, total = [], nodes, 0
    while True:
        # Each layer is filled up to whole groups, so that a group's cells never reach into the next layer; the cells
        # beyond the last node have no key.
        size = -(-size // FAN) * FAN if size > 1 else 1
        starts.append(total)
        total += size
        if size == 1:
            break
        size //= FAN
    return Best(
        keys=np.full((classes, total), NO_KEY, np.int64),
        starts=np.array(starts, np.int64),
        cursor=np.full(classes, -1, np.int64),
        changes=np.zeros(max(nodes, 1), np.int64),
        counts=np.zeros(2, np.int64),
        stamp=np.zeros(nodes, np.int64),
    )


@compiled_lean
def key_of(score: int, order: int) -> int:
    """Packs a score and an order into one integer: a higher score is larger, then a lower order."""
    # One comparison of integers in place of two. The order is turned round, since the largest key wins and the lowest
    # order shall.
    return ((score + OFFSET) << ORDER_BITS) | (ORDER_MASK - order)


@compiled_lean
def order_of(key: int) -> int:
    """Order that `key_of` packed."""
    return ORDER_MASK - (key & ORDER_MASK)


@compiled_lean
def changed(best: Best, n: int) -> None:
    """Notes that node `n` changed; each class takes notice when next asked for its best node."""
    # A ring as long as there are nodes: a class that is further behind than that looks at all of them, which costs no
    # more.
    best.changes[best.counts[0] % best.changes.shape[0]] = n
    best.counts[0] += 1


@compiled_lean
def raise_maxima(best: Best, t: int, n: int) -> None:
    """Carry the key of node n up, as far as it changes anything."""
    at, keys = n, best.keys[t]
    for layer in range(1, best.starts.shape[0]):
        at //= FAN
        first = best.starts[layer - 1] + at * FAN
        top = keys[first]
        for cell in range(first + 1, min(first + FAN, best.starts[layer])):
            top = max(top, keys[cell])
        # A group whose maximum stays changes nothing above it.
        if keys[best.starts[layer] + at] == top:
            return
        keys[best.starts[layer] + at] = top


@compiled_lean
def build_maxima(best: Best, t: int) -> None:
    """All maxima from the keys."""
    keys = best.keys[t]
    for layer in range(1, best.starts.shape[0]):
        last = best.starts[layer]
        for first in range(best.starts[layer - 1], last, FAN):
            top = keys[first]
            for cell in range(first + 1, min(first + FAN, last)):
                top = max(top, keys[cell])
            keys[last + (first - best.starts[layer - 1]) // FAN] = top

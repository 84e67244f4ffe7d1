"""
Why what is free is not used, and how many slots of each size are left.

For each kind of pod, what is free on a node is either usable for it or not, for the first of these causes that holds:
its models are others, the devices do not have the shape (too few, or too little left on each), CPU is short, memory is
short, the node is full of pods. Over the kinds, each cause gets its share by how often the kind comes. All causes of a
node add up to exactly what is free there: the remainders of the division go to the largest first.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from tessera.engine.pricing.arrays import WHOLE, Ints, Nodes

if TYPE_CHECKING:
    from tessera.engine.pricing.packer import Ask


class Cause(IntEnum):
    """In the order in which they are tested; USABLE is what is left."""

    MODEL = 0
    SHAPE = 1
    CPU = 2
    MEMORY = 3
    PODS = 4
    USABLE = 5


SLOTS = (1, 2, 4, 8)


def stranded(nodes: Nodes, asks: "Mapping[Ask, int]") -> Ints:
    """
    (nodes, causes): thousandths of GPUs that are free, by cause.

    Args: `asks`, how often each comes; those that need no GPU are passed over. Without any, all that is free is USABLE.
    """
    free = _free(nodes)
    idle = free.sum(axis=1)
    weights = {ask: count for ask, count in asks.items() if ask.devices and count}
    sums = np.zeros((len(idle), len(Cause)), np.int64)
    for ask, weight in weights.items():
        holds = free >= ask.milli
        usable = np.where(holds, free, 0).sum(axis=1)
        failed = [
            (ask.models != 0) & ((ask.models >> nodes.model) & 1 == 0),
            holds.sum(axis=1) < ask.devices,
            nodes.cpu < ask.cpu,
            nodes.memory < ask.memory,
            nodes.pods < 1,
        ]
        first = np.select(failed, list(range(len(failed))), default=Cause.USABLE)
        rows = np.arange(len(idle))
        sums[rows, first] += weight * np.where(first == Cause.USABLE, usable, idle)
        sums[:, Cause.SHAPE] += weight * np.where(first == Cause.USABLE, idle - usable, 0)
    total = sum(weights.values())
    if not total:
        sums[:, Cause.USABLE] = idle
        return sums
    return _divided(sums, total, idle)


def _divided(sums: Ints, total: int, idle: Ints) -> Ints:
    """Each row divided by `total`, rounded to add up to `idle`; the largest remainders first, then by cause."""
    shares, left = sums // total, sums % total
    missing = idle - shares.sum(axis=1)
    rank = np.argsort(np.argsort(-left, axis=1, kind="stable"), axis=1, kind="stable")
    return np.asarray(shares + (rank < missing[:, None]), np.int64)


def slots(nodes: Nodes, sizes: Sequence[int] = SLOTS) -> dict[int, int]:
    """How many pods of so many whole devices could start now, each size taken alone, CPU and memory left aside."""
    whole = (_free(nodes) == WHOLE).sum(axis=1)
    return {size: int((whole // size).sum()) for size in sizes}


def _free(nodes: Nodes) -> Ints:
    """Free thousandths by node and device; 0 where there is no device or no node."""
    return np.where(nodes.live[:, None] == 1, np.maximum(nodes.free, 0), 0)

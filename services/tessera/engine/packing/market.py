"""
Prices by supply and demand: an auction of the whole cluster, held several times over mixes that differ a little.

A round takes one shape of node, fills it with the dearest pods that fit (the tables of `worth`, read backwards), and
moves the prices: of what was filled more than asked for they fall, of everything else they rise, between 0 and the GPUs
that a pod holds. This is a subgradient method for the dual of "fill the cluster with as much GPU as the mix offers".
One mix has many such prices and most are 0 or full; the mean over mixes with more or less of each kind, of all
demand, and of CPU says how likely it is that room for a kind runs short. That is what keeps a scarce model free for the
pods bound to it. Integers only; "a little" is drawn from a fixed hash, so that equal mixes give equal prices.
"""

from collections.abc import Sequence

import numpy as np

from tessera.engine.packing.arrays import Ints
from tessera.engine.packing.compiled import compiled
from tessera.engine.packing.pricing import Kinds, fill_device, fill_root
from tessera.engine.packing.worth import UNITS, Prices

MILLION = 1_000_000


@compiled
def shares_back(kinds: Kinds, price: Ints, m: int, device: Prices, units: int, level: int, filled: Ints) -> None:
    """Count the shares that make up device[units, level]."""
    while units > 0 and device[units, level] > 0:
        if device[units, level] == device[units - 1, level]:
            units -= 1
            continue
        for kind in range(price.shape[0]):
            u, c = kinds.units[kind], kinds.level[kind]
            if kinds.count[kind] != 1 or u > units or u >= UNITS or c > level or price[kind] == 0:
                continue
            if kinds.runs[m, kind] and device[units - u, level - c] + price[kind] == device[units, level]:
                filled[kind] += 1
                units -= u
                level -= c
                break


@compiled
def whole_back(kinds: Kinds, price: Ints, m: int, worth: int, most: int, level: int) -> int:
    """The first kind of so many whole devices that is worth so much, or -1."""
    for kind in range(price.shape[0]):
        if kinds.count[kind] == most and kinds.units[kind] == UNITS and kinds.level[kind] <= level:
            if kinds.runs[m, kind] and price[kind] == worth:
                return kind
    return -1


@compiled
def several_back(kinds: Kinds, price: Ints, m: int, root: Prices, whole: int, level: int) -> int:
    """The first kind of several devices by which root[whole, level] may end, or -1."""
    for kind in range(price.shape[0]):
        count, c = kinds.count[kind], kinds.level[kind]
        if 1 < count <= whole and c <= level and kinds.runs[m, kind] and price[kind] > 0:
            if root[whole - count, level - c] + price[kind] == root[whole, level]:
                return kind
    return -1


@compiled
def fill_back(
    kinds: Kinds, price: Ints, m: int, device: Prices, root: Prices, whole: int, level: int, filled: Ints
) -> None:
    """Count the pods that make up root[whole, level]."""
    filled[:] = 0
    while whole > 0 and root[whole, level] > 0:
        kind = several_back(kinds, price, m, root, whole, level)
        if kind >= 0:
            filled[kind] += 1
            whole -= kinds.count[kind]
            level -= kinds.level[kind]
            continue
        split = 0
        while root[1, split] + root[whole - 1, level - split] != root[whole, level]:
            split += 1
        kind = -1
        if root[1, split] > device[UNITS, split]:
            kind = whole_back(kinds, price, m, root[1, split], 1, split)
        if kind >= 0:
            filled[kind] += 1
        else:
            shares_back(kinds, price, m, device, UNITS, split, filled)
        whole -= 1
        level -= split


@compiled
def auction(
    kinds: Kinds, value: Ints, demand: Ints, lots: Ints, rate: int, warm: int, price: Ints, total: Ints, levels: int
) -> None:
    """
    Sell all lots in order; `price` is moved, and added to `total` after each lot from number `warm` on.

    Args:
        demand: thousandths of pods per kind that the whole cluster is offered; above 0.
        lots: (lots, 5) model class, devices and CPU level of the node, how many thousandths of nodes, and millionths of
            the cluster's GPUs that these are.
        rate: thousandths of `value` that a price moves when exactly the demand of the whole cluster is missing.
    """
    classes, gpus = kinds.runs.shape[0], int(lots[:, 1].max())
    device = np.zeros((classes, UNITS + 1, levels), np.int32)
    root = np.zeros((classes, gpus + 1, levels), np.int32)
    filled = np.zeros(price.shape[0], np.int64)
    for lot in range(lots.shape[0]):
        m, size, level, times, share = lots[lot]
        fill_device(kinds, price, m, device[m])
        fill_root(kinds, price, m, device[m], root[m, : size + 1])
        fill_back(kinds, price, m, device[m], root[m], size, level, filled)
        for kind in range(price.shape[0]):
            over = filled[kind] * times * MILLION // demand[kind] - share
            moved = price[kind] - value[kind] * over // MILLION * rate // 1000
            price[kind] = min(max(moved, 0), value[kind])
            if lot >= warm:
                total[kind] += price[kind]


def lots_of(shapes: Sequence[tuple[int, int, int, int]], lots: int) -> Ints:
    """
    One sale of the cluster: every shape of node in about so many lots altogether, evenly mixed.

    Args: `shapes`, (model class, devices, CPU level, nodes), sorted.
    """
    cluster = sum(gpus * nodes for _, gpus, _, nodes in shapes)
    rows = []
    for number, (m, gpus, level, nodes) in enumerate(shapes):
        parts = max(1, (2 * lots * gpus * nodes + cluster) // (2 * cluster))
        times, share = 1000 * nodes // parts, MILLION * gpus * nodes // (cluster * parts)
        rows += [((2 * part + 1) * MILLION // parts, number, (m, gpus, level, times, share)) for part in range(parts)]
    return np.array([row for _, _, row in sorted(rows)], np.int64)

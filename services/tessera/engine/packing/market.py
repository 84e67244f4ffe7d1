"""
Prices by supply and demand: what is asked for more than it can be packed gets dearer, what is packed too easily cheaper.

Each round fills every node with the dearest pods that fit (the tables of `worth`, read backwards) and compares what was
filled with what the mix asks for. The price of a kind falls where more was filled than asked, and rises back to its GPUs
where less. Prices are averaged over the later rounds: a single round's are as degenerate as one solution of the linear
program that this solves. Integers only, no chance: equal mixes give equal prices.
"""

import numpy as np

from tessera.engine.packing.arrays import Ints
from tessera.engine.packing.compiled import compiled
from tessera.engine.packing.pricing import Kinds, fill_device, fill_root
from tessera.engine.packing.worth import UNITS, Prices


@compiled
def fill_back(kinds: Kinds, price: Ints, m: int, device: Prices, units: int, level: int, times: int, filled: Ints) -> None:
    """Count the shares that make up device[units, level]."""
    while units > 0 and device[units, level] > 0:
        if device[units, level] == device[units - 1, level]:
            units -= 1
            continue
        for kind in range(price.shape[0]):
            u, c = kinds.units[kind], kinds.level[kind]
            if (kinds.count[kind] == 1 and u <= units and u < UNITS and c <= level and price[kind] > 0 and kinds.runs[m, kind]
                    and device[units - u, level - c] + price[kind] == device[units, level]):
                filled[kind] += times
                units -= u
                level -= c
                break


@compiled
def root_back(kinds: Kinds, price: Ints, m: int, device: Prices, root: Prices, whole: int, level: int, times: int, filled: Ints) -> None:
    """Count the pods that make up root[whole, level]."""
    while whole > 0 and root[whole, level] > 0:
        found = False
        for kind in range(price.shape[0]):
            count, c = kinds.count[kind], kinds.level[kind]
            if 1 < count <= whole and c <= level and kinds.runs[m, kind] and price[kind] > 0:
                if root[whole - count, level - c] + price[kind] == root[whole, level]:
                    filled[kind] += times
                    whole -= count
                    level -= c
                    found = True
                    break
        if found:
            continue
        split = 0
        while root[1, split] + root[whole - 1, level - split] != root[whole, level]:
            split += 1
        one_back(kinds, price, m, device, root, split, times, filled)
        whole -= 1
        level -= split


@compiled
def one_back(kinds: Kinds, price: Ints, m: int, device: Prices, root: Prices, level: int, times: int, filled: Ints) -> None:
    if root[1, level] > device[UNITS, level]:
        for kind in range(price.shape[0]):
            if (kinds.count[kind] == 1 and kinds.units[kind] == UNITS and kinds.level[kind] <= level
                    and kinds.runs[m, kind] and price[kind] == root[1, level]):
                filled[kind] += times
                return
    fill_back(kinds, price, m, device, UNITS, level, times, filled)


@compiled
def trade(kinds: Kinds, value: Ints, demand: Ints, shapes: Ints, device: Prices, root: Prices, rounds: int, price: Ints, mean: Ints, eta0: int, eta1: int, cover: int) -> None:
    """shapes: (n,4) model class, gpus, level, how many. demand in thousandths of pods"""
    mean[:] = 0
    weight = 0
    filled = np.zeros(price.shape[0], np.int64)
    for turn in range(rounds):
        for m in range(device.shape[0]):
            fill_device(kinds, price, m, device[m])
            fill_root(kinds, price, m, device[m], root[m])
        filled[:] = 0
        for s in range(shapes.shape[0]):
            m, w, level, times = shapes[s]
            root_back(kinds, price, m, device[m], root[m], w, level, times, filled)
        eta = eta1 + eta0 * 4 // (turn + 4)
        worth, sold = 0, 0
        for kind in range(price.shape[0]):
            gap = filled[kind] * 1000 - demand[kind]
            gap = min(max(gap * 1000 // max(demand[kind], 1), -1000), 2000)   # per mille
            if cover:
                step = (price[kind]) * gap // 1000 * eta // 1000
                price[kind] = min(max(price[kind] - step, value[kind]//50), value[kind]*8)
            else:
                step = value[kind] * gap // 1000 * eta // 1000
                price[kind] = min(max(price[kind] - step, 0), value[kind])
            worth += price[kind] * (demand[kind]//1000)
            sold += value[kind] * (demand[kind]//1000)
        for kind in range(price.shape[0]):
            if cover:
                price[kind] = price[kind] * (sold // 1_000_000) // (worth // 1_000_000)
            if turn * 3 >= rounds:
                mean[kind] += price[kind]
        if turn * 3 >= rounds:
            weight += 1
    for kind in range(price.shape[0]):
        mean[kind] = mean[kind] // weight

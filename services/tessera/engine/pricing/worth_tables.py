"""From prices per kind of pod to the tables of `worth`: knapsacks by dynamic programming."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tessera.engine.pricing.arrays import Ints
from tessera.engine.pricing.compiled import compiled
from tessera.engine.pricing.fragmentation import TypicalPod
from tessera.engine.pricing.worth import WorthArray, best_split
from tessera.engine.scoring.worth import UNITS, level_to, units_of


class Kinds(NamedTuple):
    """The kinds of pods that a pool serves, rounded to what the tables tell apart."""

    level: Ints  # CPU, in levels, rounded to the nearest
    units: Ints  # share of each device, rounded up
    devices: Ints  # devices
    runs: Ints  # (model classes, kinds): 1 where the model is allowed


@compiled
def useful_shares(kinds: Kinds, price: Ints, m: int) -> Ints:
    """The kinds of shares that no other one beats: none is as dear, as small and as light in CPU."""
    found, chosen = 0, np.empty(price.shape[0], np.int64)
    for kind in range(price.shape[0]):
        if kinds.devices[kind] != 1 or kinds.units[kind] >= UNITS or price[kind] == 0 or not kinds.runs[m, kind]:
            continue
        beaten, kept = False, 0
        for at in range(found):
            other = chosen[at]
            # Whatever a beaten kind could fill, the other fills as well and for no less: the table is equal without it,
            # and quicker.
            smaller = kinds.units[other] <= kinds.units[kind] and kinds.level[other] <= kinds.level[kind]
            if smaller and price[other] >= price[kind]:
                beaten = True
                break
        if beaten:
            continue
        for at in range(found):
            other = chosen[at]
            larger = kinds.units[other] >= kinds.units[kind] and kinds.level[other] >= kinds.level[kind]
            if not (larger and price[other] <= price[kind]):
                chosen[kept] = other
                kept += 1
        chosen[kept] = kind
        found = kept + 1
    return chosen[:found]


@compiled
def fill_device(kinds: Kinds, price: Ints, m: int, table: WorthArray) -> None:
    """table[s, c]: the best of shares on one device with s units free, and CPU c."""
    useful, levels = useful_shares(kinds, price, m), table.shape[1]
    table[0, :] = 0
    for free in range(1, UNITS + 1):
        # Room may stay empty, so that no table falls as room grows. Upwards from the smallest, each kind may come again
        # and again: an unbounded knapsack.
        table[free] = table[free - 1]
        for kind in useful:
            units, cpu = kinds.units[kind], kinds.level[kind]
            if units <= free and cpu < levels:
                filled = table[free - units, : levels - cpu] + np.int32(price[kind])
                table[free, cpu:] = np.maximum(table[free, cpu:], filled)


@compiled
def fill_root(kinds: Kinds, price: Ints, m: int, device: WorthArray, root: WorthArray) -> None:
    """root[w, c]: the best of everything on w untouched devices, and CPU c."""
    levels = root.shape[1]
    one = device[UNITS].copy()
    for kind in range(price.shape[0]):
        if kinds.devices[kind] == 1 and kinds.units[kind] == UNITS and kinds.runs[m, kind]:
            cpu = min(kinds.level[kind], levels)
            one[cpu:] = np.maximum(one[cpu:], np.int32(price[kind]))
    root[0, :] = 0
    for whole in range(1, root.shape[0]):
        for level in range(levels):
            # One device more and the CPU shared out between it and the rest; then pods of several devices, which no
            # split by device would find.
            root[whole, level] = best_split(one, root[whole - 1], level)
        for kind in range(price.shape[0]):
            count, cpu = kinds.devices[kind], kinds.level[kind]
            if 1 < count <= whole and kinds.runs[m, kind] and cpu < levels:
                filled = root[whole - count, : levels - cpu] + np.int32(price[kind])
                root[whole, cpu:] = np.maximum(root[whole, cpu:], filled)


class Shape(NamedTuple):
    """Equal nodes of a pool."""

    model: int
    gpus: int
    cpu: int
    nodes: int


PriceTable = tuple[tuple[TypicalPod, int], ...]
"""Prices by kind, in the kinds' order: integers that may be stored and shared as they are."""


def model_classes(models: int, allowed: Sequence[int]) -> tuple[Ints, Ints]:
    """
    Models that may run the same kinds, put together.

    Args: `allowed`, bits of the allowed models per kind (0: any).
    Returns: the class of each model, and (classes, kinds) whether it runs.
    """
    rows: dict[tuple[int, ...], int] = {}
    classes = np.zeros(models, np.int64)
    for model in range(models):
        row = tuple(int(bits == 0 or (bits >> model) & 1) for bits in allowed)
        classes[model] = rows.setdefault(row, len(rows))
    return classes, np.array(list(rows), np.int64).reshape(len(rows), len(allowed))


def kinds_of(kinds: Sequence[TypicalPod], step: int, models: int) -> tuple[Kinds, Ints]:
    """Kinds as arrays, with CPU in levels of `step`; and the class of each model."""
    classes, runs = model_classes(models, [kind.models for kind in kinds])
    rows = [(level_to(kind.cpu_milli, step), units_of(kind.gpu_milli), kind.gpus) for kind in kinds]
    level, units, count = np.array(rows, np.int64).reshape(len(kinds), 3).T.copy()
    return Kinds(level, units, count, runs), classes


def tables(
    prices: PriceTable, step: int, levels: int, devices: int, models: int
) -> tuple[Ints, WorthArray, WorthArray]:
    """The class of each model, and `device` and `root` of `Worth` for these prices."""
    kinds, classes = kinds_of([kind for kind, _ in prices], step, models)
    price = np.array([price for _, price in prices], np.int64)
    device = np.zeros((kinds.runs.shape[0], UNITS + 1, levels), np.int32)
    root = np.zeros((kinds.runs.shape[0], devices + 1, levels), np.int32)
    for m in range(kinds.runs.shape[0]):
        fill_device(kinds, price, m, device[m])
        fill_root(kinds, price, m, device[m], root[m])
    return classes, device, root

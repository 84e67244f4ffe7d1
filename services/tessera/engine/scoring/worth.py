"""
What the free part of a node could still earn, given a price for every kind of pod.

It is the largest sum of prices of pods that would fit there: a knapsack of shares and CPU on each device, and a split
of the node's CPU between its devices. Tables over CPU in `LEVELS` levels of `step` thousandths hold what is met, made
when first met, each from a smaller one by one (max, +) step. Prices are integers in millionths of a GPU.
"""

from array import array
from collections.abc import Sequence
from operator import add
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tessera.domain.mix import MixKind
from tessera.domain.resources import WHOLE_GPU, Node
from tessera.engine.scoring.workload import runs_on

UNIT = 10  # thousandths of a device
UNITS = WHOLE_GPU // UNIT
LEVELS = 129
FINEST_STEP = 1000  # thousandths of a CPU
STATES_MAX = 4096  # of one set of nodes; when they are more all are forgotten: that costs time and changes no answer

Priced = Sequence[tuple[MixKind, int]]
Ints = NDArray[np.int32]
Row: TypeAlias = "array[int]"

_BACK = np.arange(LEVELS)[:, None] - np.arange(LEVELS)[None, :]
_BEFORE = _BACK < 0


class Worth:
    """The prices of a pool, and the tables of each set of nodes that run the same kinds."""

    def __init__(self, priced: Priced, largest_cpu_milli: int) -> None:
        self.step = max(FINEST_STEP, -(-largest_cpu_milli // (LEVELS - 1)))
        self._priced = [(kind, price) for kind, price in priced if kind.gpus]
        self._by_nodes: dict[tuple[str, str], Earnings] = {}
        self._by_kinds: dict[tuple[bool, ...], Earnings] = {}

    def level(self, cpu_milli: int) -> int:
        """Level of the tables for so many thousandths of CPU, from 0 to LEVELS - 1."""
        return min(max(cpu_milli, 0) // self.step, LEVELS - 1)

    def on(self, node: Node) -> "Earnings":
        """Tables of the kinds that run on this node; nodes that run the same kinds share their tables."""
        found = self._by_nodes.get((node.gpu_model, node.device_profile))
        if found is None:
            runs = tuple(runs_on(kind, node) for kind, _ in self._priced)
            if runs not in self._by_kinds:
                kinds = [entry for entry, allowed in zip(self._priced, runs, strict=True) if allowed]
                self._by_kinds[runs] = Earnings([_rounded(kind, price, self.step) for kind, price in kinds])
            found = self._by_nodes[node.gpu_model, node.device_profile] = self._by_kinds[runs]
        return found


Item = tuple[int, int, int, int]
"""Devices, units of each, CPU level, price."""


def _rounded(kind: MixKind, price: int, step: int) -> Item:
    """CPU to the nearest level, a share up."""
    return kind.gpus, -(-kind.gpu_milli // UNIT), (2 * kind.cpu_milli + step) // (2 * step), price


class Earnings:
    """The tables of nodes that run the same kinds."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._several = [item for item in items if item[0] > 1]
        self._device = _shares([item for item in items if item[0] == 1 and item[1] < UNITS and item[3]])
        self.device = [array("i", row.tobytes()) for row in self._device]
        differs = np.any(self._device[1:] != self._device[:-1], axis=1)
        marks = np.where(differs, np.arange(1, UNITS + 1), 0)
        self.same: list[int] = [0, *np.maximum.accumulate(marks).tolist()]
        self._one = self._device[UNITS].copy()
        for devices, units, level, price in items:
            if devices == 1 and units == UNITS and level < LEVELS:
                self._one[level:] = np.maximum(self._one[level:], np.int32(price))
        self._roots: list[Ints] = [np.zeros(LEVELS, np.int32)]
        self._states: dict[tuple[int, tuple[int, ...]], tuple[Ints, Row]] = {}

    def row(self, whole: int, rests: tuple[int, ...]) -> Row:
        """By CPU level, of so many untouched devices and others with `rests` (`same` units, ascending, none 0) left."""
        return self._state(whole, rests)[1]

    def _state(self, whole: int, rests: tuple[int, ...]) -> tuple[Ints, Row]:
        found = self._states.get((whole, rests))
        if found is None:
            if rests:
                table = _shared_out(self._device[rests[-1]], self._state(whole, rests[:-1])[0])
            else:
                table = self._root(whole)
            if len(self._states) >= STATES_MAX:
                self._states.clear()
            found = self._states[whole, rests] = table, array("i", table.tobytes())
        return found

    def _root(self, whole: int) -> Ints:
        """Everything on so many untouched devices."""
        while len(self._roots) <= whole:
            table = _shared_out(self._one, self._roots[-1])
            for devices, _, level, price in self._several:
                if devices <= len(self._roots) and level < LEVELS:
                    filled = self._roots[-devices][: LEVELS - level] + np.int32(price)
                    table[level:] = np.maximum(table[level:], filled)
            self._roots.append(table)
        return self._roots[whole]


def best_split(one: Row, other: Row, level: int) -> int:
    """The CPU level shared out between two parts: max over x of one[x] + other[level - x]."""
    best: int = max(map(add, one[: level + 1], other[level::-1]))
    return best


def _shared_out(one: Ints, other: Ints) -> Ints:
    """`best_split` at every level."""
    sums = one[None, :] + other[_BACK]
    sums[_BEFORE] = 0  # nothing is worth less than nothing
    return np.asarray(sums.max(axis=1), np.int32)


def _shares(items: Sequence[Item]) -> Ints:
    """[units free, CPU level]: the best of shares on one device."""
    table = np.zeros((UNITS + 1, LEVELS), np.int32)
    useful = _useful([item for item in items if item[2] < LEVELS])
    for free in range(1, UNITS + 1):
        table[free] = table[free - 1]
        for _, units, level, price in useful:
            if units <= free:
                filled = table[free - units, : LEVELS - level] + np.int32(price)
                table[free, level:] = np.maximum(table[free, level:], filled)
    return table


def _useful(items: Sequence[Item]) -> list[Item]:
    """Those that no other one beats: none is as small, as light in CPU and as dear."""
    kept: list[Item] = []
    for item in items:
        _, units, level, price = item
        if not any(u <= units and c <= level and p >= price for _, u, c, p in kept):
            kept = [other for other in kept if not (other[1] >= units and other[2] >= level and other[3] <= price)]
            kept.append(item)
    return kept

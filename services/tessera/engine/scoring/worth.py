"""
Worth of the free part of a node, given a price for every kind of pod.

It is the largest sum of prices of pods that would fit there: a knapsack of shares and CPU on each device, and a split
of the node's CPU between its devices. Tables over CPU in `LEVELS` levels of `step` thousandths hold what is met, made
when first met, each from a smaller one by one (max, +) step. Prices are integers in millionths of a GPU.

More CPU never earns less, so that a table rises in a few steps, and a split of CPU need only be tried where one part's
table rises.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from tessera.domain.devices.resources import WHOLE_GPU, GpuKind, Node
from tessera.domain.mix import MixKind
from tessera.engine.scoring.workload import runs_on

UNIT = 10  # thousandths of a device
UNITS = WHOLE_GPU // UNIT
LEVELS = 129
FINEST_STEP = 1000  # thousandths of a CPU
STATES_MAX = 4096  # of one set of nodes; when they are more all are forgotten: that costs time and changes no answer
TABLES_MAX = 16  # sets of kinds that are kept

Priced = Sequence[tuple[MixKind, int]]
Earned = list[int]
"""Earnings by CPU level."""
Steps = Sequence[tuple[int, int]]
"""A row by where it rises: the level, and what is earned from there on; the first is of level 0."""


def step_of(largest_cpu_milli: int) -> int:
    """Thousandths of a CPU per level, of tables for nodes with so much CPU at most."""
    return max(FINEST_STEP, -(-largest_cpu_milli // (LEVELS - 1)))


def level_to(cpu_milli: int, step: int) -> int:
    """The level nearest to what a pod asks for."""
    return (2 * cpu_milli + step) // (2 * step)


def units_of(gpu_milli: int) -> int:
    """Units of a device that a share takes: rounded up."""
    return -(-gpu_milli // UNIT)


class Worth:
    """The prices of a pool, and the tables of each set of nodes that run the same kinds."""

    def __init__(self, priced: Priced, largest_cpu_milli: int) -> None:
        self.step = step_of(largest_cpu_milli)
        self._priced = [(kind, price) for kind, price in priced if kind.gpus]
        self._by_nodes: dict[GpuKind, Earnings] = {}
        self._by_kinds: dict[tuple[bool, ...], Earnings] = {}

    def level(self, cpu_milli: int) -> int:
        """Level of the tables for so many thousandths of CPU, from 0 to LEVELS - 1."""
        return min(max(cpu_milli, 0) // self.step, LEVELS - 1)

    def on(self, node: Node) -> "Earnings":
        """Tables of the kinds that run on this node; nodes that run the same kinds share their tables."""
        found = self._by_nodes.get(node.gpu_kind)
        if found is None:
            runs = tuple(runs_on(kind, node) for kind, _ in self._priced)
            if runs not in self._by_kinds:
                kinds = [entry for entry, allowed in zip(self._priced, runs, strict=True) if allowed]
                self._by_kinds[runs] = _earnings(tuple(_rounded(kind, price, self.step) for kind, price in kinds))
            found = self._by_nodes[node.gpu_kind] = self._by_kinds[runs]
        return found


KnapsackItem = tuple[int, int, int, int]
"""Devices, units of each, CPU level, price."""


def _rounded(kind: MixKind, price: int, step: int) -> KnapsackItem:
    """CPU to the nearest level, a share up."""
    return kind.gpus, units_of(kind.gpu_milli), level_to(kind.cpu_milli, step), price


class Earnings:
    """The tables of nodes that run the same kinds; `device` is one device by the units that are free there."""

    def __init__(self, items: Sequence[KnapsackItem]) -> None:
        self._several = [item for item in items if item[0] > 1]
        rows = _shares([item for item in items if item[0] == 1 and item[1] < UNITS and item[3]])
        self.device = [_steps_of(row) for row in rows]
        changes = [units if row != before else 0 for units, (before, row) in enumerate(pairwise(rows), 1)]
        self.same = [0, *accumulate(changes, max)]
        whole = [(level, price) for devices, units, level, price in items if devices == 1 and units == UNITS]
        self._one = _steps_of(_highest([*self.device[UNITS], *whole]))
        self._roots: list[Earned] = [[0] * LEVELS]
        self._states: dict[tuple[int, tuple[int, ...]], Earned] = {}

    def row(self, whole: int, rests: tuple[int, ...]) -> Earned:
        """
        Earnings by CPU level of so many untouched devices and others with `rests` (`same` units, ascending, none 0)
        left.
        """
        found = self._states.get((whole, rests))
        if found is None:
            found = _both(self.device[rests[-1]], self.row(whole, rests[:-1])) if rests else self._root(whole)
            if len(self._states) >= STATES_MAX:
                self._states.clear()
            self._states[whole, rests] = found
        return found

    def _root(self, whole: int) -> Earned:
        """State of so many untouched devices."""
        while len(self._roots) <= whole:
            row = _both(self._one, self._roots[-1])
            for devices, _, level, price in self._several:
                if devices <= len(self._roots) and level < LEVELS:
                    filled = [earned + price for earned in self._roots[-devices][: LEVELS - level]]
                    row[level:] = map(max, row[level:], filled)
            self._roots.append(row)
        return self._roots[whole]


@lru_cache(maxsize=TABLES_MAX)
def _earnings(items: tuple[KnapsackItem, ...]) -> Earnings:
    """Tables of these kinds: those of another pool, or of prices that came again, are the same."""
    return Earnings(items)


def best_split(one: Steps, other: Earned, level: int) -> int:
    """The CPU level shared out between two parts: the most that both earn."""
    best = 0
    for at, earned in one:
        if at > level:
            break
        both = earned + other[level - at]
        if both > best:
            best = both
    return best


def _both(one: Steps, other: Earned) -> Earned:
    """`best_split` at every level."""
    best = [0] * LEVELS
    for at, earned in one:
        best[at:] = map(max, best[at:], [earned + more for more in other[: LEVELS - at]])
    return best


def _shares(items: Sequence[KnapsackItem]) -> list[Earned]:
    """Highest worth of shares on one device, by free units."""
    rows, steps = [[0] * LEVELS], list[Steps]([[(0, 0)]])
    useful = _useful([item for item in items if item[2] < LEVELS])
    for free in range(1, UNITS + 1):
        reached = [*steps[-1]]
        for _, units, level, price in useful:
            if units <= free:
                reached += [(at + level, earned + price) for at, earned in steps[free - units]]
        row = _highest(reached)
        rows.append(row)
        steps.append(steps[-1] if row == rows[-2] else _steps_of(row))
    return rows


def _highest(reached: Iterable[tuple[int, int]]) -> Earned:
    """Highest worth at each level or below it."""
    peaks = [0] * LEVELS
    for level, earned in reached:
        if level < LEVELS and earned > peaks[level]:
            peaks[level] = earned
    return list(accumulate(peaks, max))


def _steps_of(row: Earned) -> Steps:
    return [(level, earned) for level, earned in enumerate(row) if not level or earned > row[level - 1]]


def _useful(items: Sequence[KnapsackItem]) -> list[KnapsackItem]:
    """Kinds that no other one beats: none is as small, as light in CPU and as dear."""
    kept: list[KnapsackItem] = []
    for item in items:
        _, units, level, price = item
        if not any(u <= units and c <= level and p >= price for _, u, c, p in kept):
            kept = [other for other in kept if not (other[1] >= units and other[2] >= level and other[3] <= price)]
            kept.append(item)
    return kept

"""
Dual-price solver: prices of pods by supply and demand of the whole cluster, over mixes that differ a little.

A round takes one shape of node, fills it with the dearest pods that fit (the tables of `worth`, read backwards), and
moves the prices: of what was filled more than asked for they fall, of everything else they rise, between 0 and the GPUs
that a pod holds. This is a subgradient method for the dual of "fill the cluster with as much GPU as the mix offers".
One mix has many such prices and most are 0 or full; the mean over mixes with more or less of each kind, of all
demand, and of CPU says how likely it is that room for a kind runs short. That is what keeps a scarce model free for the
pods bound to it. Integers only; "a little" is drawn from a fixed hash, so that equal mixes give equal prices.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tessera.engine.pricing.arrays import WHOLE, Ints, mixed
from tessera.engine.pricing.compiled import compiled
from tessera.engine.pricing.fragmentation import TypicalPod
from tessera.engine.pricing.worth import WorthArray
from tessera.engine.pricing.worth_tables import Kinds, PriceTable, Shape, fill_device, fill_root, kinds_of
from tessera.engine.scoring.worth import LEVELS, UNITS, level_to, step_of

MILLION = 1_000_000
CPU_STEP = 500  # thousandths of a CPU: kinds are told apart by CPU in these steps


class SolverTerms(NamedTuple):
    """Settings of the dual-price solver. Tuned on seeds of which some are reported too (docs/research/lab.md)."""

    draws: int = 48  # mixes
    repeats: int = 4  # of the whole cluster, per mix
    batches: int = 40  # per pass over the cluster, about
    rate: int = 40  # thousandths of a kind's GPUs that its price rises while a whole cluster's demand goes unserved
    warm: int = 300  # thousandths of the batches that only warm up
    lowest_load: int = 800  # thousandths of the cluster's GPUs that the mix asks for
    highest_load: int = 1200
    highest_price: int = 8000  # thousandths of a kind's GPUs
    level_prices: bool = True  # keep the worth of all demand where it is
    cpu_spread: int = 60  # thousandths of the CPU, one standard deviation


@compiled
def shares_back(kinds: Kinds, price: Ints, m: int, device: WorthArray, units: int, level: int, filled: Ints) -> None:
    """Count the shares that make up device[units, level]."""
    while units > 0 and device[units, level] > 0:
        # The last unit earns nothing: it stays free, and the same worth is found with one less.
        if device[units, level] == device[units - 1, level]:
            units -= 1
            continue
        for kind in range(price.shape[0]):
            u, c = kinds.units[kind], kinds.level[kind]
            if kinds.devices[kind] != 1 or u > units or u >= UNITS or c > level or price[kind] == 0:
                continue
            # Some kind ends the best filling, and taking it away leaves a best one for the rest: so one step back finds
            # it without any record of how the table was made.
            if kinds.runs[m, kind] and device[units - u, level - c] + price[kind] == device[units, level]:
                filled[kind] += 1
                units -= u
                level -= c
                break


@compiled
def whole_back(kinds: Kinds, price: Ints, m: int, worth: int, most: int, level: int) -> int:
    """The first kind of so many whole devices that is worth so much, or -1."""
    for kind in range(price.shape[0]):
        alike = kinds.devices[kind] == most and kinds.units[kind] == UNITS and kinds.level[kind] <= level
        if alike and kinds.runs[m, kind] and price[kind] == worth:
            return kind
    return -1


@compiled
def several_back(kinds: Kinds, price: Ints, m: int, root: WorthArray, whole: int, level: int) -> int:
    """The first kind of several devices by which root[whole, level] may end, or -1."""
    for kind in range(price.shape[0]):
        count, c = kinds.devices[kind], kinds.level[kind]
        runs = 1 < count <= whole and c <= level and kinds.runs[m, kind] and price[kind] > 0
        if runs and root[whole - count, level - c] + price[kind] == root[whole, level]:
            return kind
    return -1


@compiled
def fill_back(
    kinds: Kinds, price: Ints, m: int, device: WorthArray, root: WorthArray, whole: int, level: int, filled: Ints
) -> None:
    """Count the pods that make up root[whole, level]."""
    filled[:] = 0
    while whole > 0 and root[whole, level] > 0:
        kind = several_back(kinds, price, m, root, whole, level)
        if kind >= 0:
            filled[kind] += 1
            whole -= kinds.devices[kind]
            level -= kinds.level[kind]
            continue
        split = 0
        # A split with exactly this sum is there, since the table took the best of them: the loop ends.
        while root[1, split] + root[whole - 1, level - split] != root[whole, level]:
            split += 1
        kind = -1
        # More than shares could earn on one device: then a whole GPU is what stands there.
        if root[1, split] > device[UNITS, split]:
            kind = whole_back(kinds, price, m, root[1, split], 1, split)
        if kind >= 0:
            filled[kind] += 1
        else:
            shares_back(kinds, price, m, device, UNITS, split, filled)
        whole -= 1
        level -= split


@compiled
def update_prices(
    kinds: Kinds,
    value: Ints,
    demand: Ints,
    batches: Ints,
    rate: int,
    warm: int,
    cap: int,
    keep: bool,
    price: Ints,
    total: Ints,
    levels: int,
) -> None:
    """
    Offer all batches of nodes in order; `price` moves, and is added to `total` from batch number `warm` on.

    Args:
        demand: thousandths of pods per kind that the whole cluster is offered; above 0.
        batches: see `make_batches`.
        cap: the highest price, in thousandths of `value`.
        keep: scale all prices after each batch such that all demand together is worth its GPUs.
    """
    classes, gpus = kinds.runs.shape[0], batches[:, 1].max()
    device = np.zeros((classes, UNITS + 1, levels), np.int32)
    root = np.zeros((classes, gpus + 1, levels), np.int32)
    filled = np.zeros(price.shape[0], np.int64)
    worth = (value * demand // 1000).sum()
    for batch in range(batches.shape[0]):
        m, size, level, times, share = batches[batch]
        fill_device(kinds, price, m, device[m])
        fill_root(kinds, price, m, device[m], root[m, : size + 1])
        fill_back(kinds, price, m, device[m], root[m], size, level, filled)
        for kind in range(price.shape[0]):
            # The subgradient: supply in this batch less its part of the demand. A kind that was filled beyond that is
            # too dear, one that went short too cheap.
            over = filled[kind] * times * MILLION // demand[kind] - share
            moved = price[kind] - value[kind] * over // MILLION * rate // 1000
            price[kind] = min(max(moved, 0), value[kind] * cap // 1000)
        if keep:
            # Only proportions decide what fills a node: the sum is kept, since nothing else would keep all prices from
            # drifting together.
            scale = worth // ((price * demand // 1000).sum() // MILLION + 1)
            for kind in range(price.shape[0]):
                price[kind] = price[kind] * scale // MILLION
        # A subgradient method circles its goal and does not come to rest: the mean of its path does, once the beginning
        # is left out.
        if batch >= warm:
            total += price


def make_batches(shapes: Sequence[tuple[int, int, int, int]], batches: int) -> Ints:
    """
    All nodes of the cluster, in about so many batches of equal nodes, evenly mixed.

    Args: `shapes`, (model class, devices, CPU level, nodes).
    Returns: (batches, 5) the same, but thousandths of nodes, and millionths of the cluster's GPUs that they hold.
    """
    cluster = sum(gpus * nodes for _, gpus, _, nodes in shapes)
    rows = []
    for m, gpus, level, nodes in sorted(shapes):
        # Batches by the GPUs that a shape has, rounded to the nearest; at least one, so that no shape goes unsold.
        parts = max(1, (2 * batches * gpus * nodes + cluster) // (2 * cluster))
        batch = (m, gpus, level, 1000 * nodes // parts, MILLION * gpus * nodes // (cluster * parts))
        # Each part stands at its middle between 0 and a million, so that a sort mixes all shapes evenly, whatever
        # number of parts each has.
        rows += [((2 * part + 1) * MILLION // parts, batch) for part in range(parts)]
    return np.array([batch for _, batch in sorted(rows)], np.int64)


# Thousandths, at the middles of sixteen equal parts of chance.
EXPONENTIAL = (31, 98, 169, 247, 330, 421, 521, 631, 758, 901, 1069, 1272, 1528, 1856, 2367, 3466)
NORMAL = (-1862, -1318, -1010, -776, -579, -402, -237, -78, 78, 237, 402, 579, 776, 1010, 1318, 1862)
AT_LEAST = 20


def learn_prices(
    weights: Mapping[TypicalPod, int],
    shapes: Sequence[Shape],
    models: int,
    terms: SolverTerms = SolverTerms(),  # noqa: B008
) -> PriceTable:
    """
    The price of each kind that needs GPUs, in millionths of a GPU.

    Args:
        weights: how much each kind counts in the mix, in any order; CPU-only kinds have no price.
        shapes: the nodes of the cluster.
    Returns: in the kinds' order; the mix as a whole is worth its GPUs.
    """
    mix, drawn = _solve_mixes(weights, shapes, models, terms)
    return _levelled(mix, sum(drawn[1:], drawn[0])) if drawn else ()


def draw_tables(
    weights: Mapping[TypicalPod, int],
    shapes: Sequence[Shape],
    models: int,
    terms: SolverTerms = SolverTerms(),  # noqa: B008
) -> list[PriceTable]:
    """The same as `learn_prices`, but the prices of each mix on their own."""
    mix, drawn = _solve_mixes(weights, shapes, models, terms)
    return [_levelled(mix, total) for total in drawn]


def _solve_mixes(
    weights: Mapping[TypicalPod, int], shapes: Sequence[Shape], models: int, terms: SolverTerms
) -> tuple[dict[TypicalPod, int], list[Ints]]:
    """The kinds that need GPUs, and the prices of each mix near this one, summed up over its batches."""
    mix = _gpu_kinds(weights)
    if not mix or not shapes:
        return mix, []
    step = step_of(max(shape.cpu for shape in shapes))
    kinds, classes = kinds_of(list(mix), step, models)
    batches = make_batches([(int(classes[s.model]), s.gpus, s.cpu // step, s.nodes) for s in shapes], terms.batches)
    batches = np.concatenate([batches] * terms.repeats)
    value = _values(mix)
    gpus = sum(shape.gpus * shape.nodes for shape in shapes)
    warm = len(batches) * terms.warm // 1000
    cap, keep = terms.highest_price, terms.level_prices
    # The prices of one mix are where the next one begins: it is near, and less of it is spent on warming up.
    price, drawn = value // 2, []
    for draw in range(terms.draws):
        near, demand = _drawn(mix, kinds, value, gpus, step, draw, terms)
        total = np.zeros_like(value)
        update_prices(near, value, demand, batches, terms.rate, warm, cap, keep, price, total, LEVELS)
        drawn.append(total)
    return mix, drawn


def rounded(kind: TypicalPod) -> TypicalPod:
    """The kind by whose price this one goes."""
    cpu_milli = level_to(kind.cpu_milli, CPU_STEP) * CPU_STEP
    return kind._replace(cpu_milli=cpu_milli, gpu_milli=min(kind.gpu_milli, WHOLE))


def _gpu_kinds(weights: Mapping[TypicalPod, int]) -> dict[TypicalPod, int]:
    """The kinds that need GPUs, and those put together that have one price, in the kinds' order."""
    mix: Counter[TypicalPod] = Counter()
    for kind, weight in weights.items():
        if kind.gpus:
            mix[rounded(kind)] += weight
    return dict(sorted(mix.items()))


def _values(mix: Mapping[TypicalPod, int]) -> Ints:
    """Amount that each kind holds, in millionths of a GPU."""
    return np.array([kind.gpus * kind.gpu_milli * 1000 for kind in mix], np.int64)


def _drawn(
    mix: Mapping[TypicalPod, int], kinds: Kinds, value: Ints, gpus: int, step: int, draw: int, terms: SolverTerms
) -> tuple[Kinds, Ints]:
    """A mix near this one: its CPU levels, and its demand in thousandths of pods."""
    masks = {models: number for number, models in enumerate(sorted({kind.models for kind in mix}))}
    weights, levels = [], []
    for number, (kind, weight) in enumerate(mix.items()):
        often = EXPONENTIAL[mixed(0, draw, number) & 15] + AT_LEAST
        model = EXPONENTIAL[mixed(1, draw, masks[kind.models]) & 15]
        weights.append(weight * often * model)
        cpu = kind.cpu_milli * (MILLION + terms.cpu_spread * NORMAL[mixed(2, draw, number) & 15]) // MILLION
        levels.append(level_to(max(0, cpu), step))
    # With 48 draws each load comes once, since 5 and 48 have no common divisor; the series goes through low and high
    # ones five times.
    place = (5 * draw + 2) % terms.draws
    load = terms.lowest_load + (terms.highest_load - terms.lowest_load) * (2 * place + 1) // (2 * terms.draws)
    asked = sum(weight * int(each) for weight, each in zip(weights, value, strict=True))
    # Never 0, since it is divided by.
    demand = [weight * load * gpus * MILLION // asked + 1 for weight in weights]
    return kinds._replace(level=np.array(levels, np.int64)), np.array(demand, np.int64)


def _levelled(mix: Mapping[TypicalPod, int], total: Ints) -> PriceTable:
    """Prices such that the mix as a whole is worth its GPUs."""
    worth = sum(weight * int(each) for weight, each in zip(mix.values(), _values(mix), strict=True))
    priced = max(1, sum(weight * int(each) for weight, each in zip(mix.values(), total, strict=True)))
    return tuple((kind, int(each) * worth // priced) for kind, each in zip(mix, total, strict=True))

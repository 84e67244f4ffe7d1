"""
Simulated fillings: of many price tables the ones are chosen that fill an empty cluster best.

The dual-price solver gives one table of prices for each mix that differs a little, and the mean of many tables is
good. The choice: tables are averaged in groups put together by chance, each group fills an empty cluster of the same
shapes with the same arrivals, and the groups that fill it best are kept and averaged again. It matters where models are
scarce: there a few draws can spoil the mean. Integers only; chance is a fixed hash, so equal mixes give equal prices.
It takes seconds and is off the decision path.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tessera.engine.pricing.arrays import Ints, mixed
from tessera.engine.pricing.compiled import compiled
from tessera.engine.pricing.fragmentation import TypicalPod
from tessera.engine.pricing.packer import Packer
from tessera.engine.pricing.worth_tables import PriceTable, Shape
from tessera.engine.scoring.price_aware import usual_cpu

CHANCE_BITS = 31


class FillingTerms(NamedTuple):
    """Settings of the trials of prices. Chosen in the lab (docs/research/lab.md)."""

    rounds: int = 3
    tries: int = 48  # groups per round
    kept: int = 10  # groups that the next round begins with, and at last the answer
    first_group: int = 16  # tables in a group; of the many mixes in the first round
    next_group: int = 4  # of the groups kept, later
    load_percent: int = 130  # of the cluster's GPUs that arrive; what is in use at 100 per cent counts as much
    most_nodes: int = 1500  # a larger cluster is simulated by a smaller one of the same shapes


def choose_prices(
    weights: Mapping[TypicalPod, int],
    shapes: Sequence[Shape],
    models: int,
    tables: Sequence[PriceTable],
    plan: FillingTerms,
) -> PriceTable:
    """The mean of the groups of `tables` that fill the cluster best; all tables are of the same kinds, in one order."""
    kinds = [kind for kind, _ in tables[0]]
    found = np.array([[price for _, price in table] for table in tables], np.int64)
    packer = Packer(_scaled(shapes, plan.most_nodes), models, weights, usual_cpu(tuple(weights.items())))
    asked = np.array([kind.gpus * kind.gpu_milli for kind in packer.kinds], np.int64)
    # Weights are cut to so many bits that their product with a chance stays within 64.
    spare_bits = max(0, sum(weights.values()).bit_length() - CHANCE_BITS)
    shares = np.cumsum([weights[kind] >> spare_bits for kind in packer.kinds], dtype=np.int64)
    for turn in range(plan.rounds):
        groups = _groups(found, turn, plan)
        wanted = _arrivals(shares, asked, turn, packer.gpus_milli * plan.load_percent // 100)
        # Ties fall differently in each round, so that no group is chosen for its luck with one order of nodes.
        packer.reorder(_order(len(packer.core.by_order), turn))
        used = [
            _used(packer, tuple(zip(kinds, group.tolist(), strict=True)), wanted, asked[wanted]) for group in groups
        ]
        best = sorted(range(len(groups)), key=lambda at: (-used[at], at))[: plan.kept]
        found = groups[best]
    return tuple(zip(kinds, (found.sum(axis=0) // len(found)).tolist(), strict=True))


def _scaled(shapes: Sequence[Shape], most: int) -> list[Shape]:
    """Shapes in their proportions, on about so many nodes; no shape is left out."""
    nodes = sum(shape.nodes for shape in shapes)
    if nodes <= most:
        return list(shapes)
    return [shape._replace(nodes=max(1, shape.nodes * most // nodes)) for shape in shapes]


def _groups(found: Ints, turn: int, plan: FillingTerms) -> Ints:
    """(tries, kinds): the mean of all, then means of a few put together by chance."""
    size = plan.first_group if turn == 0 else plan.next_group
    # The mean of all competes, too: chance has to beat what would be taken without it.
    rows = [found.sum(axis=0) // len(found)]
    for group in range(1, plan.tries):
        chosen = [mixed(3 + turn, group, part) % len(found) for part in range(size)]
        rows.append(found[chosen].sum(axis=0) // size)
    return np.array(rows, np.int64)


def _order(nodes: int, turn: int) -> Ints:
    """A permutation of the nodes that looks drawn by chance."""
    drawn = sorted(range(nodes), key=lambda n: (mixed(1000 + turn, n, 0), n))
    ranks = np.empty(nodes, np.int64)
    ranks[drawn] = np.arange(nodes)
    return ranks


@compiled
def _arrivals(shares: Ints, asked: Ints, turn: int, most: int) -> Ints:
    """Classes drawn by their shares, until they ask for more than `most`; the last one is left out."""
    room = 1024
    drawn, count, load = np.empty(room, np.int64), 0, 0
    while asked.max() > 0:
        chance = mixed(2000 + turn, count, 0)
        t = np.searchsorted(shares, (chance * shares[-1]) >> CHANCE_BITS, side="right")
        load += asked[t]
        if load > most:
            break
        if count == room:
            room *= 2
            more = np.empty(room, np.int64)
            more[:count] = drawn
            drawn = more
        drawn[count] = t
        count += 1
    return drawn[:count]


def _used(packer: Packer, prices: PriceTable, wanted: Ints, asked: Ints) -> int:
    """Thousandths of GPUs in use when 100 per cent have arrived, and once more when all have."""
    used = np.where(packer.fill(prices, wanted) >= 0, asked, 0)
    early = np.cumsum(asked) <= packer.gpus_milli
    return int(used.sum() + used[early].sum())

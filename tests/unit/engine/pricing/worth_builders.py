"""Prices and the worth of a node, for tests of pricing."""

from tessera.engine.pricing.fragmentation import TypicalPod
from tessera.engine.pricing.worth import (
    level_of,
    look_at,
    state_with_fewer,
)

PRICES = (
    (TypicalPod(2000, 300, 1, 0), 350_000),
    (TypicalPod(4000, 500, 1, 0), 500_000),
    (TypicalPod(1000, 800, 1, 2), 900_000),
    (TypicalPod(6000, 1000, 1, 0), 1_000_000),
    (TypicalPod(9000, 1000, 2, 0), 2_300_000),
)


def worth_of(packer, n):
    worth = packer.core.worth
    look_at(worth, packer.core.nodes, n)
    return int(worth.spare[state_with_fewer(worth, packer.core.nodes, n, 0), level_of(worth, packer.core.nodes.cpu[n])])

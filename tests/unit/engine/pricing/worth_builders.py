"""Prices and a packer of one node, for tests of pricing."""

import numpy as np

from tessera.engine.pricing.fragmentation import TypicalPod
from tessera.engine.pricing.packer import Packer
from tessera.engine.pricing.worth import level_of, look_at, state_with_fewer
from tessera.engine.pricing.worth_tables import Shape

PRICES = (
    (TypicalPod(2000, 300, 1, 0), 350_000),
    (TypicalPod(4000, 500, 1, 0), 500_000),
    (TypicalPod(1000, 800, 1, 2), 900_000),
    (TypicalPod(6000, 1000, 1, 0), 1_000_000),
    (TypicalPod(9000, 1000, 2, 0), 2_300_000),
)


def priced(free, cpu, model):
    """A packer with one node of which so much is free, at these prices."""
    packer = Packer([Shape(model, len(free), 128_000, 1)], 2, dict(PRICES), 10_000)
    packer.fill(PRICES, np.zeros(0, np.int64))
    packer.core.nodes.cpu[0], packer.core.nodes.free[0] = cpu, free
    return packer


def worth_of(packer, n):
    worth = packer.core.worth
    look_at(worth, packer.core.nodes, n)
    return int(worth.spare[state_with_fewer(worth, packer.core.nodes, n, 0), level_of(worth, packer.core.nodes.cpu[n])])

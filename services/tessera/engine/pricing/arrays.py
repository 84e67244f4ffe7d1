"""
The arrays that the simulated filling works on: nodes, and classes of equal pods.

A class is everything about a pod that the mix tells apart. Integers only: CPU in thousandths, GPU in thousandths of a
device, models as bit numbers. Memory and places for pods are not part of it: a simulated node has plenty.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tessera.engine.pricing.compiled import compiled_lean

Ints = NDArray[np.int64]

WHOLE = 1000
NO_DEVICE = -1  # of the unused columns in `free`


class Nodes(NamedTuple):
    """Free capacity of each node, one row each."""

    cpu: Ints
    free: Ints  # (nodes, devices): thousandths free, NO_DEVICE beyond the node's last device
    gpus: Ints  # devices of the node
    model: Ints
    order: Ints  # unique; the lower wins among equal scores


class Classes(NamedTuple):
    """Needs of each class of pods, one row each."""

    cpu: Ints
    devices: Ints  # how many; 0: none
    milli: Ints  # of each device: WHOLE, or less of exactly one
    models: Ints  # bits of the allowed models; 0: any


@compiled_lean
def mixed(a: int, b: int, c: int) -> int:
    """A number below 2^31 that looks drawn by chance; equal inputs give equal numbers."""
    x = (a * 1103515245 + b * 12345 + c * 2654435761) & 0x7FFFFFFF
    # Cut to 31 bits each round: every product with the constant then stays within 64, compiled or not.
    for _ in range(4):
        x = ((x ^ (x >> 15)) * 1103515245 + 12345) & 0x7FFFFFFF
    return x ^ (x >> 15)

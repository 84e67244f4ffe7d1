"""
The arrays that the placement core works on: nodes, classes of equal pods, and the best node of each class.

A class is everything about a pod that decides where it may go. Integers only: CPU in thousandths, memory in any one
unit (the caller's), GPU in thousandths of a device, models as bit numbers.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bits = NDArray[np.uint8]

WHOLE = 1000
NO_DEVICE = -1  # of the unused columns in `free`


class Nodes(NamedTuple):
    """What is free on each node, one row each."""

    cpu: Ints
    memory: Ints
    pods: Ints
    free: Ints  # (nodes, devices): thousandths free, NO_DEVICE beyond the node's last device
    gpus: Ints  # devices of the node
    model: Ints  # below MODELS
    order: Ints  # unique; the lower wins among equal scores
    live: Bits  # 0: the slot holds no node
    kinds: Ints  # (nodes, KINDS): running pods by kind, for gpu-clustering


class Classes(NamedTuple):
    """What each class of pods asks for."""

    cpu: Ints
    memory: Ints
    devices: Ints  # how many; 0: none
    milli: Ints  # of each device: WHOLE, or less of exactly one
    models: Ints  # bits of the allowed models; 0: any
    kind: Ints  # for gpu-clustering, see KINDS; -1: no GPU
    allowed: Bits  # (classes, nodes): 0 where the caller rules it out, for whatever reason


MODELS = 63
KINDS = 5  # a share, then 1, 2, 4, 8 devices (3 counts as 4, and so on)


def kind_of(count: int, milli: int) -> int:
    """Kind for gpu-clustering of a pod with `count` devices and so many thousandths of each; -1 for no GPU."""
    if count == 0:
        return -1
    if milli < WHOLE:
        return 0
    return 1 if count == 1 else 2 if count == 2 else 3 if count <= 4 else 4


def no_nodes(capacity: int, devices: int) -> Nodes:
    """Empty rows for `capacity` nodes with at most `devices` devices each."""
    return Nodes(
        cpu=np.zeros(capacity, np.int64),
        memory=np.zeros(capacity, np.int64),
        pods=np.zeros(capacity, np.int64),
        free=np.full((capacity, devices), NO_DEVICE, np.int64),
        gpus=np.zeros(capacity, np.int64),
        model=np.zeros(capacity, np.int64),
        order=np.arange(capacity, dtype=np.int64),
        live=np.zeros(capacity, np.uint8),
        kinds=np.zeros((capacity, KINDS), np.int64),
    )


def no_classes(capacity: int, nodes: int) -> Classes:
    """Empty rows for `capacity` classes, each of them allowed on every one of `nodes` nodes."""
    cpu, memory, devices, milli, models, kind = np.zeros((6, capacity), np.int64)
    return Classes(cpu, memory, devices, milli, models, kind, np.ones((capacity, nodes), np.uint8))

"""
The published filling protocol: which pods arrive, on which order of nodes, and how a run is read.

Arrivals: all pods of the trace once, shuffled; then drawn at random, with replacement, until the next one would carry
the GPUs asked for beyond 130 % of the cluster's. Nodes stand in a random order that is fixed for the run. Nothing
leaves; what fits nowhere is dropped for good.
Reading: x is the arrived load in per cent of the cluster's GPUs, rounded to a whole number; y at x is the mean over the
arrivals with that x.
Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023, and its simulator.
"""

from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from tessera.engine.pricing.arrays import Ints

LOAD_PERCENT = 130
MOST_PODS_PER_NODE = 1001


def arrivals(gpu_milli: Sequence[int], seed: int, cluster_gpu_milli: int) -> Ints:
    """Numbers of the trace's pods in the order of arrival; `gpu_milli` is what each of them asks for."""
    random = Random(seed)
    order = list(range(len(gpu_milli)))
    random.shuffle(order)
    load, most = sum(gpu_milli), cluster_gpu_milli * LOAD_PERCENT // 100
    if not any(gpu_milli):
        return np.array(order, np.int64)
    while True:
        drawn = random.randrange(len(gpu_milli))
        load += gpu_milli[drawn]
        if load > most:
            return np.array(order, np.int64)
        order.append(drawn)


def node_order(nodes: int, seed: int) -> Ints:
    """The place of each node in the run's order."""
    order = list(range(nodes))
    Random(f"nodes {seed}").shuffle(order)
    return np.array(order, np.int64)


def load_percent(asked_gpu_milli: Ints, cluster_gpu_milli: int) -> Ints:
    """x of each arrival, in integers: half a per cent is rounded up."""
    arrived = np.cumsum(asked_gpu_milli)
    return (arrived * 200 + cluster_gpu_milli) // (2 * cluster_gpu_milli)


def curve(x: Ints, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of `values` at each whole per cent from 0 to 130; where nothing arrived at that x, the one before it."""
    counts = np.bincount(x, minlength=LOAD_PERCENT + 1)[: LOAD_PERCENT + 1]
    sums = np.bincount(x, weights=values, minlength=LOAD_PERCENT + 1)[: LOAD_PERCENT + 1]
    last = np.maximum.accumulate(np.where(counts > 0, np.arange(LOAD_PERCENT + 1), 0))
    return np.asarray((sums / np.maximum(counts, 1))[last], np.float64)

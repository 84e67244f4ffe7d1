"""
Why what is free is not used.

For each kind of pod, what is free on a node is either usable for it or not, for the first of these causes that holds:
its models are others, the devices do not have the shape (too few, or too little left on each), CPU is short, memory is
short, the node is full of pods. Over the kinds, each cause gets its share by how often the kind comes. All causes of a
node add up to exactly what is free there: the remainders of the division go to the largest first.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum

import numpy as np

from tessera.domain.devices.resources import Node
from tessera.engine.pricing.arrays import Ints
from tessera_lab.pack.cluster import MIB
from tessera_lab.traces.alibaba import TracePod


class Cause(IntEnum):
    """Causes of idle capacity in the order in which they are tested; USABLE is the rest."""

    MODEL = 0
    SHAPE = 1
    CPU = 2
    MEMORY = 3
    PODS = 4
    USABLE = 5


def stranded(nodes: Sequence[Node], pods: Mapping[TracePod, int]) -> Ints:
    """
    (nodes, causes): thousandths of GPUs that are free, by cause.

    Args: `pods`, how often each comes; those that need no GPU are passed over. Without any, all that is free is USABLE.
    """
    most = max((node.gpus for node in nodes), default=0)
    free = np.array([(*node.gpu_free, *(0,) * (most - node.gpus)) for node in nodes], np.int64)
    cpu, memory, places = np.array([(n.cpu_free, n.memory_free // MIB, n.pods_free) for n in nodes], np.int64).T
    model = np.array([node.gpu_model for node in nodes])
    idle = free.sum(axis=1)
    weights = {pod: count for pod, count in pods.items() if pod.gpus and count}
    sums = np.zeros((len(idle), len(Cause)), np.int64)
    for pod, weight in weights.items():
        holds = free >= pod.gpu_milli
        usable = np.where(holds, free, 0).sum(axis=1)
        failed = [
            ~np.isin(model, pod.models) & bool(pod.models),
            holds.sum(axis=1) < pod.gpus,
            cpu < pod.cpu_milli,
            memory < pod.memory_mib,
            places < 1,
        ]
        first = np.select(failed, list(range(len(failed))), default=Cause.USABLE)
        rows = np.arange(len(idle))
        sums[rows, first] += weight * np.where(first == Cause.USABLE, usable, idle)
        sums[:, Cause.SHAPE] += weight * np.where(first == Cause.USABLE, idle - usable, 0)
    total = sum(weights.values())
    if not total:
        sums[:, Cause.USABLE] = idle
        return sums
    return _divided(sums, total, idle)


def _divided(sums: Ints, total: int, idle: Ints) -> Ints:
    """Each row divided by `total`, rounded to add up to `idle`; the largest remainders first, then by cause."""
    shares, left = sums // total, sums % total
    missing = idle - shares.sum(axis=1)
    rank = np.argsort(np.argsort(-left, axis=1, kind="stable"), axis=1, kind="stable")
    return np.asarray(shares + (rank < missing[:, None]), np.int64)

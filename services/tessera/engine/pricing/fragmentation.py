# mypy: disable-error-code="no-any-return"
"""
Share of a node's free GPUs that the usual pods could use, on arrays: equal to `scoring.workload`.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tessera.engine.pricing.arrays import WHOLE, Ints, Nodes
from tessera.engine.pricing.compiled import compiled_lean


class TypicalPod(NamedTuple):
    """A kind of pod as the published workload tells them apart: memory is not part of it."""

    cpu_milli: int
    gpu_milli: int  # of each device; 0: no GPU
    gpus: int
    models: int  # bits; 0: any


class PublishedWorkload(NamedTuple):
    """Popularity of the kinds, as tables by model, share and CPU."""

    total: int  # pods counted, those without GPU included
    cpus: Ints  # ascending: the CPU demands that occur
    share_rank: Ints  # by thousandths free: how many of the shares that occur are no larger
    single: Ints  # (models, rank, cpu rank): pods of one device with no larger share and CPU
    several: Ints  # (models, devices, cpu rank): pods of several devices, no more than these


def workload(counts: Mapping[TypicalPod, int], models: int, devices: int) -> PublishedWorkload:
    """The tables of a workload; `counts` may be in any order."""
    gpu = sorted((kind, count) for kind, count in counts.items() if kind.gpus)
    cpus = sorted({kind.cpu_milli for kind, _ in gpu})
    shares = sorted({kind.gpu_milli for kind, _ in gpu if kind.gpus == 1})
    single = np.zeros((models, len(shares) + 1, len(cpus) + 1), np.int64)
    several = np.zeros((models, devices + 1, len(cpus) + 1), np.int64)
    for kind, count in gpu:
        cpu = cpus.index(kind.cpu_milli) + 1
        for model in range(models):
            if kind.models and not kind.models >> model & 1:
                continue
            if kind.gpus == 1:
                single[model, shares.index(kind.gpu_milli) + 1 :, cpu:] += count
            else:
                several[model, kind.gpus :, cpu:] += count
    # Ranks for every thousandth are listed beforehand: a look-up per device in place of a search.
    rank = np.searchsorted(np.array(shares, np.int64), np.arange(WHOLE + 1), "right").astype(np.int64)
    return PublishedWorkload(sum(counts.values()), np.array(cpus, np.int64), rank, single, several)


@compiled_lean
def cpu_rank(known: PublishedWorkload, cpu: int) -> int:
    """Number of occurring CPU demands that are no larger."""
    low, high = 0, known.cpus.shape[0]
    while low < high:
        middle = (low + high) // 2
        if known.cpus[middle] <= cpu:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_lean
def usable(nodes: Nodes, known: PublishedWorkload, n: int, cpu: int, slot: int, milli: int, whole: int) -> int:
    """
    Part of node n that the workload could use, in thousandths times `known.total`, after a placement that leaves `cpu`.

    The placement takes `milli` of the device `slot` (-1: none) and the first `whole` devices that are free.
    """
    at, model = cpu_rank(known, cpu), nodes.model[n]
    total, free_devices, skipped = 0, 0, 0
    for device in range(nodes.gpus[n]):
        left = nodes.free[n, device]
        if device == slot:
            left -= milli
        # Devices that the placement takes are passed over in the order in which `take` takes them.
        if left == WHOLE and skipped < whole:
            skipped += 1
            continue
        if left == WHOLE:
            free_devices += 1
        total += left * known.single[model, known.share_rank[left], at]
    return total + WHOLE * free_devices * known.several[model, free_devices, at]

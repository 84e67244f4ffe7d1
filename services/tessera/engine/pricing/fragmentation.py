# mypy: disable-error-code="no-any-return"
"""
How much of the free GPU the usual pods cannot use: the published measure, in exact integers.

For a node, F = all that is free, less, for each kind of pod of the workload by its popularity, what that kind could
use there: nothing if it cannot run on the node (or needs no GPU), else the sum of the devices that hold its share. Of
pods with one device the second part is a sum over the devices, so that two small tables answer for any node.
Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023, section 3.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tessera.engine.pricing.arrays import WHOLE, Classes, Ints, Nodes
from tessera.engine.pricing.compiled import compiled_lean
from tessera.engine.scoring import fgd

MICRO = 1_000_000  # of a GPU


class TypicalPod(NamedTuple):
    """A kind of pod as the published workload tells them apart: memory is not part of it."""

    cpu: int
    milli: int  # of each device; 0: no GPU
    devices: int
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
    gpu = sorted((kind, count) for kind, count in counts.items() if kind.devices)
    cpus = sorted({kind.cpu for kind, _ in gpu})
    shares = sorted({kind.milli for kind, _ in gpu if kind.devices == 1})
    single = np.zeros((models, len(shares) + 1, len(cpus) + 1), np.int64)
    several = np.zeros((models, devices + 1, len(cpus) + 1), np.int64)
    for kind, count in gpu:
        cpu = cpus.index(kind.cpu) + 1
        for model in range(models):
            if kind.models and not kind.models >> model & 1:
                continue
            if kind.devices == 1:
                single[model, shares.index(kind.milli) + 1 :, cpu:] += count
            else:
                several[model, kind.devices :, cpu:] += count
    rank = np.searchsorted(np.array(shares, np.int64), np.arange(WHOLE + 1), "right").astype(np.int64)
    return PublishedWorkload(sum(counts.values()), np.array(cpus, np.int64), rank, single, several)


def typical(counts: Mapping[TypicalPod, int]) -> dict[TypicalPod, int]:
    """The published workload, as `workload` takes it."""
    return dict(fgd.typical(counts.items()))


def nothing_known(models: int, devices: int) -> PublishedWorkload:
    """Workload in place of one that nobody knows: a single kind of pod that asks for nothing."""
    return workload({TypicalPod(0, 0, 0, 0): 1}, models, devices)


@compiled_lean
def cpu_rank(known: PublishedWorkload, cpu: int) -> int:
    """How many of the CPU demands that occur are no larger."""
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
    What the workload could use of node n, in thousandths times `known.total`, after a placement that leaves `cpu`.

    The placement takes `milli` of the device `slot` (-1: none) and the first `whole` devices that are free.
    """
    at, model = cpu_rank(known, cpu), nodes.model[n]
    total, free_devices, skipped = 0, 0, 0
    for device in range(nodes.gpus[n]):
        left = nodes.free[n, device]
        if device == slot:
            left -= milli
        if left == WHOLE and skipped < whole:
            skipped += 1
            continue
        if left == WHOLE:
            free_devices += 1
        total += left * known.single[model, known.share_rank[left], at]
    return total + WHOLE * free_devices * known.several[model, free_devices, at]


@compiled_lean
def fragmented(nodes: Nodes, known: PublishedWorkload, n: int) -> int:
    """F of a node, in thousandths of a GPU times `known.total`."""
    free = 0
    for device in range(nodes.gpus[n]):
        free += nodes.free[n, device]
    return free * known.total - usable(nodes, known, n, nodes.cpu[n], -1, 0, 0)


STEPS = np.array(fgd.STEPS, np.int64)


@compiled_lean
def fgd_score(steps: Ints, gain: int) -> int:
    """The published score, 0 to 99, of a fall of F by `gain` millionths of a GPU."""
    low, high = 0, steps.shape[0]
    while low < high:
        middle = (low + high) // 2
        if steps[middle] <= gain:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_lean
def fgd_choice(
    nodes: Nodes, classes: Classes, known: PublishedWorkload, steps: Ints, t: int, n: int
) -> tuple[int, int]:
    """Score and device: a share goes to the device with the best score, the lowest among equals."""
    demand = classes.devices[t] * classes.milli[t]
    before = usable(nodes, known, n, nodes.cpu[n], -1, 0, 0) - demand * known.total
    left = nodes.cpu[n] - classes.cpu[t]
    if classes.devices[t] == 0 or classes.milli[t] == WHOLE:
        after = usable(nodes, known, n, left, -1, 0, classes.devices[t])
        return fgd_score(steps, (after - before) * 1000 // known.total), -1
    best, slot = -1, -1
    for device in range(nodes.gpus[n]):
        if nodes.free[n, device] >= classes.milli[t]:
            after = usable(nodes, known, n, left, device, classes.milli[t], 0)
            score = fgd_score(steps, (after - before) * 1000 // known.total)
            if score > best:
                best, slot = score, device
    return best, slot

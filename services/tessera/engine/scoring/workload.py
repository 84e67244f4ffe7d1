"""
Share of a node's free GPUs that the usual pods could use: the published measure of fragmentation sums it up.

A kind that cannot run there, or that needs no GPU, could use nothing; another one the sum of the devices that hold its
share. Weighted by how often each kind comes; two tables per set of nodes of one model answer for any node.
Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023, section 3.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import add

from tessera.domain.devices.resources import WHOLE_GPU, GpuKind, Node
from tessera.domain.mix import MixKind
from tessera_schemas.cluster.devices import serves

KindCounts = Sequence[tuple[MixKind, int]]


class Usable:
    """
    Weights of the kinds that nodes of one model may run, by CPU rank (how many of `cpus` are no larger than what is
    free).

    `single[cpu][share]` is the weight of kinds with one device and no larger a share; `several[cpu][devices]` that of
    kinds with several, no more than these. `share` is the rank of what is free on a device (`PodWorkload.rank`).
    """

    __slots__ = ("several", "single")

    def __init__(self, kinds: KindCounts, cpus: list[int], shares: list[int]) -> None:
        most = max((kind.gpus for kind, _ in kinds), default=1)
        single = [[0] * (len(shares) + 1) for _ in range(len(cpus) + 1)]
        several = [[0] * (most + 1) for _ in range(len(cpus) + 1)]
        for kind, weight in kinds:
            cpu = cpus.index(kind.cpu_milli) + 1
            if kind.gpus == 1:
                single[cpu][shares.index(kind.gpu_milli) + 1] += weight
            else:
                several[cpu][kind.gpus] += weight
        self.single, self.several = _summed(single), _summed(several)


def _summed(table: list[list[int]]) -> list[list[int]]:
    """Two-dimensional prefix sums: at each place the sum of all before it and above it, itself included."""
    across = (list(accumulate(row)) for row in table)
    return list(accumulate(across, lambda above, row: list(map(add, above, row))))


class PodWorkload:
    """Kinds by weight; `total` counts also those that need no GPU."""

    def __init__(self, known: KindCounts) -> None:
        self._kinds = [(kind, weight) for kind, weight in known if kind.gpus]
        self.total = sum(weight for _, weight in known) or 1
        self.cpus = sorted({kind.cpu_milli for kind, _ in self._kinds})
        self._shares = sorted({kind.gpu_milli for kind, _ in self._kinds if kind.gpus == 1})
        self.rank = [bisect_right(self._shares, left) for left in range(WHOLE_GPU + 1)]
        self._by_nodes: dict[GpuKind, Usable] = {}

    def cpu_rank(self, cpu_milli: int) -> int:
        """Number of different CPU requests of the kinds that so many thousandths of CPU are enough for."""
        return bisect_right(self.cpus, cpu_milli)

    def on(self, node: Node) -> Usable:
        """The tables of nodes with such GPUs, made when first asked for."""
        found = self._by_nodes.get(node.gpu_kind)
        if found is None:
            kinds = [(kind, weight) for kind, weight in self._kinds if runs_on(kind, node)]
            found = Usable(kinds, self.cpus, self._shares)
            self._by_nodes[node.gpu_kind] = found
        return found

    def usable(self, node: Node, cpu: int, left: Sequence[int]) -> int:
        """
        Amount of a node that the kinds could use, in thousandths of a GPU times weight.

        Args: `cpu` and `left`, by device, are what is free there, or would be.
        """
        there, at = self.on(node), self.cpu_rank(cpu)
        single, several, whole = there.single[at], there.several[at], 0
        total = 0
        for part in left:
            if part == WHOLE_GPU:
                whole += 1
            elif part > 0:
                total += part * single[self.rank[part]]
        return total + whole * WHOLE_GPU * (single[-1] + several[min(whole, len(several) - 1)])


def runs_on(kind: MixKind, node: Node) -> bool:
    """Tells whether the node's GPUs, by model, device profile, resource and size of shares, suit the kind."""
    served = serves(node.device_profile, "whole" if kind.gpu_milli == WHOLE_GPU else "share")
    served = served and node.share_milli in (0, kind.gpu_milli)
    suits = not kind.models or node.gpu_model in kind.models
    return served and suits and node.offers_gpus_of(kind.gpu_resource, kind.models)

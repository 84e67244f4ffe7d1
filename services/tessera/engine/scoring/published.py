"""
Policies that were published, to compare with: dot product and GPU packing as the simulator of the FGD paper computes
them, and any node by a hash. Best fit stands with the protocol, FGD itself in `fgd`.

Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023.
"""

from hashlib import blake2b

from tessera.domain.devices.resources import WHOLE_GPU, Need, Node
from tessera.engine.scoring.protocol import TightDevice

CPU_SCALE = 128_000
GPU_SCALE = 8_000
RATIO = CPU_SCALE // GPU_SCALE


class DotProduct(TightDevice):
    """Dot product: the less demand and free room point the same way, the better; integers 0 to 100."""

    def score(self, need: Need, node: Node) -> int:
        """Score of at most 100, lower the larger the dot product of the pod's demand and the node's free room."""
        cpu, gpu = (
            node.cpu_free * need.cpu_milli,
            sum(left for left in node.gpu_free if left > 0) * need.total_gpu_milli,
        )
        square = CPU_SCALE * CPU_SCALE
        return (100 * square - 50 * (cpu + RATIO * RATIO * gpu)) // square


def tightest(need: Need, node: Node) -> int:
    """The least that is left of a device which holds the share."""
    return min(left for left in node.gpu_free if left >= need.gpu_milli)


class GpuPacking(TightDevice):
    """
    GPU packing: devices in use first, then free devices of a node in use, then the smallest empty node; 0 to 100.
    """

    def score(self, need: Need, node: Node) -> int:
        """Score of 0 to 100 by which devices the pod would take; 0 for a pod without GPUs."""
        if not need.total_gpu_milli:
            return 0
        whole = node.gpu_free.count(WHOLE_GPU)
        if whole == node.gpus:
            return max(33 - whole, whole)
        if need.gpus:
            return max(50 - need.gpus, 33)
        left = tightest(need, node)
        return 49 if left == WHOLE_GPU else max(100 - left * 100 // WHOLE_GPU // 10, 50)


class Random(TightDevice):
    """
    Any node: a fixed hash of its name and of what is free there, so that a replay draws the same.

    A node that took a pod is drawn anew; one that did not comes first again until somebody starts there or leaves.
    """

    by_name = True
    whole_gpu = 2**32

    def score(self, need: Need, node: Node) -> int:
        """Score drawn by a hash of the node's name and free room, from 0 to 2**32 - 1."""
        drawn = blake2b(repr((node.name, node.gpu_free, node.cpu_free, node.pods_free)).encode(), digest_size=4)
        return int.from_bytes(drawn.digest(), "big")

"""
GPU packing, on integers 0 to 100, as the simulator of the FGD paper computes it.

Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023.
"""

from tessera.domain.devices.resources import WHOLE_GPU, Need, Node
from tessera.domain.mix import Mix
from tessera.engine.scoring.protocol import ScoringPolicy, TightDevice


def tightest(need: Need, node: Node) -> int:
    """The least that is left of a device which holds the share."""
    return min(left for left in node.gpu_free if left >= need.gpu_milli)


class GpuPacking(TightDevice):
    """Devices in use first, then free devices of a node in use, then the smallest empty node."""

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


GPU_PACKING = GpuPacking()


def policy(mix: Mix) -> ScoringPolicy:
    """GPU packing, whatever the mix."""
    return GPU_PACKING

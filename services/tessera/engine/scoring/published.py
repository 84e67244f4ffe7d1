"""
The published policies, on integers 0 to 100, as the simulator of their paper computes them.

Best fit is not among them: in exact integers, as `Fullest`, it packs better than in a hundred steps.
Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023.
"""

from bisect import bisect_right
from hashlib import blake2b

from tessera.domain.mix import Mix
from tessera.domain.resources import WHOLE_GPU, Need, Node
from tessera.engine.scoring.fgd import STEPS, typical
from tessera.engine.scoring.workload import PodWorkload

CPU_SCALE = 128_000
GPU_SCALE = 8_000
RATIO = CPU_SCALE // GPU_SCALE


def tightest(need: Need, node: Node) -> int:
    """The least that is left of a device which holds the share."""
    return min(left for left in node.gpu_free if left >= need.gpu_milli)


class TightDevice:
    """A share goes to the device with the least left, then the lowest."""

    by_name = False

    def device(self, need: Need, node: Node) -> int | None:
        """Returns None: a share takes the device with the least left, then the lowest."""
        return None


class DotProduct(TightDevice):
    """The less demand and free room point the same way, the better."""

    def score(self, need: Need, node: Node) -> int:
        """Score of at most 100, lower the larger the dot product of the pod's demand and the node's free room."""
        cpu, gpu = node.cpu_free * need.cpu_milli, _free(node) * need.total_gpu_milli
        square = CPU_SCALE * CPU_SCALE
        return (100 * square - 50 * (cpu + RATIO * RATIO * gpu)) // square


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


class Random(TightDevice):
    """
    Any node: a fixed hash of its name and of what is free there, so that a replay draws the same.

    A node that took a pod is drawn anew; one that did not comes first again until somebody starts there or leaves.
    """

    by_name = True

    def score(self, need: Need, node: Node) -> int:
        """Score drawn by a hash of the node's name and free room, from 0 to 2**32 - 1."""
        drawn = blake2b(repr((node.name, node.gpu_free, node.cpu_free, node.pods_free)).encode(), digest_size=4)
        return int.from_bytes(drawn.digest(), "big")


class Gradient:
    """Fragmentation rises least (FGD), as a score of 0 to 99; a share takes the device with the best score."""

    by_name = False

    def __init__(self, mix: Mix) -> None:
        self._workload = PodWorkload(typical(mix.known))

    def score(self, need: Need, node: Node) -> int:
        """Score of 0 to 99, higher the less fragmentation rises with the pod."""
        return self._choice(need, node)[0]

    def device(self, need: Need, node: Node) -> int | None:
        """Device on which a share raises fragmentation least, then the lowest; None for a pod without a share."""
        return -self._choice(need, node)[1] if need.gpu_milli else None

    def _choice(self, need: Need, node: Node) -> tuple[int, int]:
        left = [max(0, part) for part in node.gpu_free]
        before = self._workload.usable(node, node.cpu_free, left) - need.total_gpu_milli * self._workload.total
        cpu = node.cpu_free - need.cpu_milli
        if not need.gpu_milli:
            whole = left.count(WHOLE_GPU) - need.gpus
            rest = [part for part in left if part < WHOLE_GPU] + [WHOLE_GPU] * whole
            return self._of(self._workload.usable(node, cpu, rest) - before), 0
        found: dict[int, tuple[int, int]] = {}
        for device, part in enumerate(left):
            if part >= need.gpu_milli and part not in found:
                after = [*left[:device], part - need.gpu_milli, *left[device + 1 :]]
                found[part] = self._of(self._workload.usable(node, cpu, after) - before), -device
        return max(found.values())

    def _of(self, gain: int) -> int:
        """The published score of a fall of F by `gain`."""
        return bisect_right(STEPS, gain * 1000 // self._workload.total)


def _free(node: Node) -> int:
    """Thousandths of all GPUs; a device of which more is held than there is has none."""
    return sum(left for left in node.gpu_free if left > 0)

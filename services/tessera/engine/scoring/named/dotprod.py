"""
Dot product, on integers 0 to 100, as the simulator of the FGD paper computes it.

Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023.
"""

from tessera.domain.devices.resources import Need, Node
from tessera.domain.mix import Mix
from tessera.engine.scoring.protocol import ScoringPolicy, TightDevice

CPU_SCALE = 128_000
GPU_SCALE = 8_000
RATIO = CPU_SCALE // GPU_SCALE


class DotProduct(TightDevice):
    """The less demand and free room point the same way, the better."""

    def score(self, need: Need, node: Node) -> int:
        """Score of at most 100, lower the larger the dot product of the pod's demand and the node's free room."""
        cpu, gpu = (
            node.cpu_free * need.cpu_milli,
            sum(left for left in node.gpu_free if left > 0) * need.total_gpu_milli,
        )
        square = CPU_SCALE * CPU_SCALE
        return (100 * square - 50 * (cpu + RATIO * RATIO * gpu)) // square


DOT_PRODUCT = DotProduct()


def policy(mix: Mix) -> ScoringPolicy:
    """Dot product, whatever the mix."""
    return DOT_PRODUCT

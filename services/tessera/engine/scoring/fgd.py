"""
Fragmentation gradient descent: place where what the usual pods cannot use of the free GPUs rises least.

Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023, and its simulator.
"""

from bisect import bisect_right
from collections.abc import Iterable

from tessera.domain.devices.resources import WHOLE_GPU, Need, Node
from tessera.domain.mix import Mix, MixKind
from tessera.engine.scoring.workload import PodWorkload

COVERED_PER_MILLE = 950  # of the pods; rarer kinds are left out of the published workload

# A score s of 1..99 is reached when F falls by this many millionths of a GPU: 1,000,000 ln(s / (100 - s)), rounded up.
# The other half mirrors it.
_UPPER = (
    0, 40006, 80043, 120145, 160343, 200671, 241163, 281852, 322774, 363966, 405466, 447313, 489549, 532217, 575365,
    619040, 663295, 708186, 753772, 800120, 847298, 895385, 944462, 994623, 1045969, 1098613, 1152680, 1208312,
    1265667, 1324926, 1386295, 1450011, 1516348, 1585628, 1658229, 1734602, 1815290, 1900959, 1992431, 2090742, 2197225,
    2313635, 2442348, 2586690, 2751536, 2944439, 3178054, 3476099, 3891821, 4595120,
)  # fmt: skip
STEPS = (*(1 - step for step in reversed(_UPPER[1:])), *_UPPER)


def typical(known: Iterable[tuple[MixKind, int]]) -> list[tuple[MixKind, int]]:
    """The kinds that come most often and together cover 95 % of the weight; of equals in their own order."""
    ranked = sorted(known, key=lambda entry: (-entry[1], entry[0]))
    enough, covered, kept = sum(weight for _, weight in ranked) * COVERED_PER_MILLE, 0, list[tuple[MixKind, int]]()
    for kind, weight in ranked:
        if covered * 1000 >= enough:
            break
        kept.append((kind, weight))
        covered += weight
    return kept


class FragmentationGradient:
    """Fragmentation rises least (FGD), as a score of 0 to 99; a share takes the device with the best score."""

    by_name = False
    words = 1
    whole_gpu = 25  # of 99: the published curve is steepest where nothing changes, and rises by so much there

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

"""
The published policies in the form of their papers' simulator, for the committer's own placement.

Some differ from the policies of the same name that the committer offers, and the published figures rest on it: best fit
counts in hundredths of a node, chance is drawn anew for each pod, and FGD is given the trace's own mix.
Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023, and its simulator.
"""

from bisect import bisect_left
from collections.abc import Callable
from random import Random

from tessera.domain.devices.resources import Need, Node
from tessera.domain.mix import Mix
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang, gang_of
from tessera.engine.scoring.fgd import FragmentationGradient
from tessera.engine.scoring.protocol import ScoringPolicy, TightDevice
from tessera.engine.scoring.published import CPU_SCALE, GPU_SCALE, RATIO, DotProduct, GpuPacking
from tessera_lab.pack.cluster import gang_for, nodes_of, trace_mix
from tessera_lab.pack.protocol import MOST_PODS_PER_NODE
from tessera_lab.traces.alibaba import Trace, TracePod

CLUSTERING = "gpu-clustering"
SIZES = ("share", "one", "two", "four", "eight")
"""What GPU clustering tells apart: a share, then 1, 2, 3 or 4, and more whole GPUs."""


class PublishedBestFit(TightDevice):
    """The less CPU and GPU is left after, the better, in hundredths of the largest node."""

    def score(self, need: Need, node: Node) -> int:
        """Score of at most 100; the published stretch to 0..100 keeps the order and every tie, and is left out."""
        left = node.cpu_free - need.cpu_milli + RATIO * (sum(node.gpu_free) - need.total_gpu_milli)
        return (100 * CPU_SCALE - 50 * left) // CPU_SCALE


class GpuClustering(TightDevice):
    """
    Nodes with only this size of pod first, then this size among others, then empty ones; the fuller the better.

    The pods that run on a node are counted by size as devices that each takes one of: `nodes_for`, `gang_of_pod`.
    """

    def score(self, need: Need, node: Node) -> int:
        """Score of 0 to 100; 0 for a pod without GPUs."""
        if not need.devices:
            return 0
        size = need.devices[0][0]
        there = {name for name, free in node.devices_free if free < MOST_PODS_PER_NODE}
        band = 50 * (size in there) + 25 * (not there - {size})
        return band + 25 * (GPU_SCALE - sum(node.gpu_free)) // GPU_SCALE


def nodes_for(policy: str, trace: Trace, seed: int) -> list[Node]:
    """The trace's empty nodes as this policy looks at them."""
    nodes = nodes_of(trace, seed)
    if policy != CLUSTERING:
        return nodes
    sizes = tuple(sorted((size, MOST_PODS_PER_NODE) for size in SIZES))
    return [replace(node, devices=sizes, devices_free=sizes) for node in nodes]


def gang_of_pod(policy: str, pod: TracePod) -> Gang:
    """The pod as this policy looks at it."""
    gang = gang_for(pod)
    if policy != CLUSTERING or not pod.gpus:
        return gang
    (role,) = gang
    size = SIZES[0 if role.need.gpu_milli else 1 + bisect_left((1, 2, 4), pod.gpus)]
    return gang_of((replace(role, need=replace(role.need, devices=((size, 1),))),))


class Chance:
    """
    Any node that fits, each as likely, and any device that holds the share.

    For each need a clock runs, at whose next stroke a node is taken: nodes strike after exponential times, which have
    no memory, so that the strokes of other nodes stay as they were drawn and the next node is still any of them.
    """

    by_name = True
    words = 3
    whole_gpu = 100

    def __init__(self, seed: int) -> None:
        self._random = Random(f"chance {seed}")
        self._clock: dict[Need, int] = {}
        self._last_used: dict[tuple[Need, str], int] = {}

    def score(self, need: Need, node: Node) -> int:
        """Time of the node's next stroke, negated."""
        at = self._clock.get(need, 0) + int(self._random.expovariate(1) * 2**40)
        self._last_used[need, node.name] = at
        return -at

    def device(self, need: Need, node: Node) -> int | None:
        """Any device that holds the share. The clock goes on to the node's stroke, since it is taken."""
        now = self._clock.get(need, 0)
        self._clock[need] = max(now, self._last_used.get((need, node.name), now))
        if not need.gpu_milli:
            return None
        return self._random.choice([slot for slot, left in enumerate(node.gpu_free) if left >= need.gpu_milli])


def fgd_of_trace(trace: Trace) -> ScoringPolicy:
    """FGD that is given the trace's popularity of kinds."""
    return FragmentationGradient(Mix("", known=tuple(sorted(trace_mix(trace).items()))))


BASELINES: dict[str, Callable[[Trace, int], ScoringPolicy]] = {
    "random": lambda trace, seed: Chance(seed),
    "dotprod": lambda trace, seed: DotProduct(),
    CLUSTERING: lambda trace, seed: GpuClustering(),
    "gpu-packing": lambda trace, seed: GpuPacking(),
    "bestfit": lambda trace, seed: PublishedBestFit(),
    "fgd": lambda trace, seed: fgd_of_trace(trace),
}
"""By name; made for a trace and the seed of a run."""

"""
The upper bounds: first the same arrivals, the same rule, but all GPUs, CPU and memory of the cluster in one pool.

Nodes, devices and models are left away, so nothing is ever stranded and no room is ever in the wrong place: what is
lost against the offered load is only what the totals cannot hold. No placement can do better in the long run; within
a window a policy may be ahead by work that it had put off before.

The other bound, for the long run, tells models apart: pods as a fluid, GPUs of a model as one pool (`fluid_percent`).
"""

from collections import Counter
from collections.abc import Collection
from itertools import combinations

from tessera.domain.devices.resources import NOTHING, WHOLE_GPU, Amount, Node
from tessera.domain.work.gang import Gang
from tessera.engine.placement.fits import fits
from tessera_lab.churn.arrivals import Placements
from tessera_lab.churn.lifetimes import Timed
from tessera_schemas.work.placement import Placement

MOST_MODELS = 12  # beyond, cuts are too many: models are not told apart

SOMEWHERE: Placements = (Placement(0, "", "pool", ()),)


class PooledCluster:
    """A `ChurnCluster` of one piece; what no real node could hold is refused as on the nodes."""

    fragmented = 0

    def __init__(self, nodes: Collection[Node]) -> None:
        self._nodes, self._free = nodes, NOTHING
        for node in nodes:
            self._free = self._free.plus(Amount(node.cpu_milli, node.memory_bytes, node.gpus * WHOLE_GPU))

    def could_hold(self, gang: Gang) -> bool:
        """Whether the pod fits a node on which nothing runs."""
        return any(fits(gang[0].need, node) is None for node in self._nodes)

    def place(self, gang: Gang) -> Placements | None:
        """Take room for the pod, if the totals have any."""
        return self.place_on(gang, "") if self.fits_on(gang, "") else None

    def fits_on(self, gang: Gang, name: str) -> bool:
        """Whether the totals hold the pod now."""
        left = self._free.plus(gang.amount, -1)
        return min(left.cpu_milli, left.memory_bytes, left.gpu_milli) >= 0

    def place_on(self, gang: Gang, name: str) -> Placements:
        """Take room for a pod that fits."""
        self._free = self._free.plus(gang.amount, -1)
        return SOMEWHERE

    def release(self, gang: Gang, places: Placements) -> None:
        """Give back the room of a pod that has left."""
        self._free = self._free.plus(gang.amount)


def fluid_percent(timed: Timed, load_percent: int) -> float:
    """
    The most that can be allocated on average, in per cent of the cluster's GPUs.

    What can be allocated is a maximum flow from demand to models, so the smallest cut says how much: over all sets of
    models, the GPUs of the set and the demand that is not confined to it. The empty set gives the offered load, the
    set of all models the cluster. CPU and memory are left to the pool.
    """
    capacity: Counter[str] = Counter()
    for node in timed.trace.nodes:
        capacity[node.model] += node.gpus * WHOLE_GPU
    total, work = sum(capacity.values()), timed.gpu_milli_seconds
    demand: Counter[frozenset[str]] = Counter()
    for pod, life in zip(timed.trace.pods, timed.life_s, strict=True):
        allowed = frozenset(pod.models or capacity).intersection(capacity)
        if allowed:  # else no node has its model, and it is refused
            demand[allowed] += pod.total_gpu_milli * life * load_percent * total
    models = sorted(capacity)
    if len(models) > MOST_MODELS:
        return float(min(100, load_percent))
    # Both sides times 100 * work, to stay with whole numbers.
    cuts = (
        sum(capacity[model] for model in chosen) * 100 * work
        + sum(asked for allowed, asked in demand.items() if not allowed <= set(chosen))
        for size in range(len(models) + 1)
        for chosen in combinations(models, size)
    )
    return min(cuts) / (work * total)

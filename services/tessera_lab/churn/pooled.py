"""
The upper bound: the same arrivals, the same rule, but all GPUs, CPU and memory of the cluster in one pool.

Nodes, devices and models are left away, so nothing is ever stranded and no room is ever in the wrong place: what is
lost against the offered load is only what the totals cannot hold. No placement can do better in the long run; within
a window a policy may be ahead by work that it had put off before.
"""

from collections.abc import Collection

from tessera.domain.devices.resources import NOTHING, WHOLE_GPU, Amount, Node
from tessera.domain.work.gang import Gang
from tessera.engine.placement.fits import fits
from tessera_lab.churn.arrivals import Placements
from tessera_schemas.work.placement import Placement

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

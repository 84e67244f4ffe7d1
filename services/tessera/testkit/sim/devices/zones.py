"""
Exporter of the NUMA zones of some nodes (NodeResourceTopology), and what goes wrong with it: objects go for a while, a
zone has less than before, and a kubelet begins anew with a policy that keeps no pod within one.
"""

from collections.abc import Sequence
from contextlib import suppress
from random import Random

from tessera.kernel.ports import ApiError, Clock
from tessera.testkit.sim.coverage import Coverage
from tessera.testkit.sim.devices.drivers import happen
from tessera.testkit.sim.devices.parks import CARD
from tessera_local.cluster.core import SimCluster
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import GPU_RESOURCE

KIND = "noderesourcetopologies"
ZONE = {GPU_RESOURCE: 4, CARD: 2, "cpu": 16}
"""Each of the two zones of a node."""
NARROW = {GPU_RESOURCE: 2, CARD: 1, "cpu": 8}


def topology(node: str, *zones: dict[str, int], policy: str = "single-numa-node") -> Json:
    """The object of a node."""
    listed = [
        {
            "name": f"node-{at}",
            "type": "Node",
            "resources": [{"name": name, "allocatable": str(amount)} for name, amount in zone.items()],
        }
        for at, zone in enumerate(zones)
    ]
    attributes = [{"name": "topologyManagerPolicy", "value": policy}]
    return {"metadata": {"name": node}, "attributes": attributes, "zones": listed}


class ZoneExporter:
    """The zones of these nodes; none does nothing."""

    def __init__(
        self, cluster: SimCluster, clock: Clock, random: Random, nodes: Sequence[str], coverage: Coverage
    ) -> None:
        self._cluster, self._clock, self._random, self._nodes, self._coverage = cluster, clock, random, nodes, coverage
        self._kinds = {"zones gone": self._go, "zone shrunk": self._shrink, "zones not kept": self._spread}

    def begin(self) -> None:
        """Export each node as it is when all is well."""
        for node in self._nodes:
            self._export(topology(node, ZONE, ZONE))

    end = begin

    async def run(self, seconds: float) -> None:
        """Two to five accidents until `seconds` of the loop's time, or until it is cancelled."""
        if self._nodes:
            await happen(self._kinds, self._nodes, self._random, self._clock, self._coverage, seconds)

    def _export(self, found: Json) -> None:
        self._withdraw(found["metadata"]["name"])
        with self._cluster.faults.paused():
            self._cluster.create(KIND, "", found)

    def _withdraw(self, node: str) -> None:
        with self._cluster.faults.paused(), suppress(ApiError):  # there is none yet
            self._cluster.delete(KIND, "", node)

    async def _last(self, node: str) -> None:
        await self._clock.sleep(self._random.uniform(0.5, 4.0))
        self._export(topology(node, ZONE, ZONE))

    # -- accidents

    async def _go(self, node: str) -> None:
        self._withdraw(node)
        await self._last(node)

    async def _shrink(self, node: str) -> None:
        self._export(topology(node, ZONE, NARROW))
        await self._last(node)

    async def _spread(self, node: str) -> None:
        self._export(topology(node, ZONE, ZONE, policy="restricted"))
        await self._last(node)

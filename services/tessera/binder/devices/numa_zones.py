"""
NUMA zones of nodes, kept up with the watch of NodeResourceTopology objects.

Exporters write these on clusters that have the kind; elsewhere the API server is asked for it every two minutes, and no
node has zones. Until the objects are listed the ledger's word stands.
"""

from collections.abc import Callable, Sequence

import structlog

from tessera.binder.devices.decide.numa_zones import ZoneFacts, ZonesSeen, read_zones
from tessera.domain.devices.resources import Node
from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.ports import Clock, Cluster
from tessera_schemas.base import Json

KIND = "topology.node.k8s.io/v1alpha2/NodeResourceTopology"
ABSENT_SECONDS = 120.0
_SEEN = "seen"
_IDENTITY = ("uid", "name", "resourceVersion")

log = structlog.get_logger()


class ZonesByNode:
    """`tell` gets the names of nodes whose zones changed, and hears nothing of what runs there."""

    def __init__(self, cluster: Cluster, clock: Clock, tell: Callable[[Sequence[str]], None], who: str = "") -> None:
        self._informer = Informer(cluster, KIND, clock, reduce=_reduced, who=who, longest_retry_seconds=ABSENT_SECONDS)
        self._tell = tell
        self._changed: dict[str, None] = {}

    def of(self, name: str, known: Node | None) -> ZoneFacts:
        """Zones of the node; as the ledger knows it (`known`) while nobody has looked."""
        if self._informer.is_absent:
            return ()
        if not self._informer.synced:
            return () if known is None else tuple(dict(zone) for zone in known.zones)
        found = self._informer.named(name)
        return () if found is None else _seen(found).zones

    async def follow(self) -> None:
        """Follows the objects for ever."""
        while True:
            self._take(await self._informer.next())
            if self._informer.synced and self._changed:
                names, self._changed = list(self._changed), {}
                self._tell(names)

    async def close(self) -> None:
        """Ends the watch."""
        await self._informer.close()

    def _take(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            name, gone = delta.object["metadata"]["name"], delta.type == "DELETED"
            before = ZonesSeen() if delta.old is None else _seen(delta.old)
            now = ZonesSeen() if gone else _seen(delta.object)
            # Exporters write what is available with each pod that comes or goes; nothing is made of that.
            if now.zones != before.zones:
                self._changed[name] = None
            if now.ignored and now.ignored != before.ignored:
                log.warning("numa_zones_ignored", node=name, reasons=list(now.ignored))


def _reduced(thing: Json) -> Json:
    """Identity of an object, and what was read of it."""
    meta = thing["metadata"]
    return {"metadata": {name: meta[name] for name in _IDENTITY if name in meta}, _SEEN: read_zones(thing)}


def _seen(reduced: Json) -> ZonesSeen:
    found: ZonesSeen = reduced[_SEEN]
    return found

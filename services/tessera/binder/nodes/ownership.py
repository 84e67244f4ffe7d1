"""
Nodes of this shard, and the time at which a node may come to it from another.

A node belongs to the shard that its label names; without a label, to the main shard. Its old shard keeps it, for
nothing new, as long as runs hold something there; the new one takes it once no unfinished pod of another shard is bound
to it. Nobody binds to a node that is another's by then. A bind that slips through within the moment that a watch is
behind is refused by the kubelet, as any pod is for which it has no device.
"""

import asyncio

from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.ports import Clock, Cluster
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import BOUND_AND_NOT_ENDED, NAMES_US, shard_of

LOOK_SECONDS = 1.0
"""Others' pods are listed no more often: at first start every node of the shard asks."""


class Ownership:
    """Looked up in an informer of the nodes that somebody else reads."""

    def __init__(self, nodes: Informer, cluster: Cluster, clock: Clock, shard: str) -> None:
        self.nodes, self._cluster, self._clock, self._shard = nodes, cluster, clock, shard
        self._held: frozenset[str] = frozenset()
        self._listed_at: float | None = None
        self._listing = asyncio.Lock()

    def shard_of(self, name: str) -> str:
        """Ours as long as nothing says otherwise: a node may have no object for a moment."""
        node = self.nodes.named(name)
        if node is None:
            return self._shard
        return shard_of(node)

    def is_ours(self, name: str) -> bool:
        """Tells whether the node is of this shard."""
        return self.shard_of(name) == self._shard

    def boot_of(self, name: str) -> str | None:
        """
        The boot of the node's machine, by which a restart is told; "" where that is not known.

        None where the node is known to be no more.
        """
        node = self.nodes.named(name)
        if node is None:
            return None if self.nodes.synced else ""
        return _boot_of(node)

    async def ask_boot(self, name: str) -> str | None:
        """The same as the server says now: a watch that hangs tells of no restart. Raises Transient, ApiError."""
        found, _ = await self._cluster.list("nodes", "", f"metadata.name={name}")
        return _boot_of(found[0]) if found else None

    async def is_held_by_others(self, name: str) -> bool:
        """Whether an unfinished pod of another shard is bound to the node. Raises Transient, ApiError."""
        async with self._listing:
            now = self._clock.monotonic()
            if self._listed_at is None or now - self._listed_at >= LOOK_SECONDS:
                pods, _ = await self._cluster.list("pods", "", f"{NAMES_US},{BOUND_AND_NOT_ENDED}", _where)
                others = frozenset(pod["node"] for pod in pods if pod["shard"] != self._shard)
                self._held, self._listed_at = others, now
        return name in self._held


def _boot_of(node: Json) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    boot: str = info.get("bootID") or ""
    return boot


def _where(pod: Json) -> Json:
    return {"node": pod["spec"]["nodeName"], "shard": shard_of(pod)}

"""
The lock of a node on which HAMi's plugin hands out GPUs: it serves the pod that the lock names, one after the other.

Taken by compare-and-swap on the node's object, so that neither two binders nor HAMi's own scheduler bind two pods to
one node at once. The plugin gives it back when the kubelet has asked it; it expires by itself after five minutes.
"""

from datetime import UTC, datetime, timedelta

from tessera.binder.decide import hami
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera_schemas.cluster.labels import has_ended

TRY_AGAIN_SECONDS = 0.5
WAIT_SECONDS = 2.0
WAITING_MAX = 16
"""
A kubelet asks the plugin within a second or two. Who waits longer, or is one too many, comes back later: the binder's
places are for runs that can go on, and above all for those that give devices back.
"""
SUSPICIOUS = timedelta(seconds=15)
"""From when on a lock's pod is looked up: it may have ended before the plugin was asked."""


class HamiLock:
    """Looked up in an informer of the nodes that somebody else reads; one that is behind loses the swap."""

    def __init__(self, nodes: Informer, cluster: Cluster, clock: Clock) -> None:
        self._nodes, self._cluster, self._clock = nodes, cluster, clock
        self._waiting = 0

    def now(self) -> datetime:
        """Time of the wall clock in UTC."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    async def take(self, node: str, namespace: str, pod: str) -> None:
        """Returns with the lock. Raises Transient while another pod has it, or may have, for some time; ApiError."""
        until = self._clock.monotonic() + WAIT_SECONDS
        while (in_the_way := await self._try(node, namespace, pod)) is not None:
            if self._clock.monotonic() >= until or self._waiting >= WAITING_MAX:
                raise Transient(in_the_way)
            self._waiting += 1
            try:
                await self._clock.sleep(TRY_AGAIN_SECONDS)
            finally:
                self._waiting -= 1

    async def _try(self, node: str, namespace: str, pod: str) -> str | None:
        """Try to take the lock once; None when the pod has it, else what is in the way."""
        there = self._nodes.named(node)
        if there is None:
            return f"node {node} is not to be seen"
        meta = there["metadata"]
        lock = hami.lock_in(meta.get("annotations") or {}, self.now())
        if lock is not None and lock.pod == (namespace, pod):
            return None
        if lock is not None and await self._is_in_use(lock):
            return f"HAMi on node {node} is busy with pod {'/'.join(lock.pod)}"
        wanted = {hami.LOCK_ANNOTATION: hami.lock_for(namespace, pod, self.now())}
        try:
            await self._cluster.annotate_node(node, meta["resourceVersion"], wanted)
        except ApiError as error:
            if error.status != 409:
                raise
            return f"node {node} changes while its lock is taken"
        return None

    async def _is_in_use(self, lock: hami.Lock) -> bool:
        """Whether its pod may still be served; one that has ended or is gone left it behind."""
        if self.now() - lock.since < SUSPICIOUS:
            return True
        try:
            there = await self._cluster.get_pod(*lock.pod)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return not has_ended(there)

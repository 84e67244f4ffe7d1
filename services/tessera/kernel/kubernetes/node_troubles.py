"""
Nodes in trouble, as the cluster shows them, and for how long this process has seen it so.

In come an informer's nodes and how fresh they are; durations begin anew with the process and after every gap in its
looks, so that neither a clock that jumps nor time in which nobody looked ends anything. Being asked is what keeps the
count: whoever waits for something asks again and again.

A node is *fenced* when nothing can run on it any more: Kubernetes was told that it is out of service, or has no
object of it for a while. Everything else may still run what it was given.

Devices in trouble are seen on the pods that were given them: a pod's own status says their health (KEP-4680).
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.ports import Clock, Cluster
from tessera.kernel.tasks.freshness import Freshness
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import OUT_OF_SERVICE_TAINT

UNHEALTHY = "Unhealthy"
"""What a kubelet says of a device that its plugin reported broken; of a plugin that is away it says `Unknown`."""

FORGET_SECONDS = 900.0  # nobody asked meanwhile: it may have been well in between


class TroubleKind(StrEnum):
    GONE = "gone"
    OUT_OF_SERVICE = "out of service"
    NOT_READY = "not ready"
    CORDONED = "cordoned"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Trouble of a node, and for how many seconds it has been seen."""

    kind: TroubleKind
    seconds: float


@dataclass(frozen=True, slots=True)
class _Seen:
    kind: TroubleKind
    since: float
    asked: float


def is_ready(node: Json) -> bool:
    """Whether the kubelet says that it is well; a cordoned node is."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def kind_of(node: Json | None) -> TroubleKind | None:
    """A node that answers is at most cordoned, whatever its taints say: its kubelet still ends what is to end."""
    if node is None:
        return TroubleKind.GONE
    spec = node.get("spec") or {}
    if is_ready(node):
        return TroubleKind.CORDONED if spec.get("unschedulable", False) else None
    taints = spec.get("taints") or ()
    is_out = any(taint.get("key") == OUT_OF_SERVICE_TAINT for taint in taints)
    return TroubleKind.OUT_OF_SERVICE if is_out else TroubleKind.NOT_READY


class NodeTroubles:
    """
    Looked up in an informer that somebody else reads.

    A node whose object was taken away may be back in a moment under the same name: only after `gone_seconds` is it
    gone for good.
    """

    def __init__(self, informer: Informer, clock: Clock, gone_seconds: float, freshness: Freshness) -> None:
        self._informer, self._clock, self._gone_seconds = informer, clock, gone_seconds
        self._freshness = freshness
        self._seen: dict[str, _Seen] = {}

    def of(self, node: str) -> Trouble | None:
        """Trouble of the node; None when there is none, or until the nodes have been listed once."""
        kind, now = kind_of(self._informer.named(node)) if self._informer.synced else None, self._clock.monotonic()
        before = self._seen.pop(node, None)
        if kind is None:
            return None
        goes_on = before is not None and before.kind is kind and now - before.asked <= FORGET_SECONDS
        since = before.since if before is not None and goes_on else now
        since = max(since, self._freshness.since)
        self._seen[node] = _Seen(kind, since, now)
        return Trouble(kind, now - since)

    async def is_still(self, cluster: Cluster, node: str, kind: TroubleKind) -> bool:
        """
        Whether the API server itself shows this trouble now: what cannot be undone rests on a look, not on a copy.

        Raises Transient, ApiError.
        """
        found, _ = await cluster.list("nodes", "", f"metadata.name={node}")
        return kind_of(found[0] if found else None) is kind

    @property
    def counted(self) -> Collection[str]:
        """The nodes whose trouble is being counted, as of each moment."""
        return self._seen.keys()

    def fenced(self, node: str) -> bool:
        """Say whether nothing can run on the node any more; asking keeps the count of seconds, as with `of`."""
        trouble = self.of(node)
        return trouble is not None and self.is_fence(trouble)

    def is_fence(self, trouble: Trouble) -> bool:
        """Say whether a trouble means that nothing runs: out of service, or gone for `gone_seconds`."""
        lasting = trouble.kind is TroubleKind.GONE and trouble.seconds >= self._gone_seconds
        return lasting or trouble.kind is TroubleKind.OUT_OF_SERVICE

    def percent_not_ready(self) -> int:
        """Percentage of nodes that do not answer; nodes that were taken out of service do not count."""
        nodes = self._informer.objects.values()
        down = sum(kind_of(node) is TroubleKind.NOT_READY for node in nodes)
        return down * 100 // max(1, len(nodes))


def unhealthy_devices(pod: Json) -> tuple[str, ...]:
    """Names of resources, such as `nvidia.com/gpu`, of which the pod has a device that is unhealthy; in order."""
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return tuple(
        sorted(
            {
                str(found.get("name", ""))
                for container in containers
                for found in container.get("allocatedResourcesStatus") or ()
                for device in found.get("resources") or ()
                if device.get("health") == UNHEALTHY
            }
        )
    )

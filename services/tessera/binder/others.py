"""
Pods that Tessera did not make, and what they take of their nodes: in comes an informer of them, out comes a sum.

Whatever carries a run's label is one of ours, adopted work included. Of the rest only those count that are bound and
have not ended, each by what it asks for, as in Kubernetes' own scheduler; a pod is reduced to its numbers as it is
read, so that thousands of them cost little.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import structlog

from tessera.binder.adoption.amounts import Unreadable, pod_amounts
from tessera.kernel.informer import Delta, Informer
from tessera.kernel.ports import Clock, Cluster, JsonObject
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import Others
from tessera_schemas.job import is_device
from tessera_schemas.labels import BOUND_AND_NOT_ENDED, GPU_RESOURCE, MIG_RESOURCE_PREFIX, RUN_LABEL

DEVICES_MAX = 64
_USES, _NODE = "uses", "node"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Uses:
    """What one pod takes besides its place; the rest of a division is rounded up."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    devices: tuple[tuple[str, int], ...] = ()


def informer_of_others(cluster: Cluster, clock: Clock, who: str = "") -> Informer:
    """Of pods that are bound, have not ended and are not ours, reduced to what `OthersByNode` needs."""
    return Informer(cluster, "pods", clock, f"!{RUN_LABEL}", BOUND_AND_NOT_ENDED, reduced, who)


class OthersByNode:
    """An index over the informer's copy. Whoever owns it calls `next` again and again."""

    def __init__(self, informer: Informer) -> None:
        self.informer = informer
        self._there: dict[str, dict[str, Uses]] = {}

    def on(self, node: str) -> Others:
        return summed(self._there.get(node, {}).values())

    async def next(self) -> list[str]:
        """Wait for changes; returns the nodes where pods came, changed or went, each once."""
        return list(dict.fromkeys(self._hold(delta) for delta in await self.informer.next()))

    def _hold(self, delta: Delta) -> str:
        uid, node = delta.object["metadata"]["uid"], delta.object[_NODE]
        if delta.type == "DELETED":
            there = self._there.get(node, {})
            there.pop(uid, None)
            if not there:
                self._there.pop(node, None)
        else:
            self._there.setdefault(node, {})[uid] = delta.object[_USES]
        return str(node)


def summed(pods: Iterable[Uses]) -> Others:
    """Bounded, so that no pod's fancy number makes a node unreadable: beyond the bound nothing fits anyway."""
    count = cpu = memory = gpus = 0
    devices = Counter[str]()
    for uses in pods:
        count, cpu, memory, gpus = count + 1, cpu + uses.cpu_milli, memory + uses.memory_bytes, gpus + uses.gpus
        devices.update(dict(uses.devices))
    named = {name: min(devices[name], INT_MAX) for name in sorted(devices)[:DEVICES_MAX]}
    return Others(
        cpu_milli=min(cpu, INT_MAX),
        memory_bytes=min(memory, INT_MAX),
        pods=count,
        gpus=min(gpus, INT_MAX),
        devices=named,
    )


def reduced(pod: JsonObject) -> JsonObject:
    """What is kept of a pod: who it is, where, and what it takes."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    named = {key: meta[key] for key in ("uid", "name", "namespace", "resourceVersion") if key in meta}
    return {"metadata": named, _NODE: spec.get("nodeName") or "", _USES: uses_of(pod)}


def uses_of(pod: JsonObject) -> Uses:
    """A pod that cannot be read takes its place and nothing else: no kubelet starts what asks for what is no number."""
    try:
        asked = pod_amounts(pod.get("spec") or {})
    except Unreadable as error:
        log.warning("pod_not_readable", pod=pod["metadata"]["name"], error=str(error))
        return Uses()
    further = {name: ceil(amount) for name, amount in asked.items() if amount and _is_counted(name)}
    return _shared(
        ceil(asked.get("cpu", 0) * 1000),
        ceil(asked.get("memory", 0)),
        ceil(asked.get(GPU_RESOURCE, 0)),
        tuple(sorted(further.items())),
    )


def _is_counted(name: str) -> bool:
    return is_device(name) or name.startswith(MIG_RESOURCE_PREFIX)


@lru_cache(maxsize=4096)
def _shared(cpu_milli: int, memory_bytes: int, gpus: int, devices: tuple[tuple[str, int], ...]) -> Uses:
    """One object for all equal pods, of which a DaemonSet makes thousands."""
    return Uses(cpu_milli, memory_bytes, gpus, devices)

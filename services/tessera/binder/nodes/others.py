"""
Pods that Tessera did not place, and what they take of their nodes: in come pods, out comes a sum.

Whatever carries a run's label is one of ours, and so is what was bound for a run. Of the rest only those count that
are bound and have not ended, each by what it asks for, as in Kubernetes' own scheduler. Those of other schedulers, and
those of ours that somebody took the label off, have informers here, which reduce them to their numbers, so that
thousands cost little; users' pods that name us and came to a node past us are told by whoever watches users' pods.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from tessera.binder.nodes.uses import Uses, uses_of
from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.ports import Clock, Cluster
from tessera_schemas.base import INT_MAX, Json
from tessera_schemas.cluster.labels import (
    BOUND_AND_NOT_ENDED,
    MANAGED_BY_LABEL,
    NAMES_ANOTHER,
    NAMES_US,
    RUN_LABEL,
    SCHEDULER_NAME,
    bound_for,
    has_ended,
)
from tessera_schemas.facts import Others

DEVICES_MAX = 64
_USES, _NODE = "uses", "node"
NOTHING = Others()


def informers_of_others(cluster: Cluster, clock: Clock, who: str = "") -> tuple[Informer, ...]:
    """Watches of bound, unfinished pods: those of other schedulers, and ours without their label."""
    selectors = (
        (f"!{RUN_LABEL}", f"{NAMES_ANOTHER},{BOUND_AND_NOT_ENDED}"),
        (f"!{RUN_LABEL},{MANAGED_BY_LABEL}={SCHEDULER_NAME}", f"{NAMES_US},{BOUND_AND_NOT_ENDED}"),
    )
    return tuple(Informer(cluster, "pods", clock, labels, fields, reduced, who) for labels, fields in selectors)


class OthersByNode:
    """
    An index over the informers' copies, and over what of `users`' pods names us without being bound by us.

    Whoever owns it calls `hold` with what the informers hand out, and `take` with what the one of users' pods does.
    """

    def __init__(self, informers: Sequence[Informer], users: Informer) -> None:
        self.informers, self._users = tuple(informers), users
        self._there: dict[str, dict[str, Uses]] = {}
        self._sums: dict[str, Others] = {}

    def on(self, node: str) -> Others:
        """Sum of what pods that Tessera did not place take of the node; the same object until one of them changes."""
        if node not in self._there:
            return NOTHING
        found = self._sums.get(node)
        if found is None:
            found = self._sums[node] = summed(self._there[node].values())
        return found

    def hold(self, deltas: Iterable[Delta]) -> list[str]:
        """The nodes where pods came, changed or went, each once."""
        return list(dict.fromkeys(self._hold(delta) for delta in deltas))

    def take(self, deltas: Iterable[Delta]) -> list[str]:
        """The nodes where pods that name us, and that we did not bind, came, changed or went, each once."""
        changed: dict[str, None] = {}
        for delta in deltas:
            node = (delta.object.get("spec") or {}).get("nodeName") or ""
            counts = delta.type != "DELETED" and node and not bound_for(delta.object) and not has_ended(delta.object)
            if counts or delta.object["metadata"]["uid"] in self._there.get(node, ()):
                change = delta.type if counts else "DELETED"
                changed[self._hold(Delta(change, reduced(delta.object), None))] = None
        return list(changed)

    @property
    def synced(self) -> bool:
        """Tells whether all watches have shown what is there, so that the sums are complete."""
        return all(informer.synced for informer in (*self.informers, self._users))

    def _hold(self, delta: Delta) -> str:
        uid, node = delta.object["metadata"]["uid"], delta.object[_NODE]
        self._sums.pop(node, None)
        if delta.type == "DELETED":
            there = self._there.get(node, {})
            there.pop(uid, None)
            if not there:
                self._there.pop(node, None)
        else:
            self._there.setdefault(node, {})[uid] = delta.object[_USES]
        return str(node)


def summed(pods: Iterable[Uses]) -> Others:
    """The use by so many whole pods."""
    return with_more(NOTHING, ((uses, True) for uses in pods))


def with_more(others: Others, more: Iterable[tuple[Uses, bool]]) -> Others:
    """
    Use by others and by further pods; the flag is False where only a part of a pod counts, which is no more pod then.

    Bounded, so that no pod's fancy number makes a node unreadable: beyond the bound nothing fits anyway.
    """
    pods, cpu, memory, gpus = others.pods, others.cpu_milli, others.memory_bytes, others.gpus
    devices = Counter(others.devices)
    for uses, is_whole in more:
        pods, cpu, memory, gpus = pods + is_whole, cpu + uses.cpu_milli, memory + uses.memory_bytes, gpus + uses.gpus
        devices.update(dict(uses.devices))
    named = {name: min(devices[name], INT_MAX) for name in sorted(devices)[:DEVICES_MAX]}
    return Others(
        cpu_milli=min(cpu, INT_MAX),
        memory_bytes=min(memory, INT_MAX),
        pods=pods,
        gpus=min(gpus, INT_MAX),
        devices=named,
    )


def reduced(pod: Json) -> Json:
    """Reduce a pod to its identity, its node and its use."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    named = {key: meta[key] for key in ("uid", "name", "namespace", "resourceVersion") if key in meta}
    return {"metadata": named, _NODE: spec.get("nodeName") or "", _USES: uses_of(pod)}

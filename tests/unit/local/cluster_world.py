"""A simulated cluster whose clock a test sets."""

from dataclasses import dataclass
from typing import Any

from tessera.kernel.ports import ApiError
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.machines.capacity import NodeUse
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_local.cluster.objects.shelf import Version
from tessera_local.cluster.objects.store import Options

NS = "default"
FINALIZER = "tessera.io/held"


@dataclass
class ManualClock:
    ms: int = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


class World:
    """A cluster and its clock; `wait` lets time pass, doing what is due when it is due."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.core = SimCluster(self.clock, seed=7, options=Options(**options))

    def node(self, name: str = "n1", **row: Any) -> None:
        row = {"cpu": "8", "memory": "8Gi", "gpus": 2, **row}
        self.core.create("nodes", "", node_object(NodeRow(name=name, **row), name))

    def pod(self, name: str, node: str = "n1", finalizer: bool = False, **notes: str) -> str:
        """A pod, bound to `node` unless that is "". Annotations are named without their prefix."""
        meta: dict[str, Any] = {"name": name, "annotations": annotations(notes)}
        if finalizer:
            meta["finalizers"] = [FINALIZER]
        uid = self.core.create("pods", NS, {"metadata": meta, "spec": spec()}).uid
        if node:
            self.core.bind(NS, name, {"metadata": {"uid": uid}, "target": {"name": node}})
        return uid

    def wait(self, ms: int) -> None:
        until = self.clock.ms + ms
        while (due := self.core.next_due_ms()) is not None and due <= until:
            self.clock.ms = max(due, self.clock.ms)
            self.core.advance()
        self.clock.ms = until

    def get(self, name: str) -> Version:
        return self.core.get("pods", NS, name)

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.get(name).object["status"]
        return status

    def phase(self, name: str) -> str:
        return self.get(name).phase

    def is_gone(self, name: str) -> bool:
        try:
            self.get(name)
        except ApiError as error:
            return error.status == 404
        return False

    def use(self, node: str = "n1") -> NodeUse:
        use = self.core.use_of(node)
        assert use is not None
        return use


def annotations(notes: dict[str, str]) -> dict[str, str]:
    return {f"tessera.io/{key.replace('_', '-')}": value for key, value in notes.items()}


def spec(**resources: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"requests": resources, "limits": {}}}]}

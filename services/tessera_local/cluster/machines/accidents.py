"""Acts of people, accidents and the node controller on the machines of a simulated cluster, by the name of the node."""

from collections.abc import Iterable

from tessera.kernel.ports import ApiError
from tessera_local.cluster.machines.nodes import cards_of
from tessera_local.cluster.machines.pod_statuses import Left, evicted
from tessera_local.cluster.objects.shelf import Version
from tessera_local.cluster.objects.store import EVERYTHING, Store
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import GPU_REPLICAS_LABEL, GPU_RESOURCE, GPU_UUIDS_ANNOTATION, OUT_OF_SERVICE_TAINT

_BY_CONTROLLER = "node.kubernetes.io/"
_UNREACHABLE: Json = {"key": f"{_BY_CONTROLLER}unreachable", "effect": "NoSchedule"}
_NOT_READY: Json = {"key": f"{_BY_CONTROLLER}not-ready", "effect": "NoSchedule"}
_CORDONED: Json = {"key": f"{_BY_CONTROLLER}unschedulable", "effect": "NoSchedule"}
_OUT_OF_SERVICE: Json = {"key": OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoExecute"}
_PRESSURES = {
    "memory": ("MemoryPressure", f"{_BY_CONTROLLER}memory-pressure"),
    "ephemeral-storage": ("DiskPressure", f"{_BY_CONTROLLER}disk-pressure"),
    "pids": ("PIDPressure", f"{_BY_CONTROLLER}pid-pressure"),
}
STUCK_PLUGIN = (
    "Allocate failed due to rpc error: code = DeadlineExceeded desc = context deadline exceeded, which is unexpected"
)
NO_SANDBOX = (
    'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "5f1c": '
    'plugin type="calico" failed (add): error getting ClusterInformation: connection is unauthorized'
)
REGISTRY_OUT = "failed to do request: dial tcp: connect: connection refused"


class Machines:
    """
    The nodes and their kubelets. Each call is atomic, and raises ApiError 404 for a node that is not there.

    The controller's taints of NoExecute that follow five minutes of NotReady are not set.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    # -- reached or not

    def set_reachable(self, node: str, reachable: bool) -> None:
        """
        Cut a node off, or bring it back: its pods stand still meanwhile and its Ready condition is Unknown.

        A machine that was down comes back with another boot ID.
        """
        found = self._store.nodes.require("", node)
        self._store.kubelets.set_reachable(node, reachable, self._store.now_ms())
        status = self._store.with_condition(found, "Ready", *(_FOUND if reachable else _LOST))
        status["nodeInfo"] = {**(status.get("nodeInfo") or {}), "bootID": self._store.boot_id(node)}
        self._write(found, status, without=(_UNREACHABLE, _NOT_READY), add=() if reachable else (_UNREACHABLE,))

    def begin_reboot(self, node: str, left: Left = "killed") -> None:
        """
        Let a machine begin anew: it is silent until `set_reachable`, too short a time for anybody to call it lost.

        Its programs end now; once it is back their pods are Failed, and `left` is what is said of their containers.
        """
        self._store.nodes.require("", node)
        self._store.kubelets.go_down(node, left, self._store.now_ms())

    def begin_shutdown(self, node: str) -> None:
        """
        Turn a machine off in order: its kubelet ends each pod in the pod's grace (`Terminated`), takes none, and says
        that the node is not ready. `begin_reboot` takes the power, `set_reachable` brings it back.
        """
        found = self._store.nodes.require("", node)
        self._store.kubelets.shut_down(node, self._store.now_ms())
        said = ("False", "KubeletNotReady", "node is shutting down")
        self._write(found, self._store.with_condition(found, "Ready", *said), add=(_NOT_READY,))

    def heal(self, node: str) -> None:
        """End all that `Machines` can do to a node and its kubelet, but for taints of others; registries stay out."""
        ill = self._store.kubelets.ills.of(node)
        if ill.shuts_down:
            self.begin_reboot(node)
        self.set_reachable(node, True)
        self.set_out_of_service(node, False)
        self.set_cordoned(node, False)
        self.set_device_plugins(node, True)
        for resource in _PRESSURES:
            self.set_pressure(node, False, resource)
        ill.refuses = ""
        self.set_preparing_nothing(node, "")
        self.set_starting_nothing(node, False)
        self.set_stuck(node, False)

    def set_out_of_service(self, node: str, out: bool) -> None:
        """
        Say of a node, as an operator who has cut its power, that nothing can run on it any more. One that answers
        has its power all the same.
        """
        found = self._store.nodes.require("", node)
        if out and self._store.kubelets.is_away(node):
            self.power_off(node)
        self._set_taint(found, _OUT_OF_SERVICE, out)

    def power_off(self, node: str) -> None:
        """End the programs on a machine at once; what the API shows of their pods stays until its kubelet is back."""
        self._store.kubelets.power_off(node, self._store.now_ms())

    def remove_node(self, node: str) -> None:
        """Take a node's object off at once; its pods' objects stay, and nobody ends them."""
        self._store.remove(self._store.nodes, self._store.nodes.require("", node))

    # -- what bounds new pods

    def set_cordoned(self, node: str, cordoned: bool) -> None:
        """Cordons a node as an operator does before a drain: no new pod comes, running ones go on."""
        found = self._store.nodes.require("", node)
        taints = _taints(found, (_CORDONED,), (_CORDONED,) if cordoned else ())
        spec = {**found.object["spec"], "unschedulable": cordoned, "taints": taints}
        self._store.replace(self._store.nodes, found, {**found.object, "metadata": dict(found.meta), "spec": spec})

    def set_taint(self, node: str, key: str, effect: str, on: bool = True, value: str = "") -> None:
        """Set a taint of that key, or take it off. NoExecute evicts who does not tolerate it."""
        taint = {"key": key, "effect": effect} | ({"value": value} if value else {})
        self._set_taint(self._store.nodes.require("", node), taint, on)

    def _set_taint(self, found: Version, taint: Json, on: bool) -> None:
        self._write(found, found.object["status"], without=(taint,), add=(taint,) if on else ())

    # -- devices

    def set_gpus(self, node: str, gpus: int) -> None:
        """The node now has `gpus` devices, the first ones. Pods that run keep what they hold."""
        found = self._store.nodes.require("", node)
        offered = {GPU_RESOURCE: str(gpus * _replicas(found))}
        sizes = {key: {**found.object["status"][key], **offered} for key in ("capacity", "allocatable")}
        status, meta = {**found.object["status"], **sizes}, dict(found.meta)
        if GPU_UUIDS_ANNOTATION in (meta.get("annotations") or {}):  # no plugin offers them: they are named
            meta["annotations"] = meta["annotations"] | {GPU_UUIDS_ANNOTATION: cards_of(node, gpus)}
            status = found.object["status"]
        self._store.replace(self._store.nodes, found, {**found.object, "metadata": meta, "status": status})

    def set_device_plugins(self, node: str, there: bool) -> None:
        """Take the plugins away, or bring them back: nothing of their devices is allocatable, and pods go on."""
        capacity = self._store.nodes.require("", node).object["status"]["capacity"]
        self._set_allocatable(node, {name: total if there else "0" for name, total in capacity.items() if "/" in name})

    def set_unhealthy(self, node: str, gpus: int) -> None:
        """Let the plugin call so many GPUs unhealthy, whichever they are; capacity and pods stay. 0: all are well."""
        found = self._store.nodes.require("", node)
        total = int(found.object["status"]["capacity"].get(GPU_RESOURCE, 0))
        left = max(total - gpus * _replicas(found), 0)
        self._set_allocatable(node, {GPU_RESOURCE: str(left)} if total else {})

    def set_device_health(self, namespace: str, name: str, health: str = "Unhealthy") -> None:
        """Let a pod's status say so of the GPU that its containers were given (`allocatedResourcesStatus`)."""
        found = self._store.pods.require(namespace, name)
        said = [{"name": GPU_RESOURCE, "resources": [{"resourceID": "GPU-0", "health": health}]}]
        status = found.object["status"]
        containers = [{**one, "allocatedResourcesStatus": said} for one in status.get("containerStatuses", ())]
        changed = {**found.object, "metadata": dict(found.meta), "status": {**status, "containerStatuses": containers}}
        self._store.replace(self._store.pods, found, changed)

    def _set_allocatable(self, node: str, amounts: Json) -> None:
        found = self._store.nodes.require("", node)
        status = found.object["status"]
        self._write(found, {**status, "allocatable": {**status["allocatable"], **amounts}})

    # -- kubelets

    def set_refusing(self, node: str, why: str = STUCK_PLUGIN) -> None:
        """Have the kubelet refuse every pod with this text, as beside a stuck device plugin; "" ends it."""
        self._store.nodes.require("", node)
        self._store.kubelets.ills.of(node).refuses = why

    def set_preparing_nothing(self, node: str, why: str = NO_SANDBOX, reason: str = "FailedCreatePodSandBox") -> None:
        """Have the kubelet take pods, prepare none, and say why in events alone; a `why` of "" ends it."""
        self._store.nodes.require("", node)
        self._store.kubelets.ills.of(node).fails = (reason, why) if why else None
        self._store.kubelets.look_at_all(node, self._store.now_ms())

    def set_starting_nothing(self, node: str, on: bool) -> None:
        """Have the kubelet take pods and never start one: their containers are being created."""
        self._store.nodes.require("", node)
        self._store.kubelets.ills.of(node).starts_nothing = on
        self._store.kubelets.look_at_all(node, self._store.now_ms())

    def set_stuck(self, node: str, on: bool) -> None:
        """Have no container stop that is told to, also out of grace: its pod stays Terminating."""
        self._store.nodes.require("", node)
        self._store.kubelets.ills.of(node).is_stuck = on
        self._store.kubelets.look_at_all(node, self._store.now_ms())

    def set_images_out(self, begins: str = "", node: str = "", why: str = REGISTRY_OUT) -> None:
        """Images whose names begin so cannot be pulled, on any node or on one; a `why` of "" ends it."""
        self._store.kubelets.ills.set_images_out(begins, node, why)
        for each in self._store.shelf("nodes").select(EVERYTHING) if not why else ():
            self._store.kubelets.look_at_all(each.meta["name"], self._store.now_ms())

    def set_pressure(self, node: str, on: bool, resource: str = "memory") -> None:
        """Set a condition of pressure (`memory`, `ephemeral-storage`, `pids`) and its taint, or take them off."""
        if resource not in _PRESSURES:
            raise ApiError(400, "BadRequest", f"no pressure of {resource!r}; there are {', '.join(_PRESSURES)}")
        found, (condition, key) = self._store.nodes.require("", node), _PRESSURES[resource]
        taint = {"key": key, "effect": "NoSchedule"}
        if on or any(one["type"] == condition for one in found.object["status"].get("conditions", ())):
            status = self._store.with_condition(found, condition, "True" if on else "False")
            self._write(found, status, without=(taint,), add=(taint,) if on else ())

    def set_condition(self, node: str, condition: str, status: str = "True", reason: str = "") -> None:
        """Set a condition of the node as an agent on it would, node-problem-detector say."""
        found = self._store.nodes.require("", node)
        self._write(found, self._store.with_condition(found, condition, status, reason))

    def evict_for_pressure(self, namespace: str, name: str, resource: str = "memory") -> None:
        """Have a pod's kubelet end it at once, since its node lacks something (`Evicted`)."""
        pod = self._store.pods.require(namespace, name)
        self._store.kubelets.end_one(pod.uid, evicted(resource), self._store.now_ms())

    def _write(self, found: Version, status: Json, without: Iterable[Json] = (), add: Iterable[Json] = ()) -> None:
        spec = {**found.object["spec"], "taints": _taints(found, (*without, *add), add)}
        if not spec["taints"] and "taints" not in found.object["spec"]:
            del spec["taints"]
        changed = {**found.object, "metadata": dict(found.meta), "spec": spec, "status": status}
        if changed != found.object:
            self._store.replace(self._store.nodes, found, changed)


def _replicas(node: Version) -> int:
    """Number of replicas of each GPU, which go with it when it is lost or unhealthy."""
    return int(node.labels.get(GPU_REPLICAS_LABEL, 1))


_LOST = ("Unknown", "NodeStatusUnknown")
_FOUND = ("True", "KubeletReady")


def _taints(node: Version, without: Iterable[Json], add: Iterable[Json]) -> list[Json]:
    """The node's taints, but for these keys with these effects, and others added."""
    off = {(one["key"], one["effect"]) for one in without}
    return [one for one in node.object["spec"].get("taints", ()) if (one["key"], one["effect"]) not in off] + [*add]

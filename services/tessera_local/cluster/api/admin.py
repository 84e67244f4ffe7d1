"""Bodies of `POST /admin/faults`: one fault, named by `fault`, for tests and demonstrations."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tessera_local.cluster.api import answers
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.machines.accidents import NO_SANDBOX, REGISTRY_OUT, STUCK_PLUGIN
from tessera_local.cluster.machines.pod_statuses import Left

FaultVerb = Literal["list", "watch", "get", "create", "bind", "delete", "patch", "evict"]
Times = Annotated[int, Field(ge=1)]


class _Fault(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AnswerFault(_Fault):
    """Refuse the next calls of a verb; `evict` with 429 is a disruption budget."""

    fault: Literal["answer"]
    verb: FaultVerb
    status: Annotated[int, Field(ge=400, le=599)]
    count: Times = 1
    retry_after_seconds: float | None = None

    def apply(self, cluster: SimCluster) -> None:
        """Order the refusals; calls that are under way are not touched."""
        cluster.faults.answer(self.verb, self.status, self.count, self.retry_after_seconds)


class LoseAnswers(_Fault):
    """Break the connection of the next calls of a verb, after their effect or instead of it."""

    fault: Literal["lose_answers"]
    verb: FaultVerb
    count: Times = 1
    after_effect: bool = True

    def apply(self, cluster: SimCluster) -> None:
        """Order the broken connections; calls that are under way are not touched."""
        cluster.faults.lose_answers(self.verb, self.count, self.after_effect)


class CloseWatches(_Fault):
    fault: Literal["close_watches"]

    def apply(self, cluster: SimCluster) -> None:
        """End all watches of all kinds now."""
        cluster.close_watches()


class ExpireHistory(_Fault):
    """Watches that are behind get 410; `close_watches` after it makes the others come back."""

    fault: Literal["expire_history"]

    def apply(self, cluster: SimCluster) -> None:
        """Forget all past changes, and lists that go on in pages."""
        cluster.expire_history()


class DropEvents(_Fault):
    """Each open watch loses its next events, and then ends with 410."""

    fault: Literal["drop_events"]
    count: Times = 1

    def apply(self, cluster: SimCluster) -> None:
        """Order it of the watches that are open now."""
        cluster.disturb_watches(drop=self.count)


class RepeatEvents(_Fault):
    fault: Literal["repeat_events"]
    count: Times = 1

    def apply(self, cluster: SimCluster) -> None:
        """Have each watch that is open now send its next events twice."""
        cluster.disturb_watches(repeat=self.count)


class NodeReachable(_Fault):
    fault: Literal["node_reachable"]
    node: str
    reachable: bool

    def apply(self, cluster: SimCluster) -> None:
        """Cut the node off or bring it back. Raises ApiError 404 for an unknown node."""
        cluster.set_reachable(self.node, self.reachable)


class NodeCordoned(_Fault):
    fault: Literal["node_cordoned"]
    node: str
    cordoned: bool

    def apply(self, cluster: SimCluster) -> None:
        """Cordon or uncordon the node. Raises ApiError 404 for an unknown node."""
        cluster.set_cordoned(self.node, self.cordoned)


class NodeOutOfService(_Fault):
    """An operator's word that the node is off; it counts while the node is not reachable."""

    fault: Literal["node_out_of_service"]
    node: str
    out: bool

    def apply(self, cluster: SimCluster) -> None:
        """Set or take off the out-of-service taint. Raises ApiError 404 for an unknown node."""
        cluster.set_out_of_service(self.node, self.out)


class NodeGone(_Fault):
    """Removal of a node; only its pods' objects stay."""

    fault: Literal["node_gone"]
    node: str

    def apply(self, cluster: SimCluster) -> None:
        """Take the node's object off now. Raises ApiError 404 for an unknown node."""
        cluster.remove_node(self.node)


class NodeGpus(_Fault):
    fault: Literal["node_gpus"]
    node: str
    gpus: Annotated[int, Field(ge=0)]

    def apply(self, cluster: SimCluster) -> None:
        """Give the node its first `gpus` devices. Raises ApiError 404 for an unknown node."""
        cluster.set_gpus(self.node, self.gpus)


class NodeTaint(_Fault):
    fault: Literal["node_taint"]
    node: str
    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str = ""
    on: bool = True

    def apply(self, cluster: SimCluster) -> None:
        """Set the taint or take it off. Raises ApiError 404 for an unknown node."""
        cluster.set_taint(self.node, self.key, self.effect, self.on, self.value)


class NodeReboot(_Fault):
    """A machine that begins anew; `node_reachable` brings it back. `left` is what is then said of its containers."""

    fault: Literal["node_reboot"]
    node: str
    left: Left = "killed"

    def apply(self, cluster: SimCluster) -> None:
        """End its programs and have it silent. Raises ApiError 404 for an unknown node."""
        cluster.begin_reboot(self.node, self.left)


class NodeShutdown(_Fault):
    """A machine that is turned off in order; `node_reboot` takes its power, `node_reachable` brings it back."""

    fault: Literal["node_shutdown"]
    node: str

    def apply(self, cluster: SimCluster) -> None:
        """Have its kubelet end all pods. Raises ApiError 404 for an unknown node."""
        cluster.begin_shutdown(self.node)


class NodeHealed(_Fault):
    fault: Literal["node_healed"]
    node: str

    def apply(self, cluster: SimCluster) -> None:
        """End every fault of the node but missing GPUs, taints and registries. Raises ApiError 404 as the others."""
        cluster.heal(self.node)


class NodeRefusing(_Fault):
    """A kubelet that refuses every pod with the text `why`, or "" no longer."""

    fault: Literal["node_refusing"]
    node: str
    why: str = STUCK_PLUGIN

    def apply(self, cluster: SimCluster) -> None:
        """Begin or end it. Raises ApiError 404 for an unknown node."""
        cluster.set_refusing(self.node, self.why)


class NodePreparingNothing(_Fault):
    """A kubelet that gives no pod its sandbox or volumes, and says so in events alone; a `why` of "" ends it."""

    fault: Literal["node_preparing_nothing"]
    node: str
    why: str = NO_SANDBOX
    reason: Literal["FailedCreatePodSandBox", "FailedMount", "FailedAttachVolume"] = "FailedCreatePodSandBox"

    def apply(self, cluster: SimCluster) -> None:
        """Begin or end it. Raises ApiError 404 for an unknown node."""
        cluster.set_preparing_nothing(self.node, self.why, self.reason)


class NodeStartingNothing(_Fault):
    fault: Literal["node_starting_nothing"]
    node: str
    on: bool = True

    def apply(self, cluster: SimCluster) -> None:
        """Leave containers being created, or go on with them. Raises ApiError 404 for an unknown node."""
        cluster.set_starting_nothing(self.node, self.on)


class NodeStuck(_Fault):
    fault: Literal["node_stuck"]
    node: str
    on: bool = True

    def apply(self, cluster: SimCluster) -> None:
        """Have no container of the node stop, or let them. Raises ApiError 404 for an unknown node."""
        cluster.set_stuck(self.node, self.on)


class NodePressure(_Fault):
    fault: Literal["node_pressure"]
    node: str
    on: bool = True
    resource: Literal["memory", "ephemeral-storage", "pids"] = "memory"

    def apply(self, cluster: SimCluster) -> None:
        """Set the condition and its taint, or take them off. Raises ApiError 404 for an unknown node."""
        cluster.set_pressure(self.node, self.on, self.resource)


class DevicePlugins(_Fault):
    fault: Literal["device_plugins"]
    node: str
    there: bool

    def apply(self, cluster: SimCluster) -> None:
        """Take the node's plugins away or bring them back. Raises ApiError 404 for an unknown node."""
        cluster.set_device_plugins(self.node, self.there)


class UnhealthyGpus(_Fault):
    fault: Literal["unhealthy_gpus"]
    node: str
    gpus: Annotated[int, Field(ge=0)] = 1

    def apply(self, cluster: SimCluster) -> None:
        """Make so many less allocatable; capacity stays. Raises ApiError 404 for an unknown node."""
        cluster.set_unhealthy(self.node, self.gpus)


class ImagesOut(_Fault):
    """Images whose names begin so cannot be pulled, on any node or one; with a `why` of "" they can."""

    fault: Literal["images_out"]
    begins: str = ""
    node: str = ""
    why: str = REGISTRY_OUT

    def apply(self, cluster: SimCluster) -> None:
        """Begin or end it for pods that have not started."""
        cluster.set_images_out(self.begins, self.node, self.why)


class ForbidCreates(_Fault):
    fault: Literal["forbid_creates"]
    namespace: str
    on: bool = True

    def apply(self, cluster: SimCluster) -> None:
        """Refuse new pods of the namespace with 403, or no longer."""
        cluster.faults.forbid_creates(self.namespace, self.on)


class EvictPod(_Fault):
    """Somebody evicts a pod through the API, or (`pressure`) its kubelet does for what the node lacks."""

    fault: Literal["evict_pod"]
    namespace: str
    name: str
    pressure: Literal["", "memory", "ephemeral-storage", "pids"] = ""

    def apply(self, cluster: SimCluster) -> None:
        """Raise ApiError 404 for an unknown pod, 429 where a budget forbids it."""
        if self.pressure:
            cluster.evict_for_pressure(self.namespace, self.name, self.pressure)
        else:
            cluster.evict(self.namespace, self.name)


class DeletePod(_Fault):
    """Somebody else deletes a pod; `vanish` takes its object off at once, past finalizers and kubelet."""

    fault: Literal["delete_pod"]
    namespace: str
    name: str
    vanish: bool = False

    def apply(self, cluster: SimCluster) -> None:
        """Delete or take off the pod. Raises ApiError 404 for an unknown pod."""
        if self.vanish:
            cluster.vanish(self.namespace, self.name)
        else:
            cluster.delete("pods", self.namespace, self.name)


class Clear(_Fault):
    """Forget the answers that were ordered and not yet given, and what is forbidden."""

    fault: Literal["clear"]

    def apply(self, cluster: SimCluster) -> None:
        """Drop all orders of all verbs."""
        cluster.faults.clear()


OfNodes = NodeReachable | NodeCordoned | NodeTaint | NodeOutOfService | NodeGone | NodeReboot | NodeShutdown
OfKubelets = (
    NodeHealed | NodeRefusing | NodePreparingNothing | NodeStartingNothing | NodeStuck | NodePressure | ImagesOut
)
OfDevices = NodeGpus | DevicePlugins | UnhealthyGpus
OfPods = DeletePod | EvictPod | ForbidCreates
OfWatches = CloseWatches | ExpireHistory | DropEvents | RepeatEvents
AnyFault = AnswerFault | LoseAnswers | OfWatches | OfNodes | OfKubelets | OfDevices | OfPods | Clear
_FAULT: TypeAdapter[AnyFault] = TypeAdapter(Annotated[AnyFault, Field(discriminator="fault")])


def apply_fault(cluster: SimCluster, body: bytes) -> None:
    """Do what the body orders. Raises ApiError 400 for a body that orders nothing known."""
    try:
        fault = _FAULT.validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise answers.bad_request(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    fault.apply(cluster)

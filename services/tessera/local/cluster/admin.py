"""Bodies of `POST /admin/faults`: one fault, named by `fault`, for tests and demonstrations."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tessera.local.cluster import answers
from tessera.local.cluster.core import SimCluster

Verb = Literal["list", "watch", "get", "create", "bind", "delete", "patch", "evict"]
Count = Annotated[int, Field(ge=1)]


class _Fault(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AnswerFault(_Fault):
    """Refuse the next calls of a verb; `evict` with 429 is a disruption budget."""

    fault: Literal["answer"]
    verb: Verb
    status: Annotated[int, Field(ge=400, le=599)]
    count: Count = 1
    retry_after_seconds: float | None = None

    def apply(self, cluster: SimCluster) -> None:
        """Order the refusals; calls that are under way are not touched."""
        cluster.faults.answer(self.verb, self.status, self.count, self.retry_after_seconds)


class LoseAnswers(_Fault):
    """Break the connection of the next calls of a verb, after their effect or instead of it."""

    fault: Literal["lose_answers"]
    verb: Verb
    count: Count = 1
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
    count: Count = 1

    def apply(self, cluster: SimCluster) -> None:
        """Order it of the watches that are open now."""
        cluster.disturb_watches(drop=self.count)


class RepeatEvents(_Fault):
    fault: Literal["repeat_events"]
    count: Count = 1

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
    """Forget the answers that were ordered and not yet given."""

    fault: Literal["clear"]

    def apply(self, cluster: SimCluster) -> None:
        """Drop all orders of all verbs."""
        cluster.faults.clear()


OfNodes = NodeReachable | NodeCordoned | NodeOutOfService | NodeGone | NodeGpus
OfWatches = CloseWatches | ExpireHistory | DropEvents | RepeatEvents
AnyFault = AnswerFault | LoseAnswers | OfWatches | OfNodes | DeletePod | Clear
_FAULT: TypeAdapter[AnyFault] = TypeAdapter(Annotated[AnyFault, Field(discriminator="fault")])


def apply_fault(cluster: SimCluster, body: bytes) -> None:
    """Do what the body orders. Raises ApiError 400 for a body that orders nothing known."""
    try:
        fault = _FAULT.validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise answers.bad_request(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    fault.apply(cluster)

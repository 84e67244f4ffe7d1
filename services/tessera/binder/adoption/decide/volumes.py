"""
Nodes that a pod's volume claims allow, by the rules of kube-scheduler's volume binder. Pure.

A bound claim ties its pod to the nodes that can reach its volume. A claim that waits for its first consumer gets its
volume where the pod goes (`provisions`). Any other claim keeps its pod waiting, by the claim's name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tessera.binder.workloads.reading import at, items, mapping, no, text
from tessera.domain.devices.resources import Node
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import DIGITS_MAX
from tessera_schemas.cluster.node_terms import Operator, label_holds
from tessera_schemas.reasons import Code, Reason

SELECTED_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"
BEING_BOUND_ANNOTATION = "tessera.io/being-bound"
"""On a claim for one pod: the UID of the pod that is about to be bound with it, and since when (milliseconds)."""
BEING_BOUND_MS = 30_000
NO_PROVISIONER = "kubernetes.io/no-provisioner"
HOST_LABEL = "kubernetes.io/hostname"
ZONE_LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
"""Of a volume without a node affinity: the node has the same, or one of them where `__` stands between several."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class ClaimReach:
    """The conditions on a node, as in a node affinity; all must hold. `provisions`: the volume is made there."""

    conditions: tuple[Json, ...] = ()
    provisions: bool = False


def claim_names(spec: Json) -> list[tuple[str, str]]:
    """The claims of a pod's spec, each with the field that names it."""
    named = enumerate(items(spec, "volumes"))
    found = [(index, text(volume, "persistentVolumeClaim", "claimName")) for index, volume in named]
    return [(f"spec.volumes[{index}].persistentVolumeClaim", name) for index, name in found if name]


def volume_of(claim: Json) -> str:
    """The volume that a claim is bound to; "" while it is not."""
    return text(claim, "spec", "volumeName") if text(claim, "status", "phase") == "Bound" else ""


def find_reach(
    field: str, name: str, claim: Json | None, volume: Json | None, kind: Json | None, host: str = ""
) -> ClaimReach | Reason:
    """
    Nodes that a pod with the claim may go to, or why it may go to none now.

    `volume` is the claim's PersistentVolume, None while it has none; `kind` its StorageClass, None where it has none;
    `host` the hostname of the node that was chosen for it, by the node's label.
    """
    if claim is None:
        return _not_ready(field, f"claim {name} is not there")
    if mapping(claim, "metadata").get("deletionTimestamp"):
        return _not_ready(field, f"claim {name} is being deleted")
    if volume_of(claim):
        if volume is None:
            return _not_ready(field, f"volume {volume_of(claim)} of claim {name} is not there")
        return _read_volume(field, name, volume)
    if text(claim, "status", "phase") == "Lost":
        return _not_ready(field, f"claim {name} has lost its volume")
    # One with a volume and a node was made for us, and is bound in a moment; without a node, somebody else binds it.
    chosen = text(claim, "metadata", "annotations", SELECTED_NODE_ANNOTATION)
    theirs = bool(text(claim, "spec", "volumeName")) and not chosen
    if text(kind, "volumeBindingMode") != "WaitForFirstConsumer" or theirs:
        return _not_ready(field, f"claim {name} is not bound to a volume yet")
    if text(kind, "provisioner") == NO_PROVISIONER:
        what = f"claim {name}: nothing makes volumes of class {text(kind, 'metadata', 'name')}; name one in volumeName"
        return no(Code.NOT_SUPPORTED_YET, field, what)
    return _read_class(field, name, host or chosen, mapping(kind))


def on_one_pod_only(claim: Json | None) -> bool:
    """Whether it is for a single pod of the whole cluster."""
    modes = at(claim, "spec", "accessModes")
    return isinstance(modes, list) and "ReadWriteOncePod" in modes


def being_bound(claim: Json, now_ms: int) -> str:
    """UID of the pod that is about to be bound with the claim; "" for none, or where it was not bound in time."""
    uid, _, since = text(claim, "metadata", "annotations", BEING_BOUND_ANNOTATION).partition(" ")
    since_ms = int(since) if since.isascii() and since.isdecimal() and len(since) <= DIGITS_MAX else 0
    # The mark ends by itself: a binder that dies between the mark and the bind would else keep the claim for a pod that
    # never comes.
    return uid if now_ms - since_ms < BEING_BOUND_MS else ""


def judge_single_claim(field: str, name: str, waiting: int, holder: str) -> Reason | None:
    """The reason against pods with a claim for one pod: they are several, or another pod (`holder`) has it."""
    if waiting > 1:
        detail = f"claim {name} is ReadWriteOncePod, and several pods of one gang name it"
        return no(Code.INVALID_FIELD, field, detail, pods=waiting)
    return _not_ready(field, f"claim {name} is ReadWriteOncePod, and pod {holder} has it") if holder else None


def with_conditions(pod: Json, conditions: Sequence[Json]) -> Json:
    """The pod as if its owner had asked for such nodes, too; of several terms each one gets the conditions."""
    if not conditions:
        return pod
    spec = mapping(pod, "spec")
    affinity, node_affinity = mapping(spec, "affinity"), mapping(spec, "affinity", "nodeAffinity")
    # Terms are alternatives. A condition in one of them alone would leave the others as ways around it.
    terms = items(node_affinity, REQUIRED, "nodeSelectorTerms") or [{}]
    more = [{**term, "matchExpressions": [*items(term, "matchExpressions"), *conditions]} for term in terms]
    needed = {**affinity, "nodeAffinity": {**node_affinity, REQUIRED: {"nodeSelectorTerms": more}}}
    return {**pod, "spec": {**spec, "affinity": needed}}


def reaches(conditions: Sequence[Json], node: Node) -> bool:
    """Whether all conditions hold on the node."""
    return all(
        label_holds(text(each, "operator"), each.get("values") or [], node.label(text(each, "key")))
        for each in conditions
    )


def _not_ready(field: str, detail: str) -> Reason:
    return no(Code.VOLUME_NOT_READY, field, detail)


def _read_volume(field: str, name: str, volume: Json) -> ClaimReach | Reason:
    needed = items(volume, "spec", "nodeAffinity", "required", "nodeSelectorTerms")
    found = in_one_term(needed)
    if found is None:
        detail = f"claim {name}: the node affinity of its volume is not one term of known conditions"
        return no(Code.NOT_SUPPORTED_YET, field, detail, terms=len(needed))
    labels = mapping(volume, "metadata", "labels")
    zones = [_is_in(key, str(labels[key]).split("__")) for key in ZONE_LABELS if labels.get(key)]
    return ClaimReach((*found, *zones))


def _read_class(field: str, name: str, chosen: str, kind: Json) -> ClaimReach | Reason:
    """A claim for which a node was chosen before stays with it until whoever makes volumes gives it up."""
    allowed = [
        {"matchExpressions": [_is_in(text(each, "key"), each.get("values") or []) for each in items(term, _TOPOLOGY)]}
        for term in items(kind, "allowedTopologies")
    ]
    found = in_one_term(allowed)
    if found is None:
        detail = f"claim {name}: its class allows several topologies of several labels"
        return no(Code.NOT_SUPPORTED_YET, field, detail, terms=len(allowed))
    return ClaimReach((*found, *([_is_in(HOST_LABEL, [chosen])] if chosen else [])), provisions=True)


_TOPOLOGY = "matchLabelExpressions"


def in_one_term(terms: Sequence[Json]) -> tuple[Json, ...] | None:
    """The conditions on labels of alternatives that can be said in one term; None where they cannot."""
    conditions = [items(term, "matchExpressions") for term in terms]
    if any(term.get("matchFields") for term in terms) or any(
        text(each, "operator") not in frozenset(Operator) for each in (one for many in conditions for one in many)
    ):
        return None
    if len(terms) <= 1:
        return tuple(conditions[0]) if terms else ()
    # Alternatives of one label are one list of its values; of several labels no single term says "or".
    keys = {text(each, "key") for many in conditions for each in many}
    if len(keys) == 1 and all(len(many) == 1 and text(many[0], "operator") == Operator.IN for many in conditions):
        return (_is_in(keys.pop(), list(_values(conditions))),)
    return None


def _values(conditions: Sequence[Sequence[Json]]) -> Iterator[str]:
    for many in conditions:
        for each in many:
            yield from each.get("values") or []


def _is_in(key: str, values: Sequence[str]) -> Json:
    return {"key": key, "operator": Operator.IN.value, "values": sorted(set(values))}

"""
Kubernetes' own groups: the PodGroup of `scheduling.k8s.io` that a pod's `spec.schedulingGroup` names, and what is
written into its status. Pure.

Its spec never changes, so what was read once stays true. A field that nobody here knows is refused by name.
"""

from dataclasses import dataclass

from tessera.binder.adoption.decide.reading import Json, at, items, mapping, no, text, whole
from tessera_schemas.job import REPLICAS_MAX
from tessera_schemas.reasons import Code, Reason

WORKLOAD_API = "scheduling.k8s.io/v1beta1"
OLDER_WORKLOAD_API = "scheduling.k8s.io/v1alpha2"
SCHEDULED = "PodGroupScheduled"
UNSCHEDULABLE = "Unschedulable"
KNOWN = (
    "schedulingPolicy",
    "schedulingConstraints",
    "disruptionMode",
    "priority",
    "priorityClassName",
    "podGroupTemplateRef",
)
"""Of a template only the name is said. Either disruption mode allows what is done: all pods go together."""
TOPOLOGY = "PodGroup.spec.schedulingConstraints.topology"


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """
    What a PodGroup asks for. `min_count` pods start together; 0: each pod by itself. `topology` is the node label of
    which all pods share one value; "" for none. `priority` stands in place of the pods' own.
    """

    min_count: int = 0
    topology: str = ""
    priority: int | None = None
    priority_class: str = ""


def policy_of(pod_group: Json) -> GroupPolicy | Reason:
    """What it asks for, or the first field of it that cannot be honoured."""
    spec = mapping(pod_group, "spec")
    unknown = sorted(name for name, value in spec.items() if name not in KNOWN and value)
    if unknown:
        return no(Code.NOT_SUPPORTED_YET, f"PodGroup.spec.{unknown[0]}", "nothing here does what it asks for")
    count = _min_count(mapping(spec, "schedulingPolicy"))
    if isinstance(count, Reason):
        return count
    topology = _topology(mapping(spec, "schedulingConstraints"))
    if isinstance(topology, Reason):
        return topology
    if topology and not count:
        return no(Code.NOT_SUPPORTED_YET, TOPOLOGY, "pods that start one by one are not kept together; say a gang")
    priority = spec.get("priority")
    return GroupPolicy(count, topology, priority if type(priority) is int else None, text(spec, "priorityClassName"))


def _min_count(policy: Json) -> int | Reason:
    if "gang" not in policy:
        other = sorted(name for name in policy if name != "basic")
        field = f"PodGroup.spec.schedulingPolicy.{other[0]}" if other else ""
        return no(Code.NOT_SUPPORTED_YET, field, "gang and basic are honoured") if other else 0
    count = whole(policy, "gang", "minCount") or 0
    if not 1 <= count <= REPLICAS_MAX:
        field = "PodGroup.spec.schedulingPolicy.gang.minCount"
        return no(Code.INVALID_FIELD, field, f"{count} is no number of pods", pods_max=REPLICAS_MAX)
    return count


def _topology(constraints: Json) -> str | Reason:
    unknown = sorted(name for name, value in constraints.items() if name != "topology" and value)
    if unknown:
        field = f"PodGroup.spec.schedulingConstraints.{unknown[0]}"
        return no(Code.NOT_SUPPORTED_YET, field, "topology is honoured")
    said = items(constraints, "topology")
    if len(said) > 1 or any(set(one) - {"key"} for one in said):
        return no(Code.NOT_SUPPORTED_YET, TOPOLOGY, "the key of one node label is honoured")
    return text(said[0], "key") if said else ""


def status_patch(pod_group: Json, is_scheduled: bool, reason: str, message: str, now: str) -> Json | None:
    """
    The merge patch that says whether its gang is placed; None when it says so already. `now` is RFC 3339.

    It is held to the version that was looked at, and names the other conditions as they are.
    """
    conditions = items(pod_group, "status", "conditions")
    before = next((one for one in conditions if one.get("type") == SCHEDULED), {})
    status = "True" if is_scheduled else "False"
    if (before.get("status"), before.get("reason")) == (status, reason) and (
        is_scheduled or before.get("message") == message
    ):
        return None
    ours = {
        "type": SCHEDULED,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": text(before, "lastTransitionTime") if before.get("status") == status else now,
        "observedGeneration": at(pod_group, "metadata", "generation") or 0,
    }
    held = {name: text(pod_group, "metadata", name) for name in ("uid", "resourceVersion")}
    others = [one for one in conditions if one.get("type") != SCHEDULED]
    return {"metadata": held, "status": {"conditions": [*others, ours]}}

"""
PodGroups: Kubernetes' own of `scheduling.k8s.io`, which a pod's `spec.schedulingGroup` names and whose status we write,
and that of the coscheduling plugin, which pods name by a label. Pure.

The spec of Kubernetes' own never changes, so what was read once stays true. A field that nobody here knows is refused
by name.
"""

from typing import ClassVar

from tessera.binder.workloads.marks import not_honoured_fields
from tessera.binder.workloads.port import GangMark, GroupKind, GroupPolicy, KindRights, Workload
from tessera.binder.workloads.reading import items, mapping, no, text, whole
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import POD_GROUP_LABEL
from tessera_schemas.job import REPLICAS_MAX
from tessera_schemas.reasons import Code, Reason

WORKLOAD_API = "scheduling.k8s.io/v1beta1"
OLDER_WORKLOAD_API = "scheduling.k8s.io/v1alpha2"
KNOWN = (
    "schedulingPolicy",
    "schedulingConstraints",
    "disruptionMode",
    "priority",
    "priorityClassName",
    "preemptionPolicy",
    "resourceClaims",
    "podGroupTemplateRef",
    "workloadRef",
    "parentCompositePodGroupName",
)
"""
Two of them, of an older and a newer version, only name a template; pods say which of the claims they use. The last
makes it a part of a tree (`composite`).
"""
SINGLY, TOGETHER = ("Pod", "single"), ("PodGroup", "all")
"""How pods may be disrupted, by the words of both versions; a gang goes together, which either allows."""
NAME = "PodGroup"
TOPOLOGY = f"{NAME}.spec.schedulingConstraints.topology"
POD_GROUP_API = "scheduling.x-k8s.io/v1alpha1"


class PodGroup(Workload):
    """Kubernetes' own; its pods are submitted together, whoever makes them."""

    kind: ClassVar[GroupKind | None] = GroupKind.POD_GROUP
    api_group: ClassVar[str] = "scheduling.k8s.io"
    kinds: ClassVar[tuple[str, ...]] = ("PodGroup",)
    condition: ClassVar[str] = "PodGroupScheduled"
    initial_condition: ClassVar[str] = "PodGroupInitiallyScheduled"
    reason: ClassVar[str] = "Unschedulable"
    observes: ClassVar[bool] = True
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("scheduling.k8s.io", ("podgroups",), ("get", "list"), status=("patch",)),
    )

    def condition_of(self, thing: Json) -> tuple[str, bool]:
        """The condition's type, and whether it stands for the first success alone, as that of `v1beta1` does."""
        is_newer = text(thing, "apiVersion") not in ("", OLDER_WORKLOAD_API)
        return (self.initial_condition, True) if self.condition and is_newer else (self.condition, False)


class MarkedPodGroup(PodGroup):
    """
    One that pods name by a mark, and that says the least number of them.

    `honoured` are the fields of its spec that are; each other one is said.
    """

    condition: ClassVar[str] = ""
    honoured: ClassVar[tuple[str, ...]] = ("minMember",)
    api_group: ClassVar[str] = "scheduling.x-k8s.io"
    marks: ClassVar[tuple[GangMark, ...]] = (
        GangMark((POD_GROUP_LABEL,), api_version=POD_GROUP_API, kind="PodGroup", at_least=True),
        GangMark(
            ("pod-group.scheduling.sigs.k8s.io/name",),
            size="pod-group.scheduling.sigs.k8s.io/min-available",
            size_in="labels",
            at_least=True,
        ),
        GangMark(("pod-group.scheduling.sigs.k8s.io",), api_version=POD_GROUP_API, kind="PodGroup", at_least=True),
    )
    rights: ClassVar[tuple[KindRights, ...]] = (KindRights("scheduling.x-k8s.io", ("podgroups",), ("get",)),)

    def size(self, owner: Json) -> int | Reason:
        """The least number, `minMember`."""
        return whole(owner, "spec", "minMember") or no(Code.MISSING_FIELD, "spec.minMember")

    def wishes(self, owner: Json) -> list[str]:
        """A sentence about each field of its spec that is not honoured."""
        return not_honoured_fields(mapping(owner, "spec"), "PodGroup.spec", self.honoured)


def policy_of(group: Json, kind: str = NAME, counted: str = "minCount") -> GroupPolicy | Reason:
    """
    The policy of a PodGroup, or of a group of groups whose gang is `counted` by another field; or the first field of it
    that cannot be honoured.
    """
    spec = mapping(group, "spec")
    unknown = sorted(name for name, value in spec.items() if value and not _is_known(name, kind))
    if unknown:
        return no(Code.NOT_SUPPORTED_YET, f"{kind}.spec.{unknown[0]}", "nothing here does what it asks for")
    count = _min_count(mapping(spec, "schedulingPolicy"), kind, counted)
    if isinstance(count, Reason):
        return count
    if spec.get("preemptionPolicy", "PreemptLowerPriority") != "PreemptLowerPriority":
        field = f"{kind}.spec.preemptionPolicy"
        return no(Code.NOT_SUPPORTED_YET, field, "use a PriorityClass that may preempt")
    unmet = _unmet_mode(spec.get("disruptionMode"), kind, is_gang=bool(count))
    if unmet is not None:
        return unmet
    topology = _topology(mapping(spec, "schedulingConstraints"), kind)
    if isinstance(topology, Reason):
        return topology
    if topology and not count:
        field = f"{kind}.spec.schedulingConstraints.topology"
        return no(Code.NOT_SUPPORTED_YET, field, "pods that start one by one are not kept together; say a gang")
    priority = spec.get("priority")
    return GroupPolicy(count, topology, priority if type(priority) is int else None, text(spec, "priorityClassName"))


def _is_known(name: str, kind: str) -> bool:
    return name in KNOWN and (kind == NAME or name != "resourceClaims")


def _unmet_mode(mode: object, kind: str, is_gang: bool) -> Reason | None:
    """A word in the older version, an object with one field in the newer one."""
    named = next(iter(mode), "") if isinstance(mode, dict) else mode or ""
    field = f"{kind}.spec.disruptionMode"
    if named in TOGETHER and not is_gang:
        return no(Code.NOT_SUPPORTED_YET, field, "pods that start one by one are evicted so; say a gang")
    if named not in ("", *SINGLY, *TOGETHER):
        return no(Code.NOT_SUPPORTED_YET, field, "pods go one by one, or all together as a gang")
    return None


def _min_count(policy: Json, kind: str, counted: str) -> int | Reason:
    if "gang" not in policy:
        other = sorted(name for name in policy if name != "basic")
        field = f"{kind}.spec.schedulingPolicy.{other[0]}" if other else ""
        return no(Code.NOT_SUPPORTED_YET, field, "gang and basic are honoured") if other else 0
    count = whole(policy, "gang", counted) or 0
    if not 1 <= count <= REPLICAS_MAX:
        field = f"{kind}.spec.schedulingPolicy.gang.{counted}"
        return no(Code.INVALID_FIELD, field, f"{count} is no number of pods", pods_max=REPLICAS_MAX)
    return count


def _topology(constraints: Json, kind: str) -> str | Reason:
    field = f"{kind}.spec.schedulingConstraints"
    unknown = sorted(name for name, value in constraints.items() if name != "topology" and value)
    if unknown:
        return no(Code.NOT_SUPPORTED_YET, f"{field}.{unknown[0]}", "topology is honoured")
    given = items(constraints, "topology")
    if len(given) > 1 or any(set(one) - {"key"} for one in given):
        return no(Code.NOT_SUPPORTED_YET, f"{field}.topology", "the key of one node label is honoured")
    return text(given[0], "key") if given else ""

"""
Port of the kinds of workload, and the words of adoption: groups of pods, the marks that name them, the pods that an
owner's templates will become. Pure.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from tessera.binder.workloads.batch_jobs import all_come_back
from tessera.binder.workloads.reading import mapping, no, text
from tessera.binder.workloads.references import OwnerRef, OwnersByRef, controller_of, is_it, not_found, ref_of
from tessera_schemas.base import Json
from tessera_schemas.job import REPLICAS_MAX
from tessera_schemas.reasons import Code, Reason

ANCHOR_CHARACTERS = 40
PARTS_MAX = 64
MEMBERS = "members"
"""Beside `spec` of an object as we keep it: all of its namespace that have to be seen with it, by kind."""
PLACED = "tessera.io/Placed"
"""The condition on users' objects that says whether their pods have their nodes."""


class GroupKind(StrEnum):
    """Reason why the pods are one group; the value is shown to people."""

    GANG = "Gang"
    POD_GROUP = "PodGroup"
    COMPOSITE = "CompositePodGroup"
    POD_GANG = "PodGang"
    RAY_CLUSTER = "RayCluster"
    RAY_JOB = "RayJob"
    JOB_SET = "JobSet"
    TRAINING_JOB = "TrainingJob"
    JOB = "Job"
    POD = "Pod"


COUNTED = (GroupKind.RAY_CLUSTER, GroupKind.RAY_JOB, GroupKind.JOB_SET, GroupKind.TRAINING_JOB, GroupKind.JOB)


@dataclass(frozen=True, slots=True)
class GangMark:
    """
    `names` are the keys of which the first that is there names the gang. The number comes from the pods' `size`, from
    the object of kind `api_version`/`kind` that is called like the gang, or from the `parts` that the pods list.

    `at_least`: further pods start by themselves once the gang is at work; `replaces`: those in the place of one that
    failed, without which the others go on. `settles`: where there is no such object the gang is the pods that are
    there, once no more have come for a while. `only_with` is a mark without which the name means no gang. `made_by` is
    the object that makes the pods, perhaps one after the other: apiVersion, kind, and the label that has its name.
    """

    names: tuple[str, ...]
    size: str = ""
    size_in: str = "annotations"
    api_version: str = ""
    kind: str = ""
    parts: str = ""
    at_least: bool = False
    replaces: bool = False
    settles: bool = False
    only_with: str = ""
    made_by: tuple[str, str, str] = ("", "", "")


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """
    Policy of a PodGroup. `min_count` pods start together; 0: each pod by itself, or of a gang of groups as many as
    these count. `topology` is the node label of which all pods share one value; "" for none. `priority` stands in place
    of the pods' own.
    """

    min_count: int = 0
    topology: str = ""
    priority: int | None = None
    priority_class: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """
    `id` gathers the pods: two pods are of one group exactly when their ids are equal.

    `owner` is the object that `size_of` and `spec_of` have to see, None where they need none. `size` is what the pod
    itself says about it; 0 where the owner says it, or all pods together. For a pod by itself `name` is the pod's.
    `mark` is what the pods name the gang by. `policy` is what Kubernetes' own group of them asks for, and `pod_group`
    that group, whose status we write. `beside` are the pods of its owner that start or run by themselves, by part.
    """

    kind: GroupKind
    namespace: str
    name: str
    id: str
    size: int = 0
    owner: OwnerRef | None = None
    mark: GangMark | None = None
    policy: GroupPolicy | None = None
    pod_group: OwnerRef | None = None
    beside: tuple[tuple[str, int], ...] = ()

    @property
    def is_counted(self) -> bool:
        """Whether its owner says the number of its pods, and may change it while they run."""
        return self.kind in COUNTED and self.owner is not None

    @property
    def at_least(self) -> bool:
        """Whether further pods start by themselves, once as many as it needs are at work."""
        if self.policy is not None:
            return self.kind is not GroupKind.POD
        return self.mark is not None and self.mark.at_least

    @property
    def replaces(self) -> bool:
        """Whether its user makes another pod in the place of one that failed, and the others go on."""
        return self.mark is not None and self.mark.replaces

    @property
    def settles(self) -> bool:
        """Whether nobody says its size, so that it is the pods that are there once no more come."""
        return self.mark is not None and self.mark.settles and self.owner is None


@dataclass(frozen=True, slots=True)
class KindRights:
    """
    Rights of the binder on resources of an API group: `read` in the whole cluster, `write` in namespaces that let it
    in, `status` the verbs on the subresource there.
    """

    group: str
    resources: tuple[str, ...]
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    status: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSet:
    """
    Pods that an owner's controller will make of one template: `labels` are those that it adds, `controller` who will
    own them. `index` numbers them where the controller does, by this label.
    """

    template: Json
    count: int
    controller: OwnerRef
    labels: Json
    index: str = ""


class Workload:
    """
    One kind. The class attributes say what does not depend on an object; every method has an answer that fits pods
    which name their gang themselves.

    `kind` is None for what makes pods whose gang they name by a mark. `api_group` and `kinds` are the objects'; () says
    that there are none; `watched` those, by apiVersion and kind, that are followed since they may be suspended before
    they have a pod. `role_labels` and `index_labels` tell pods of one group apart. `suspend_at` is the field by
    which its controller is told to have no pods, () where there is none; `controllers` are the values of `managedBy`
    that mean its own controller. `condition` is the type of the condition in its status that says whether its pods have
    their nodes; "" where the status is not ours to write. `reason` is the one that it gives while they have none,
    in place of ours; `observes` that it names the generation. `makes` is the kind, by apiVersion and kind, whose object
    of the same name its controller makes, and suspends and resumes as it is itself. `members` are the kinds, by
    apiVersion and kind, of which all in the namespace have to be seen with an object.
    """

    kind: ClassVar[GroupKind | None] = None
    api_group: ClassVar[str] = ""
    kinds: ClassVar[tuple[str, ...]] = ()
    watched: ClassVar[tuple[tuple[str, str], ...]] = ()
    marks: ClassVar[tuple[GangMark, ...]] = ()
    role_labels: ClassVar[tuple[str, ...]] = ()
    index_labels: ClassVar[tuple[str, ...]] = ()
    suspend_at: ClassVar[tuple[str, ...]] = ()
    controllers: ClassVar[tuple[str, ...]] = ()
    condition: ClassVar[str] = ""
    reason: ClassVar[str] = ""
    observes: ClassVar[bool] = False
    makes: ClassVar[tuple[str, str]] = ("", "")
    members: ClassVar[tuple[tuple[str, str], ...]] = ()
    rights: ClassVar[tuple[KindRights, ...]] = ()

    def condition_of(self, thing: Json) -> tuple[str, bool]:
        """Type of the condition of this object, and whether it stays once it is True."""
        return self.condition, False

    def owns(self, ref: OwnerRef) -> bool:
        """Whether an object is of this kind."""
        return ref.group == self.api_group and ref.kind in self.kinds

    def group_of(self, pod: Json, controller: OwnerRef, known: OwnersByRef) -> Group | OwnerRef | Reason:
        """Group of a pod that an object of this kind controls, or the object that must be seen first."""
        return alone(pod)

    def gathers(self, owner: Json) -> bool:
        """Whether pods of all batch Jobs below an object of this kind start together."""
        return False

    def group(self, owner: Json) -> Group | Reason:
        """Group that the pods of an object will make."""
        ref = ref_of(owner)
        found = not_found(ref) if self.kind is None else group_of_owner(self.kind, ref, {ref: owner})
        assert not isinstance(found, OwnerRef), "the object is known"
        return found

    def size(self, owner: Json) -> int | Reason:
        """Number of pods that the object keeps at once, as it says now."""
        return no(Code.MISSING_FIELD, "metadata.ownerReferences", f"{text(owner, 'kind')} says no number of pods")

    def parts(self, mark: GangMark | None, owner: Json | None, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
        """The least number of pods of each part of the gang by name; {} where any pods of it will do."""
        return {}

    def never_whole(self, owner: Json) -> Reason | None:
        """Why the pods that the object makes are never all there at once."""
        return None

    def survives_eviction(self, pods: Sequence[Json], owner: Json | None) -> bool:
        """Whether all pods come back after they were evicted once."""
        return all_come_back(pods, owner)

    def lives_by(self, group: Group, pod: Json) -> OwnerRef:
        """The object whose completion ends the job: the controller that recreates its pods, else the pod itself."""
        return controller_of(pod) or pod_ref(group, pod)

    def anchor(self, group: Group, pods: Sequence[Json]) -> str:
        """
        An identity that stays while owners bring pods back, and differs from all that is made later under the same
        name.

        A named gang may be of pods of several owners, or of none: then the pods themselves tell it from the next one.
        """
        makers = {owner.uid if (owner := controller_of(pod)) else text(pod, "metadata", "uid") for pod in pods}
        return hashlib.sha256("\0".join((group.id, *sorted(makers))).encode()).hexdigest()[:ANCHOR_CHARACTERS]

    def keeps(self, owner: Json, gang: str) -> bool:
        """Whether the object still wants the pods of its gang of this name."""
        return True

    def keeps_failed(self, owner: Json) -> bool:
        """Whether a failed pod stays through a suspension, so that no other of its name is made afterwards."""
        return False

    def domain(self, owner: Json | None) -> tuple[Json | Reason | None, str]:
        """The `Topology` that the object asks for on behalf of all pods, and the field that says it."""
        return None, ""

    def domain_beyond(self, owner: Json | None, pod: Json) -> tuple[Json | Reason | None, str]:
        """The same, for a pod beyond those that its gang needs."""
        return self.domain(owner)

    def in_parts(self, pods: Sequence[Json]) -> Sequence[Json]:
        """The pods, each with the part of the gang that it is of, where no label of theirs says it."""
        return pods

    def in_roles(self, owner: Json | None, pods: Sequence[Json]) -> Sequence[Json]:
        """The pods, each with the name of its role, where it is not that of its part."""
        return pods

    def groups(self, owner: Json | None, ranks: Sequence[tuple[str, Json]] = ()) -> list[Json] | Reason:
        """Groups of its pods within each other (`JobSpec.groups`); `ranks` are the pods, each with its role."""
        return []

    def shown_on(self, group: Group, owner: Json | None) -> Sequence[OwnerRef]:
        """Kubernetes' own groups whose status says whether these pods have their nodes."""
        return () if group.pod_group is None else (group.pod_group,)

    def wishes(self, owner: Json) -> list[str]:
        """Settings of the object that are not honoured, beside its marks; a sentence for each."""
        return []

    def pod_sets(self, owner: Json) -> Sequence[PodSet]:
        """Pods that a suspended object will have once it is resumed; () where its templates do not say it."""
        return ()

    def late_pods(self, owner: Json) -> Mapping[str, Json]:
        """Templates of single pods that the object's controller makes once the gang runs, by a name of their part."""
        return {}


class OwnedWorkload(Workload):
    """A kind whose objects are the gang: its pods are exactly those of one object, which brings them back."""

    def lives_by(self, group: Group, pod: Json) -> OwnerRef:
        """The owner, which brings the pods back."""
        return group.owner or super().lives_by(group, pod)

    def anchor(self, group: Group, pods: Sequence[Json]) -> str:
        """The owner's UID."""
        return super().anchor(group, pods) if group.owner is None else group.owner.uid


def group_of_owner(kind: GroupKind, owner: OwnerRef, known: OwnersByRef) -> Group | OwnerRef | Reason:
    """Kind and API group are part of the id, so that no object passes for one of another kind with its UID."""
    if owner not in known:
        return owner
    found = known[owner]
    if found is None or not is_it(owner, found):
        return not_found(owner)
    key = owner.uid or text(found, "metadata", "uid")
    return Group(kind, owner.namespace, owner.name, f"{owner.group}/{owner.kind}/{owner.namespace}/{key}", 0, owner)


def alone(pod: Json, owner: OwnerRef | None = None) -> Group:
    """The name of a pod comes back with the next pod of a StatefulSet; its UID does not."""
    namespace, name, uid = (text(pod, "metadata", field) for field in ("namespace", "name", "uid"))
    return Group(GroupKind.POD, namespace, name, f"pod/{namespace}/{uid}", 1, owner)


def pod_ref(group: Group, pod: Json) -> OwnerRef:
    """The pod itself as the object that its job lives by."""
    meta = mapping(pod, "metadata")
    return OwnerRef("v1", "Pod", group.namespace, text(meta, "name"), text(meta, "uid"))


def bounded_size(value: int | Reason) -> int | Reason:
    """The number, at most as many as a job may have; a Reason where the object wants none."""
    if isinstance(value, Reason):
        return value
    if value > REPLICAS_MAX:
        return no(Code.INVALID_FIELD, "metadata.ownerReferences", "too many pods", pods=value, pods_max=REPLICAS_MAX)
    return value or no(Code.GANG_INCOMPLETE, detail="its owner wants no further pods", pods_wanted=0)

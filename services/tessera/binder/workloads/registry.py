"""
The kinds of workloads, and what is asked of all of them: which group a pod belongs to, of how many pods, and by whose
module a group or an object is read. Pure.

A group is what starts together and has one life. What an owner reference claims is checked against the object it
names, so a pod joins a Job only where the Job's own controller would count it, and never the group of another namespace
or kind. Objects are not fetched here: `group_of` says which one it must see next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain

from tessera.binder.workloads.kinds.composite import (
    COMPOSITE,
    COMPOSITE_API,
    PART,
    PLACE,
    CompositePodGroup,
    find_root,
    too_deep,
)
from tessera.binder.workloads.kinds.gang import ARMADAS, KOORDINATORS, KUEUES, OURS, YUNIKORNS, MarkedGang, read_size
from tessera.binder.workloads.kinds.grove import PodGang
from tessera.binder.workloads.kinds.job import BatchJob
from tessera.binder.workloads.kinds.job_set import JobSet, TrainJob
from tessera.binder.workloads.kinds.kubeflow import TrainingJob
from tessera.binder.workloads.kinds.leader_worker_set import LeaderWorkerSet
from tessera.binder.workloads.kinds.pod import SinglePod
from tessera.binder.workloads.kinds.pod_group import (
    OLDER_WORKLOAD_API,
    TOPOLOGY,
    WORKLOAD_API,
    MarkedPodGroup,
    PodGroup,
    policy_of,
)
from tessera.binder.workloads.kinds.ray import RayCluster, RayJob
from tessera.binder.workloads.kinds.volcano import VolcanoPodGroup
from tessera.binder.workloads.marks import found_in, read_mark, said_preemptible
from tessera.binder.workloads.port import (
    GangMark,
    Group,
    GroupKind,
    GroupPolicy,
    Workload,
    alone,
    bounded_size,
    group_of_owner,
)
from tessera.binder.workloads.reading import as_part, mapping, no, text
from tessera.binder.workloads.references import OwnerRef, OwnersByRef, controller_of, is_it, not_found
from tessera_schemas.base import Json
from tessera_schemas.cluster.gang_groups import DEPTH_MAX
from tessera_schemas.cluster.labels import FINALIZER, GANG_LABEL, SCHEDULER_NAME
from tessera_schemas.reasons import Code, Reason

TRAINING_JOB, JOB_SET, TRAIN_JOB = TrainingJob(), JobSet(), TrainJob()
JOB = BatchJob(above=(JOB_SET, TRAINING_JOB))
POD_GROUP, COSCHEDULING, VOLCANO, GROVE = PodGroup(), MarkedPodGroup(), VolcanoPodGroup(), PodGang()
TREE = CompositePodGroup()
LEADER_WORKER_SET, RAY_CLUSTER, RAY_JOB, GANG, POD = (
    LeaderWorkerSet(), RayCluster(), RayJob(), MarkedGang(), SinglePod()
)  # fmt: skip

KINDS: tuple[Workload, ...] = (
    TRAINING_JOB, JOB_SET, TRAIN_JOB, JOB, LEADER_WORKER_SET, POD_GROUP, TREE, COSCHEDULING, VOLCANO, GROVE, GANG,
    RAY_CLUSTER, RAY_JOB, POD,
)  # fmt: skip
"""In the order in which their labels tell pods of one group apart."""
GANGS = (OURS, *COSCHEDULING.marks, *VOLCANO.marks, *GROVE.marks, KUEUES, YUNIKORNS, *LEADER_WORKER_SET.marks,
         KOORDINATORS, ARMADAS, *RAY_CLUSTER.marks)  # fmt: skip
"""In the order in which they count where a pod has several; ours first."""
ROLE_LABELS = (PART, *chain.from_iterable(kind.role_labels for kind in KINDS))
"""Labels, or annotations."""
INDEX_LABELS = (PLACE, *chain.from_iterable(kind.index_labels for kind in KINDS))
OWNER_INDEX_LABELS = frozenset((PLACE, *JOB_SET.index_labels))
"""Those that number the owners of pods: all pods of one Job of a JobSet have the same."""
CONTROLLERS = ("", *chain.from_iterable(kind.controllers for kind in KINDS))
"""Values of `managedBy` by which the kind's own controller looks after an object."""
VERSIONS: Mapping[str, tuple[str, ...]] = {WORKLOAD_API: (WORKLOAD_API, OLDER_WORKLOAD_API)}
"""By apiVersion: those in which a server may serve the same kind, the newest first; only those that have several."""
_BY_KIND = {kind.kind: kind for kind in reversed(KINDS) if kind.kind is not None}


def kind_of(ref: OwnerRef) -> Workload | None:
    """The kind of an object; None for one that nobody here knows."""
    return _kind(ref.api_version, ref.kind)


def kind_of_object(thing: Json) -> Workload | None:
    """The same, of an object that says its apiVersion and kind."""
    return _kind(text(thing, "apiVersion"), text(thing, "kind"))


@lru_cache(maxsize=256)
def _kind(api_version: str, kind: str) -> Workload | None:
    ref = OwnerRef(api_version, kind, "", "")
    return next((each for each in KINDS if each.owns(ref)), None)


def hands_down(maker: OwnerRef) -> bool:
    """Whether an object of this kind suspends and resumes the one that it makes, as it is itself."""
    kind = kind_of(maker)
    return kind is not None and kind.makes != ("", "")


def kind_of_group(group: Group) -> Workload:
    """The kind that a group's pods are read by: that of the object which their mark names, else the group's own."""
    mark = group.mark
    api_version, kind = ("", "") if mark is None else (mark.api_version, mark.kind) if mark.kind else mark.made_by[:2]
    return (kind_of(OwnerRef(api_version, kind, "", "")) if kind else None) or _BY_KIND[group.kind]


# -- the group of a pod -----------------------------------------------------------------------------------------------


def group_of(pod: Json, known: OwnersByRef) -> Group | OwnerRef | Reason:
    """
    The pod's group; or the object that must be looked up (and put into `known`) before that can be said; or why not.

    Asks at most twice for one pod: its Job, and what owns the Job. A Reason is one to wait with (the PodGroup is not
    there yet) or a refusal (a gang without a size).
    """
    marked = gang_mark(pod)
    named = text(pod, "spec", "schedulingGroup", "podGroupName")
    if named and (marked is None or marked[0] is not OURS):
        return _read_pod_group(pod, named, known)
    if marked is not None:
        return _marked(pod, *marked, known)
    unnamed = unnamed_gang(pod)
    if unnamed is not None:
        return unnamed
    controller = controller_of(pod)
    kind = None if controller is None else kind_of(controller)
    return alone(pod) if controller is None or kind is None else kind.group_of(pod, controller, known)


def gang_mark(pod: Json) -> tuple[GangMark, str, str] | None:
    """The pod's mark, the gang's name and the field that says it."""
    for mark in GANGS:
        name, field = found_in(pod, *mark.names)
        if not field and mark.names == (GANG_LABEL,) and GANG_LABEL in mapping(pod, "metadata", "labels"):
            return mark, "", f"metadata.labels[{GANG_LABEL}]"
        if name and (not mark.only_with or read_mark(pod, mark.only_with)):
            return mark, name, field
    return None


def unnamed_gang(pod: Json) -> Reason | None:
    """The mark that lacks where a pod says what its gang needs, and not which gang that is."""
    for mark in GANGS:
        for key in filter(None, (mark.only_with, mark.parts, mark.size)):
            if read_mark(pod, key):
                is_named = bool(mark.only_with and read_mark(pod, *mark.names))
                field = f"annotations[{mark.only_with}]" if is_named else f"labels[{mark.names[-1]}]"
                return no(Code.MISSING_FIELD, f"metadata.{field}", f"{key} is said of a gang that nothing names")
    return None


def _marked(pod: Json, mark: GangMark, name: str, field: str, known: OwnersByRef) -> Group | OwnerRef | Reason:
    """The gang that the pod names: it says its number itself, or an object of that name does."""
    namespace = text(pod, "metadata", "namespace")
    if not name:
        return no(Code.INVALID_FIELD, field, "the gang has no name")
    if mark.kind:
        owner = OwnerRef(mark.api_version, mark.kind, namespace, name)
        found = group_of_owner(GroupKind(mark.kind), owner, known)
        is_missing = isinstance(found, Reason) and owner in known and known[owner] is None
        if not (mark.settles and is_missing):
            return _made_below(replace(found, mark=mark), owner, known) if isinstance(found, Group) else found
    size = read_size(mark, name, pod)
    if isinstance(size, Reason):
        return size
    controller = controller_of(pod)
    job = controller if controller is not None and JOB.owns(controller) and not mark.kind else None
    prefix = "gang" if mark is OURS else f"gang/{mark.names[0]}"
    return Group(GroupKind.GANG, namespace, name, f"{prefix}/{namespace}/{name}", size, job, mark)


def _made_below(group: Group, owner: OwnerRef, known: OwnersByRef) -> Group | OwnerRef:
    """The group, or that of the object which makes its owner and takes it away with a suspension."""
    maker = controller_of(known[owner] or {})
    return group if maker is None or not RAY_JOB.owns(maker) else RAY_JOB.group_of_cluster(group, maker, known)


def pod_group_ref(namespace: str, name: str) -> OwnerRef:
    """Reference to Kubernetes' own PodGroup of that name."""
    return OwnerRef(WORKLOAD_API, "PodGroup", namespace, name)


def _read_pod_group(pod: Json, name: str, known: OwnersByRef) -> Group | OwnerRef | Reason:
    """
    The group that Kubernetes' own PodGroup makes of its pods.

    One that a Job's controller made for its pods is the Job's group, with what the PodGroup asks for: so the Job's
    own life, retries and suspension go on deciding.
    """
    ref = pod_group_ref(text(pod, "metadata", "namespace"), name)
    if ref not in known:
        return ref
    found = known[ref]
    if found is None:
        return not_found(ref)
    tree = _tree_of(found, ref.namespace, known)
    if tree is not None:
        return tree
    policy = policy_of(found)
    if isinstance(policy, Reason):
        return policy
    controller = controller_of(pod)
    job = controller if controller is not None and JOB.owns(controller) else None
    if not policy.min_count:
        return replace(alone(pod, job), policy=policy, pod_group=ref)
    if job is not None and controller_of(found) == job:
        own = JOB.group_of(pod, job, known)
        if not isinstance(own, Group) or own.kind is GroupKind.JOB:
            return replace(own, policy=policy, pod_group=ref) if isinstance(own, Group) else own
    group_id = f"{ref.group}/{ref.kind}/{ref.namespace}/{text(found, 'metadata', 'uid')}"
    return Group(GroupKind.POD_GROUP, ref.namespace, name, group_id, policy.min_count, job, None, policy, ref)


def _tree_of(pod_group: Json, namespace: str, known: OwnersByRef) -> Group | OwnerRef | Reason | None:
    """The gang of groups that a PodGroup is in; None where it is in none."""
    above, name = list[Json](), text(pod_group, "spec", "parentCompositePodGroupName")
    while name:
        ref = OwnerRef(COMPOSITE_API, COMPOSITE, namespace, name)
        if ref not in known:
            return ref
        found = known[ref]
        if found is None:
            return not_found(ref)
        above.append(found)
        if len(above) >= DEPTH_MAX:
            return too_deep()
        name = text(found, "spec", "parentCompositePodGroupName")
    root = find_root(pod_group, above)
    if isinstance(root, Reason) or not root[1]:
        return root if isinstance(root, Reason) else None
    owner = OwnerRef(COMPOSITE_API, COMPOSITE, namespace, text(root[0], "metadata", "name"))
    policy = policy_of(root[0], COMPOSITE, "minGroupCount")
    if isinstance(policy, Reason):
        return policy
    group = group_of_owner(GroupKind.COMPOSITE, owner, known)
    its = GroupPolicy(priority=policy.priority, priority_class=policy.priority_class)
    return replace(group, policy=its) if isinstance(group, Group) else group


# -- what a group asks for --------------------------------------------------------------------------------------------


def size_of(group: Group, owner: Json | None, pods: Sequence[Json] = ()) -> int | Reason:
    """
    Number of pods that the group starts with now. `owner` is the current object of `group.owner`, None if there is
    none; `pods` are those that wait.

    What has succeeded already is not waited for again, so after an eviction the number may be less than at first.
    """
    if group.mark is not None and group.mark.parts:
        parts = parts_of(group, owner, pods)
        return parts if isinstance(parts, Reason) else sum(parts.values()) or 1
    if group.size or group.owner is None:
        return group.size or len(pods)
    if owner is None or not is_it(group.owner, owner):
        return not_found(group.owner)
    wanted = bounded_size(kind_of_group(group).size(owner))
    if isinstance(wanted, Reason):
        return wanted
    if group.beside:
        parts = parts_of(group, owner, pods)
        left = wanted - sum(number for _, number in group.beside)
        wanted = bounded_size(max(0, sum(parts.values()) if isinstance(parts, dict) and parts else left))
    least = 0 if group.policy is None else group.policy.min_count
    return min(wanted, least) if least and isinstance(wanted, int) else wanted


def parts_of(group: Group, owner: Json | None, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
    """The least number of pods of each part of the gang by name; {} where any pods of it will do."""
    found, beside = kind_of_group(group).parts(group.mark, owner, pods), dict(group.beside)
    if isinstance(found, Reason) or not group.is_counted:
        return found
    # Pods that do not say of which part they are count as any.
    if not {part_of(pod) for pod in pods} <= {as_part(name) for name in found}:
        return {}
    left = {name: least - beside.get(as_part(name), 0) for name, least in found.items()}
    return {name: number for name, number in left.items() if number > 0}


def wanted_pods(owner: Json) -> Mapping[str, int] | None:
    """Number of pods that an object keeps at once, or at least, by part, "": of all; None where it does not say."""
    kind = kind_of_object(owner)
    size = no(Code.MISSING_FIELD) if kind is None else kind.size(owner)
    if kind is None or isinstance(size, Reason):
        return None
    parts = kind.parts(None, owner, ())
    return {as_part(name): n for name, n in parts.items()} if isinstance(parts, dict) and parts else {"": size}


def part_of(pod: Json) -> str:
    """The owner's name for the part of the group that the pod is of, as far as it can name a role."""
    labels, notes = mapping(pod, "metadata", "labels"), mapping(pod, "metadata", "annotations")
    found = next((name for key in ROLE_LABELS if (name := text(labels, key) or text(notes, key))), "")
    return as_part(found)


def domain_of(group: Group, owner: Json | None) -> tuple[Json | Reason | None, str]:
    """The `Topology` that a group's object asks for on behalf of all its pods, and the field that says it."""
    if group.policy is not None and group.policy.topology:
        return {"level": group.policy.topology}, TOPOLOGY
    return kind_of_group(group).domain(owner)


def domain_beyond(group: Group, owner: Json | None, pod: Json) -> tuple[Json | Reason | None, str]:
    """The same, as far as it concerns a pod beyond those that the group needs."""
    is_of_group = group.policy is not None and group.policy.topology
    return domain_of(group, owner) if is_of_group else kind_of_group(group).domain_beyond(owner, pod)


def survives_eviction(group: Group, pods: Sequence[Json], owner: Json | None) -> bool:
    """
    Whether the group survives an eviction: by what its pods say, else by whether their owner makes all of them again.
    """
    said = said_preemptible(pods, owner)
    return kind_of_group(group).survives_eviction(pods, owner) if said is None else said


def waits(pod: Json) -> bool:
    """Whether the pod wants to be placed by us now: not bound, gated, ended or being deleted, and not of our making."""
    meta, spec = mapping(pod, "metadata"), mapping(pod, "spec")
    finalizers = meta.get("finalizers")
    ours = isinstance(finalizers, list) and FINALIZER in finalizers
    free = not (spec.get("nodeName") or spec.get("schedulingGates") or meta.get("deletionTimestamp"))
    pending = (text(pod, "status", "phase") or "Pending") == "Pending"
    return spec.get("schedulerName") == SCHEDULER_NAME and free and pending and not ours

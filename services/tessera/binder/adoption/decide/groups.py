"""
Which group a pod of a user belongs to. Pure.

A group is what starts together and has one life: a gang that the pods name (`gang_marks`), a PodGroup, a batch Job, a
JobSet, a training job of Kubeflow, or one pod by itself. What an owner reference claims is checked against the object
it names, so a pod joins a Job only where the Job's own controller would count it, and never the group of another
namespace or kind. Objects are not fetched here: `group_of` says which one it must see next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tessera.binder.adoption.decide.gang_marks import GANGS, TASK_GROUP, GangMark, gang_mark, parts_of, size_said
from tessera.binder.adoption.decide.marks import said
from tessera.binder.adoption.decide.pod_groups import WORKLOAD_API, GroupPolicy, policy_of
from tessera.binder.adoption.decide.reading import Json, at, items, mapping, no, text
from tessera.binder.adoption.decide.sizes import comes_in_stages, comes_in_waves, is_apart, least_pods, pods_said
from tessera_schemas.labels import FINALIZER, SCHEDULER_NAME
from tessera_schemas.reasons import Code, Reason

TRAINING_NAME_LABEL = "training.kubeflow.org/job-name"


class GroupKind(StrEnum):
    """What makes the pods one group; the value is shown to people."""

    GANG = "Gang"
    POD_GROUP = "PodGroup"
    RAY_CLUSTER = "RayCluster"
    JOB_SET = "JobSet"
    TRAINING_JOB = "TrainingJob"
    JOB = "Job"
    POD = "Pod"


@dataclass(frozen=True, slots=True)
class OwnerRef:
    """An object of the API. `uid` is "" where only a label names it."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""

    @property
    def group(self) -> str:
        """API group of the owner, "" for the core group."""
        return self.api_version.partition("/")[0] if "/" in self.api_version else ""


@dataclass(frozen=True, slots=True)
class Group:
    """
    `id` gathers the pods: two pods are of one group exactly when their ids are equal.

    `owner` is the object that `size_of` and `spec_of` have to see, None where they need none. `size` is what the pod
    itself says about it; 0 where the owner says it, or all pods together. For a pod by itself `name` is the pod's.
    `mark` is what the pods name the gang by. `policy` is what Kubernetes' own group of them asks for, and `pod_group`
    that group, whose status we write.
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

    @property
    def at_least(self) -> bool:
        """Whether further pods start by themselves, once as many as it needs are at work."""
        if self.policy is not None:
            return self.kind is not GroupKind.POD
        return self.mark is not None and self.mark.at_least

    @property
    def settles(self) -> bool:
        """Whether nobody says its size, so that it is the pods that are there once no more come."""
        return self.mark is not None and self.mark.settles and self.owner is None


Known = Mapping[OwnerRef, Json | None]
"""Objects as the API has them now; None: it has none of that name."""


def group_of(pod: Json, known: Known) -> Group | OwnerRef | Reason:
    """
    The pod's group; or the object that must be looked up (and put into `known`) before that can be said; or why not.

    Asks at most twice for one pod: its Job, and what owns the Job. A Reason is one to wait with (the PodGroup is not
    there yet) or a refusal (a gang without a size).
    """
    marked = gang_mark(pod)
    named = text(pod, "spec", "schedulingGroup", "podGroupName")
    if named and (marked is None or marked[0] is not GANGS[0]):
        return _of_pod_group(pod, named, known)
    if marked is not None:
        return _marked(pod, *marked, known)
    if said(pod, TASK_GROUP):
        return no(Code.MISSING_FIELD, "metadata.labels[applicationId]", "a task group is of an application")
    labels = mapping(pod, "metadata", "labels")
    controller = controller_of(pod)
    if controller is None:
        return alone(pod)
    if _is_training_job(controller):
        counted = labels.get(TRAINING_NAME_LABEL) == controller.name
        return _of_owner(GroupKind.TRAINING_JOB, controller, known) if counted else alone(pod)
    return _of_job(pod, controller, known) if _is_job(controller) else alone(pod)


def size_of(group: Group, owner: Json | None, pods: Sequence[Json] = ()) -> int | Reason:
    """
    How many pods the group starts with now. `owner` is the current object of `group.owner`, None if there is none;
    `pods` are those that wait.

    What has succeeded already is not waited for again, so after an eviction the number may be less than at first.
    """
    if group.mark is not None and group.mark.parts:
        parts = parts_of(group.mark, owner, pods)
        return parts if isinstance(parts, Reason) else sum(parts.values()) or 1
    if group.size or group.owner is None:
        return group.size or len(pods)
    if owner is None or not _is_it(group.owner, owner):
        return not_found(group.owner)
    wanted = pods_said(group.owner.kind, owner)
    if isinstance(wanted, Reason) or group.policy is None:
        return wanted
    return min(wanted, group.policy.min_count)


def waits(pod: Json) -> bool:
    """Whether the pod wants to be placed by us now: not bound, gated, ended or being deleted, and not of our making."""
    meta, spec = mapping(pod, "metadata"), mapping(pod, "spec")
    finalizers = meta.get("finalizers")
    ours = isinstance(finalizers, list) and FINALIZER in finalizers
    free = not (spec.get("nodeName") or spec.get("schedulingGates") or meta.get("deletionTimestamp"))
    pending = (text(pod, "status", "phase") or "Pending") == "Pending"
    return spec.get("schedulerName") == SCHEDULER_NAME and free and pending and not ours


def controller_of(thing: Json) -> OwnerRef | None:
    """Who makes it again when it is gone; an object has one controller at most."""
    namespace = text(thing, "metadata", "namespace")
    for ref in items(thing, "metadata", "ownerReferences"):
        if ref.get("controller") is True:
            return OwnerRef(text(ref, "apiVersion"), text(ref, "kind"), namespace, text(ref, "name"), text(ref, "uid"))
    return None


def not_found(owner: OwnerRef) -> Reason:
    """Reason for pods whose owner the API does not have."""
    return no(Code.OWNER_NOT_FOUND, f"{owner.kind} {owner.namespace}/{owner.name}")


def _marked(pod: Json, mark: GangMark, name: str, field: str, known: Known) -> Group | OwnerRef | Reason:
    """The gang that the pod names: it says its number itself, or an object of that name does."""
    namespace = text(pod, "metadata", "namespace")
    if not name:
        return no(Code.INVALID_FIELD, field, "the gang has no name")
    if mark.kind:
        owner = OwnerRef(mark.api_version, mark.kind, namespace, name)
        found = _of_owner(GroupKind(mark.kind), owner, known)
        is_missing = isinstance(found, Reason) and owner in known and known[owner] is None
        if not (mark.settles and is_missing):
            return replace(found, mark=mark) if isinstance(found, Group) else found
    size = size_said(mark, name, pod)
    if isinstance(size, Reason):
        return size
    controller = controller_of(pod)
    job = controller if controller is not None and _is_job(controller) and not mark.kind else None
    prefix = "gang" if mark is GANGS[0] else f"gang/{mark.names[0]}"
    return Group(GroupKind.GANG, namespace, name, f"{prefix}/{namespace}/{name}", size, job, mark)


def _of_pod_group(pod: Json, name: str, known: Known) -> Group | OwnerRef | Reason:
    """
    The group that Kubernetes' own PodGroup makes of its pods.

    One that a Job's controller made for its pods is the Job's group, with what the PodGroup asks for: so the Job's
    own life, retries and suspension go on deciding.
    """
    ref = OwnerRef(WORKLOAD_API, "PodGroup", text(pod, "metadata", "namespace"), name)
    if ref not in known:
        return ref
    found = known[ref]
    if found is None:
        return not_found(ref)
    policy = policy_of(found)
    if isinstance(policy, Reason):
        return policy
    controller = controller_of(pod)
    job = controller if controller is not None and _is_job(controller) else None
    if not policy.min_count:
        return replace(alone(pod, job), policy=policy, pod_group=ref)
    if job is not None and controller_of(found) == job:
        own = _of_job(pod, job, known)
        if not isinstance(own, Group) or own.kind is GroupKind.JOB:
            return replace(own, policy=policy, pod_group=ref) if isinstance(own, Group) else own
    group_id = f"{ref.group}/{ref.kind}/{ref.namespace}/{text(found, 'metadata', 'uid')}"
    return Group(GroupKind.POD_GROUP, ref.namespace, name, group_id, policy.min_count, job, None, policy, ref)


def alone(pod: Json, owner: OwnerRef | None = None) -> Group:
    """The name of a pod comes back with the next pod of a StatefulSet; its UID does not."""
    namespace, name, uid = (text(pod, "metadata", field) for field in ("namespace", "name", "uid"))
    return Group(GroupKind.POD, namespace, name, f"pod/{namespace}/{uid}", 1, owner)


def _of_owner(kind: GroupKind, owner: OwnerRef, known: Known) -> Group | OwnerRef | Reason:
    """Kind and API group are part of the id, so that no object passes for one of another kind with its UID."""
    if owner not in known:
        return owner
    found = known[owner]
    if found is None or not _is_it(owner, found):
        return not_found(owner)
    key = owner.uid or text(found, "metadata", "uid")
    return Group(kind, owner.namespace, owner.name, f"{owner.group}/{owner.kind}/{owner.namespace}/{key}", 0, owner)


def _of_job(pod: Json, ref: OwnerRef, known: Known) -> Group | OwnerRef | Reason:
    """The Job's own group, or that of the set of Jobs that it is part of; or the pod's alone."""
    itself = _of_owner(GroupKind.JOB, ref, known)
    job = known.get(ref)
    if not isinstance(itself, Group) or job is None:
        return itself
    wanted, labels = mapping(job, "spec", "selector", "matchLabels"), mapping(pod, "metadata", "labels")
    if not wanted.items() <= labels.items():
        return alone(pod)
    above = controller_of(job)
    if above is not None and (_is_job_set(above) or _is_training_job(above)):
        kind = GroupKind.JOB_SET if _is_job_set(above) else GroupKind.TRAINING_JOB
        whole = _of_owner(kind, above, known)
        owner = known.get(above)
        if not isinstance(whole, Group) or owner is None or not _goes_apart(owner):
            return whole
    if comes_in_waves(job):
        return alone(pod, ref)
    least = least_pods(job)
    if isinstance(least, Reason):
        return least
    return replace(itself, policy=GroupPolicy(least)) if least else itself


def _goes_apart(owner: Json) -> bool:
    """Whether the Jobs below start one after the other, so that waiting for all their pods would be for ever."""
    return comes_in_stages(owner) or is_apart(owner)


def _is_it(ref: OwnerRef, thing: Json) -> bool:
    """Not another one that was made later under the same name."""
    return not ref.uid or at(thing, "metadata", "uid") == ref.uid


def _is_job(ref: OwnerRef) -> bool:
    return ref.group == "batch" and ref.kind == "Job"


def _is_job_set(ref: OwnerRef) -> bool:
    return ref.group == "jobset.x-k8s.io" and ref.kind == "JobSet"


def _is_training_job(ref: OwnerRef) -> bool:
    """PyTorchJob, TFJob, MPIJob and their kin; a TrainJob owns a JobSet, which is looked at instead."""
    return ref.group == "kubeflow.org" and ref.kind.endswith("Job")

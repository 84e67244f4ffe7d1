"""
A RayCluster: its head starts with its workers, or with the least of them where an autoscaler adds more. Pure.

The cluster of a RayJob that can be suspended is the RayJob's: its operator takes the cluster away with a suspension,
and makes another one, of another name, afterwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from tessera.binder.workloads.port import (
    PLACED,
    GangMark,
    Group,
    GroupKind,
    KindRights,
    OwnedWorkload,
    PodSet,
    Workload,
    group_of_owner,
)
from tessera.binder.workloads.reading import items, mapping, no, text, whole
from tessera.binder.workloads.references import OwnerRef, OwnersByRef, ref_of
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import SCHEDULER_NAME
from tessera_schemas.reasons import Code, Reason

RAY_API = "ray.io/v1"
GROUP_LABEL, HEAD_GROUP = "ray.io/group", "headgroup"
MARK = GangMark(("ray.io/cluster",), api_version=RAY_API, kind="RayCluster", at_least=True, settles=True)
MARK_OF_JOB = replace(MARK, kind="RayJob")
BY_A_JOB, SIDECAR, INTERACTIVE = "K8sJobMode", "SidecarMode", "InteractiveMode"
SUBMITTER = "submitter"


class RayCluster(Workload):
    kind: ClassVar[GroupKind | None] = GroupKind.RAY_CLUSTER
    api_group: ClassVar[str] = "ray.io"
    kinds: ClassVar[tuple[str, ...]] = ("RayCluster",)
    watched: ClassVar[tuple[tuple[str, str], ...]] = ((RAY_API, "RayCluster"),)
    marks: ClassVar[tuple[GangMark, ...]] = (MARK,)
    role_labels: ClassVar[tuple[str, ...]] = (GROUP_LABEL,)
    suspend_at: ClassVar[tuple[str, ...]] = ("spec", "suspend")
    controllers: ClassVar[tuple[str, ...]] = ("ray.io/kuberay-operator",)
    condition: ClassVar[str] = PLACED
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("ray.io", ("rayclusters",), ("get", "list", "watch"), ("patch",), ("patch",)),
    )
    mark: ClassVar[GangMark] = MARK

    def cluster(self, owner: Json) -> Json:
        """The part of the object that says its cluster."""
        return mapping(owner, "spec")

    def size(self, owner: Json) -> int | Reason:
        """The head and all workers; where an autoscaler adds workers, the head and the least of them."""
        spec = self.cluster(owner)
        return 1 + sum(_workers(group, _autoscales(spec)) for group in items(spec, "workerGroupSpecs"))

    def parts(self, mark: GangMark | None, owner: Json | None, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
        """The head, and of each group the workers that it keeps at least."""
        if owner is None:
            return {}
        spec = self.cluster(owner)
        groups = items(spec, "workerGroupSpecs")
        least = {text(group, "groupName"): _workers(group, _autoscales(spec)) for group in groups}
        return {HEAD_GROUP: 1, **{name: number for name, number in least.items() if number}}

    def group(self, owner: Json) -> Group | Reason:
        """A gang by Ray's own mark."""
        found = super().group(owner)
        return found if isinstance(found, Reason) else replace(found, mark=self.mark)

    def never_whole(self, owner: Json) -> Reason | None:
        """Refuse an autoscaler: its operator adds a container to the head that is in no template."""
        if not _autoscales(self.cluster(owner)):
            return None
        way_out = "its operator adds a container that no template says: submit it as it is, with suspend_waiting"
        return no(Code.NOT_SUPPORTED_YET, "spec.enableInTreeAutoscaling", way_out)

    def pod_sets(self, owner: Json) -> Sequence[PodSet]:
        """The head, and each worker group."""
        ref, spec = ref_of(owner), self.cluster(owner)
        mine = {MARK.names[0]: ref.name}
        head = mapping(spec, "headGroupSpec", "template")
        groups = items(spec, "workerGroupSpecs")
        return [
            PodSet(head, 1, ref, {**mine, GROUP_LABEL: HEAD_GROUP}),
            *(
                PodSet(mapping(each, "template"), count, ref, {**mine, GROUP_LABEL: text(each, "groupName")})
                for each in groups
                if (count := _workers(each, False))
            ),
        ]


class RayJob(OwnedWorkload, RayCluster):
    """A RayJob whose cluster is its own; a late pod of a batch Job that its operator makes submits its program."""

    kind: ClassVar[GroupKind | None] = GroupKind.RAY_JOB
    kinds: ClassVar[tuple[str, ...]] = ("RayJob",)
    watched: ClassVar[tuple[tuple[str, str], ...]] = ((RAY_API, "RayJob"),)
    role_labels: ClassVar[tuple[str, ...]] = ()
    condition: ClassVar[str] = ""
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("ray.io", ("rayjobs",), ("get", "list", "watch"), ("patch",)),
    )
    mark: ClassVar[GangMark] = MARK_OF_JOB

    def cluster(self, owner: Json) -> Json:
        """The cluster that its operator makes for it."""
        return mapping(owner, "spec", "rayClusterSpec")

    def group_of_cluster(self, its: Group, job: OwnerRef, known: OwnersByRef) -> Group | OwnerRef:
        """The RayJob's group, or that of its cluster, where the RayJob cannot be suspended or is not there."""
        found = group_of_owner(GroupKind.RAY_JOB, job, known)
        if isinstance(found, OwnerRef):
            return found
        if isinstance(found, Reason) or _why_not_suspended(known[job] or {}) is not None:
            return its
        return replace(found, mark=self.mark)

    def never_whole(self, owner: Json) -> Reason | None:
        """Refuse what its operator does not resume, and a head to which the operator adds the submitter."""
        if text(owner, "spec", "submissionMode") == SIDECAR:
            way_out = "its operator adds a container that no template says: submit it as it is"
            return no(Code.NOT_SUPPORTED_YET, "spec.submissionMode", way_out)
        return _why_not_suspended(owner) or super().never_whole(owner)

    def pod_sets(self, owner: Json) -> Sequence[PodSet]:
        """The head and the worker groups of its own cluster."""
        return super().pod_sets(owner) if self.cluster(owner) else ()

    def late_pods(self, owner: Json) -> Mapping[str, Json]:
        """The pod that submits its program, where its template names our scheduler; without one nobody names us."""
        template = mapping(owner, "spec", "submitterPodTemplate")
        made = text(owner, "spec", "submissionMode") in ("", BY_A_JOB) and _why_not_suspended(owner) is None
        is_ours = text(template, "spec", "schedulerName") == SCHEDULER_NAME
        return {SUBMITTER: template} if made and is_ours else {}


def _why_not_suspended(job: Json) -> Reason | None:
    """Why the operator does not suspend a RayJob; it fails one that is suspended all the same."""
    spec = mapping(job, "spec")
    if spec.get("clusterSelector") or not spec.get("rayClusterSpec"):
        return no(Code.NOT_SUPPORTED_YET, "spec.clusterSelector", "its cluster is another's")
    if spec.get("shutdownAfterJobFinishes") is not True:
        return no(Code.NOT_SUPPORTED_YET, "spec.shutdownAfterJobFinishes", "its operator suspends none without it")
    if text(spec, "submissionMode") == INTERACTIVE:
        way_out = "its operator does not suspend one that waits for a job of its user"
        return no(Code.NOT_SUPPORTED_YET, "spec.submissionMode", way_out)
    return None


def _autoscales(cluster: Json) -> bool:
    return cluster.get("enableInTreeAutoscaling") is True


def _workers(group: Json, least_alone: bool) -> int:
    """Number of pods of one worker group as its operator keeps it, between its minimum and its maximum."""
    if group.get("suspend") is True:
        return 0
    least, most, hosts = whole(group, "minReplicas") or 0, whole(group, "maxReplicas"), whole(group, "numOfHosts") or 1
    wanted = least if least_alone else max(least, whole(group, "replicas") or 0)
    return (wanted if most is None else min(wanted, most)) * hosts

"""A RayCluster: its head starts with its workers, or with the least of them where an autoscaler adds more. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from tessera.binder.workloads.port import PLACED, GangMark, Group, GroupKind, KindRights, PodSet, Workload
from tessera.binder.workloads.reading import items, mapping, no, text, whole
from tessera.binder.workloads.references import ref_of
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason

RAY_API = "ray.io/v1"
GROUP_LABEL, HEAD_GROUP = "ray.io/group", "headgroup"
MARK = GangMark(("ray.io/cluster",), api_version=RAY_API, kind="RayCluster", at_least=True, settles=True)


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
        KindRights("ray.io", ("rayjobs",), ("get",)),
    )

    def size(self, owner: Json) -> int | Reason:
        """The head and all workers; where an autoscaler adds workers, the head and the least of them."""
        return 1 + sum(_workers(group, _autoscales(owner)) for group in items(owner, "spec", "workerGroupSpecs"))

    def parts(self, mark: GangMark | None, owner: Json | None, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
        """The head, and of each group the workers that it keeps at least."""
        if owner is None:
            return {}
        groups = items(owner, "spec", "workerGroupSpecs")
        least = {text(group, "groupName"): _workers(group, _autoscales(owner)) for group in groups}
        return {HEAD_GROUP: 1, **{name: number for name, number in least.items() if number}}

    def group(self, owner: Json) -> Group | Reason:
        """A gang by Ray's own mark."""
        found = super().group(owner)
        return found if isinstance(found, Reason) else replace(found, mark=MARK)

    def never_whole(self, owner: Json) -> Reason | None:
        """Refuse an autoscaler: its operator adds a container to the head that is in no template."""
        if not _autoscales(owner):
            return None
        way_out = "its operator adds a container that no template says: submit it as it is, with suspend_waiting"
        return no(Code.NOT_SUPPORTED_YET, "spec.enableInTreeAutoscaling", way_out)

    def pod_sets(self, owner: Json) -> Sequence[PodSet]:
        """The head, and each worker group."""
        ref = ref_of(owner)
        mine = {MARK.names[0]: ref.name}
        head = mapping(owner, "spec", "headGroupSpec", "template")
        groups = items(owner, "spec", "workerGroupSpecs")
        return [
            PodSet(head, 1, ref, {**mine, GROUP_LABEL: HEAD_GROUP}),
            *(
                PodSet(mapping(each, "template"), count, ref, {**mine, GROUP_LABEL: text(each, "groupName")})
                for each in groups
                if (count := _workers(each, False))
            ),
        ]


def _autoscales(owner: Json) -> bool:
    return mapping(owner, "spec").get("enableInTreeAutoscaling") is True


def _workers(group: Json, least_alone: bool) -> int:
    """Number of pods of one worker group as its operator keeps it, between its minimum and its maximum."""
    if group.get("suspend") is True:
        return 0
    least, most, hosts = whole(group, "minReplicas") or 0, whole(group, "maxReplicas"), whole(group, "numOfHosts") or 1
    wanted = least if least_alone else max(least, whole(group, "replicas") or 0)
    return (wanted if most is None else min(wanted, most)) * hosts

"""A RayCluster: its head starts with its workers, or with the least of them where an autoscaler adds more. Pure."""

from typing import ClassVar

from tessera.binder.workloads.port import PLACED, GangMark, GroupKind, KindRights, Workload
from tessera.binder.workloads.reading import Json, items, mapping, whole
from tessera_schemas.reasons import Reason

RAY_API = "ray.io/v1"
MARK = GangMark(("ray.io/cluster",), api_version=RAY_API, kind="RayCluster", at_least=True, settles=True)


class RayCluster(Workload):
    kind: ClassVar[GroupKind | None] = GroupKind.RAY_CLUSTER
    api_group: ClassVar[str] = "ray.io"
    kinds: ClassVar[tuple[str, ...]] = ("RayCluster",)
    marks: ClassVar[tuple[GangMark, ...]] = (MARK,)
    role_labels: ClassVar[tuple[str, ...]] = ("ray.io/group",)
    suspend_at: ClassVar[tuple[str, ...]] = ("spec", "suspend")
    controllers: ClassVar[tuple[str, ...]] = ("ray.io/kuberay-operator",)
    condition: ClassVar[str] = PLACED
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("ray.io", ("rayclusters",), ("get",), ("patch",), ("patch",)),
    )

    def size(self, owner: Json) -> int | Reason:
        """The head and all workers; where an autoscaler adds workers, the head and the least of them."""
        least_alone = mapping(owner, "spec").get("enableInTreeAutoscaling") is True
        return 1 + sum(_workers(group, least_alone) for group in items(owner, "spec", "workerGroupSpecs"))


def _workers(group: Json, least_alone: bool) -> int:
    """Of one worker group, as its operator keeps them: never less than the least, never more than the most."""
    if group.get("suspend") is True:
        return 0
    least, most, hosts = whole(group, "minReplicas") or 0, whole(group, "maxReplicas"), whole(group, "numOfHosts") or 1
    wanted = least if least_alone else max(least, whole(group, "replicas") or 0)
    return (wanted if most is None else min(wanted, most)) * hosts

"""A pod by itself: nothing else starts with it. Pure."""

from collections.abc import Sequence
from typing import ClassVar

from tessera.binder.workloads.port import Group, GroupKind, Workload, pod_ref
from tessera.binder.workloads.reading import text
from tessera.binder.workloads.references import OwnerRef
from tessera_schemas.base import Json


class SinglePod(Workload):
    kind: ClassVar[GroupKind | None] = GroupKind.POD
    role_labels: ClassVar[tuple[str, ...]] = ("spark-role",)

    def lives_by(self, group: Group, pod: Json) -> OwnerRef:
        """The pod itself."""
        return pod_ref(group, pod)

    def anchor(self, group: Group, pods: Sequence[Json]) -> str:
        """The pod's UID."""
        return text(pods[0], "metadata", "uid")

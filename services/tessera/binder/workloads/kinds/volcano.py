"""
A PodGroup of Volcano: a gang of so many pods at least, with so many of each task, in one domain of its network. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tessera.binder.workloads.kinds.pod_group import MarkedPodGroup
from tessera.binder.workloads.port import PARTS_MAX, GangMark, KindRights
from tessera.binder.workloads.reading import at, mapping, no, text, whole
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason

VOLCANO_API = "scheduling.volcano.sh/v1beta1"
NETWORK = "PodGroup.spec.networkTopology"
SUBGROUPS = "PodGroup.spec.subGroupPolicy"
HARD = "hard"
MARK = GangMark(
    ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"),
    api_version=VOLCANO_API,
    kind="PodGroup",
    at_least=True,
)


class VolcanoPodGroup(MarkedPodGroup):
    api_group: ClassVar[str] = "scheduling.volcano.sh"
    honoured: ClassVar[tuple[str, ...]] = ("minMember", "minTaskMember", "networkTopology", "queue")
    marks: ClassVar[tuple[GangMark, ...]] = (MARK,)
    role_labels: ClassVar[tuple[str, ...]] = ("volcano.sh/task-spec",)
    index_labels: ClassVar[tuple[str, ...]] = ("volcano.sh/task-index",)
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("scheduling.volcano.sh", ("podgroups",), ("get",)),
        KindRights("batch.volcano.sh", ("jobs",), ("get",)),
    )

    def parts(self, mark: GangMark | None, owner: Json | None, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
        """Least number of pods of each task (`minTaskMember`); as in Volcano none, where they sum to more than all."""
        found = mapping(owner, "spec", "minTaskMember")
        least = {name: number for name in sorted(found)[:PARTS_MAX] if (number := whole(found, name))}
        return least if sum(least.values()) <= (whole(owner, "spec", "minMember") or 0) else {}

    def domain(self, owner: Json | None) -> tuple[Json | Reason | None, str]:
        """
        The domain of its network topology; the default mode is hard.

        A tier is known by its name, as a level of the configuration or a node label: which nodes a tier's number stands
        for only Volcano knows.
        """
        if at(owner, "spec", "subGroupPolicy"):
            return no(Code.NOT_SUPPORTED_YET, SUBGROUPS, "groups within a group are not known here"), NETWORK
        asked = mapping(owner, "spec", "networkTopology")
        required, level = (text(asked, "mode") or HARD) == HARD, text(asked, "highestTierName")
        if level:
            return {"level": level, "required": required}, NETWORK
        if not asked or not required:
            return None, NETWORK
        way_out = "tiers are known by name: set highestTierName to a topology level or a node label"
        return no(Code.NOT_SUPPORTED_YET, f"{NETWORK}.highestTierAllowed", way_out), NETWORK

    def wishes(self, owner: Json) -> list[str]:
        """A sentence about a soft network topology that names no tier, and about each field that is not honoured."""
        is_lost = bool(mapping(owner, "spec", "networkTopology")) and self.domain(owner)[0] is None
        lost = [f"{NETWORK}: nodes are chosen without it; highestTierName is honoured"] if is_lost else []
        return [*lost, *super().wishes(owner)]

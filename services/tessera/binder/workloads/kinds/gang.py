"""Gangs that pods name by a mark and of which they say the size themselves, ours and other systems'. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tessera.binder.workloads.mark_table import ARMADA, KOORDINATOR_GANG, KUEUE, YUNIKORN
from tessera.binder.workloads.marks import APPLICATION, found_in, read_mark
from tessera.binder.workloads.port import PARTS_MAX, GangMark, GroupKind, Workload
from tessera.binder.workloads.reading import no, number_in, text
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import GANG_LABEL, GANG_SIZE_ANNOTATION
from tessera_schemas.job import REPLICAS_MAX
from tessera_schemas.reasons import Code, Reason

TASK_GROUP, TASK_GROUPS = f"{YUNIKORN}task-group-name", f"{YUNIKORN}task-groups"
OURS = GangMark((GANG_LABEL,), size=GANG_SIZE_ANNOTATION)
KUEUES = GangMark((f"{KUEUE}pod-group-name",), size=f"{KUEUE}pod-group-total-count", replaces=True)
YUNIKORNS = GangMark(APPLICATION, parts=TASK_GROUPS, at_least=True, only_with=TASK_GROUP)
KOORDINATORS = GangMark((f"{KOORDINATOR_GANG}name",), size=f"{KOORDINATOR_GANG}min-available", at_least=True)
ARMADAS = GangMark((f"{ARMADA}gangId",), size=f"{ARMADA}gangCardinality")


class MarkedGang(Workload):
    kind: ClassVar[GroupKind | None] = GroupKind.GANG
    marks: ClassVar[tuple[GangMark, ...]] = (OURS, KUEUES, YUNIKORNS, KOORDINATORS, ARMADAS)
    role_labels: ClassVar[tuple[str, ...]] = (TASK_GROUP,)
    index_labels: ClassVar[tuple[str, ...]] = (f"{KUEUE}pod-group-pod-index",)

    def parts(self, mark: GangMark | None, owner: Json | None, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
        """Least number of pods of each task group."""
        return _task_groups(mark, pods) if mark is not None and mark.parts else {}


def read_size(mark: GangMark, name: str, pod: Json) -> int | Reason:
    """The number that the pod itself says; 0 where others know it."""
    if not mark.size:
        return 0
    words, field = found_in(pod, mark.size)
    field = field or f"metadata.{mark.size_in}[{mark.size}]"
    if not words:
        return no(Code.MISSING_FIELD, field, f"gang {name} does not say how many pods it has")
    size = number_in(words)
    if not 1 <= size <= REPLICAS_MAX:
        return no(Code.INVALID_FIELD, field, f"{words!r} is no number of pods", pods_max=REPLICAS_MAX)
    return size


def _task_groups(mark: GangMark, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
    """YuniKorn's task groups: JSON on at least one pod of the application."""
    field = f"metadata.annotations[{mark.parts}]"
    if any(text(pod, "metadata", "labels", "spark-role") == "driver" for pod in pods):
        return no(Code.NOT_SUPPORTED_YET, field, "a driver makes its executors once it runs: it cannot wait for them")
    listed = sorted({words for pod in pods if (words := read_mark(pod, mark.parts))})
    if not listed:
        return no(Code.MISSING_FIELD, field, "no pod of the application lists its task groups")
    if len(listed) > 1:
        return no(Code.GANG_DISAGREES, field, "the pods of the application list different task groups")
    try:
        found = {str(group["name"]): group["minMember"] for group in json.loads(listed[0])}
    except (ValueError, TypeError, KeyError, RecursionError):
        return no(Code.INVALID_FIELD, field, "a JSON list of groups with a name and minMember is wanted")
    if not found or len(found) > PARTS_MAX or not all(type(least) is int and least >= 0 for least in found.values()):
        return no(Code.INVALID_FIELD, field, "minMember is a number of pods", groups_max=PARTS_MAX)
    return found

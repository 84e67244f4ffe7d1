"""
The marks by which pods name the gang that they are of, ours and other systems': a new one is one entry. Pure.

Each says where the name stands and who knows the number: the pods themselves, an object of that name, or parts that
the pods list.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.binder.adoption.decide.mark_table import KUEUE, LWS, YUNIKORN
from tessera.binder.adoption.decide.marks import found_in, said
from tessera.binder.adoption.decide.reading import Json, mapping, no, number_in, text, whole
from tessera_schemas.job import REPLICAS_MAX
from tessera_schemas.labels import GANG_LABEL, GANG_SIZE_ANNOTATION, POD_GROUP_LABEL
from tessera_schemas.reasons import Code, Reason

POD_GROUP_API = "scheduling.x-k8s.io/v1alpha1"
VOLCANO_API = "scheduling.volcano.sh/v1beta1"
RAY_API = "ray.io/v1"
LWS_API = "leaderworkerset.x-k8s.io/v1"
TASK_GROUP, TASK_GROUPS = f"{YUNIKORN}task-group-name", f"{YUNIKORN}task-groups"
PARTS_MAX = 64


@dataclass(frozen=True, slots=True)
class GangMark:
    """
    `names` are the keys of which the first that is there names the gang. The number comes from the pods' `size`, from
    the object of kind `api_version`/`kind` that is called like the gang, or from the `parts` that the pods list.

    `at_least`: further pods start by themselves once the gang is at work. `settles`: where there is no such object the
    gang is the pods that are there, once no more have come for a while. `only_with` is a mark without which the name
    means no gang. `made_by` is the object that makes the pods, perhaps one after the other: apiVersion, kind, and the
    label that has its name.
    """

    names: tuple[str, ...]
    size: str = ""
    size_in: str = "annotations"
    api_version: str = ""
    kind: str = ""
    parts: str = ""
    at_least: bool = False
    settles: bool = False
    only_with: str = ""
    made_by: tuple[str, str, str] = ("", "", "")


GANGS = (
    GangMark((GANG_LABEL,), size=GANG_SIZE_ANNOTATION),
    GangMark((POD_GROUP_LABEL,), api_version=POD_GROUP_API, kind="PodGroup", at_least=True),
    GangMark(
        ("pod-group.scheduling.sigs.k8s.io/name",),
        size="pod-group.scheduling.sigs.k8s.io/min-available",
        size_in="labels",
        at_least=True,
    ),
    GangMark(("pod-group.scheduling.sigs.k8s.io",), api_version=POD_GROUP_API, kind="PodGroup", at_least=True),
    GangMark(
        ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"),
        api_version=VOLCANO_API,
        kind="PodGroup",
        at_least=True,
    ),
    GangMark((f"{KUEUE}pod-group-name",), size=f"{KUEUE}pod-group-total-count"),
    GangMark((f"{YUNIKORN}app-id", "applicationId"), parts=TASK_GROUPS, at_least=True, only_with=TASK_GROUP),
    GangMark((f"{LWS}group-key",), size=f"{LWS}size", made_by=(LWS_API, "LeaderWorkerSet", f"{LWS}name")),
    GangMark(
        ("gang.scheduling.koordinator.sh/name",), size="gang.scheduling.koordinator.sh/min-available", at_least=True
    ),
    GangMark(("ray.io/cluster",), api_version=RAY_API, kind="RayCluster", at_least=True, settles=True),
)
"""In the order in which they count where a pod has several; ours first."""


def gang_mark(pod: Json) -> tuple[GangMark, str, str] | None:
    """The pod's mark, the gang's name and the field that says it."""
    for mark in GANGS:
        name, field = found_in(pod, *mark.names)
        if not field and mark.names == (GANG_LABEL,) and GANG_LABEL in mapping(pod, "metadata", "labels"):
            return mark, "", f"metadata.labels[{GANG_LABEL}]"
        if name and (not mark.only_with or said(pod, mark.only_with)):
            return mark, name, field
    return None


def size_said(mark: GangMark, name: str, pod: Json) -> int | Reason:
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


def parts_of(mark: GangMark | None, owner: Json | None, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
    """The least number of pods of each part of the gang by name; {} where any pods of it will do."""
    if mark is not None and mark.parts:
        return _task_groups(mark, pods)
    return {name: least for name, least in _min_task_members(owner) if least}


def _min_task_members(owner: Json | None) -> list[tuple[str, int]]:
    """Volcano's least number for each task."""
    found = mapping(owner, "spec", "minTaskMember")
    return [(name, whole(found, name) or 0) for name in sorted(found)[:PARTS_MAX]]


def _task_groups(mark: GangMark, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
    """YuniKorn's task groups: JSON on at least one pod of the application."""
    field = f"metadata.annotations[{mark.parts}]"
    if any(text(pod, "metadata", "labels", "spark-role") == "driver" for pod in pods):
        return no(Code.NOT_SUPPORTED_YET, field, "a driver makes its executors once it runs: it cannot wait for them")
    listed = sorted({words for pod in pods if (words := said(pod, mark.parts))})
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

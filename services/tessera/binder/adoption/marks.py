"""
The marks of other systems on users' pods, and what becomes of each: one table, so that a new mark is one entry. Pure.

A mark is a label or an annotation. Honoured ones are read where they decide (`gang_marks`, `queue_said`, `topology_of`,
amounts); refused ones keep the pod from being adopted, by name; the rest is said in a condition of the pod, and so is
every mark under these systems' prefixes that the table does not know. Nothing that changes meaning goes unsaid.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tessera.binder.adoption.reading import Json, items, mapping, no, text
from tessera_schemas.labels import QUEUE_LABEL
from tessera_schemas.reasons import Code, Reason


class Treatment(StrEnum):
    HONOURED = "honoured"
    REFUSED = "refused"
    SAID = "said"
    NOTED = "noted"
    """The other system's own notes: they ask for nothing."""


@dataclass(frozen=True, slots=True)
class Mark:
    """`detail` is what to do instead of a refused one, or what happens instead of one that is said."""

    treatment: Treatment
    detail: str = ""


HONOURED, NOTED = Mark(Treatment.HONOURED), Mark(Treatment.NOTED)


def _refused(detail: str) -> Mark:
    return Mark(Treatment.REFUSED, detail)


def _said(detail: str) -> Mark:
    return Mark(Treatment.SAID, detail)


KUEUE, VOLCANO, YUNIKORN = "kueue.x-k8s.io/", "volcano.sh/", "yunikorn.apache.org/"
LWS, JOB_SET, JOB_SET_ALPHA = "leaderworkerset.sigs.k8s.io/", "jobset.sigs.k8s.io/", "alpha.jobset.sigs.k8s.io/"
KUEUE_QUEUE = f"{KUEUE}queue-name"
REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY = f"{KUEUE}podset-required-topology", f"{KUEUE}podset-preferred-topology"
SHARED_DOMAIN = f"{KUEUE}podset-group-name"
ADMITTED_ELSEWHERE = "a feature of Kueue itself: leave this pod to Kueue and the default scheduler"
SLICES = f"pods are kept together as a whole: {REQUIRED_TOPOLOGY} is honoured"
LEADER_FIRST = f"its workers are made once their leader runs, so they cannot start together; use {REQUIRED_TOPOLOGY}"
WEIGHT = "who goes first is said by the PriorityClass, and shares by the queues' weights"

TABLE: dict[str, Mark] = {
    f"{KUEUE}pod-group-name": HONOURED,
    f"{KUEUE}pod-group-total-count": HONOURED,
    f"{KUEUE}pod-group-pod-index": HONOURED,
    KUEUE_QUEUE: HONOURED,
    REQUIRED_TOPOLOGY: HONOURED,
    PREFERRED_TOPOLOGY: HONOURED,
    SHARED_DOMAIN: HONOURED,
    f"{KUEUE}podset-unconstrained-topology": HONOURED,
    f"{KUEUE}max-exec-time-seconds": _said("the time limit is activeDeadlineSeconds"),
    f"{KUEUE}job-min-parallelism": _said("it starts with all of its pods"),
    f"{KUEUE}priority-class": _said("its priority is that of its PriorityClass"),
    f"{KUEUE}podset-slice-required-topology": _refused(SLICES),
    f"{KUEUE}podset-slice-required-topology-constraints": _refused(SLICES),
    f"{KUEUE}podset-slice-size": _refused(SLICES),
    f"{KUEUE}elastic-job": _refused(ADMITTED_ELSEWHERE),
    f"{KUEUE}multikueue": _refused(ADMITTED_ELSEWHERE),
    f"{KUEUE}provisioning-request": _refused(ADMITTED_ELSEWHERE),
    f"{KUEUE}pod-group-fast-admission": _refused("a gang starts once all of its pods are there"),
    **dict.fromkeys(
        (
            f"{KUEUE}{name}"
            for name in (
                "managed", "podset", "role-hash", "workload", "job-uid", "local-queue-name", "cluster-queue-name",
                "pod-group-serving", "retriable-in-group", "pod-suspending-parent", "prebuilt-workload-name",
                "pod-group-sets-count", "tas",
            )
        ),
        NOTED,
    ),
    "scheduling.k8s.io/group-name": HONOURED,
    "scheduling.volcano.sh/group-name": HONOURED,
    "scheduling.volcano.sh/queue-name": HONOURED,
    f"{VOLCANO}queue-name": HONOURED,
    f"{VOLCANO}task-spec": HONOURED,
    f"{VOLCANO}task-index": HONOURED,
    "scheduling.volcano.sh/group-min-member": _refused("name a PodGroup, or a gang by tessera.io/gang"),
    f"{VOLCANO}preemptable": _said("who may be preempted is said by tessera.io/preemptible"),
    f"{VOLCANO}sla-waiting-time": _said("it waits as long as it takes"),
    f"{VOLCANO}hierarchy": _said(WEIGHT),
    f"{VOLCANO}hierarchy-weights": _said(WEIGHT),
    **dict.fromkeys(
        (
            f"{VOLCANO}{name}"
            for name in ("job-name", "job-namespace", "job-version", "job-retry-count", "template-uid")
        ),
        NOTED,
    ),
    "scheduling.x-k8s.io/pod-group": HONOURED,
    "pod-group.scheduling.sigs.k8s.io": HONOURED,
    "pod-group.scheduling.sigs.k8s.io/name": HONOURED,
    "pod-group.scheduling.sigs.k8s.io/min-available": HONOURED,
    "gang.scheduling.koordinator.sh/name": HONOURED,
    "gang.scheduling.koordinator.sh/min-available": HONOURED,
    f"{YUNIKORN}app-id": HONOURED,
    f"{YUNIKORN}queue": HONOURED,
    f"{YUNIKORN}task-group-name": HONOURED,
    f"{YUNIKORN}task-groups": HONOURED,
    f"{YUNIKORN}schedulingPolicyParameters": _said("a gang waits for all of its room and takes none before"),
    f"{YUNIKORN}allow-preemption": _said("who may be preempted is said by tessera.io/preemptible"),
    f"{YUNIKORN}user.info": _said("its tenant is its namespace"),
    "kai.scheduler/queue": HONOURED,
    "runai/queue": HONOURED,
    "gpu-fraction": HONOURED,
    "gpu-fraction-num-devices": HONOURED,
    "gpu-memory": HONOURED,
    "gpu-fraction-container-name": _said("the share is the pod's: its containers use it together"),
    f"{LWS}name": NOTED,
    f"{LWS}group-key": HONOURED,
    f"{LWS}size": HONOURED,
    f"{LWS}worker-index": HONOURED,
    f"{LWS}exclusive-topology": _refused(LEADER_FIRST),
    f"{LWS}subgroup-exclusive-topology": _refused(LEADER_FIRST),
    **dict.fromkeys(
        (
            f"{LWS}{name}"
            for name in (
                "group-index", "leader-name", "template-revision-hash", "replicas", "subgroup-size", "subgroup-index",
                "subgroup-key", "subgroup-policy-type", "leader-requests-tpus",
            )
        ),
        NOTED,
    ),
    f"{JOB_SET_ALPHA}exclusive-topology": _refused(LEADER_FIRST),
    f"{JOB_SET_ALPHA}node-selector": HONOURED,
    f"{JOB_SET}replicatedjob-name": HONOURED,
    f"{JOB_SET}job-index": HONOURED,
    "ray.io/cluster": HONOURED,
    "ray.io/group": HONOURED,
}  # fmt: skip
PREFIXES = (
    KUEUE,
    "provreq.kueue.x-k8s.io/",
    VOLCANO,
    "scheduling.volcano.sh/",
    "pod-group.scheduling.sigs.k8s.io",
    "gang.scheduling.koordinator.sh/",
    YUNIKORN,
    "kai.scheduler/",
    "runai/",
    LWS,
    JOB_SET_ALPHA,
)
"""Of systems whose marks ask a scheduler for something; those of JobSet, Ray and Spark are for other programs, too."""
UNKNOWN = "Tessera does not know this mark"
NODE_SELECTED = f"{JOB_SET_ALPHA}node-selector"


def refused_mark(thing: Json, among: str = "metadata") -> Reason | None:
    """The first mark of a pod, or of its owner, that has no equivalent and changes what its program may rely on."""
    for field, key, mark in _marks(thing):
        if mark.treatment is Treatment.REFUSED and not _is_settled(thing, key):
            return no(Code.NOT_SUPPORTED_YET, f"{among}.{field}[{key}]", mark.detail)
    return None


def not_honoured(pod: Json) -> list[str]:
    """What a pod, or its owner, would like and does not get, a sentence for each: marks, and preferences."""
    marks = [f"{key}: {mark.detail}" for _, key, mark in _marks(pod) if mark.treatment is Treatment.SAID]
    return [*marks, *_preferences(mapping(pod, "spec"))]


def _marks(thing: Json) -> Iterator[tuple[str, str, Mark]]:
    meta = mapping(thing, "metadata")
    for field in ("labels", "annotations"):
        for key in _keys(meta.get(field)):
            mark = TABLE.get(key)
            if mark is not None:
                yield field, key, mark
            elif key.startswith(PREFIXES):
                yield field, key, _said(UNKNOWN)


def _keys(found: object) -> Iterable[str]:
    return sorted(key for key in found if isinstance(key, str)) if isinstance(found, dict) else ()


def _is_settled(thing: Json, key: str) -> bool:
    """With JobSet's node selectors an exclusive domain is chosen beforehand, and each pod names its nodes."""
    return key == f"{JOB_SET_ALPHA}exclusive-topology" and bool(said(thing, NODE_SELECTED))


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _preferences(spec: Json) -> Iterator[str]:
    for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity"):
        if items(spec, "affinity", kind, PREFERRED):
            yield f"spec.affinity.{kind}.{PREFERRED}: nodes are chosen without it"
    for index, constraint in enumerate(items(spec, "topologySpreadConstraints")):
        if constraint.get("whenUnsatisfiable") == "ScheduleAnyway":
            yield f"spec.topologySpreadConstraints[{index}]: nodes are chosen without it"


# -- what several readers ask for -------------------------------------------------------------------------------------


def said(thing: Json, *keys: str) -> str:
    """The value of the first of these marks that is there, as a label or else as an annotation; "" for none."""
    return found_in(thing, *keys)[0]


def found_in(thing: Json, *keys: str) -> tuple[str, str]:
    """The same, and the field that says it."""
    for key in keys:
        for field in ("labels", "annotations"):
            if value := text(thing, "metadata", field, key):
                return value, f"metadata.{field}[{key}]"
    return "", ""


QUEUES = (
    QUEUE_LABEL,
    KUEUE_QUEUE,
    "scheduling.volcano.sh/queue-name",
    f"{VOLCANO}queue-name",
    f"{YUNIKORN}queue",
    "kai.scheduler/queue",
    "runai/queue",
)


def queue_said(pod: Json) -> tuple[str, str]:
    """The queue that the pod names, by ours or another system's mark, and the field; ("", "") for none."""
    return found_in(pod, *QUEUES)


def topology_of(pod: Json) -> Json | None:
    """The contract's `Topology` that Kueue's marks ask for: one domain, or as few as there can be."""
    for key, required in ((REQUIRED_TOPOLOGY, True), (PREFERRED_TOPOLOGY, False)):
        if level := said(pod, key):
            return {"level": level, "required": required, "group": said(pod, SHARED_DOMAIN) or None}
    return None

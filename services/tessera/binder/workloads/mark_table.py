"""
The marks of other systems on users' objects, and what becomes of each: a new mark is one entry. Pure.

A mark is a label or an annotation. What honoured ones say is read where it decides: the modules of `kinds`, `marks`
(queues, topology), amounts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Treatment(StrEnum):
    HONOURED = "honoured"
    REFUSED = "refused"
    SAID = "said"
    NOTED = "noted"
    """The other system's own notes: they ask for nothing."""


@dataclass(frozen=True, slots=True)
class Mark:
    """
    `detail` is what to do instead of a refused one, or what happens instead of one that is said. With a `value` only
    marks that say just that are meant.
    """

    treatment: Treatment
    detail: str = ""
    value: str = ""


HONOURED, NOTED = Mark(Treatment.HONOURED), Mark(Treatment.NOTED)


def refused(detail: str) -> Mark:
    """Entry for a mark that is refused; `detail` is what its user can do instead."""
    return Mark(Treatment.REFUSED, detail)


def wished(detail: str, value: str = "") -> Mark:
    """Entry for a mark that is not honoured; `detail` is what happens instead, as the user is told."""
    return Mark(Treatment.SAID, detail, value)


KUEUE, VOLCANO, YUNIKORN = "kueue.x-k8s.io/", "volcano.sh/", "yunikorn.apache.org/"
LWS, JOB_SET, JOB_SET_ALPHA = "leaderworkerset.sigs.k8s.io/", "jobset.sigs.k8s.io/", "alpha.jobset.sigs.k8s.io/"
KUEUE_QUEUE = f"{KUEUE}queue-name"
TIME_LIMIT, LEAST_PODS = f"{KUEUE}max-exec-time-seconds", f"{KUEUE}job-min-parallelism"
REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY = f"{KUEUE}podset-required-topology", f"{KUEUE}podset-preferred-topology"
SHARED_DOMAIN = f"{KUEUE}podset-group-name"
SLICE_TOPOLOGY, SLICE_SIZE = f"{KUEUE}podset-slice-required-topology", f"{KUEUE}podset-slice-size"
ADMITTED_ELSEWHERE = "a feature of Kueue itself: leave this pod to Kueue and the default scheduler"
SLICES = f"slices of one level are honoured: {SLICE_TOPOLOGY}"
LEADER_FIRST = f"its workers are made once their leader runs, so they cannot start together; use {REQUIRED_TOPOLOGY}"
OWN_PRIORITY = "its priority is that of its pods' PriorityClass"
WEIGHT = "who goes first is said by the PriorityClass, and shares by the queues' weights"

GROUP_FIELDS: Mapping[str, str] = {
    "scheduleTimeoutSeconds": "it waits as long as it takes, and holds no room meanwhile",
    "minResources": "it waits for room for its pods, by what each of them asks for",
    "minAvailable": "all of its replicas start together",
    "priorityClassName": OWN_PRIORITY,
    "priorityClass": OWN_PRIORITY,
}
"""Fields by which groups of pods ask other schedulers for something, and what happens instead of each."""

TABLE: dict[str, Mark] = {
    f"{KUEUE}pod-group-name": HONOURED,
    f"{KUEUE}pod-group-total-count": HONOURED,
    f"{KUEUE}pod-group-pod-index": HONOURED,
    KUEUE_QUEUE: HONOURED,
    REQUIRED_TOPOLOGY: HONOURED,
    PREFERRED_TOPOLOGY: HONOURED,
    SHARED_DOMAIN: HONOURED,
    f"{KUEUE}podset-unconstrained-topology": HONOURED,
    TIME_LIMIT: HONOURED,
    LEAST_PODS: HONOURED,
    f"{KUEUE}priority-class": wished(OWN_PRIORITY),
    SLICE_TOPOLOGY: HONOURED,
    SLICE_SIZE: HONOURED,
    f"{KUEUE}podset-slice-required-topology-constraints": refused(SLICES),
    f"{KUEUE}elastic-job": refused(ADMITTED_ELSEWHERE),
    f"{KUEUE}multikueue": refused(ADMITTED_ELSEWHERE),
    f"{KUEUE}provisioning-request": refused(ADMITTED_ELSEWHERE),
    f"{KUEUE}pod-group-fast-admission": refused("a gang starts once all of its pods are there"),
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
    "scheduling.volcano.sh/group-min-member": refused("name a PodGroup, or a gang by tessera.io/gang"),
    f"{VOLCANO}preemptable": wished("who may be preempted is said by tessera.io/preemptible"),
    f"{VOLCANO}sla-waiting-time": wished("it waits as long as it takes"),
    f"{VOLCANO}hierarchy": wished(WEIGHT),
    f"{VOLCANO}hierarchy-weights": wished(WEIGHT),
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
    f"{YUNIKORN}schedulingPolicyParameters": wished("a gang waits for all of its room and takes none before"),
    f"{YUNIKORN}allow-preemption": wished("who may be preempted is said by tessera.io/preemptible"),
    f"{YUNIKORN}user.info": wished("its tenant is its namespace"),
    "kai.scheduler/queue": HONOURED,
    "runai/queue": HONOURED,
    "kai.scheduler/topology": NOTED,
    "kai.scheduler/topology-required-placement": refused(f"one domain is asked for by {REQUIRED_TOPOLOGY}"),
    "kai.scheduler/topology-preferred-placement": wished(f"{PREFERRED_TOPOLOGY} is honoured"),
    "gpu-fraction": HONOURED,
    "gpu-fraction-num-devices": HONOURED,
    "gpu-memory": HONOURED,
    "gpu-fraction-container-name": wished("the share is the pod's: its containers use it together"),
    f"{LWS}name": NOTED,
    f"{LWS}group-key": HONOURED,
    f"{LWS}size": HONOURED,
    f"{LWS}worker-index": HONOURED,
    f"{LWS}exclusive-topology": refused(LEADER_FIRST),
    f"{LWS}subgroup-exclusive-topology": refused(LEADER_FIRST),
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
    f"{JOB_SET_ALPHA}exclusive-topology": refused(LEADER_FIRST),
    f"{JOB_SET_ALPHA}node-selector": HONOURED,
    f"{JOB_SET}replicatedjob-name": HONOURED,
    f"{JOB_SET}job-index": HONOURED,
    "ray.io/cluster": HONOURED,
    "ray.io/group": HONOURED,
    "ray.io/priority-class-name": wished(OWN_PRIORITY),
    "spark-role": wished("its executors are placed one by one, as it asks for them", value="driver"),
    "spark-app-selector": NOTED,
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

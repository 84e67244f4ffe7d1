"""Statuses and events that kubelets and controllers write of pods and nodes, in the words of the real ones."""

from dataclasses import dataclass
from typing import Any, Literal

from tessera_local.cluster.api.values import rfc3339
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import SIMULATE_PREFIX

DISRUPTION = "DisruptionTarget"
RESIZE_PENDING = "PodResizePending"
TIMES = ("startedAt", "finishedAt", "startTime", "lastTransitionTime", "lastProbeTime", "lastHeartbeatTime")
CREATING = "ContainerCreating"
INITIALIZING = "PodInitializing"
Left = Literal["killed", "stopped", "unknown"]
"""
What a kubelet that comes back says of containers that ended with its machine: killed (137), stopped in time (143), or
that it cannot find them (`ContainerStatusUnknown`, without times).
"""


@dataclass(frozen=True, slots=True)
class LastWord:
    """Why a kubelet ends a pod that runs, and the grace it gives, in milliseconds; None is the pod's own."""

    reason: str
    message: str
    grace_ms: int | None = None


SHUT_DOWN = LastWord("Terminated", "Pod was terminated in response to imminent node shutdown.")
REFUSED_BY_SHUTDOWN = {"reason": "NodeShutdown", "message": "Pod was rejected as the node is shutting down."}


def evicted(resource: str) -> LastWord:
    """An eviction for pressure on the node: hard, without grace."""
    return LastWord("Evicted", f"The node was low on resource: {resource}. Threshold quantity was crossed.", 0)


def with_condition(status: Json, name: str, value: str, now_ms: int, reason: str = "", message: str = "") -> Json:
    """The status with one condition set; its time changes with its value only."""
    conditions = status.get("conditions", ())
    before: Json = next((one for one in conditions if one["type"] == name), {})
    since = before["lastTransitionTime"] if before.get("status") == value else rfc3339(now_ms)
    told = {key: text for key, text in (("reason", reason), ("message", message)) if text}
    condition = {"type": name, "status": value, "lastTransitionTime": since, **told}
    return {**status, "conditions": [*(one for one in conditions if one["type"] != name), condition]}


def without_condition(status: Json, name: str) -> Json:
    """The status without one condition."""
    return {**status, "conditions": [one for one in status.get("conditions", ()) if one["type"] != name]}


def resized(pod: Json) -> Json:
    """The status of a pod whose kubelet has what its spec asks for in force."""
    asked = {one["name"]: one.get("resources") or {} for one in pod["spec"]["containers"]}
    told = [
        {**one, "resources": asked[one["name"]], "allocatedResources": asked[one["name"]].get("requests", {})}
        for one in pod["status"].get("containerStatuses", ())
    ]
    return {**without_condition(pod["status"], RESIZE_PENDING), "containerStatuses": told}


def disrupted(status: Json, now_ms: int, reason: str, message: str) -> Json:
    """The status of a pod that somebody else ends, and who."""
    return with_condition(status, DISRUPTION, "True", now_ms, reason, message)


def collected(status: Json, now_ms: int) -> Json:
    """The status of a pod that never started on a machine that is off, as the collector of pods leaves it."""
    return disrupted({**status, "phase": "Failed"}, now_ms, "DeletionByPodGC", "PodGC: node is out of service")


def ended_by_kubelet(status: Json, word: LastWord, now_ms: int) -> Json:
    """The status of a pod that its kubelet ends, whether or not its containers had started."""
    told = {"phase": "Failed", "reason": word.reason, "message": word.message}
    return disrupted({**status, **told}, now_ms, "TerminationByKubelet", word.message)


def preparing(pod: Json, now_ms: int, images: Json) -> Json:
    """
    The status before the program starts: init containers run, or images are pulled, or cannot be (`images` says why, by
    image: a reason and a message).
    """
    spec, status = pod["spec"], pod["status"]
    inits = spec.get("initContainers") or ()
    out = any(one.get("image", "") in images for one in (*inits, *spec["containers"]))
    rest = INITIALIZING if inits else CREATING
    begun = {"running": {"startedAt": status.get("startTime") or rfc3339(now_ms)}}
    told = {
        **status,
        "phase": "Pending",
        "startTime": status.get("startTime") or rfc3339(now_ms),
        "containerStatuses": [_waits(one, images, rest) for one in spec["containers"]],
    }
    if not inits:
        return told
    states = [_waits(one, images, INITIALIZING) if out else container(one, begun, ready=False) for one in inits]
    told["initContainerStatuses"] = states
    return with_condition(told, "Initialized", "False", now_ms, "ContainersNotInitialized")


def unprepared(pod: Json, now_ms: int) -> Json:
    """The status before the pod has its network and volumes: no container of it is begun, and no image asked for."""
    spec = pod["spec"]
    rest = INITIALIZING if spec.get("initContainers") else CREATING
    told = {**pod["status"], "phase": "Pending", "startTime": pod["status"].get("startTime") or rfc3339(now_ms)}
    told["containerStatuses"] = [_waits(one, {}, rest) for one in spec["containers"]]
    if inits := spec.get("initContainers"):
        told["initContainerStatuses"] = [_waits(one, {}, INITIALIZING) for one in inits]
    return told


def _waits(one: Json, images: Json, otherwise: str) -> Json:
    return container(one, {"waiting": images.get(one.get("image", ""), {"reason": otherwise})}, ready=False)


def running(pod: Json, now_ms: int) -> Json:
    """The status of a pod whose program starts now."""
    spec, started_at = pod["spec"], rfc3339(now_ms)
    status = {
        **pod["status"],
        "phase": "Running",
        "startTime": pod["status"].get("startTime") or started_at,
        "containerStatuses": [
            container(one, {"running": {"startedAt": started_at}}, ready=True) for one in spec["containers"]
        ],
    }
    if inits := spec.get("initContainers"):
        begun = status["startTime"]
        state = {"terminated": _terminated(0, "Completed", begun, started_at)}
        status["initContainerStatuses"] = [container(one, state, ready=True) for one in inits]
        status = with_condition(status, "Initialized", "True", now_ms)
    return status


def probed(pod: Json, ready: bool, now_ms: int) -> Json:
    """The status of a pod that runs, after a probe of its containers has found them ready, or not ready any more."""
    containers = [{**one, "ready": ready} for one in pod["status"]["containerStatuses"]]
    return with_condition(
        {**pod["status"], "containerStatuses": containers}, "Ready", "True" if ready else "False", now_ms
    )


def ended(
    pod: Json, exit_code: int, start_ms: int, end_ms: int, left: Left | None = None, by_itself: bool = True
) -> Json:
    """
    New fields in the status of a pod whose containers have ended; `left`: with the machine that they ran on.

    A program that is stopped, and does not end `by_itself`, says nothing at its end.
    """
    begun, end = rfc3339(start_ms), rfc3339(end_ms)
    if left == "unknown":
        state = _terminated(exit_code, "ContainerStatusUnknown", None, None)
        state["message"] = "The container could not be located when the pod was terminated"
    else:
        state = _terminated(exit_code, "Error" if exit_code else "Completed", begun, end)
        said = (pod["metadata"].get("annotations") or {}).get(f"{SIMULATE_PREFIX}message")
        state |= {"message": said} if said and by_itself else {}
    containers = pod["spec"]["containers"]
    return {"containerStatuses": [container(one, {"terminated": state}, ready=False) for one in containers]}


def _terminated(exit_code: int, reason: str, begun: str | None, end: str | None) -> Json:
    return {"exitCode": exit_code, "reason": reason, "startedAt": begun, "finishedAt": end}


def container(one: Json, state: Json, ready: bool) -> Json:
    """The status of one container of a pod's spec."""
    return {"name": one["name"], "image": one.get("image", ""), "ready": ready, "restartCount": 0, "state": state}


def kubelet_event(about: Json, node: str, reason: str, message: str, now: str) -> Json:
    """A kubelet's warning of a pod, as core/v1 has it, but for its metadata."""
    return {
        "involvedObject": about,
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": "kubelet", "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "eventTime": None,
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    }


MAY_BE_NULL = {
    "metadata": ("labels", "annotations", "finalizers", "ownerReferences", "deletionGracePeriodSeconds"),
    "spec": ("taints", "unschedulable", "tolerations", "initContainers", "overhead", "activeDeadlineSeconds"),
    "status": ("conditions", "initContainerStatuses", "containerStatuses", "startTime", "reason", "message"),
}
"""What the API and kubelets leave out, or say null of, where nothing is."""
STRANGE_PHASE = "Odd"


def in_odd_words(thing: Json) -> Json:
    """
    The same object as a kubelet or an API may say it, too: null for what is not there, for all times of containers and
    of conditions, and for the containers of a pod that runs; a pod that is about to start has a phase that nobody
    knows. Nothing is lost that comes by no later version.
    """
    found = dict(thing)
    for part, names in MAY_BE_NULL.items():
        if part in found or part == "metadata":
            found[part] = dict.fromkeys(names) | found.get(part, {})
    status = found.get("status")
    if thing.get("kind") == "Pod" and status is not None:
        found["status"] = _without_times(status) | _phase_fields(thing, status.get("phase"))
    elif thing.get("kind") == "Node" and status is not None:
        found["status"] = _without_times(status)
    return found


def _phase_fields(pod: Json, phase: str | None) -> Json:
    if phase == "Running":
        return {"containerStatuses": None, "initContainerStatuses": None}
    starts = phase == "Pending" and pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
    return {"phase": STRANGE_PHASE} if starts else {}


def _without_times(said: Any) -> Any:
    """The status as it is said, with null for each time of it."""
    if isinstance(said, dict):
        return {name: None if name in TIMES else _without_times(one) for name, one in said.items()}
    return [_without_times(one) for one in said] if isinstance(said, list) else said

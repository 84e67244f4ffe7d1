"""
Warnings in events: what keeps a pod from its network and volumes kubelets say there, and not in its status; and an
owner's controller, what keeps it from making pods. Pure.

Whoever may write events in a namespace may forge them there. It gains nothing: a pod that does not start is its node's
trouble without a word, too.
"""

import re
from collections.abc import Iterable

from tessera.binder.decide.ends import milliseconds
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code

SANDBOXES = frozenset({"FailedCreatePodSandBox", "FailedCreatePodContainer", "NetworkNotReady"})
"""Reasons by which a kubelet says that it cannot make a pod as such, whatever the pod asks for."""
UNPREPARED = SANDBOXES | {"FailedMount", "FailedMapVolume", "FailedAttachVolume"}
"""Reasons of events by which a kubelet, or the controller that attaches volumes for it, says that a pod is kept."""
PREPARED = frozenset({"Pulling", "Pulled", "Created", "Started"})
"""Reasons by which it says that what kept the pod is over."""
NOT_MADE = ("FailedCreate", "FailedToCreate")
"""Beginnings of reasons by which controllers say that they cannot make a pod of an owner."""
FORBIDDEN = " is forbidden: "
CONTROLLER = "attachdetach-controller"
NAMED_IN_VAIN = re.compile(
    r'\b(configmaps?|secrets?|persistentvolumeclaims?) "[^"]*" not found|non-existent (config|secret) key',
    re.IGNORECASE,
)
"""What a pod names and its namespace has not. A CSI driver that is "not found" is the node's."""
ATTACHED_ELSEWHERE = "Multi-Attach error"
OUT_OF_TIME = re.compile(r"unmounted volumes=.*(timed out waiting|deadline exceeded)")
"""A kubelet's sum of what it waited for, which hides the words about the one volume that is in the way."""
MESSAGE_CHARACTERS_MAX = 400


def read_warning(events: Iterable[Json], node: str) -> tuple[str, str] | None:
    """Reason and message of what the pod's node says last of it, in one line; None where nothing keeps the pod."""
    said = sorted((one for one in events if _is_telling(one, node)), key=_order)
    last = max((at for at, one in enumerate(said) if one["reason"] in PREPARED), default=-1)
    warnings = [(str(one["reason"]), _in_one_line(one.get("message"))) for one in said[last + 1 :]]
    telling = [one for one in warnings if not OUT_OF_TIME.search(one[1])]
    said_last = telling or warnings
    return said_last[-1] if said_last else None


def read_refused_pods(events: Iterable[Json]) -> tuple[int, str]:
    """The time (ms) at which an owner's controller last said that it may not make a pod, and why; (0, "") for never."""
    said = max((one for one in events if _is_refused_pod(one)), key=_order, default=None)
    why = "" if said is None else _in_one_line(said.get("message")).partition(FORBIDDEN)[2]
    return (0, "") if said is None else (_order(said)[0], why)


def judge_warning(message: str) -> Code:
    """Code of the trouble: one of the job's surroundings, or else of the node, which then starts nothing."""
    if NAMED_IN_VAIN.search(message):
        return Code.BIND_REFUSED
    return Code.VOLUME_NOT_READY if ATTACHED_ELSEWHERE in message else Code.START_TIMEOUT


def _is_telling(event: Json, node: str) -> bool:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent")
    host = source.get("host") or event.get("reportingInstance") or node
    by_its_node = component == CONTROLLER or (component == "kubelet" and host == node)
    return by_its_node and event.get("reason") in UNPREPARED | PREPARED


def _is_refused_pod(event: Json) -> bool:
    return str(event.get("reason")).startswith(NOT_MADE) and FORBIDDEN in str(event.get("message"))


def _order(event: Json) -> tuple[int, bool, str]:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    at = max((ms for time in times if (ms := milliseconds(time)) is not None), default=0)
    return at, event["reason"] in PREPARED, str(event["metadata"].get("name"))


def _in_one_line(message: object) -> str:
    return " ".join(str(message or "").split())[:MESSAGE_CHARACTERS_MAX]

"""
Ends of pods: what a pod's status says of its end, whose doing that was, and which of a gang's pods broke it. Pure.

What an end costs its job stands in `tessera_schemas.work.run_ends`; here each end only gets its code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tessera.domain.last_words import PodWord, word_of
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import BOOT_ANNOTATION, SESSION_LABEL
from tessera_schemas.facts import RunEnded
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import RUN_ENDS_FROM, SCRIPT_WORDS_FROM
from tessera_schemas.work.run_ends import OOM_KILLED, Whose, end_of

READY = "Ready"
DISRUPTED, BY_THE_KUBELET = "DisruptionTarget", "TerminationByKubelet"
"""The condition that Kubernetes sets on a pod before something other than its program ends it."""
DISRUPTIONS: dict[str, Code] = {
    "EvictionByEvictionAPI": Code.POD_EVICTED,
    "DeletionByTaintManager": Code.POD_EVICTED,
    "PreemptionByScheduler": Code.POD_EVICTED,
    "DeletionByPodGC": Code.NODE_LOST,
}
BY_KUBELET: dict[str, Code] = {
    "Evicted": Code.NODE_PRESSURE,
    "Preempting": Code.NODE_PRESSURE,
    "Terminated": Code.NODE_SHUT_DOWN,
    "NodeShutdown": Code.NODE_SHUT_DOWN,
    "Shutdown": Code.NODE_SHUT_DOWN,
    "NodeLost": Code.NODE_LOST,
    "DeadlineExceeded": Code.TIME_LIMIT,
}
"""By the pod's own reason, which only the kubelet of its node writes."""
REFUSALS = ("UnexpectedAdmissionError", "OutOf", "NodeAffinity")
"""Reasons of kubelets that do not take a pod; a kubelet that started anew says so of pods that ran, too."""
OWN_LIMITS = ("exceeds the limit", "exceeds the total limit", "exceeded its local ephemeral storage limit")
"""What a kubelet says of pods that it evicts for more storage than they asked for themselves."""
LOST_CONTAINERS = ("ContainerStatusUnknown", "Unknown")
"""Reasons of containers that nobody saw end: kubelet or runtime came back and did not find them any more."""
KILLED = (137, 143)
CUT_SHORT = (*KILLED, 255)
"""Exit codes of containers that a machine's restart ended; 255 stands where the runtime knows none."""
BEFORE_SCRIPT_WORDS: dict[Code, Code] = {
    Code.CANCELLED_BY_SCRIPT: Code.POD_FAILED,
    Code.REQUEUED_BY_SCRIPT: Code.POD_DELETED,
    Code.PAUSED_AS_IDLE: Code.POD_DELETED,
    Code.ENDED_AS_IDLE: Code.POD_FAILED,
}
BEFORE_RUN_ENDS: dict[Code, Code] = {
    Code.POD_EVICTED: Code.POD_DELETED,
    Code.NODE_RESTARTED: Code.POD_REFUSED_BY_NODE,
    Code.NODE_SHUT_DOWN: Code.POD_REFUSED_BY_NODE,
    Code.NODE_PRESSURE: Code.POD_REFUSED_BY_NODE,
}
"""Codes as committers know them that are older than the words of scripts, or than the table of ends."""
AT_ONCE_MS = 1000
"""Ends so near to each other have no order: Kubernetes writes whole seconds."""
LONG_BEFORE_MS = 10_000
"""An end so long before the pod's deletion was asked for was no consequence of it; clocks of nodes differ."""
NAMED_MAX = 4


@dataclass(frozen=True, slots=True)
class End:
    """
    A pod's end as its status says; times in milliseconds, None where it does not say.

    `reason` and `message` are the pod's own, `why` the container's, which `of` names if it only prepares the pod.
    `stopped_ms` is when somebody asked for its deletion or marked it for disruption; `ran` tells whether a container of
    it is known to have begun; `boot` is the boot of the machine that it was bound to; `word` is what its step runner
    said last.
    """

    reason: str = ""
    message: str = ""
    why: str = ""
    of: str = ""
    exit_code: int | None = None
    finished_ms: int | None = None
    stopped_ms: int | None = None
    disruption: str = ""
    ran: bool = False
    boot: str = ""
    word: PodWord | None = None


def read_end(pod: Json) -> End:
    """Read the API's object; what is not there, or null, is not known."""
    meta, status = pod["metadata"], pod.get("status") or {}
    ended = ended_container(status)
    target = condition(status, DISRUPTED)
    asked = [milliseconds(target.get("lastTransitionTime")), _asked_ms(meta)]
    return End(
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        why=ended.get("reason") or "",
        of=ended.get("of", ""),
        exit_code=ended.get("exitCode"),
        finished_ms=milliseconds(ended.get("finishedAt")),
        stopped_ms=min((each for each in asked if each is not None), default=None),
        disruption=target.get("reason") or "",
        ran=any(_ran(each) for each in containers(status)),
        boot=(meta.get("annotations") or {}).get(BOOT_ANNOTATION, ""),
        word=word_of(pod),
    )


def milliseconds(time: object) -> int | None:
    """Milliseconds since the Unix epoch of a time as the API writes it; None for null and for anything else."""
    try:
        return int(datetime.fromisoformat(time).timestamp() * 1000) if isinstance(time, str) else None
    except (ValueError, OverflowError):
        return None


def containers(status: Json) -> list[Json]:
    """Statuses of a pod's containers, those that prepare it first."""
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def ended_container(status: Json) -> Json:
    """
    End of the container that says most: the first that failed, else the last.

    Before the pod's containers began, the end of the init container that kept them from beginning.
    """
    ends = [each for each in map(_terminated, status.get("containerStatuses") or ()) if each]
    failed = [each for each in ends if each.get("exitCode")]
    if failed:
        return min(failed, key=lambda each: (_or_late(milliseconds(each.get("finishedAt"))), _telling_exit(each)))
    if ends:
        return ends[-1]
    for container in status.get("initContainerStatuses") or ():
        ended = _terminated(container)
        if ended.get("exitCode"):
            return {**ended, "of": f"init container {container.get('name', '')}: "}
    return {}


def _terminated(container: Json) -> Json:
    found: Json = (container.get("state") or {}).get("terminated") or {}
    return found


def _ran(container: Json) -> bool:
    states = (container.get("state") or {}, container.get("lastState") or {})
    ends = [state["terminated"] for state in states if state.get("terminated")]
    seen = any(each.get("startedAt") or each.get("reason") not in LOST_CONTAINERS for each in ends)
    return seen or any(state.get("running") is not None for state in states)


def condition(status: Json, kind: str) -> Json:
    """The condition of this type, if it holds; else empty."""
    conditions = status.get("conditions") or ()
    return next((one for one in conditions if one.get("type") == kind and one.get("status") == "True"), {})


def warns_of_idleness(pod: Json) -> bool:
    """
    Whether a session's pod, once ready, is not ready any more: its probe has found the warning of its watch.

    The node's own troubles leave its container ready. Before the first probe the condition is older than the container.
    """
    status: Json = pod.get("status") or {}
    if SESSION_LABEL not in (pod["metadata"].get("labels") or {}) or status.get("phase") != "Running":
        return False
    ready: Json = next((one for one in status.get("conditions") or () if one.get("type") == READY), {})
    since = milliseconds(ready.get("lastTransitionTime"))
    if ready.get("status") != "False" or since is None:
        return False
    told = [one for one in status.get("containerStatuses") or () if one.get("ready") is False]
    starts = [milliseconds(((one.get("state") or {}).get("running") or {}).get("startedAt")) for one in told]
    return any(start is not None and start < since for start in starts)


def _asked_ms(meta: Json) -> int | None:
    """Time at which the pod's deletion was asked for: the object says when its grace is over."""
    over = milliseconds(meta.get("deletionTimestamp"))
    return None if over is None else over - 1000 * (meta.get("deletionGracePeriodSeconds") or 0)


def cause_of(end: End, *, failed: bool, deleting: bool, started: bool, boot: str | None) -> Code:
    """
    The code of a pod's end otherwise than by success.

    `started`: the run is known to have run; a kubelet that does not take a pod forgets its containers. `boot` is the
    boot of the pod's node by now, "" where it is not known, None where the node is no more.
    """
    by_itself = failed and _ended_before_it_was_stopped(end)
    if end.disruption and end.disruption != BY_THE_KUBELET and not by_itself:
        return DISRUPTIONS.get(end.disruption, Code.POD_EVICTED)
    if failed and end.reason:
        return _said_by_kubelet(end, started or end.ran, boot)
    if deleting and not by_itself:
        return Code.POD_DELETED
    if end.disruption == BY_THE_KUBELET and not by_itself:
        return Code.NODE_PRESSURE
    if _was_cut_short(end, boot):
        return Code.NODE_RESTARTED
    # A machine that was taken away ended its containers first, and nobody can be asked any more whether it did.
    return Code.NODE_LOST if boot is None and _looks_cut_short(end) else Code.POD_FAILED


def _ended_before_it_was_stopped(end: End) -> bool:
    known = end.finished_ms is not None and end.stopped_ms is not None
    return known and (end.finished_ms or 0) + LONG_BEFORE_MS < (end.stopped_ms or 0)


def _said_by_kubelet(end: End, ran: bool, boot: str | None) -> Code:
    if end.reason == "Evicted" and any(limit in end.message for limit in OWN_LIMITS):
        return Code.POD_FAILED
    if end.reason in BY_KUBELET:
        return BY_KUBELET[end.reason]
    if _is_other(end, boot) or (ran and end.reason.startswith(REFUSALS)):
        return Code.NODE_RESTARTED
    return Code.POD_FAILED if ran else Code.POD_REFUSED_BY_NODE


def _was_cut_short(end: End, boot: str | None) -> bool:
    """Whether its machine, or the runtime there, restarted under it: no program ended then."""
    return end.why in LOST_CONTAINERS or (_looks_cut_short(end) and _is_other(end, boot))


def _looks_cut_short(end: End) -> bool:
    return end.exit_code in CUT_SHORT and end.why != OOM_KILLED


def _is_other(end: End, boot: str | None) -> bool:
    return bool(end.boot and boot) and end.boot != boot


def may_be_of_a_restart(end: End, code: Code, boot: str | None) -> bool:
    """Whether the node may yet say that its machine restarted: its word comes by another watch than the pod's."""
    return code is Code.POD_FAILED and _looks_cut_short(end) and bool(end.boot and boot)


@dataclass(frozen=True, slots=True)
class Broken:
    """A pod of a gang that ended otherwise than by success, and why."""

    rank: int
    name: str
    node: str
    code: Code
    end: End

    @property
    def ended_ms(self) -> int:
        """Time of its end, or of its stop; unknown, that is late for a program, and early for what broke one."""
        known = self.end.stopped_ms if self.end.finished_ms is None else self.end.finished_ms
        from_outside = end_of(self.code).whose is not Whose.PROGRAM
        return _or_late(0 if known is None and from_outside else known)

    @property
    def numbers(self) -> dict[str, int]:
        """Rank and exit code."""
        return {"rank": self.rank} | ({} if self.end.exit_code is None else {"exit_code": self.end.exit_code})

    @property
    def detail(self) -> str:
        """Pod, node, and what is said of its end there."""
        whose = end_of(self.code).whose
        said = self.end.disruption or self.end.reason or f"{self.end.of}{self.end.why}"
        more = "" if whose is Whose.PROGRAM and not self.end.reason else self.end.message.strip()[:200]
        return " ".join(part for part in (self.name, f"on {self.node}" if self.node else "", said, more) if part)


def _or_late(ms: int | None) -> int:
    return 1 << 62 if ms is None else ms


def _telling(pod: Broken) -> int:
    """
    Place of an end in the order of how much it tells, most first: what came from outside broke the gang; of programs
    that ended at once, one that ran out of memory comes before one that failed, and that before one that was killed. A
    plain deletion comes last: it may be an owner's answer to another pod's failure.
    """
    if pod.code is Code.POD_DELETED:
        return 4
    if end_of(pod.code).whose is not Whose.PROGRAM:
        return 0
    return 1 + _telling_exit({"reason": pod.end.why, "exitCode": pod.end.exit_code})


def _telling_exit(ended: Json) -> int:
    if ended.get("reason") == OOM_KILLED:
        return 0
    return 4 if ended.get("exitCode") in KILLED else 1


def suspects(broken: Sequence[Broken]) -> list[Broken]:
    """The pods that broke the gang: the first that ended, and of those that ended with it the most telling ones."""
    first = min(pod.ended_ms for pod in broken)
    together = [pod for pod in broken if pod.ended_ms - first <= AT_ONCE_MS]
    most = min(map(_telling, together))
    return sorted((pod for pod in together if _telling(pod) == most), key=lambda pod: pod.rank)


def describe(found: Sequence[Broken]) -> str:
    """The first suspect, and which others ended at once with it."""
    others = [f"{pod.name} on {pod.node}" for pod in found[1 : NAMED_MAX + 1]]
    if len(found) > NAMED_MAX + 1:
        others.append(f"{len(found) - NAMED_MAX - 1} more")
    return found[0].detail + (f"; at once with it {', '.join(others)}" if others else "")


def reason_for(reason: Reason, known: int) -> Reason:
    """The reason as a committer of a ledger of format `known` can read it: versions meet while a shard is upgraded."""
    code = reason.code if known >= SCRIPT_WORDS_FROM else BEFORE_SCRIPT_WORDS.get(reason.code, reason.code)
    code = code if known >= RUN_ENDS_FROM else BEFORE_RUN_ENDS.get(code, code)
    return reason if code is reason.code else reason.model_copy(update={"code": code})


def end_for(ended: RunEnded, known: int) -> RunEnded:
    """The same for the end of a run."""
    if known >= SCRIPT_WORDS_FROM:
        return ended
    reason = None if ended.reason is None else reason_for(ended.reason, known)
    nodes = ended.nodes if known >= RUN_ENDS_FROM else ()
    return ended.model_copy(update={"reason": reason, "nodes": nodes, "steps": None, "uid": "", "oom": False})

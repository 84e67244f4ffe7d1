"""
Starts of bound pods: whether their node works on them, and what keeps them from starting, in the kubelet's words. Pure.

A kubelet tries again by itself, with pauses of 10, 20, 40 … seconds. So a refusal holds GPUs for a while before it is
believed; how long depends on what it says. Where a pod's status says nothing, its events may (`warnings`): they are
asked for, and what they say is put into its memory.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tessera.binder.decide.ends import condition, containers
from tessera.binder.decide.warnings import SANDBOXES, UNPREPARED, judge_warning
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason

READY_TO_START = "PodReadyToStartContainers"
"""The condition that says that a pod has its network and volumes, so that only its images and containers are left."""
AT_WORK = ("ContainerCreating", "PodInitializing")
NO_NAME = "InvalidImageName"
PULL_FAILED = "ErrImagePull"
PULL_ERRORS = (
    PULL_FAILED,
    "ImagePullBackOff",
    NO_NAME,
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "ImageInspectError",
    "SignatureValidationFailed",
)
NO_CONFIGURATION = "CreateContainerConfigError"
NOT_THERE = re.compile(r"not ?found|manifest unknown|name unknown|does not exist|invalid reference", re.IGNORECASE)
IN_TROUBLE = re.compile(
    r"time(d )?out|deadline exceeded|refused|no such host|reset by peer|unreachable|too many requests"
    r"|internal server error|bad gateway|service unavailable",
    re.IGNORECASE,
)
"""What a registry that is away or overloaded leads to, whatever else is said with it."""
OF_THE_NODE = re.compile(
    r"no space left on device|disk quota exceeded|read-only file system|input/output error"
    r"|certificate has expired or is not yet valid",
    re.IGNORECASE,
)
"""What keeps an image from a node whose store or clock is to blame, and no registry."""
NOT_THERE_SECONDS = 15.0
"""So long an image that is not there is waited for: the kubelet has asked twice by then."""
NOT_PULLED_SECONDS = 60.0
"""So long a pull is waited for that failed otherwise, if no second failure is seen before."""
NODE_SECONDS = 60.0
"""So long a node is waited for that cannot make the sandbox of a pod, or keep its image: it has tried five times."""
NO_CONFIGURATION_SECONDS = 60.0
"""So long a Secret or ConfigMap that a container names may be missing."""
PULLS_MAX = 2
PULL_SECONDS_MAX = 1800.0
"""So long a pod without its images counts as worked on after its last step: kubelets do not tell of pulls as such."""
STUCK_SECONDS = 30.0
"""A pod without a sign of work for so long, or for half the time that it has to start, is said to be stuck."""
ASK_AT_MOST_EVERY_SECONDS = 60.0
DETAIL_CHARACTERS_MAX = 480
BELIEVED_AFTER = {
    Code.IMAGE_NOT_FOUND: NOT_THERE_SECONDS,
    Code.IMAGE_NOT_PULLED: NOT_PULLED_SECONDS,
    Code.BIND_REFUSED: NO_CONFIGURATION_SECONDS,
}


@dataclass(frozen=True, slots=True)
class Halt:
    """The obstacle that a container waits for, or without a name the whole pod, in the kubelet's words."""

    container: str
    image: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Start:
    """
    A pod's start as its status says.

    `prepares`: a container runs that prepares the pod. `creates`: the pod is there on its node, so that what is left
    are images and containers. `done` counts containers that have ended, `halts` are those that the kubelet cannot make.
    """

    prepares: bool = False
    creates: bool = False
    done: int = 0
    halts: tuple[Halt, ...] = ()


def read_start(pod: Json) -> Start:
    """Read the API's object; nothing is said of a pod that does not wait to start."""
    status = pod.get("status") or {}
    if status.get("phase", "Pending") != "Pending":
        return Start()
    states = [(one, one.get("state") or {}) for one in containers(status)]
    waiting = [(one, state["waiting"]) for one, state in states if state.get("waiting") is not None]
    halts = tuple(
        Halt(one.get("name") or "", one.get("image") or "", each.get("reason") or "", each.get("message") or "")
        for one, each in waiting
        if (each.get("reason") or AT_WORK[0]) not in AT_WORK
    )
    done = sum(1 for _, state in states if state.get("terminated") is not None)
    return Start(
        prepares=any(state.get("running") is not None for _, state in states),
        creates=bool(waiting) and (done > 0 or bool(condition(status, READY_TO_START))),
        done=done,
        halts=halts,
    )


@dataclass(slots=True)
class HaltMemory:
    """Memory of one halted container: since when, how many pulls failed, and what the last one said."""

    since: float
    pulls: int = 0
    reason: str = ""
    said: str = ""


@dataclass(slots=True)
class PodMemory:
    """
    Memory of one pod that has not started: since when it is bound, its last step, its containers; how often its events
    were asked for, when last, and what they said.
    """

    since: float
    done: int = 0
    moved: float = 0.0
    halts: dict[str, HaltMemory] = field(default_factory=dict)
    asks: int = 0
    asked: float | None = None
    warning: Halt | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """
    Why one pod has not started; `believed`: the kubelet has tried often enough, and its run is given back. `said` tells
    whether the kubelet has said anything; `node` is "" while it may yet overcome what it warns of.
    """

    rank: int
    node: str
    reason: Reason
    believed: bool = False
    said: bool = True


def delay_of(
    rank: int, name: str, node: str, start: Start, memory: PodMemory, now: float, stuck: float
) -> Delay | None:
    """
    Why a bound pod has not started, as far as anything is wrong; what was seen goes into its `memory`.

    `now` in seconds of the clock of `memory`; `stuck` is how long it may show no sign of work.
    """
    if start.done != memory.done:
        memory.done, memory.moved = start.done, now
    start = _with_warning(start, memory, now)
    _remember(start, memory, now)
    where = f"{name} on {node}"
    if memory.warning is not None and now - memory.since < stuck:
        node = ""  # volumes are often late: two nodes that warn at once would hide one that starts nothing
    delays = [_halted(rank, node, where, halt, memory.halts[halt.container], now) for halt in start.halts]
    if delays:
        return min(delays, key=lambda delay: (not delay.believed, delay.reason.code not in BELIEVED_AFTER))
    if is_worked_on(start, memory, now) or now - memory.since < stuck:
        return None
    detail = f"{where}: no container of it was created; the events of the pod say more"
    return Delay(rank, node, Reason(code=Code.START_TIMEOUT, numbers={"rank": rank}, detail=detail), said=False)


def is_worked_on(start: Start, memory: PodMemory, now: float) -> bool:
    """Whether the pod's node works on it: a container prepares it, or its images are pulled, which takes so long."""
    pulls = start.creates and now - max(memory.since, memory.moved) < PULL_SECONDS_MAX
    return not start.halts and (start.prepares or pulls)


def is_silent(start: Start, memory: PodMemory, now: float) -> bool:
    """Whether the pod's status neither shows work nor says what is in the way of it."""
    return not start.halts and not is_worked_on(start, memory, now)


def is_to_ask(memory: PodMemory, now: float, stuck: float) -> bool:
    """
    Whether it is time to ask for the events of a silent pod: after a third of the time after which it is stuck, then
    after twice as long each time, at last once a minute.
    """
    pause = min(stuck / 3 * (1 << min(memory.asks, 16)), ASK_AT_MOST_EVERY_SECONDS)
    return now - (memory.since if memory.asked is None else memory.asked) >= pause


def _with_warning(start: Start, memory: PodMemory, now: float) -> Start:
    """The start with what its events say; a pod of which its status tells is past that."""
    if not is_silent(start, memory, now):
        memory.warning = None
    return start if memory.warning is None else replace(start, halts=(memory.warning,))


def _remember(start: Start, memory: PodMemory, now: float) -> None:
    there = {halt.container for halt in start.halts}
    for name in [name for name in memory.halts if name not in there]:
        del memory.halts[name]
    for halt in start.halts:
        known = memory.halts.setdefault(halt.container, HaltMemory(now))
        if halt.reason == PULL_FAILED and known.reason != PULL_FAILED:
            known.pulls += 1
        if halt.message and (halt.reason != "ImagePullBackOff" or not known.said):
            known.said = halt.message
        known.reason = halt.reason


def _halted(rank: int, node: str, where: str, halt: Halt, known: HaltMemory, now: float) -> Delay:
    code = _code(halt, known)
    image = f"image {halt.image}: " if halt.reason in PULL_ERRORS and halt.image else ""
    what = image or (f"container {halt.container}: " if halt.container else "")
    said = known.said or halt.message
    detail = f"{where}: {what}{halt.reason}" + (f": {said}" if said else "")
    reason = Reason(code=code, numbers={"rank": rank}, detail=detail[:DETAIL_CHARACTERS_MAX])
    after = NODE_SECONDS if _is_of_the_node(halt, known) else BELIEVED_AFTER.get(code)
    is_over = after is not None and (halt.reason == NO_NAME or now - known.since >= after or known.pulls >= PULLS_MAX)
    return Delay(rank, node, reason, is_over)


def _code(halt: Halt, known: HaltMemory) -> Code:
    if halt.reason in UNPREPARED:
        return judge_warning(halt.message)
    if halt.reason == NO_NAME:
        return Code.IMAGE_NOT_FOUND
    if _is_of_the_node(halt, known):
        return Code.START_TIMEOUT
    if halt.reason in PULL_ERRORS:
        said = f"{known.said} {halt.message}"
        gone = NOT_THERE.search(said) and not IN_TROUBLE.search(said)
        return Code.IMAGE_NOT_FOUND if gone else Code.IMAGE_NOT_PULLED
    return Code.BIND_REFUSED if halt.reason == NO_CONFIGURATION else Code.START_TIMEOUT


def _is_of_the_node(halt: Halt, known: HaltMemory) -> bool:
    """Whether the node itself is at fault for certain; a volume may also be late, or its server away."""
    in_its_store = halt.reason in PULL_ERRORS and OF_THE_NODE.search(f"{known.said} {halt.message}")
    return halt.reason in SANDBOXES or bool(in_its_store)


def worst(delays: Iterable[Delay]) -> Delay | None:
    """The delay that is told of a run: one that gives it back, else one with the kubelet's word, by rank."""
    return min(
        delays,
        key=lambda each: (not each.believed, each.reason.code is Code.START_TIMEOUT, not each.said, each.rank),
        default=None,
    )

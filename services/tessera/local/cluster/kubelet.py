"""
The kubelets: what happens to a pod from its bind to its end, on the node it was bound to.

Level-triggered: `sync` looks at the pod as it is now, does all that is due, and says when to look again. A node that
is not reachable does nothing until it is back, then catches up; its pods meanwhile go on holding their devices, and
those of a machine that lost power fail then. A pod whose object was removed by force is killed, and holds its devices
until then.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tessera.kernel.ports import JsonObject
from tessera.local.cluster.behaviour import Behaviour, Ending, behaviour_of, grace_ms_of
from tessera.local.cluster.capacity import AdmissionError, NodeUse, Request, request_of
from tessera.local.cluster.dates import rfc3339
from tessera.local.cluster.shelf import Shelf, Version
from tessera.local.cluster.timers import Timers
from tessera_schemas.labels import CHECKPOINT_ANNOTATION, EVICT_AT_ANNOTATION

_UNSTARTED = Ending("Failed", "", 0)
_CUT_OFF = Ending("Failed", "", 137)


@dataclass(slots=True)
class StartedProgram:
    """A program that runs: what it holds, how it behaves, and when it ends."""

    behaviour: Behaviour
    request: Request
    devices: tuple[int, ...]
    at_ms: int
    ends_ms: int
    ending: Ending
    stopped_ms: int | None = None
    saved_ms: int = 0
    was_asked: bool = False

    @property
    def next_ms(self) -> int:
        """Time of the next event: the program's end, or a checkpoint before it."""
        every = self.behaviour.save_ms
        return min(self.ends_ms, self.saved_ms + every) if every and self.stopped_ms is None else self.ends_ms

    def saves(self, pod: Version, now_ms: int) -> bool:
        """Whether the program saves its work now: its time has come, or it was just told that it will be stopped."""
        asked = EVICT_AT_ANNOTATION in (pod.meta.get("annotations") or {}) and not self.was_asked
        self.was_asked = self.was_asked or asked
        due = now_ms >= self.saved_ms + self.behaviour.save_ms
        return bool(self.behaviour.save_ms) and self.stopped_ms is None and now_ms < self.ends_ms and (due or asked)


@dataclass(slots=True)
class PodRun:
    """A kubelet's knowledge of one pod."""

    node: str
    start_ms: int
    started: StartedProgram | None = None
    lost_power: bool = False
    """Whether nothing of the pod runs, since its machine lost power, nor ever will."""


class Kubelets:
    """All nodes' kubelets. `end_pod` writes a pod's last status and finishes its deletion if one was asked."""

    def __init__(
        self, pods: Shelf, timers: Timers, start_ms: int, end_pod: Callable[[Version, JsonObject], None]
    ) -> None:
        self._pods, self._timers, self._start_ms, self._end_pod = pods, timers, start_ms, end_pod
        self._runs: dict[str, PodRun] = {}
        self._on_node: dict[str, dict[str, None]] = {}
        self._use: dict[str, NodeUse] = {}
        self._away: dict[str, None] = {}
        self._off: set[str] = set()

    def __len__(self) -> int:
        return len(self._runs)

    def has(self, uid: str) -> bool:
        """Whether containers of the pod run, or are about to, whatever the API shows of it."""
        return uid in self._runs and not self._runs[uid].lost_power

    def is_away(self, node: str) -> bool:
        """Whether the node is cut off, or its object is gone."""
        return node in self._away

    def use_of(self, node: str) -> NodeUse | None:
        """Capacity and use of a node; None for a name that no kubelet has."""
        return self._use.get(node)

    def node_changed(self, node: Version) -> None:
        """Take over the totals of a new or changed node; pods that run keep what they hold."""
        self._use.setdefault(node.meta["name"], NodeUse()).resize(node.object)

    def node_gone(self, node: str) -> None:
        """Forget a node; its pods stay as they are, and a new node of that name takes them up."""
        if node in self._on_node:
            self._away[node] = None
        else:
            self._use.pop(node, None)
            self._away.pop(node, None)

    def set_reachable(self, node: str, reachable: bool, now_ms: int) -> None:
        """A node that comes (back) looks at all its pods at once."""
        if not reachable:
            self._away[node] = None
            return
        self._away.pop(node, None)
        self._off.discard(node)
        for uid in self._on_node.get(node, ()):
            self._timers.set(uid, now_ms)

    def power_off(self, node: str, now_ms: int) -> None:
        """
        Pods of a machine that loses power fail once it is back, those too that are bound to it meanwhile.

        A real kubelet may start one that it had not begun. Who forces that one off just then relies on the operator's
        word, as Kubernetes' own collector of pods does.
        """
        self._off.add(node)
        for uid in self._on_node.get(node, ()):
            run = self._runs[uid]
            run.lost_power = True
            if run.started is not None and run.started.ends_ms > now_ms:
                run.started.ends_ms, run.started.ending = now_ms, _CUT_OFF

    def bound(self, pod: Version, now_ms: int) -> None:
        """A pod was bound; its node, which need not exist, looks at it after the start delay."""
        run = PodRun(pod.node, now_ms + self._start_ms, lost_power=pod.node in self._off)
        self._runs[pod.uid] = run
        self._on_node.setdefault(pod.node, {})[pod.uid] = None
        self._timers.set(pod.uid, run.start_ms)

    @property
    def runs(self) -> dict[str, PodRun]:
        """Knowledge of each pod, by UID; shared and not to be changed."""
        return self._runs

    def resume(self, uid: str, run: PodRun, now_ms: int) -> None:
        """Take up a pod as an earlier process left it; what it missed follows once its node is there."""
        self._runs[uid] = run
        self._on_node.setdefault(run.node, {})[uid] = None
        self._away.setdefault(run.node, None)
        if run.started is not None:
            self._use.setdefault(run.node, NodeUse()).hold(run.started.request, run.started.devices)
        self._timers.set(uid, now_ms)

    def touched(self, uid: str, now_ms: int) -> None:
        """The pod was deleted or removed: its node notices at once."""
        if uid in self._runs:
            self._timers.set(uid, now_ms)

    def sync(self, uid: str, now_ms: int) -> None:
        """Do for one pod what is due at `now_ms`; nothing happens on a node that is away or unknown."""
        run = self._runs.get(uid)
        if run is None or run.node in self._away or run.node not in self._use:
            return
        pod = self._pods.with_uid(uid)
        if run.started is None:
            self._before_start(uid, run, pod, now_ms)
        if run.started is not None:
            self._while_running(uid, run, run.started, pod, now_ms)

    def _before_start(self, uid: str, run: PodRun, pod: Version | None, now_ms: int) -> None:
        if pod is None:
            self._forget(uid, run)
        elif pod.deleting or run.lost_power:
            self._forget(uid, run)
            self._end_pod(pod, {"phase": _UNSTARTED.phase})
        elif now_ms < run.start_ms:
            self._timers.set(uid, run.start_ms)
        else:
            self._start(uid, run, pod, now_ms)

    def _start(self, uid: str, run: PodRun, pod: Version, now_ms: int) -> None:
        try:
            behaviour, request = behaviour_of(pod.object), request_of(pod.object)
            devices = self._use[run.node].take(request)
        except AdmissionError as refusal:
            self._forget(uid, run)
            why = {"reason": "UnexpectedAdmissionError", "message": f"Pod was rejected: {refusal}"}
            self._end_pod(pod, {"phase": "Failed", "startTime": rfc3339(now_ms), **why})
            return
        ends_ms = now_ms + behaviour.run_ms
        run.started = StartedProgram(behaviour, request, devices, now_ms, ends_ms, behaviour.ending, saved_ms=now_ms)
        self._pods.replace(pod, {**pod.object, "metadata": dict(pod.meta), "status": _running(pod, now_ms)})

    def _while_running(self, uid: str, run: PodRun, started: StartedProgram, pod: Version | None, now_ms: int) -> None:
        if now_ms < started.ends_ms and (pod is None or pod.deleting):
            _stop(started, pod, now_ms)
        if pod is not None and started.saves(pod, now_ms):
            started.saved_ms = now_ms
            self._pods.replace(pod, _saved(pod, started.behaviour.path_after(now_ms - started.at_ms)))
        if now_ms < started.ends_ms:
            self._timers.set(uid, started.next_ms)
            return
        self._use[run.node].give_back(started.request, started.devices)
        self._forget(uid, run)
        if pod is not None:
            self._end_pod(pod, _ended(pod, started))

    def _forget(self, uid: str, run: PodRun) -> None:
        del self._runs[uid]
        self._timers.cancel(uid)
        on_node = self._on_node[run.node]
        del on_node[uid]
        if not on_node:
            del self._on_node[run.node]


def _stop(started: StartedProgram, pod: Version | None, now_ms: int) -> None:
    """Send SIGTERM once; a later deletion with less grace makes the end come earlier."""
    if started.stopped_ms is None:
        started.stopped_ms = now_ms
    lasts_ms, ending = started.behaviour.stopped(0 if pod is None else grace_ms_of(pod.object))
    ends_ms = max(started.stopped_ms + lasts_ms, now_ms)
    if ends_ms < started.ends_ms:  # else it ends by itself first
        started.ends_ms, started.ending = ends_ms, ending


def _saved(pod: Version, path: str) -> JsonObject:
    """The pod as its program writes it: its work is saved there."""
    notes = {**(pod.meta.get("annotations") or {}), CHECKPOINT_ANNOTATION: path}
    return {**pod.object, "metadata": {**pod.meta, "annotations": notes}}


def _running(pod: Version, now_ms: int) -> JsonObject:
    started_at = rfc3339(now_ms)
    state = {"running": {"startedAt": started_at}}
    return {
        **pod.object["status"],
        "phase": "Running",
        "startTime": started_at,
        "containerStatuses": [_container(name, state, ready=True) for name in _containers(pod)],
    }


def _ended(pod: Version, started: StartedProgram) -> JsonObject:
    ending = started.ending
    state = {
        "terminated": {
            "exitCode": ending.exit_code,
            "reason": "Error" if ending.exit_code else "Completed",
            "startedAt": rfc3339(started.at_ms),
            "finishedAt": rfc3339(started.ends_ms),
        }
    }
    status = {
        "phase": ending.phase,
        "containerStatuses": [_container(name, state, ready=False) for name in _containers(pod)],
    }
    return {**status, "reason": ending.reason} if ending.reason else status


def _containers(pod: Version) -> list[str]:
    return [container["name"] for container in pod.object["spec"]["containers"]]


def _container(name: str, state: JsonObject, ready: bool) -> JsonObject:
    return {"name": name, "ready": ready, "restartCount": 0, "state": state}

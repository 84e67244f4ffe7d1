"""
The kubelets: what happens to a pod from its bind to its end, on the node it was bound to.

Level-triggered: `sync` looks at the pod as it is now, does all that is due, and says when to look again. A node that
is not reachable does nothing until it is back, then catches up; its pods meanwhile go on holding their devices, and
those of a machine that lost power or began anew fail then. A pod whose object was removed by force is killed, and holds
its devices until then. What is wrong with a node for a while (`node_ills`) it asks before each step.

An image is tried again as soon as it is there, not after a back-off.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tessera_local.cluster.api.values import rfc3339
from tessera_local.cluster.machines import pod_statuses
from tessera_local.cluster.machines.behaviour import (
    KILLED,
    OVERDUE,
    TERMINATED,
    Behaviour,
    Ending,
    behaviour_of,
    deadline_ms_of,
    grace_ms_of,
)
from tessera_local.cluster.machines.capacity import AdmissionError, NodeUse, PodRequest, request_of
from tessera_local.cluster.machines.node_ills import Ills
from tessera_local.cluster.machines.pod_statuses import SHUT_DOWN, LastWord, Left
from tessera_local.cluster.machines.timers import Timers
from tessera_local.cluster.objects.shelf import Shelf, Version
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import CHECKPOINT_ANNOTATION, EVICT_AT_ANNOTATION, PROGRESS_ANNOTATION

_CODES: dict[Left, int] = {"killed": KILLED, "unknown": KILLED, "stopped": TERMINATED}
PREPARE_AGAIN_MS = 10_000
PULL_AGAIN_MS = 1000
"""From the first failure to pull an image to the kubelet's word that it waits before the next try."""


@dataclass(slots=True)
class StartedProgram:
    """A program that runs: what it holds, how it behaves, and when it ends."""

    behaviour: Behaviour
    request: PodRequest
    devices: tuple[int, ...]
    at_ms: int
    ends_ms: int
    ending: Ending
    stopped_ms: int | None = None
    saved_ms: int = 0
    was_asked: bool = False
    turns: int = 0
    """Number of times that its pod has become ready or not ready since it started."""
    steps: int = 0
    """Number of the last step that it has reported."""

    @property
    def next_ms(self) -> int:
        """Time of the next event: the program's end, or a checkpoint or a turn of its readiness before it."""
        every = self.behaviour.save_ms
        turns = [self.at_ms + turn for turn in self.behaviour.turns_ms[self.turns : self.turns + 1]]
        saves = [self.saved_ms + every] if every and self.stopped_ms is None else []
        step = self.at_ms + (self.steps + 1) * self.behaviour.step_ms
        works = self.behaviour.steps_after(step - self.at_ms) > self.steps and self.stopped_ms is None
        return min([self.ends_ms, *turns, *saves, *([step] if works else [])])

    def does_steps(self, now_ms: int) -> bool:
        """Whether it has done more steps by now than it has reported."""
        before = self.steps
        if self.stopped_ms is None and now_ms < self.ends_ms:
            self.steps = max(before, self.behaviour.steps_after(now_ms - self.at_ms))
        return self.steps > before

    def turn(self, now_ms: int) -> bool:
        """Whether its readiness is another one by now than at the last look."""
        before, self.turns = self.turns, sum(self.at_ms + turn <= now_ms for turn in self.behaviour.turns_ms)
        return (self.turns - before) % 2 == 1

    @property
    def turned_ms(self) -> int:
        """Time of the last turn of its readiness."""
        return self.at_ms + self.behaviour.turns_ms[self.turns - 1]

    def saves(self, pod: Version | None, now_ms: int) -> bool:
        """
        Whether the program saves its work now: its time has come, or it was just told that it will be stopped.

        One that ends by itself when it is told so is to end from now on. A program saves without its object too.
        """
        told = pod is not None and EVICT_AT_ANNOTATION in (pod.meta.get("annotations") or {})
        asked = told and not self.was_asked
        self.was_asked = self.was_asked or asked
        if asked and self.behaviour.notice_ms is not None and self.stopped_ms is None:
            self.ends_ms = min(self.ends_ms, now_ms + self.behaviour.notice_ms)
        due = now_ms >= self.saved_ms + self.behaviour.save_ms
        return bool(self.behaviour.save_ms) and self.stopped_ms is None and now_ms < self.ends_ms and (due or asked)


@dataclass(slots=True)
class Admitted:
    """A pod that a kubelet has taken, and that has not started: what it holds, and what it will do."""

    behaviour: Behaviour
    request: PodRequest
    devices: tuple[int, ...]
    tried: bool = False
    """Whether its images were tried before."""


@dataclass(slots=True)
class PodRun:
    """A kubelet's knowledge of one pod."""

    node: str
    start_ms: int
    started: StartedProgram | None = None
    lost_power: bool = False
    """Whether nothing of the pod runs, since its machine lost power, nor ever will."""
    admitted: Admitted | None = None
    left: Left | None = None
    """How its containers ended with their machine, if they did."""
    word: LastWord | None = None
    """Why its kubelet ends it, if it does."""


class Kubelets:
    """
    All nodes' kubelets. `end_pod` writes a pod's last status and finishes its deletion if one was asked; `warn` tells
    of a pod in an event, by reason and message.
    """

    def __init__(
        self,
        pods: Shelf,
        timers: Timers,
        start_ms: int,
        end_pod: Callable[[Version, Json], None],
        warn: Callable[[Version, str, str], None],
    ) -> None:
        self._pods, self._timers, self._start_ms, self._end_pod, self._warn = pods, timers, start_ms, end_pod, warn
        self._runs: dict[str, PodRun] = {}
        self._on_node: dict[str, dict[str, None]] = {}
        self._use: dict[str, NodeUse] = {}
        self._away: dict[str, None] = {}
        self._off: set[str] = set()
        self._boots: Counter[str] = Counter()
        self._down: set[str] = set()
        self.ills = Ills()

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
        if node in self._off or node in self._down:
            self._boots[node] += 1
            self.ills.of(node).shuts_down = False
        self._off.discard(node)
        self._down.discard(node)
        self.look_at_all(node, now_ms)

    def look_at_all(self, node: str, now_ms: int) -> None:
        """Have the node's kubelet look at each of its pods: something has changed for them."""
        for uid in self._on_node.get(node, ()):
            self._timers.set(uid, now_ms)

    def boots_of(self, node: str) -> int:
        """Number of times that the machine of that name began anew."""
        return self._boots[node]

    def go_down(self, node: str, left: Left, now_ms: int) -> None:
        """
        End the programs of a machine that begins anew; `left` is what its kubelet will say of their containers.

        Pods that had not started are started once it is back, as are those that are bound to it meanwhile.
        """
        self._down.add(node)
        self._away[node] = None
        for uid in self._on_node.get(node, ()):
            run = self._runs[uid]
            if run.started is not None and run.started.ends_ms > now_ms:
                self._cut(run, run.started, left, now_ms)

    def _cut(self, run: PodRun, started: StartedProgram, left: Left, now_ms: int) -> None:
        run.lost_power, run.left = True, left
        started.ends_ms, started.ending = now_ms, Ending("Failed", "", _CODES[left])

    def shut_down(self, node: str, now_ms: int) -> None:
        """End the pods of a machine that an operator turns off in order, and take none, until it has begun anew."""
        self.ills.of(node).shuts_down = True
        for uid in self._on_node.get(node, ()):
            self._runs[uid].word = self._runs[uid].word or SHUT_DOWN
        self.look_at_all(node, now_ms)

    def end_one(self, uid: str, word: LastWord, now_ms: int) -> None:
        """End one pod of a node that lacks something; one that is ended already goes on ending as it does."""
        if (run := self._runs.get(uid)) is not None:
            run.word = run.word or word
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
                self._cut(run, run.started, "killed", now_ms)

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
        if (held := run.started or run.admitted) is not None:
            self._use.setdefault(run.node, NodeUse()).hold(held.request, held.devices)
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
        elif pod.deleting:
            self._forget(uid, run)
            self._end_pod(pod, {"phase": "Failed"})
        elif run.lost_power:
            self._forget(uid, run)
            self._end_pod(pod, pod_statuses.collected(pod.object["status"], now_ms))
        elif run.word is not None:
            self._forget(uid, run)
            self._end_pod(pod, pod_statuses.ended_by_kubelet(pod.object["status"], run.word, now_ms))
        elif now_ms < run.start_ms and run.admitted is None:
            self._timers.set(uid, run.start_ms)
        else:
            self._take(uid, run, pod, now_ms)

    def _take(self, uid: str, run: PodRun, pod: Version, now_ms: int) -> None:
        if run.admitted is None:
            try:
                run.admitted = self._admit(run, pod)
            except AdmissionError as refusal:
                self._forget(uid, run)
                why = {"reason": "UnexpectedAdmissionError", "message": f"Pod was rejected: {refusal}"}
                if self.ills.of(run.node).shuts_down:
                    why = pod_statuses.REFUSED_BY_SHUTDOWN
                self._end_pod(pod, {"phase": "Failed", "startTime": rfc3339(now_ms), **why})
                return
            run.start_ms = now_ms + run.admitted.behaviour.start_ms
        ill = self.ills.of(run.node)
        if ill.fails is not None:
            self._say_status(pod, pod_statuses.unprepared(pod.object, now_ms))
            self._warn(pod, *ill.fails)
            self._timers.set(uid, now_ms + PREPARE_AGAIN_MS)
            return
        missing = self.ills.missing_images(run.node, pod.object, run.admitted.tried)
        if missing or now_ms < run.start_ms or ill.starts_nothing:
            self._prepare(uid, run, run.admitted, pod, missing, now_ms)
        else:
            self._start(run, run.admitted, pod, now_ms)

    def _admit(self, run: PodRun, pod: Version) -> Admitted:
        ill = self.ills.of(run.node)
        if ill.refuses or ill.shuts_down:
            raise AdmissionError(ill.refuses)
        behaviour, request = behaviour_of(pod.object), request_of(pod.object)
        return Admitted(behaviour, request, self._use[run.node].take(request))

    def _prepare(self, uid: str, run: PodRun, admitted: Admitted, pod: Version, missing: Json, now_ms: int) -> None:
        """Show what the pod waits for, and look again when that may be over."""
        self._say_status(pod, pod_statuses.preparing(pod.object, now_ms, missing))
        if missing and not admitted.tried:
            admitted.tried = True
            self._timers.set(uid, now_ms + PULL_AGAIN_MS)
        elif now_ms < run.start_ms:
            self._timers.set(uid, run.start_ms)

    def _say_status(self, pod: Version, status: Json) -> None:
        if status != pod.object["status"]:
            self._pods.replace(pod, {**pod.object, "metadata": dict(pod.meta), "status": status})

    def _start(self, run: PodRun, admitted: Admitted, pod: Version, now_ms: int) -> None:
        behaviour, request, devices = admitted.behaviour, admitted.request, admitted.devices
        ends_ms = now_ms + behaviour.run_ms
        run.started = StartedProgram(behaviour, request, devices, now_ms, ends_ms, behaviour.ending, saved_ms=now_ms)
        run.admitted = None
        _keep_deadline(run.started, pod, now_ms)
        status = pod_statuses.running(pod.object, now_ms)
        self._pods.replace(pod, {**pod.object, "metadata": dict(pod.meta), "status": status})

    def _while_running(self, uid: str, run: PodRun, started: StartedProgram, pod: Version | None, now_ms: int) -> None:
        deferred = False
        if pod is not None and not run.lost_power:
            _keep_deadline(started, pod, now_ms)
            pod, deferred = self._keep_size(run.node, started, pod, now_ms)
        told = pod is None or pod.deleting or run.word is not None
        if now_ms < started.ends_ms and told and not self.ills.of(run.node).is_stuck:
            _stop(started, pod, run.word, now_ms)
        if started.saves(pod, now_ms):
            started.saved_ms = now_ms
            if pod is not None:
                path = started.behaviour.path_after(now_ms - started.at_ms)
                self._pods.replace(pod, _noted(pod, CHECKPOINT_ANNOTATION, path))
                pod = self._pods.with_uid(uid)
        if started.does_steps(now_ms) and pod is not None:
            self._pods.replace(pod, _noted(pod, PROGRESS_ANNOTATION, str(started.steps)))
            pod = self._pods.with_uid(uid)
        if started.turn(min(now_ms, started.ends_ms)) and pod is not None:
            # Said late by the kubelet of a node that was cut off, the turn has the time at which it was seen there.
            self._say_status(pod, pod_statuses.probed(pod.object, started.turns % 2 == 0, started.turned_ms))
            pod = self._pods.with_uid(uid)
        if now_ms < started.ends_ms:
            self._timers.set(uid, min(started.next_ms, now_ms + PREPARE_AGAIN_MS) if deferred else started.next_ms)
            return
        self._forget(uid, run)
        if pod is not None:
            self._end_pod(pod, _ended(pod, run, started, now_ms))

    def _keep_size(self, node: str, started: StartedProgram, pod: Version, now_ms: int) -> tuple[Version | None, bool]:
        """
        Resize the pod in place where its spec asks for it, or say why not. Returns the pod as it is then, and whether
        room may yet come.
        """
        asked, status = request_of(pod.object), pod.object["status"]
        is_pending = any(one["type"] == pod_statuses.RESIZE_PENDING for one in status.get("conditions", ()))
        if (asked.cpu_milli, asked.memory_bytes) == (started.request.cpu_milli, started.request.memory_bytes):
            if not is_pending:
                return pod, False
            why = None
        else:
            why = self._use[node].resized(started.request, asked) if started.behaviour.resizes else "Infeasible"
        if why is None:
            started.request = asked
            self._say_status(pod, pod_statuses.resized(pod.object))
        else:
            pending = pod_statuses.RESIZE_PENDING
            self._say_status(pod, pod_statuses.with_condition(status, pending, "True", now_ms, why, "no room for it"))
        return self._pods.with_uid(pod.uid), why == "Deferred"

    def _forget(self, uid: str, run: PodRun) -> None:
        if (held := run.started or run.admitted) is not None:
            self._use[run.node].give_back(held.request, held.devices)
        del self._runs[uid]
        self._timers.cancel(uid)
        on_node = self._on_node[run.node]
        del on_node[uid]
        if not on_node:
            del self._on_node[run.node]


def _stop(started: StartedProgram, pod: Version | None, word: LastWord | None, now_ms: int) -> None:
    """Send SIGTERM once; a later deletion with less grace makes the end come earlier."""
    grace_ms = 0 if pod is None else grace_ms_of(pod.object)
    if word is not None and word.grace_ms is not None:
        grace_ms = min(grace_ms, word.grace_ms)
    if (stopped := started.behaviour.stopped(grace_ms)) is None:
        return
    if started.stopped_ms is None:
        started.stopped_ms = now_ms
    ends_ms = max(started.stopped_ms + stopped[0], now_ms)
    if ends_ms < started.ends_ms:  # else it ends by itself first
        started.ends_ms, started.ending = ends_ms, stopped[1]


def _keep_deadline(started: StartedProgram, pod: Version, now_ms: int) -> None:
    """End the program at the pod's deadline, which may have come earlier since it started; at once, if that is past."""
    deadline_ms = deadline_ms_of(pod.object)
    if deadline_ms is not None and started.at_ms + deadline_ms < started.ends_ms:
        started.ends_ms, started.ending = max(started.at_ms + deadline_ms, now_ms), OVERDUE


def _noted(pod: Version, name: str, value: str) -> Json:
    """The pod as its program writes it: its work is saved there, or so far."""
    notes = {**(pod.meta.get("annotations") or {}), name: value}
    return {**pod.object, "metadata": {**pod.meta, "annotations": notes}}


def _ended(pod: Version, run: PodRun, started: StartedProgram, now_ms: int) -> Json:
    ending = started.ending
    by_itself = ending == started.behaviour.ending
    told = pod_statuses.ended(pod.object, ending.exit_code, started.at_ms, started.ends_ms, run.left, by_itself)
    if run.word is not None and run.left is None and not by_itself:  # nothing else came first
        return pod_statuses.ended_by_kubelet({**pod.object["status"], **told}, run.word, now_ms)
    status = {**told, "phase": ending.phase}
    return {**status, "reason": ending.reason} if ending.reason else status

"""
Bound runs that have not started: what the kubelets say of their pods, told within seconds.

While all its pods that wait are worked on, a run is said to work, so that its clock stands still. What keeps a pod from
starting is told once it changes; once the kubelet has tried often enough, the run is given back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.binder.adoption.runs import AdoptedRuns
from tessera.binder.decide.starting import (
    STUCK_SECONDS,
    Delay,
    PodMemory,
    delay_of,
    is_silent,
    is_to_ask,
    is_worked_on,
    worst,
)
from tessera.binder.decide.steps import Pod
from tessera.binder.pods.warnings import PodWarnings
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.domain.work.starting import given_ms
from tessera.kernel.ledger.timestamps import LedgerTime
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.facts import BindFailed, StartDelayed
from tessera_schemas.reasons import Reason
from tessera_schemas.shard.ledger_form import RUN_ENDS_FROM

LOOK_SECONDS = 2.0
"""How often a run that has not started is looked at, unless it has little time; it is told of no more often."""
NODES_MAX = 64
PODS_ASKED = 8
"""The events of so many pods of a run are asked for, one on each node: pods on one node mostly wait for the same."""


@dataclass(slots=True)
class _Told:
    """Memory of one run, by UID of its pods, and what was last told of it and when (seconds)."""

    pods: dict[str, PodMemory] = field(default_factory=dict)
    at: float | None = None
    reason: Reason | None = None
    nodes: tuple[str, ...] = ()
    deadline: int = 0
    given_back: bool = False


class Starting:
    """Every report may be repeated; what was told is remembered only to save messages."""

    def __init__(
        self, facts: Facts, state: State, clock: Clock, worklist: Worklist, warnings: PodWarnings, adopted: AdoptedRuns
    ) -> None:
        self._adopted = adopted
        self._facts, self._state, self._clock, self._worklist = facts, state, clock, worklist
        self._warnings, self._time = warnings, LedgerTime(clock, state.ts)
        self._told: dict[str, _Told] = {}

    def forget(self, run_id: str) -> None:
        """Forgets what was seen and told of a run."""
        self._told.pop(run_id, None)

    async def report(self, job: Job, run: Run, pods: Mapping[str, Pod]) -> None:
        """Tell what keeps a run's bound pods from starting, if they are still to start. Raises Transient."""
        if run.started or self._state.format < RUN_ENDS_FROM:
            self.forget(run.run_id)
            return
        gang = [pods.get(uid) for uid in run.uids if uid]  # late ones are the last, and come once the others run
        waiting = [(rank, pod) for rank, pod in enumerate(gang) if pod is not None and _waits(pod)]
        told = self._told.setdefault(run.run_id, _Told())
        if not waiting or told.given_back:
            return
        self._worklist.name_later(run.run_id, self._pause(run))
        delays = self._delays(run, told, waiting)
        first = worst(delays)
        if first is not None and first.believed and _survives(job):
            await self._give_back(run, told, first, delays)
        else:
            is_whole = all(pod is not None and pod.node for pod in gang)
            # Users' pods are warned of, and stopped for no silence: images are pulled for as long as it takes.
            works = not delays and all(self._is_worked_on(told, pod) for _, pod in waiting)
            await self._report(run, told, first, _nodes(delays), is_whole and (works or job.adopted is not None))
            if job.adopted is not None:
                await self._warn(run, told, first, [pod for _, pod in waiting])

    async def _warn(self, run: Run, told: _Told, first: Delay | None, waiting: list[Pod]) -> None:
        """Make an event on each users' pod that has not started for as long as a start may take."""
        seconds = given_ms(self._state, run) // 1000
        for pod in waiting:
            if self._clock.monotonic() - told.pods[pod.uid].since >= seconds:
                await self._adopted.warn_of_start(pod.uid, seconds, None if first is None else first.reason)

    def _pause(self, run: Run) -> float:
        return min(LOOK_SECONDS, given_ms(self._state, run) / 8000)

    def _delays(self, run: Run, told: _Told, waiting: list[tuple[int, Pod]]) -> list[Delay]:
        now = self._clock.monotonic()
        stuck = min(STUCK_SECONDS, given_ms(self._state, run) / 2000)
        known = [(rank, pod, told.pods.setdefault(pod.uid, PodMemory(now))) for rank, pod in waiting]
        self._ask([(pod, memory) for _, pod, memory in known if is_silent(pod.start, memory, now)], now, stuck)
        seen = [delay_of(rank, pod.name, pod.node, pod.start, memory, now, stuck) for rank, pod, memory in known]
        return [delay for delay in seen if delay is not None]

    def _ask(self, silent: list[tuple[Pod, PodMemory]], now: float, stuck: float) -> None:
        """Have the events of the first silent pod on each node read, where it is time."""
        of_node: dict[str, tuple[Pod, PodMemory]] = {}
        for pod, memory in silent:
            of_node.setdefault(pod.node, (pod, memory))
        for pod, memory in list(of_node.values())[:PODS_ASKED]:
            if is_to_ask(memory, now, stuck):
                memory.asked, memory.asks = now, memory.asks + 1
                self._warnings.ask(pod, memory)

    def _is_worked_on(self, told: _Told, pod: Pod) -> bool:
        """Tell whether the pod is worked on; the last word of a silent node counts for nothing."""
        node, now = self._state.nodes.get(pod.node), self._clock.monotonic()
        return node is not None and node.ready and is_worked_on(pod.start, told.pods[pod.uid], now)

    async def _give_back(self, run: Run, told: _Told, first: Delay, delays: list[Delay]) -> None:
        nodes = _nodes([delay for delay in delays if delay.reason.code is first.reason.code])
        fact = BindFailed(kind="bind_failed", run_id=run.run_id, rank=first.rank, reason=first.reason, nodes=nodes)
        await self._facts.publish(fact)
        told.given_back = True

    async def _report(self, run: Run, told: _Told, first: Delay | None, nodes: tuple[str, ...], works: bool) -> None:
        """Tell what is news, and that the nodes work once a quarter of the run's time is over."""
        reason, now = None if first is None else first.reason, self._clock.monotonic()
        left = run.deadline - self._time.now(self._state.ts)
        moves = works and told.deadline != run.deadline and left < given_ms(self._state, run) * 3 // 4
        same = (reason, nodes) == (told.reason, told.nodes)
        if (same and not moves) or (told.at is not None and now - told.at < self._pause(run)):
            return
        await self._facts.publish(
            StartDelayed(kind="start_delayed", run_id=run.run_id, works=works, reason=reason, nodes=nodes)
        )
        told.at, told.reason, told.nodes = now, reason, nodes
        if moves:
            told.deadline = run.deadline


def _survives(job: Job) -> bool:
    """An eviction may end users' work for good: then it has until its deadline, and its owner is told meanwhile."""
    return job.adopted is None or job.preemptible


def _waits(pod: Pod) -> bool:
    return bool(pod.node) and pod.phase == "Pending" and not pod.deleting


def _nodes(delays: list[Delay]) -> tuple[str, ...]:
    return tuple(sorted({delay.node for delay in delays} - {""}))[:NODES_MAX]

"""
Events on pods: `Scheduled` on those that were bound, as `kubectl describe pod` shows it of every scheduler, and
`Preempted` on those that stop for another job.

Never in the way of a bind or an eviction: both only note them, a loop of its own makes a few a second, the first pods
of a gang speak for all of it, and what does not fit in the line is dropped.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import structlog

from tessera.binder.adoption.decide.verdicts import Verdict, describe_preempted, describe_scheduled, make_event
from tessera.binder.decide.steps import Pod
from tessera.binder.workloads.reading import format_time
from tessera.domain.entities import Job, Run
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement

PODS_TOLD = 8
LINE_MAX = 2048

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Noted:
    """The verdict is made when the event is."""

    namespace: str
    name: str
    uid: str
    describe: Callable[[], Verdict]


class PodEvents:
    """`per_second` at most; 0 makes none."""

    def __init__(self, cluster: Cluster, clock: Clock, per_second: float) -> None:
        self._cluster, self._clock, self._per_second = cluster, clock, per_second
        self._line: deque[_Noted] = deque(maxlen=LINE_MAX)
        self._wake = asyncio.Event()

    def note_scheduled(self, job: Job, run: Run, placement: Placement, name: str, uid: str) -> None:
        """Note a pod that was just bound; if too many wait, the oldest is dropped."""
        if placement.rank < PODS_TOLD:
            self._note(_Noted(job.tenant, name, uid, partial(describe_scheduled, job, run, placement)))

    def note_preempted(self, run: Run, pods: Iterable[Pod], reason: Reason, preemptor: str) -> None:
        """Note that the run's pods stop for the preemptor, as it is to be called to them."""
        verdict = describe_preempted(run.job_id, reason, preemptor)
        for pod in sorted(pods, key=lambda pod: (pod.name, pod.uid))[:PODS_TOLD]:
            self._note(_Noted(pod.namespace, pod.name, pod.uid, lambda: verdict))

    def _note(self, noted: _Noted) -> None:
        if self._per_second:
            self._line.append(noted)
            self._wake.set()

    async def publish(self) -> None:
        """Make the events, one after the other, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._line:
                await self._make(self._line.popleft())
                await self._clock.sleep(1 / self._per_second)

    async def _make(self, noted: _Noted) -> None:
        now = format_time(self._clock.now_ms())
        pod = {"metadata": {"name": noted.name, "namespace": noted.namespace, "uid": noted.uid}}
        try:
            await self._cluster.create_event(noted.namespace, make_event(pod, noted.describe(), now))
        except (ApiError, Transient) as error:
            log.debug("event_not_made", pod=noted.name, namespace=noted.namespace, error=str(error))

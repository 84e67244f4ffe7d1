"""
The event `Scheduled` on pods that were bound, as `kubectl describe pod` shows it of every scheduler.

Never in the way of a bind: a bind only notes it, a loop of its own makes a few a second, the first pods of a gang speak
for all of it, and what does not fit in the line is dropped, since the pod's own node says the same.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

import structlog

from tessera.binder.adoption.decide.verdicts import describe_scheduled, make_event
from tessera.binder.workloads.reading import format_time
from tessera.domain.entities import Job, Run
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera_schemas.placement import Placement

RANKS_TOLD = 8
LINE_MAX = 2048

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Bound:
    job: Job
    run: Run
    placement: Placement
    name: str
    uid: str


class ScheduledEvents:
    """`per_second` at most; 0 makes none."""

    def __init__(self, cluster: Cluster, clock: Clock, per_second: float) -> None:
        self._cluster, self._clock, self._per_second = cluster, clock, per_second
        self._line: deque[_Bound] = deque(maxlen=LINE_MAX)
        self._wake = asyncio.Event()

    def note(self, job: Job, run: Run, placement: Placement, name: str, uid: str) -> None:
        """Note a pod that was just bound; if too many wait, the oldest is dropped."""
        if self._per_second and placement.rank < RANKS_TOLD:
            self._line.append(_Bound(job, run, placement, name, uid))
            self._wake.set()

    async def publish(self) -> None:
        """Make the events, one after the other, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._line:
                await self._make(self._line.popleft())
                await self._clock.sleep(1 / self._per_second)

    async def _make(self, bound: _Bound) -> None:
        now = format_time(self._clock.now_ms())
        pod = {"metadata": {"name": bound.name, "namespace": bound.job.tenant, "uid": bound.uid}}
        verdict = describe_scheduled(bound.job, bound.run, bound.placement)
        try:
            await self._cluster.create_event(bound.job.tenant, make_event(pod, verdict, now))
        except (ApiError, Transient) as error:
            log.debug("event_not_made", pod=bound.name, namespace=bound.job.tenant, error=str(error))

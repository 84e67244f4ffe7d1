"""
Events of bound pods that do not start, asked for one pod at a time and a few a second.

Never in the way of a bind: who looks at a run only notes its pods, and a loop of its own puts what their nodes say into
their memories. A server may look through all events of a namespace for each answer. Who may not read them goes on as
without.
"""

import asyncio

import structlog

from tessera.binder.decide.starting import Halt, PodMemory
from tessera.binder.decide.steps import Pod
from tessera.binder.decide.warnings import read_warning
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError, Clock, Cluster

LINE_MAX = 1024

log = structlog.get_logger()


class PodWarnings:
    """`per_second` at most; 0 reads none."""

    def __init__(self, cluster: Cluster, clock: Clock, per_second: float) -> None:
        self._cluster, self._clock, self._per_second = cluster, clock, per_second
        self._line: dict[str, tuple[Pod, PodMemory]] = {}
        self._wake = asyncio.Event()
        self._forbidden: set[str] = set()

    def ask(self, pod: Pod, memory: PodMemory) -> None:
        """Note a pod whose memory is to have the newest warning; it is left out while too many wait."""
        if self._per_second and len(self._line) < LINE_MAX:
            self._line[pod.uid] = pod, memory
            self._wake.set()

    async def read(self) -> None:
        """Ask, one after the other, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._line:
                await self._read_one(*self._line.pop(next(iter(self._line))))
                await self._clock.sleep(1 / self._per_second)

    async def _read_one(self, pod: Pod, memory: PodMemory) -> None:
        try:
            events = await self._cluster.list_events(pod.namespace, pod.uid)
        except (ApiError, Transient) as error:
            self._note_refusal(pod, error)
            return
        found = read_warning(events, pod.node)
        memory.warning = None if found is None else Halt("", "", *found)

    def _note_refusal(self, pod: Pod, error: ApiError | Transient) -> None:
        """A namespace that does not let us is told of once."""
        if not isinstance(error, ApiError) or error.status != 403:
            log.debug("event_not_read", pod=pod.name, namespace=pod.namespace, error=str(error))
        elif pod.namespace not in self._forbidden:
            self._forbidden.add(pod.namespace)
            log.warning("events_not_read", namespace=pod.namespace, error=str(error))

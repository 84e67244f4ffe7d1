"""The load client: pipelined submits from one process, and its ear on the tenant's live events."""

import asyncio
from collections.abc import Sequence

from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import Clock, Outgoing
from tessera_lab.bench.together.platform import TENANT
from tessera_schemas import subjects

ADMITTED, ALLOCATED, RELEASED = "job.admitted.v1", "job.allocated.v1", "job.released.v1"
SILENCE_SECONDS = 60.0  # without any event: something is wrong, and the rest would wait for ever


class Stuck(Exception):
    """Events that must come did not."""


class EventCounter:
    """Counts the tenant's events by type as they come, and when the last of each came."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.count: dict[str, int] = {}
        self.last_at: dict[str, float] = {}
        self._came = asyncio.Event()

    @classmethod
    async def open(cls, bus: NatsBus, shard: str, clock: Clock) -> "EventCounter":
        events = cls(clock)
        await bus.listen(subjects.live(f"events.{shard}.{TENANT}.>"), events._on_event)
        return events

    def _on_event(self, subject: str, _data: bytes) -> None:
        kind = subject.split(".", 5)[5]  # live.events.<shard>.<tenant>.<queue>.<kind>
        self.count[kind] = self.count.get(kind, 0) + 1
        self.last_at[kind] = self._clock.monotonic()
        self._came.set()

    async def until(self, kind: str, count: int) -> float:
        """Arrival of event number `count` of this kind, or of a later one. Raises Stuck after a minute of silence."""
        while self.count.get(kind, 0) < count:
            self._came.clear()
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await self._came.wait()
            except TimeoutError:
                others = ", ".join(f"{many} {other}" for other, many in sorted(self.count.items()) if other != kind)
                said = f"{self.count.get(kind, 0)} of {count} {kind} came; besides: {others or 'nothing'}"
                raise Stuck(said) from None
        return self.last_at[kind]


async def send(bus: NatsBus, shard: str, commands: Sequence[bytes]) -> None:
    """Publish all, pipelined; returns when the last is acknowledged."""
    await bus.publish_all([Outgoing(subjects.submit(shard, TENANT), command) for command in commands])

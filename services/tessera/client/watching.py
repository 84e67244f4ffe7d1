"""Events as they come: a durable subscriber's, at least once, or the live ones, at most once."""

import asyncio
from typing import Self

import structlog

from tessera.kernel.errors import Transient
from tessera.kernel.nats_bus import NatsBus
from tessera.kernel.ports import Clock, Delivery, Work
from tessera.kernel.waiting import wait_for
from tessera_schemas import subjects
from tessera_schemas.events import CloudEvent, JobCancelledV1, JobFailedV1, JobSucceededV1

ENDINGS = (JobSucceededV1.type, JobFailedV1.type, JobCancelledV1.type)

log = structlog.get_logger()


class Subscription:
    """`async for event in subscription`; asking for the next event acknowledges the last one."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._batch: list[Delivery] = []
        self._current: Delivery | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CloudEvent:
        if self._current is not None:
            done, self._current = self._current, None
            await self._work.ack(done)
        while not self._batch:
            self._batch = await self._work.next(limit=64)
            if not self._batch:
                raise StopAsyncIteration
            self._batch.reverse()
        self._current = self._batch.pop()
        return CloudEvent.from_bytes(self._current.message.data)

    async def close(self) -> None:
        """Give back what was not handled, so that it comes again at once."""
        rest = [*self._batch, *([self._current] if self._current is not None else [])]
        self._batch, self._current = [], None
        for delivery in reversed(rest):
            try:
                await self._work.nak(delivery, 0)
            except Transient:
                break  # then it comes again when its time is up
        await self._work.close()


class Watch:
    """The live events of a tenant, and which jobs have ended since we listen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._came = asyncio.Event()
        self.events: asyncio.Queue[CloudEvent] = asyncio.Queue()
        self._ended: dict[str, CloudEvent] = {}

    @classmethod
    async def open(cls, bus: NatsBus, shard: str, tenant: str, clock: Clock) -> "Watch":
        watch = cls(clock)
        await bus.listen(subjects.live(f"events.{shard}.{tenant}.>"), watch._on_event)
        return watch

    async def ended(self, job: str, seconds: float | None = None) -> CloudEvent | None:
        """The event with which the job ended; None when `seconds` passed without it."""
        until = None if seconds is None else self._clock.monotonic() + seconds
        while job not in self._ended:
            left = 60.0 if until is None else until - self._clock.monotonic()
            self._came.clear()
            if left <= 0 or (not await wait_for(self._came, self._clock, left) and until is not None):
                return self._ended.get(job)
        return self._ended[job]

    def _on_event(self, _subject: str, data: bytes) -> None:
        try:
            event = CloudEvent.from_bytes(data)
        except ValueError as error:
            log.warning("event_unreadable", error=str(error))
            return
        self.events.put_nowait(event)
        if event.type in ENDINGS:
            self._ended[str(event.data.get("job_id"))] = event
            self._came.set()

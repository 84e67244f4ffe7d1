"""Events as they come: a durable subscriber's, at least once, or the live ones, at most once."""

import asyncio
from typing import TYPE_CHECKING, Self

import structlog

from tessera.kernel.errors import Transient
from tessera.kernel.ports import Clock, Delivery, Work
from tessera.kernel.tasks.waiting import wait_for
from tessera_schemas import subjects
from tessera_schemas.events import (
    CloudEvent,
    JobAdmittedV1,
    JobCancelledV1,
    JobFailedV1,
    JobRefusedV1,
    JobSucceededV1,
)

if TYPE_CHECKING:
    from tessera.kernel.nats.bus import NatsBus

ENDINGS = (JobSucceededV1.type, JobFailedV1.type, JobCancelledV1.type)
ENTRIES = (JobAdmittedV1.type, JobRefusedV1.type)

LOOK_SECONDS = 60.0

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
    """The live events of a tenant, and which jobs have entered, been turned away or ended since we listen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._came = asyncio.Event()
        self.events: asyncio.Queue[CloudEvent] = asyncio.Queue()
        self._entered: dict[str, CloudEvent] = {}
        self._ended: dict[str, CloudEvent] = {}

    @classmethod
    async def open(cls, bus: "NatsBus", shard: str, tenant: str, clock: Clock) -> "Watch":
        """Listens to the tenant's live events from now on; earlier ones do not come."""
        watch = cls(clock)
        await bus.listen(subjects.live(f"events.{shard}.{tenant}.>"), watch._on_event)
        return watch

    async def entered(self, job: str, seconds: float) -> CloudEvent | None:
        """
        `job.admitted` or `job.refused` from the ledger; None when neither came, as for a job that was known before.

        Admission cannot know what only the committer counts: limits of the tenant, and a key used for another job.
        """
        return await self._first(self._entered, job, seconds)

    async def ended(self, job: str, seconds: float | None = None) -> CloudEvent | None:
        """The event with which the job ended; None when `seconds` passed without it."""
        return await self._first(self._ended, job, seconds)

    async def _first(self, found: dict[str, CloudEvent], job: str, seconds: float | None) -> CloudEvent | None:
        until = None if seconds is None else self._clock.monotonic() + seconds
        while job not in found:
            left = LOOK_SECONDS if until is None else until - self._clock.monotonic()
            if left <= 0:
                return None
            self._came.clear()
            await wait_for(self._came, self._clock, left)
        return found[job]

    def _on_event(self, _subject: str, data: bytes) -> None:
        try:
            event = CloudEvent.from_bytes(data)
        except ValueError as error:
            log.warning("event_unreadable", error=str(error))
            return
        self.events.put_nowait(event)
        for types, found in ((ENTRIES, self._entered), (ENDINGS, self._ended)):
            if event.type in types:
                found[str(event.data.get("job_id"))] = event
                self._came.set()

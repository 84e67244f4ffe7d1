"""Events as they come: a durable subscriber's, at least once, or the live ones, at most once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
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
    short_type,
)

if TYPE_CHECKING:
    from tessera.kernel.nats.bus import NatsBus

ENDINGS = (JobSucceededV1.type, JobFailedV1.type, JobCancelledV1.type)
ENTRIES = (JobAdmittedV1.type, JobRefusedV1.type)

LOOK_SECONDS = 60.0

log = structlog.get_logger()


class Subscription:
    """
    `async for event in subscription`; asking for the next event acknowledges the last one.

    `check` raises where the durable is not there; it is called before the first wait, and after each long one.
    """

    def __init__(self, work: Work, check: Callable[[], Awaitable[None]]) -> None:
        self._work, self._check = work, check
        self._closed = self._checked = False
        self._batch: list[Delivery] = []
        self._current: Delivery | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CloudEvent:
        if self._current is not None:
            done, self._current = self._current, None
            await self._work.ack(done)
        while not self._batch:
            if not self._checked:
                await self._check()
                self._checked = True
            self._batch = await self._work.next(limit=64, timeout=LOOK_SECONDS)
            if self._closed and not self._batch:
                raise StopAsyncIteration
            self._checked = bool(self._batch)  # what was there may have been taken away
            self._batch.reverse()
        self._current = self._batch.pop()
        return CloudEvent.from_bytes(self._current.message.data)

    async def close(self) -> None:
        """Give back what was not handled, so that it comes again at once."""
        self._closed = True
        rest = [*self._batch, *([self._current] if self._current is not None else [])]
        self._batch, self._current = [], None
        for delivery in reversed(rest):
            try:
                await self._work.nak(delivery, 0)
            except Transient:
                break  # then it comes again when its time is up
        await self._work.close()


class SubmitWatch:
    """Listens to the ledger's words about submits that are under way; of all others nothing is kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._expected: dict[tuple[str, str], list[LedgerWord]] = {}

    @classmethod
    async def open(cls, bus: "NatsBus", shard: str, tenant: str, clock: Clock) -> "SubmitWatch":
        """Listens to what becomes of the tenant's submits from now on."""
        watch = cls(clock)
        for kind in ENTRIES:
            subject = subjects.live(subjects.event(shard, tenant, "*", short_type(kind)))
            await bus.listen(subject, watch._on_event)
        return watch

    @contextmanager
    def expecting(self, job: str, digest: str) -> "Iterator[LedgerWord]":
        """
        From before the submit is sent, so that nothing is missed; `digest` is the beginning of the spec's.

        Another submit under the same key has the same id; what is said of it is not said of this one.
        """
        word = LedgerWord(self._clock)
        self._expected.setdefault((job, digest), []).append(word)
        try:
            yield word
        finally:
            left = [other for other in self._expected.pop((job, digest)) if other is not word]
            if left:
                self._expected[job, digest] = left

    def _on_event(self, _subject: str, data: bytes) -> None:
        event = _read_event(data)
        if event is not None:
            job = str(event.data.get("job_id") or event.data.get("conflicts_with"))
            for word in self._expected.get((job, str(event.data.get("digest", ""))), ()):
                word.settle(event)


class LedgerWord:
    """The event with which the ledger took a submit in, or turned it away."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._came = clock, asyncio.Event()
        self._event: CloudEvent | None = None

    def settle(self, event: CloudEvent) -> None:
        """Notes the event; the last one counts, as the same submit may be sent twice."""
        self._event = event
        self._came.set()

    async def within(self, seconds: float) -> CloudEvent | None:
        """`job.admitted` or `job.refused`; None when neither came, as for a job that was there before."""
        return self._event if await wait_for(self._came, self._clock, seconds) else None


class Watch:
    """The live events of a tenant, and which jobs have ended since we listen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._came = asyncio.Event()
        self.events: asyncio.Queue[CloudEvent] = asyncio.Queue()
        self._ended: dict[str, CloudEvent] = {}

    @classmethod
    async def open(cls, bus: "NatsBus", shard: str, tenant: str, clock: Clock) -> "Watch":
        """Listens to the tenant's live events from now on; earlier ones do not come."""
        watch = cls(clock)
        await bus.listen(subjects.live(f"events.{shard}.{tenant}.>"), watch._on_event)
        return watch

    async def ended(self, job: str, seconds: float | None = None) -> CloudEvent | None:
        """The event with which the job ended; None when `seconds` passed without it."""
        until = None if seconds is None else self._clock.monotonic() + seconds
        while job not in self._ended:
            left = LOOK_SECONDS if until is None else until - self._clock.monotonic()
            if left <= 0:
                return None
            self._came.clear()
            await wait_for(self._came, self._clock, left)
        return self._ended[job]

    def _on_event(self, _subject: str, data: bytes) -> None:
        event = _read_event(data)
        if event is None:
            return
        self.events.put_nowait(event)
        if event.type in ENDINGS:
            self._ended[str(event.data.get("job_id"))] = event
            self._came.set()


def _read_event(data: bytes) -> CloudEvent | None:
    try:
        return CloudEvent.from_bytes(data)
    except ValueError as error:
        log.warning("event_unreadable", error=str(error))
        return None

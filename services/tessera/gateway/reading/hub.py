"""
The newest public events in memory, shared by all streams, and how one stream reads them.

One follower of the whole EVENTS stream fills a bounded memory while any stream is open. A stream is only a cursor, so
that it costs no memory however slow it is: what it reads is either held here, or, when it is behind that, read from
EVENTS again. Between the two nothing is lost: all that came after `floor` is held, and what is not held is read up to
it.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import structlog

from tessera.kernel.errors import Transient
from tessera.kernel.messaging.follow import follow
from tessera.kernel.ports import Bus, Clock, Follow, Message
from tessera.kernel.tasks.waiting import wait_for
from tessera_schemas import subjects

BATCH = 64
BATCH_BYTES = 256 * 1024
HELD_BYTES_MAX = 64 << 20  # an event of a large gang has some hundred kilobytes
REPLAY_SECONDS = 2.0
OPEN_SECONDS = 10.0
AGAIN_SECONDS = 1.0

log = structlog.get_logger()


class Hub:
    """Every event with a sequence above `floor` up to `head` is in `_held`."""

    def __init__(self, bus: Bus, shard: str, held_max: int) -> None:
        self.bus, self.shard = bus, shard
        self.stream, self.everything = subjects.stream("EVENTS", shard), f"events.{shard}.>"
        self.floor = self.head = 0
        self.closed = False
        self.moved = asyncio.Event()
        self._held_max = held_max
        self._held: list[Message] = []
        self._seqs: list[int] = []
        self._bytes = 0
        self._streams = 0
        self._wanted, self._unwanted, self._located = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def followed(self, clock: Clock) -> AsyncIterator[None]:
        """
        Have newer events taken in while one stream or more is open; at rest they cost nothing.

        Raises Transient when the newest event cannot be found out.
        """
        self._streams += 1
        self._wanted.set()
        try:
            if not await wait_for(self._located, clock, OPEN_SECONDS):
                raise Transient("the newest event is not known: no answer from NATS")
            yield
        finally:
            self._streams -= 1
            if not self._streams:
                self._wanted.clear()
                self._located.clear()
                self._unwanted.set()

    async def run(self, clock: Clock) -> None:
        """Follow the events stream for ever while any stream is open, from the newest event of that moment on."""
        while True:
            await self._wanted.wait()
            self._unwanted.clear()
            try:
                await self.locate()
            except Transient as error:
                log.warning("events_not_located", error=str(error))
                await wait_for(self._unwanted, clock, AGAIN_SECONDS)
                continue
            if self._unwanted.is_set():
                continue
            self._located.set()
            source = self.bus.follow(self.stream, self.everything, self.head)
            await follow(source, self.take, stop=self._unwanted, clock=clock)

    async def locate(self) -> None:
        """Begin at the newest event that there is now, and hold none."""
        newest = await self.bus.last(self.stream, self.everything)
        self.floor = self.head = 0 if newest is None else newest.seq
        self._held, self._seqs, self._bytes = [], [], 0

    async def take(self, messages: Sequence[Message]) -> None:
        """Newer events, in order."""
        self._held += messages
        self._seqs += [message.seq for message in messages]
        self.head = self._seqs[-1]
        self._bytes += sum(len(message.data) for message in messages)
        if len(self._held) > 2 * self._held_max or self._bytes > HELD_BYTES_MAX:
            self._drop_oldest()
        self._wake()

    def close(self) -> None:
        """Tell every stream that it is over."""
        self.closed = True
        self._located.set()
        self._wake()

    def read(self, after: int, wanted: Callable[[str], bool]) -> tuple[list[Message], int]:
        """Held events after `after` whose subject is wanted, a batch at most, and up to where that is."""
        at, found, size = bisect_right(self._seqs, after), list[Message](), 0
        while at < len(self._held) and len(found) < BATCH and size < BATCH_BYTES:
            message = self._held[at]
            if wanted(message.subject):
                found.append(message)
                size += len(message.data)
            at += 1
        return found, self._seqs[at - 1] if at else after

    def _drop_oldest(self) -> None:
        # Down to half of what is allowed, so that it is rarely done.
        dropped = 0
        while len(self._held) - dropped > self._held_max or 2 * self._bytes > HELD_BYTES_MAX:
            self._bytes -= len(self._held[dropped].data)
            dropped += 1
        self.floor = self._seqs[dropped - 1]
        del self._held[:dropped], self._seqs[:dropped]

    def _wake(self) -> None:
        self.moved.set()
        self.moved = asyncio.Event()


class EventReader:
    """One stream's place in the events of `subject`; after `next` returned, all up to `cursor` was handed out."""

    def __init__(self, hub: Hub, subject: str, after: int, clock: Clock) -> None:
        self._hub, self._subject, self.cursor, self._clock = hub, subject, after, clock
        prefix = subject.removesuffix(">")
        self._wanted: Callable[[str], bool] = lambda found: found.startswith(prefix)
        self._source: Follow | None = None
        self._until = 0

    async def next(self, seconds: float) -> list[Message]:
        """The next events in order, none when `seconds` passed without or the hub was closed. Raises Transient."""
        until = self._clock.monotonic() + seconds
        while not self._hub.closed:
            moved = self._hub.moved
            found = await self._replay() if self.cursor < self._hub.floor else self._read()
            if found:
                return found
            if self.cursor >= self._hub.head:
                left = until - self._clock.monotonic()
                if left <= 0 or not await wait_for(moved, self._clock, left):
                    return []
        return []

    async def close(self) -> None:
        """Ends the reading from the stored stream, if one is under way."""
        if self._source is not None:
            source, self._source = self._source, None
            await source.close()

    def _read(self) -> list[Message]:
        found, upto = self._hub.read(self.cursor, self._wanted)
        self.cursor = max(self.cursor, upto)
        return found

    async def _replay(self) -> list[Message]:
        # From EVENTS itself, until we are where the hub begins.
        floor = self._hub.floor
        if self._source is None:
            newest = await self._hub.bus.last(self._hub.stream, self._subject)
            if newest is None or newest.seq <= self.cursor:
                self.cursor = floor  # everything up to the floor was stored before we looked, and none of it is ours
                return []
            self._until = newest.seq
            self._source = self._hub.bus.follow(self._hub.stream, self._subject, self.cursor)
        found = await self._source.next(BATCH, timeout=REPLAY_SECONDS)
        if found:
            self.cursor = found[-1].seq
        if not found or self.cursor >= min(self._until, floor):
            await self.close()
        return found

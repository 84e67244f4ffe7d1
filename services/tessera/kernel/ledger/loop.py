"""The loop of every service that reads the ledger: fold in order, then let the service look at what is new."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.books import Books
from tessera.kernel.ledger.shard import Entry, restore
from tessera.kernel.ledger.timestamps import LIVE_SECONDS, Skew
from tessera.kernel.messaging.follow import BACKOFF_SECONDS
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.waiting import closed_at, wait_for

BUSY_RECORDS = 4
BEHIND_MESSAGES = 64  # in one batch: that is company enough, and there is ground to be made up

log = structlog.get_logger()
React = Callable[[list[Entry]], Awaitable[None]]
Linger = Callable[[], Awaitable[object]]


async def open_books(ports: Ports, shard: str) -> Books:
    """The shard's books in this process; make a `BooksReader` before anything is awaited, or entries are missed."""

    async def restored() -> Books:
        return Books(await restore(ports.bus, ports.ledger, shard))

    return await ports.shared.once(f"books of {shard}", restored)


class BooksReader:
    """A service that reads along from here on: `react` is called after each batch and minds its own errors."""

    # `linger` is for services that nobody waits for: after a batch of `BUSY_RECORDS` records or more the next one waits
    # for it and brings more, since being woken for a message costs more than folding another. What a single job causes
    # never meets it.

    def __init__(self, books: Books, ports: Ports, react: React, linger: Linger | None = None) -> None:
        self._books, self._ports, self._react, self._linger = books, ports, react, linger
        self._skew, self._unread = Skew(ports), books.attach()

    @property
    def state(self) -> State:
        """The shard as folded so far; it moves only while its readers wait."""
        return self._books.state

    async def catch_up(self) -> None:
        """React to all that the ledger held when this was called, as its leader has it."""
        head = await self._books.shard.head(self._ports.ledger)
        while self.state.n < head:
            if entries := await self._next():
                await self._handle(entries, False)

    async def follow(self, stop: asyncio.Event) -> None:
        """Read batch by batch until `stop`. Raises KernelError where too many entries were left unread."""
        failures, clock = 0, self._ports.clock
        while not stop.is_set():
            async with closed_at(stop, self._books):
                try:
                    asked = clock.monotonic() + LIVE_SECONDS  # what comes first may have lain there
                    while not stop.is_set():
                        entries = await self._next(stop)
                        is_live, failures = clock.monotonic() - asked >= LIVE_SECONDS, 0
                        if entries:
                            await self._handle(entries, is_live)
                        asked = clock.monotonic()
                except Transient as error:
                    log.warning("ledger_follow_retries", error=str(error), n=self.state.n)
            await wait_for(stop, clock, BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
            failures += 1

    async def _next(self, stop: asyncio.Event | None = None) -> list[Entry]:
        if not self._unread.there:
            async with self._books.turn:
                if not self._unread.there and not (stop and stop.is_set()):
                    await self._books.move(self._ports.ledger)
        return self._unread.take()

    async def _handle(self, entries: list[Entry], is_live: bool) -> None:
        metrics, now_ms, in_pieces = self._ports.metrics, self._ports.clock.now_ms(), self._books.in_pieces
        metrics.ledger_n.set(entries[-1].message.n)
        for entry in entries:  # each counts: the newest of a batch may have come while the others waited
            metrics.hop((now_ms - entry.message.ts) / 1000)
        if is_live and not in_pieces:
            self._skew.note(entries[-1].message.ts)
        await self._react(entries)
        if in_pieces:
            await self._ports.clock.sleep(0)
        elif self._linger is not None and is_busy(len(entries), sum(len(e.message.records) for e in entries)):
            await self._linger()


def is_busy(messages: int, records: int) -> bool:
    """Whether after such a batch more is likely to come at once, for whoever may wait for it."""
    return messages < BEHIND_MESSAGES and records >= BUSY_RECORDS

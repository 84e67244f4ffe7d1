"""
Folding the ledger for the five sinks: events and touched fields are found while the state is still the one before.

1. Wait while too many events wait.
2. At a checkpoint, when one is due, copy the state.
3. Derive the events, fold, count the GPUs, remember which fields were touched.
"""

import asyncio

from tessera.domain.errors import Contradiction
from tessera.kernel.errors import InvariantViolation
from tessera.kernel.ledger.loop import is_busy
from tessera.kernel.ledger.shard import Entry, Shard, decode_entry
from tessera.kernel.ledger.timestamps import Skew
from tessera.kernel.ports import Message
from tessera.kernel.service.context import Ports
from tessera.projection.account import AccountKeeper
from tessera.projection.events import Cursor, StoredEvent, events_of, last_cursor
from tessera.projection.mirror import Mirror
from tessera.projection.publisher import Publisher
from tessera.projection.quotes import QuoteKeeper
from tessera.projection.settings import ProjectionSettings
from tessera.projection.snapshots import Snapshots
from tessera.projection.views import Views
from tessera_schemas.ledger import Checkpoint, LedgerMessage

SHARE_SECONDS = 0.02
YIELD_SECONDS = 0.01  # of folding in one go; then the lease is renewed, answers are read and the sinks run


class Cycle:
    """Moves the state along and hands out what follows from it."""

    def __init__(
        self,
        ports: Ports,
        settings: ProjectionSettings,
        shard: Shard,
        views: Views,
        sinks: tuple[Publisher, Mirror, Snapshots, AccountKeeper, QuoteKeeper],
        last_event: Cursor,
    ) -> None:
        self._ports, self._name, self._shard, self._views = ports, settings.shard, shard, views
        self._publisher, self._mirror, self._snapshots, self._account, self._quotes = sinks
        self._last_event = last_event
        self._head, self._skew = 0, Skew(ports)
        self.caught_up = asyncio.Event()

    async def start(self) -> None:
        """Learn where the ledger ends now."""
        tail = await self._ports.ledger.tail()
        self._head = 0 if tail is None else tail.seq
        self._see_if_caught_up()

    async def fold(self, messages: list[Message], leading: bool) -> None:
        """
        Fold them; after many records it rests for a moment, so that what comes meanwhile shares one way to the sinks.

        Raises InvariantViolation when the ledger contradicts itself.
        """
        clock, records = self._ports.clock, 0
        began = clock.monotonic()
        for message in messages:
            await self._publisher.wait_for_space()
            entry = decode_entry(message)
            if leading and self._snapshots.due:
                await self._picture(entry.message)
            self._step(entry)
            records += len(entry.message.records)
            self._ports.metrics.hop((clock.now_ms() - entry.message.ts) / 1000)
            if clock.monotonic() - began >= YIELD_SECONDS:
                await clock.sleep(0)
                began = clock.monotonic()
        self._ports.metrics.ledger_n.set(entry.message.n)
        if self.caught_up.is_set():
            self._skew.note(entry.message.ts)
        self._see_if_caught_up()
        if is_busy(len(messages), records):
            await self._ports.clock.sleep(SHARE_SECONDS)

    def _step(self, entry: Entry) -> None:
        message = entry.message
        events, restarts = self._events(message), self._account.restarts(message)
        fields = self._views.moved_by(message, lambda: self._shard.fold(entry))
        self._account.follow(message, restarts)
        self._quotes.follow(message)
        self._publisher.offer(events)
        self._mirror.touch(fields)
        self._snapshots.count(entry.stored)
        self._last_event = last_cursor(message) or self._last_event

    def _events(self, message: LedgerMessage) -> tuple[StoredEvent, ...]:
        if not self._publisher.wants(message.n, message.ts):
            return ()
        try:
            return events_of(self._name, message, self._shard.state)
        except (Contradiction, IndexError) as error:
            raise InvariantViolation(f"record {message.n}: {error}") from error

    async def _picture(self, message: LedgerMessage) -> None:
        """Keeps a copy of the state at a checkpoint, whose hash in the ledger lets the copy be trusted later."""
        state = self._shard.state
        for record in message.records:
            if isinstance(record, Checkpoint) and self._shard.hasher.of(state) == record.state_hash:
                await self._snapshots.take(state, record.state_hash, self._last_event)
                return

    def _see_if_caught_up(self) -> None:
        if self._shard.state.n >= self._head:
            self.caught_up.set()

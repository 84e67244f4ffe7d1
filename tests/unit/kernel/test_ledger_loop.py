"""The loop of those who follow the ledger: at once for a single message, together where many come."""

import asyncio
import weakref
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tessera.kernel.errors import InvariantViolation, KernelError, RolledOver
from tessera.kernel.ledger.books import Books
from tessera.kernel.ledger.loop import BEHIND_MESSAGES, BUSY_RECORDS, BooksReader, open_books
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.messaging.follow import BATCH
from tessera.kernel.ports import Outgoing
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera_schemas.subjects import stream
from tests.builders import SHARD, admitted
from tests.ledgers import Committed
from tests.virtual_time import VirtualClock

LINGER_SECONDS = 0.05


class Loop:
    """Follows a ledger with a linger of 50 ms; `batches` are the times of its batches and what each brought."""

    def __init__(self) -> None:
        self.clock, self.committed, self.sent = VirtualClock(), Committed().begin(), 0
        self.broker, metrics, nobody = MemoryBroker(self.clock), Metrics("preemption"), cast(Any, None)
        self.broker.add_shard(SHARD)
        self.bus = MemoryBus(self.broker)
        ledger, health = StreamLedger(self.bus, SHARD), Health(self.clock, metrics)
        self.ports = Ports(self.clock, self.bus, ledger, nobody, nobody, health, metrics, "preemption-1", str)
        self.books, self.stop = Books(), asyncio.Event()
        self.batches: list[tuple[int, list[int]]] = []

    async def react(self, entries: list[Entry]) -> None:
        self.batches.append((round((self.clock.now - 1000) * 1000), [entry.message.n for entry in entries]))

    async def linger(self) -> None:
        await self.clock.sleep(LINGER_SECONDS)

    async def append(self) -> None:
        """What was committed and has not been sent yet."""
        for data in self.committed.stored[self.sent :]:
            await self.bus.publish(Outgoing(f"ledger.{SHARD}", data))
        self.sent = len(self.committed.stored)

    def admit(self, jobs: int) -> None:
        self.committed.commit(*(admitted(f"k{len(self.committed.stored)}-{i}") for i in range(jobs)))


async def test_messages_linger_after_a_busy_one_and_not_after_a_small_one() -> None:
    loop = Loop()
    await loop.append()
    folding = asyncio.ensure_future(BooksReader(loop.books, loop.ports, loop.react, loop.linger).follow(loop.stop))
    await loop.clock.run(0.1)
    first, loop.batches = loop.books.state.n, []
    for jobs in (1, BUSY_RECORDS, 1, 1, 1):
        loop.admit(jobs)
        await loop.append()
        await loop.clock.run(0.01)
    await loop.clock.run(0.1)
    # The follower adds its own 2 ms where it finds several.
    assert loop.batches == [(100, [first + 1]), (110, [first + 2]), (162, [first + 3, first + 4, first + 5])]
    loop.stop.set()
    await loop.clock.run(1)
    await folding


async def test_who_is_behind_waits_for_nobody() -> None:
    loop = Loop()
    for _ in range(BATCH + BEHIND_MESSAGES):
        loop.admit(BUSY_RECORDS)
    await loop.append()
    ahead = asyncio.ensure_future(BooksReader(loop.books, loop.ports, loop.react, loop.linger).follow(loop.stop))
    await loop.clock.run(0.01)
    assert loop.books.state.n == len(loop.committed.stored)
    assert loop.batches[-1][0] == 0
    loop.stop.set()
    await loop.clock.run(1)
    await ahead


async def test_every_message_of_a_batch_counts_as_late_as_it_is() -> None:
    """What came last may be fresh while all before it waited."""
    loop = Loop()
    for _ in range(3):
        loop.admit(1)
    await loop.append()
    folding = asyncio.ensure_future(BooksReader(loop.books, loop.ports, loop.react).follow(loop.stop))
    await loop.clock.run(0.1)
    counted = loop.ports.metrics.registry.get_sample_value("tessera_event_hop_seconds_count", {"service": "preemption"})
    assert counted == len(loop.committed.stored) > len(loop.batches)
    loop.stop.set()
    await loop.clock.run(1)
    await folding


async def test_of_a_long_tail_only_a_piece_is_decoded_and_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    for _ in range(40):
        loop.admit(8)
    await loop.append()
    largest = max(map(len, loop.committed.stored))
    monkeypatch.setattr("tessera.kernel.ledger.books.DECODED_BYTES", 3 * largest)
    folding = asyncio.ensure_future(BooksReader(loop.books, loop.ports, loop.react).follow(loop.stop))
    await loop.clock.run(0.1)
    batches = [[loop.committed.stored[n - 1] for n in ns] for _, ns in loop.batches]
    assert [data for batch in batches for data in batch] == loop.committed.stored
    assert max(sum(map(len, batch)) for batch in batches) < 4 * largest
    assert len(batches) >= 10
    loop.stop.set()
    await loop.clock.run(1)
    await folding


async def test_the_linger_of_one_reader_delays_no_other_and_each_reads_every_entry_once() -> None:
    loop, read = Loop(), list[tuple[int, int]]()

    async def prompt(entries: list[Entry]) -> None:
        read.extend((round((loop.clock.now - 1000) * 1000), entry.message.n) for entry in entries)

    readers = [
        BooksReader(loop.books, loop.ports, loop.react, loop.linger),
        BooksReader(loop.books, loop.ports, prompt),
    ]
    following = [asyncio.ensure_future(reader.follow(loop.stop)) for reader in readers]
    for _ in range(3):
        loop.admit(BUSY_RECORDS)
        await loop.append()
        await loop.clock.run(0.01)
    written = len(loop.committed.stored)
    assert [n for _, n in read] == list(range(1, written + 1))
    assert max(at for at, _ in read) < LINGER_SECONDS * 1000
    assert loop.batches[-1][1][-1] < written
    await loop.clock.run(0.2)
    assert [n for _, ns in loop.batches for n in ns] == list(range(1, written + 1))
    loop.stop.set()
    await loop.clock.run(1)
    await asyncio.gather(*following)


async def test_a_reader_that_catches_up_reacts_to_what_stood_and_misses_nothing_that_another_folds() -> None:
    loop, late = Loop(), list[int]()

    async def react(entries: list[Entry]) -> None:
        late.extend(entry.message.n for entry in entries)

    loop.admit(1)
    await loop.append()
    first = asyncio.ensure_future(BooksReader(loop.books, loop.ports, loop.react).follow(loop.stop))
    await loop.clock.run(0.1)
    stood, second = loop.books.state.n, BooksReader(loop.books, loop.ports, react)
    loop.admit(1)
    await loop.append()
    catching_up = asyncio.ensure_future(second.catch_up())
    await loop.clock.run(0.1)
    await catching_up
    loop.admit(1)
    await loop.append()
    await loop.clock.run(0.1)  # nobody but the first takes the turn meanwhile
    following = asyncio.ensure_future(second.follow(loop.stop))
    await loop.clock.run(0.1)
    assert late == [stood + 1, stood + 2]
    loop.stop.set()
    await loop.clock.run(1)
    await asyncio.gather(first, following)


async def test_who_leaves_too_much_unread_is_told_and_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.kernel.ledger.books.UNREAD_MAX", 3)
    loop = Loop()
    silent = BooksReader(loop.books, loop.ports, loop.react)
    following = asyncio.ensure_future(BooksReader(loop.books, loop.ports, loop.react).follow(loop.stop))
    for _ in range(5):
        loop.admit(1)
        await loop.append()
        await loop.clock.run(0.01)
    with pytest.raises(KernelError, match="left unread"):
        await silent.follow(asyncio.Event())
    loop.stop.set()
    await loop.clock.run(1)
    await following


async def end_of(loop: Loop) -> Sequence[object]:
    """What ends two readers of the same books."""
    readers = [BooksReader(loop.books, loop.ports, loop.react) for _ in range(2)]
    following = asyncio.gather(*(reader.follow(loop.stop) for reader in readers), return_exceptions=True)
    await loop.clock.run(0.1)
    return await following


async def test_a_contradiction_ends_each_reader_with_the_same_words_and_the_books_stay() -> None:
    loop = Loop()
    loop.admit(1)
    await loop.append()
    loop.books = await open_books(loop.ports, SHARD)
    await loop.bus.publish(Outgoing(f"ledger.{SHARD}", loop.committed.stored[-1]))
    first, second = await end_of(loop)
    assert isinstance(first, InvariantViolation)
    assert first is second
    assert await open_books(loop.ports, SHARD) is loop.books


async def test_books_that_a_roll_over_left_behind_end_each_reader_with_the_same_words() -> None:
    loop = Loop()
    loop.admit(1)
    await loop.append()
    loop.books = await open_books(loop.ports, SHARD)
    loop.broker.stream(stream("LEDGER", SHARD)).purge(len(loop.committed.stored))
    first, second = await end_of(loop)
    assert isinstance(first, RolledOver)
    assert first is second


async def test_a_service_that_fails_before_it_reads_leaves_no_place_behind_that_fills() -> None:
    books = Books()
    place = weakref.ref(books.attach())
    assert place() is None

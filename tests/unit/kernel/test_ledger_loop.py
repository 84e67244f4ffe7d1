"""The loop of those who follow the ledger: at once for a single message, together where many come."""

import asyncio
from typing import Any, cast

import pytest

from tessera.kernel.ledger.loop import BEHIND_MESSAGES, BUSY_RECORDS, fold_ledger
from tessera.kernel.ledger.shard import Entry, Shard
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.messaging.follow import BATCH
from tessera.kernel.ports import Outgoing
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tests.builders import SHARD, admitted
from tests.ledgers import Committed
from tests.virtual_time import VirtualClock

LINGER_SECONDS = 0.05


class Loop:
    """Follows a ledger with a linger of 50 ms; `batches` are the times of its batches and what each brought."""

    def __init__(self) -> None:
        self.clock, self.committed, self.sent = VirtualClock(), Committed().begin(), 0
        broker, metrics, nobody = MemoryBroker(self.clock), Metrics("preemption"), cast(Any, None)
        broker.add_shard(SHARD)
        self.bus = MemoryBus(broker)
        ledger, health = StreamLedger(self.bus, SHARD), Health(self.clock, metrics)
        self.ports = Ports(self.clock, self.bus, ledger, nobody, nobody, health, metrics, "preemption-1", str)
        self.shard, self.stop = Shard(), asyncio.Event()
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
    folding = asyncio.ensure_future(fold_ledger(loop.ports, loop.shard, loop.react, loop.stop, linger=loop.linger))
    await loop.clock.run(0.1)
    first, loop.batches = loop.shard.state.n, []
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
    ahead = asyncio.ensure_future(fold_ledger(loop.ports, loop.shard, loop.react, loop.stop, linger=loop.linger))
    await loop.clock.run(0.01)
    assert loop.shard.state.n == len(loop.committed.stored)
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
    folding = asyncio.ensure_future(fold_ledger(loop.ports, loop.shard, loop.react, loop.stop))
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
    monkeypatch.setattr("tessera.kernel.ledger.loop.DECODED_BYTES", 3 * largest)
    folding = asyncio.ensure_future(fold_ledger(loop.ports, loop.shard, loop.react, loop.stop))
    await loop.clock.run(0.1)
    batches = [[loop.committed.stored[n - 1] for n in ns] for _, ns in loop.batches]
    assert [data for batch in batches for data in batch] == loop.committed.stored
    assert max(sum(map(len, batch)) for batch in batches) < 4 * largest
    assert len(batches) >= 10
    loop.stop.set()
    await loop.clock.run(1)
    await folding

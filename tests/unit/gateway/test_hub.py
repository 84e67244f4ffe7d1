"""However slow a reader is and however few events are held, it reads each of its events once, in order."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.gateway.reading import hub as hub_module
from tessera.gateway.reading.hub import EventReader, Hub
from tessera.kernel.errors import Transient
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Message, Outgoing
from tessera_schemas import subjects
from tests.builders import SHARD
from tests.virtual_time import VirtualClock

TENANTS = ("lab", "ops", "lab-2")


class SlowBus(MemoryBus):
    """Answers travel: more is stored between the moment of an answer and its arrival."""

    async def last(self, stream: str, subject: str) -> Message | None:
        answer = await super().last(stream, subject)
        for _ in range(6):
            await asyncio.sleep(0)
        return answer


class Shelf:
    """An EVENTS stream, a hub that holds few of it, and what each tenant should have read."""

    def __init__(self, held: int = 4) -> None:
        self.clock = VirtualClock()
        self.broker = MemoryBroker(self.clock)
        self.broker.add_shard(SHARD)
        self.hub = Hub(SlowBus(self.broker, "gateway"), SHARD, held)
        self.stored: list[tuple[int, str]] = []

    def store(self, tenant: str, data: bytes = b"{}") -> int:
        seq = self.broker.store(Outgoing(subjects.event(SHARD, tenant, "q", "job.bound.v1"), data))
        self.stored.append((seq, tenant))
        return seq

    async def catch_up(self) -> None:
        """The hub takes what was stored since."""
        stream = self.broker.stream("EVENTS_main")
        found = list(stream.read(">", self.hub.head + 1))
        if found:
            await self.hub.take(found)

    def reader(self, tenant: str, after: int) -> EventReader:
        return EventReader(self.hub, f"events.{SHARD}.{tenant}.>", after, self.clock)

    async def read(self, reader: EventReader) -> list[int]:
        """What the next call hands out, when no time passes."""
        return [message.seq for message in await reader.next(0)]

    async def read_all(self, reader: EventReader) -> list[int]:
        task, found = asyncio.create_task(self._until_nothing(reader)), list[int]()
        while not task.done():
            await self.clock.run(0.1)
        found += task.result()
        return found

    async def _until_nothing(self, reader: EventReader) -> list[int]:
        found: list[int] = []
        while got := await reader.next(0):
            found += [message.seq for message in got]
        return found

    def expected(self, tenant: str, after: int) -> list[int]:
        return [seq for seq, whose in self.stored if whose == tenant and seq > after]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 60))
def test_each_event_is_read_once_in_order_whenever_the_reader_and_the_hub_come_to_it(
    seed: int, held: int, before: int
) -> None:
    asyncio.run(_random_story(Random(seed), held, before))


async def _random_story(random: Random, held: int, before: int) -> None:
    shelf = Shelf(held)
    for _ in range(before):
        shelf.store(random.choice(TENANTS))
    await shelf.hub.locate()
    tenant = random.choice(TENANTS)
    after = random.randint(0, before)
    reader, found = shelf.reader(tenant, after), list[int]()
    for _ in range(random.randint(0, 40)):
        for _ in range(random.randint(0, 5)):
            shelf.store(random.choice(TENANTS))
        if random.random() < 0.6:
            await shelf.catch_up()
        if random.random() < 0.4:
            reading = asyncio.create_task(shelf.read_all(reader))
            for _ in range(random.randint(0, 12)):  # more comes while it reads
                for _ in range(random.randint(0, 3)):
                    await asyncio.sleep(0)
                shelf.store(random.choice(TENANTS))
                await shelf.catch_up()
            found += await reading
    await shelf.catch_up()
    found += await shelf.read_all(reader)
    assert found == shelf.expected(tenant, after)
    await reader.close()


async def test_a_tenant_whose_name_begins_anothers_reads_none_of_its_events() -> None:
    shelf = Shelf()
    await shelf.hub.locate()
    shelf.store("lab-2")
    await shelf.catch_up()
    assert await shelf.read(shelf.reader("lab", 0)) == []


async def test_a_reader_without_events_of_its_own_keeps_up_with_the_stream() -> None:
    shelf = Shelf(held=2)
    await shelf.hub.locate()
    reader = shelf.reader("lab", 0)
    for _ in range(30):
        shelf.store("ops")
        await shelf.catch_up()
    assert await shelf.read_all(reader) == []
    assert reader.cursor == 30


async def test_what_others_do_does_not_wake_a_reader_up_to_its_caller() -> None:
    shelf = Shelf()
    await shelf.hub.locate()
    reading = asyncio.create_task(shelf.reader("lab", 0).next(10))
    for _ in range(3):
        await shelf.clock.run(1)
        shelf.store("ops")
        await shelf.catch_up()
    assert not reading.done()
    await shelf.clock.run(10)
    assert await reading == []


async def test_the_hub_holds_no_more_than_twice_what_it_should() -> None:
    shelf = Shelf(held=16)
    await shelf.hub.locate()
    for _ in range(500):
        shelf.store("lab")
        await shelf.catch_up()
    assert len(shelf.hub._held) <= 32
    assert shelf.hub.head - shelf.hub.floor == len(shelf.hub._held)


async def test_large_events_push_older_ones_out_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "HELD_BYTES_MAX", 100)
    shelf = Shelf(held=16)
    await shelf.hub.locate()
    reader = shelf.reader("lab", 0)
    for size in (10, 90, 300, 20, 20, 20, 20, 20, 20):
        shelf.store("lab", b"x" * size)
        await shelf.catch_up()
        assert sum(len(message.data) for message in shelf.hub._held) <= 100
        assert shelf.hub.head - shelf.hub.floor == len(shelf.hub._held)
    assert await shelf.read_all(reader) == list(range(1, 10))


async def test_events_are_taken_in_only_while_a_stream_is_open_and_none_is_missed() -> None:
    shelf = Shelf(held=16)
    running = asyncio.create_task(shelf.hub.run(shelf.clock))
    for _ in range(3):
        shelf.store("lab")
    await shelf.clock.run(1)
    assert shelf.hub.head == 0  # nobody reads
    expected, before = list[int](), 0
    for _ in range(3):  # streams come and go
        async with shelf.hub.followed(shelf.clock):
            reader = shelf.reader("lab", before)
            for _ in range(4):
                shelf.store("lab")
                await shelf.clock.run(0.1)
            assert shelf.hub.head == shelf.stored[-1][0]
            expected += await shelf.read_all(reader)
            before = reader.cursor
            await reader.close()
        held = shelf.hub.head
        shelf.store("lab")
        await shelf.clock.run(1)
        assert shelf.hub.head == held
    assert expected == [seq for seq, _ in shelf.stored[:-1]]
    running.cancel()


async def test_a_stream_that_opens_as_the_last_one_leaves_is_served() -> None:
    shelf = Shelf(held=16)
    running = asyncio.create_task(shelf.hub.run(shelf.clock))
    for waits in range(12):  # at each step of the way out
        async with shelf.hub.followed(shelf.clock):
            pass
        for _ in range(waits):
            await asyncio.sleep(0)
        opened = asyncio.create_task(_first_event(shelf))
        await shelf.clock.run(1)
        shelf.store("lab")
        await shelf.clock.run(1)
        assert await opened == [shelf.stored[-1][0]]
    running.cancel()


async def _first_event(shelf: Shelf) -> list[int]:
    async with shelf.hub.followed(shelf.clock):
        reader = shelf.reader("lab", shelf.hub.head)
        return [message.seq for message in await reader.next(5)]


async def test_a_stream_that_cannot_be_opened_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()

    async def silent(self: SlowBus, stream: str, subject: str) -> Message | None:
        raise Transient("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(SlowBus, "last", silent)
        running = asyncio.create_task(shelf.hub.run(shelf.clock))
        opened = asyncio.create_task(_first_event(shelf))
        await shelf.clock.run(hub_module.OPEN_SECONDS + 1)
        with pytest.raises(Transient):
            await opened
    opened = asyncio.create_task(_first_event(shelf))
    await shelf.clock.run(2)
    shelf.store("lab")
    await shelf.clock.run(1)
    assert await opened == [1]
    running.cancel()


@pytest.mark.parametrize("empty", [True, False])
async def test_closing_the_hub_ends_every_wait(empty: bool) -> None:
    shelf = Shelf()
    if not empty:
        shelf.store("lab")
    await shelf.hub.locate()
    reading = asyncio.create_task(shelf.reader("lab", shelf.hub.head).next(1000))
    await shelf.clock.run(1)
    shelf.hub.close()
    await shelf.clock.run(0)
    assert reading.done()
    assert reading.result() == []

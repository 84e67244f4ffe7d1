"""The ordered loop: nothing is skipped, nothing overtakes, and stopping is prompt."""

import asyncio
import itertools

import pytest

from tessera.kernel.errors import Conflict, InvariantViolation, Transient
from tessera.kernel.memory.broker import MemoryBroker, StreamConfig
from tessera.kernel.memory.bus import MemoryBus, MemoryFollow
from tessera.kernel.messaging.follow import follow
from tessera.kernel.ports import Message, Outgoing
from tests.virtual_time import VirtualClock


class Loop:
    """A follow loop over a memory stream; `errors` are raised by the next calls of its handler."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        broker = MemoryBroker(self.clock)
        broker.add_stream(StreamConfig("S", ("s",)))
        self.bus = MemoryBus(broker)
        self.source = MemoryFollow(self.bus, "S", "s", 0)
        self.stop = asyncio.Event()
        self.errors: list[Exception] = []
        self.calls: list[tuple[float, list[int]]] = []
        self.running: asyncio.Future[None] | None = None

    async def handle(self, batch: list[Message]) -> None:
        self.calls.append((round(self.clock.now - 1000, 3), [message.seq for message in batch]))
        if self.errors:
            raise self.errors.pop(0)

    async def start(self, stored: int) -> None:
        await self.bus.publish_all([Outgoing("s", b"")] * stored)
        self.running = asyncio.ensure_future(follow(self.source, self.handle, stop=self.stop, clock=self.clock))
        await self.clock.run(0.01)

    async def result(self) -> None:
        assert self.running is not None
        await asyncio.wait_for(self.running, 60)


async def test_a_batch_that_fails_for_now_is_tried_again_whole_and_before_any_later_one() -> None:
    loop = Loop()
    loop.errors = [Transient("store away")] * 2
    await loop.start(stored=3)
    await loop.bus.publish(Outgoing("s", b""))
    await loop.clock.run(1)
    assert [seqs for _, seqs in loop.calls] == [[1, 2, 3], [1, 2, 3], [1, 2, 3], [4]]


async def test_the_waits_grow_from_a_tenth_of_a_second_to_five_seconds() -> None:
    loop = Loop()
    loop.errors = [Transient("store away")] * 8
    await loop.start(stored=1)
    await loop.clock.run(60)
    times = [at for at, _ in loop.calls]
    waits = [round(later - earlier, 3) for earlier, later in itertools.pairwise(times)]
    assert waits == [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 5.0, 5.0]


@pytest.mark.parametrize("error", [Conflict("lost"), InvariantViolation("forked"), ValueError("a bug")])
async def test_what_is_not_transient_goes_to_the_caller_and_the_source_is_closed(error: Exception) -> None:
    loop = Loop()
    loop.errors = [error]
    await loop.start(stored=1)
    with pytest.raises(type(error)):
        await loop.result()
    assert await loop.source.next() == []


async def test_it_stops_while_it_waits_for_messages() -> None:
    loop = Loop()
    await loop.start(stored=0)
    loop.stop.set()
    await loop.result()


async def test_it_stops_while_it_backs_off_and_leaves_the_batch_to_the_next_start() -> None:
    loop = Loop()
    loop.errors = [Transient("store away")]
    await loop.start(stored=1)
    loop.stop.set()
    await loop.result()
    assert len(loop.calls) == 1


async def test_a_batch_in_hand_is_finished_before_it_stops() -> None:
    loop = Loop()
    finished: list[int] = []

    async def slow(batch: list[Message]) -> None:
        await loop.clock.sleep(3)
        finished.extend(message.seq for message in batch)

    loop.handle = slow  # type: ignore[method-assign]
    await loop.start(stored=2)
    loop.stop.set()
    await loop.clock.run(5)
    await loop.result()
    assert finished == [1, 2]


async def test_a_source_that_is_away_for_now_is_asked_again() -> None:
    loop = Loop()
    failures = [Transient("bus away")] * 2
    read = loop.source.next

    async def unreliable(limit: int = 256, timeout: float | None = None) -> list[Message]:
        if failures:
            raise failures.pop()
        return await read(limit, timeout)

    loop.source.next = unreliable  # type: ignore[method-assign]
    await loop.start(stored=1)
    await loop.clock.run(1)
    assert loop.calls == [(0.3, [1])]

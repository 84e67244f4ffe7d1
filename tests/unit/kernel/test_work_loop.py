"""The queue loop: exactly one answer for each delivery, by the table."""

import asyncio
from collections.abc import Sequence

import pytest

from tessera.kernel.errors import Conflict, InvariantViolation, Poison, Transient
from tessera.kernel.memory.broker import MemoryBroker, StreamConfig
from tessera.kernel.memory.bus import MemoryBus, MemoryWork
from tessera.kernel.messaging.dead_letters import DeadLetters
from tessera.kernel.messaging.work_queue import work
from tessera.kernel.ports import Delivery, Message, Outgoing
from tests.virtual_time import VirtualClock


class Loop:
    """A work loop whose handler answers by the message's data: `outcomes[data]`, raised or returned; else done."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.broker = MemoryBroker(self.clock)
        self.broker.add_stream(StreamConfig("Q", ("q",), work_queue=True))
        self.broker.add_durable("Q", "worker", ack_wait_seconds=30)
        self.broker.add_stream(StreamConfig("DLQ", ("dlq.>",)))
        self.bus = MemoryBus(self.broker)
        self.queue = MemoryWork(self.bus, "Q", "worker")
        self.stop = asyncio.Event()
        self.returned: dict[bytes, object] = {}
        self.raised: dict[bytes, Exception] = {}
        self.handled: list[tuple[float, bytes, int]] = []
        self.seconds = 0.0
        self.running: asyncio.Future[None] | None = None

    async def handle(self, batch: list[Delivery]) -> Sequence[object]:
        for delivery in batch:
            self.handled.append((self.clock.now - 1000, delivery.message.data, delivery.deliveries))
        if self.seconds:
            await self.clock.sleep(self.seconds)
        for delivery in batch:
            if delivery.message.data in self.raised:
                raise self.raised[delivery.message.data]
        return [self.returned.get(delivery.message.data) for delivery in batch]

    async def start(self, *stored: bytes) -> None:
        await self.bus.publish_all([Outgoing("q", data) for data in stored])
        letters = DeadLetters(self.bus, "main", "admission", "Q")
        self.running = asyncio.ensure_future(
            work(self.queue, self.handle, dead_letter=letters, clock=self.clock, stop=self.stop)
        )
        await self.clock.run(0.1)

    async def result(self) -> None:
        assert self.running is not None
        await asyncio.wait_for(self.running, 60)

    def waiting(self) -> list[bytes]:
        return [message.data for message in self.broker.streams["Q"].messages.values()]

    def letters(self) -> list[Message]:
        return list(self.broker.streams["DLQ"].messages.values())


async def test_done_is_acknowledged() -> None:
    loop = Loop()
    await loop.start(b"a", b"b")
    assert (loop.waiting(), loop.letters()) == ([], [])


@pytest.mark.parametrize("error", [Transient("store away"), Conflict("lost the swap")])
async def test_what_fails_for_now_comes_again_later_and_later_then_is_dead_lettered(error: Exception) -> None:
    loop = Loop()
    loop.returned[b"bad"] = error
    await loop.start(b"bad", b"good")
    await loop.clock.run(600)
    times = [round(at) for at, data, _ in loop.handled if data == b"bad"]
    assert times == [0, 1, 6, 36, 336]
    letter = loop.letters()[0]
    assert letter.headers["Tessera-Deliveries"] == "5"
    assert letter.headers["Tessera-Reason"] == f"{type(error).__name__}: {error}"
    assert loop.waiting() == []


async def test_poison_is_dead_lettered_at_once_and_its_neighbours_are_done() -> None:
    loop = Loop()
    loop.returned[b"bad"] = Poison("unknown version")
    await loop.start(b"a", b"bad", b"c")
    assert [(letter.subject, letter.data) for letter in loop.letters()] == [("dlq.main.admission.Q.2", b"bad")]
    assert loop.waiting() == []


async def test_poison_that_is_raised_takes_no_neighbour_along() -> None:
    loop = Loop()
    loop.raised[b"bad"] = Poison("cannot decode")
    await loop.start(b"a", b"bad", b"c")
    assert [letter.data for letter in loop.letters()] == [b"bad"]
    assert loop.waiting() == []


async def test_transient_that_is_raised_puts_the_whole_batch_off() -> None:
    loop = Loop()
    loop.raised[b"a"] = Transient("store away")
    await loop.start(b"a", b"b")
    loop.raised.clear()
    assert loop.waiting() == [b"a", b"b"]
    await loop.clock.run(2)
    assert loop.waiting() == []


async def test_an_invariant_violation_goes_to_the_caller_after_the_others_are_answered() -> None:
    loop = Loop()
    loop.returned[b"bad"] = InvariantViolation("forked")
    await loop.start(b"a", b"bad", b"c")
    with pytest.raises(InvariantViolation):
        await loop.result()
    assert loop.waiting() == [b"bad"]
    assert loop.letters() == []


async def test_a_message_that_always_kills_its_handler_is_dead_lettered_unhandled() -> None:
    loop = Loop()
    await loop.bus.publish(Outgoing("q", b"deadly"))
    for _ in range(5):
        assert len(await loop.queue.next()) == 1  # and then the process is gone
        await loop.clock.run(31)
    await loop.start()
    assert loop.handled == []
    assert [letter.headers["Tessera-Deliveries"] for letter in loop.letters()] == ["6"]
    assert loop.waiting() == []


async def test_a_slow_batch_is_not_handed_to_anybody_else() -> None:
    loop = Loop()
    loop.seconds = 100
    await loop.start(b"slow")
    await loop.clock.run(99)
    assert await MemoryWork(loop.bus, "Q", "worker").next(timeout=0) == []
    await loop.clock.run(5)
    assert loop.waiting() == []
    assert [deliveries for _, _, deliveries in loop.handled] == [1]


async def test_poison_waits_while_the_dead_letter_stream_is_away() -> None:
    loop = Loop()
    dead_letters = loop.broker.streams.pop("DLQ")
    loop.returned[b"bad"] = Poison("unknown version")
    await loop.start(b"bad")
    assert loop.waiting() == [b"bad"]
    loop.broker.streams["DLQ"] = dead_letters
    await loop.clock.run(301)
    assert (loop.waiting(), len(loop.letters())) == ([], 1)


async def test_a_lost_answer_means_one_more_delivery() -> None:
    loop = Loop()
    acks: list[int] = []
    ack = loop.queue.ack

    async def unreliable(delivery: Delivery) -> None:
        acks.append(delivery.deliveries)
        if len(acks) == 1:
            raise Transient("not connected")
        await ack(delivery)

    loop.queue.ack = unreliable  # type: ignore[method-assign]
    await loop.start(b"a")
    await loop.clock.run(31)
    assert acks == [1, 2]
    assert loop.waiting() == []


async def test_stopping_finishes_the_batch_in_hand() -> None:
    loop = Loop()
    loop.seconds = 3
    await loop.start(b"a")
    loop.stop.set()
    await loop.clock.run(5)
    await loop.result()
    assert loop.waiting() == []

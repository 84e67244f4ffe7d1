"""The memory bus lets a simulator break what breaks in the world, and nothing else."""

import asyncio

import pytest

from tessera.kernel.errors import Conflict, UnknownOutcome
from tessera.kernel.memory.broker import MemoryBroker, StreamConfig
from tessera.kernel.memory.bus import Item, MemoryBus
from tessera.kernel.ports import Message, Outgoing
from tessera_schemas import subjects
from tessera_schemas.shard.streams import streams
from tests.virtual_time import VirtualClock


class Script:
    """Raises what is written for an operation, once, and keeps only the deliveries whose number is not in `lost`."""

    def __init__(self, before: dict[str, Exception] | None = None, after: dict[str, Exception] | None = None) -> None:
        self._before, self._after = before or {}, after or {}
        self.lost: set[int] = set()

    async def before(self, op: str, subject: str) -> None:
        if error := self._before.pop(op, None):
            raise error

    async def after(self, op: str, subject: str) -> None:
        if error := self._after.pop(op, None):
            raise error

    def deliver(self, batch: list[Item]) -> list[Item]:
        """Backwards and twice, without the lost ones."""
        kept = [item for item in batch if (item if isinstance(item, Message) else item.message).seq not in self.lost]
        return [*reversed(kept), *kept]


def broker(clock: VirtualClock) -> MemoryBroker:
    made = MemoryBroker(clock)
    made.add_stream(StreamConfig("S", ("s",), duplicate_window_seconds=60))
    made.add_stream(StreamConfig("Q", ("q",), work_queue=True))
    made.add_durable("Q", "worker")
    return made


async def test_an_append_in_limbo_may_land_later_and_take_the_place() -> None:
    world = broker(VirtualClock())
    bus = MemoryBus(world, faults=Script(before={"publish": UnknownOutcome("no answer")}))
    swap = Outgoing("s", b"zombie", expected_last_subject_seq=0)
    with pytest.raises(UnknownOutcome):
        await bus.publish(swap)
    assert world.streams["S"].last_seq == 0
    assert world.land(world.limbo[0]) == 1
    with pytest.raises(Conflict):
        await bus.publish(swap)


async def test_an_append_in_limbo_that_lands_too_late_is_refused() -> None:
    world = broker(VirtualClock())
    bus = MemoryBus(world, faults=Script(before={"publish": UnknownOutcome("no answer")}))
    with pytest.raises(UnknownOutcome):
        await bus.publish(Outgoing("s", b"zombie", expected_last_subject_seq=0))
    await bus.publish(Outgoing("s", b"living", expected_last_subject_seq=0))
    assert isinstance(world.land(world.limbo[0]), Conflict)
    assert world.limbo == []


async def test_an_append_whose_answer_is_lost_is_stored() -> None:
    world = broker(VirtualClock())
    bus = MemoryBus(world, faults=Script(after={"publish": UnknownOutcome("no answer")}))
    with pytest.raises(UnknownOutcome):
        await bus.publish(Outgoing("s", b"x"))
    assert world.streams["S"].last_seq == 1


async def test_a_follower_repairs_loss_repeats_and_disorder_of_the_live_path() -> None:
    clock, script = VirtualClock(), Script()
    bus = MemoryBus(broker(clock), faults=script)
    script.lost = {3}
    await bus.publish_all([Outgoing("s", b"")] * 5)
    follow = bus.follow("S", "s", 0)
    got: list[int] = []

    async def read() -> None:
        while True:
            got.extend(message.seq for message in await follow.next())

    reading = asyncio.ensure_future(read())
    await clock.run(0.1)
    assert got == [1, 2]
    await clock.run(0.5)
    assert got == [1, 2, 3, 4, 5]
    reading.cancel()


async def test_a_lost_delivery_of_a_queue_comes_again_when_its_time_is_up() -> None:
    clock, script = VirtualClock(), Script()
    bus = MemoryBus(broker(clock), faults=script)
    script.lost = {1}
    await bus.publish(Outgoing("q", b""))
    waiting = asyncio.ensure_future(bus.work("Q", "worker").next())
    await clock.run(29)
    assert not waiting.done()
    script.lost = set()
    await clock.run(2)
    assert [delivery.deliveries for delivery in await waiting] == [2, 2]


async def test_a_message_id_is_remembered_for_the_window_only() -> None:
    clock = VirtualClock()
    bus = MemoryBus(broker(clock))
    out = Outgoing("s", b"", headers={"Nats-Msg-Id": "a"})
    assert [await bus.publish(out), await bus.publish(out)] == [1, 1]
    await clock.run(61)
    assert await bus.publish(out) == 2


async def test_a_shard_has_the_streams_and_durables_of_the_table() -> None:
    world = MemoryBroker(VirtualClock())
    world.add_shard("main")
    assert list(world.streams) == [spec.name for spec in streams("main")]
    bus = MemoryBus(world)
    for subject in (subjects.submit("main", "team-a"), subjects.ledger("main"), subjects.order("main", "h100")):
        assert await bus.publish(Outgoing(subject, b"x")) == 1
    assert len(await bus.work("SUBMIT_main", "admission").next()) == 1

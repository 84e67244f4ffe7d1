"""A command is repeated under one id until it is stored, and its answer comes to a private inbox."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from tessera.client.sending.watching import Subscription
from tessera.kernel.errors import Transient, UnknownOutcome
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.messaging.requests import Requester
from tessera.kernel.ports import Message, Outgoing
from tessera_schemas.commands import REPLY_HEADER, Answer, CancelJob
from tests.virtual_time import VirtualClock

CANCEL = CancelJob(kind="cancel_job", v=1, job_id="a" * 20)


class Flaky:
    """Fails the first publishes; some of them have arrived all the same."""

    def __init__(self, failures: Sequence[bool]) -> None:
        self.left = list(failures)

    async def before(self, op: str, subject: str) -> None:
        if op == "publish" and self.left and not self.left[0]:
            self.left.pop(0)
            raise Transient("not stored")

    async def after(self, op: str, subject: str) -> None:
        if op == "publish" and self.left and self.left.pop(0):
            raise UnknownOutcome("stored, and nobody said so")

    def deliver(self, batch: list[Message]) -> list[Message]:
        return batch


async def asked(
    clock: VirtualClock, failures: Sequence[bool], **more: float
) -> tuple[MemoryBroker, "asyncio.Task[Answer | None]"]:
    broker = MemoryBroker(clock)
    broker.add_shard("main")
    requester = await Requester.open(MemoryBus(broker, "lab", Flaky(failures)), "lab", clock)  # type: ignore[arg-type]
    task = asyncio.create_task(requester.ask("submit.main.lab", CANCEL, **more))
    return broker, task


async def test_the_publish_is_repeated_until_acknowledged_and_repeats_change_nothing() -> None:
    clock = VirtualClock()
    broker, task = await asked(clock, [False, True, True])
    await clock.run(20)
    assert task.done()
    assert await task is None
    stored = list(broker.stream("SUBMIT_main").messages.values())
    assert len({(message.data, message.headers[REPLY_HEADER]) for message in stored}) == 1
    assert stored[0].headers[REPLY_HEADER].startswith("_INBOX.lab.")


async def test_the_answer_to_the_inbox_is_what_was_asked_for() -> None:
    clock = VirtualClock()
    broker, task = await asked(clock, [])
    await clock.run(0)
    (stored,) = broker.stream("SUBMIT_main").messages.values()
    broker.send(stored.headers[REPLY_HEADER], Answer(accepted=True, job_id="j").to_bytes())
    broker.send(stored.headers[REPLY_HEADER], b"a second answer counts for nothing")
    await clock.run(0)
    assert (await task) == Answer(accepted=True, job_id="j")


async def test_a_bound_on_the_repeats_raises_what_failed() -> None:
    clock = VirtualClock()
    _, task = await asked(clock, [False] * 100, publish_seconds=1.0)
    await clock.run(5)
    with pytest.raises(Transient):
        await task


async def test_an_event_is_acknowledged_when_the_next_one_is_asked_for() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock)
    broker.add_shard("main")
    broker.add_durable("EVENTS_main", "lab_billing")
    envelope = {
        "specversion": "1.0",
        "source": "s",
        "type": "t",
        "subject": "x",
        "time": "",
        "dataschema": "",
        "data": {},
    }
    envelope |= {"tenant": "lab", "sequence": "1"}
    for n in (1, 2):
        broker.store(Outgoing("events.main.lab.q.job.admitted.v1", json.dumps({**envelope, "id": f"{n}.0"}).encode()))
    durable = broker.stream("EVENTS_main").durables["lab_billing"]
    bus = MemoryBus(broker)

    async def is_there() -> None:
        """The durable is there."""

    first = Subscription(bus.work("EVENTS_main", "lab_billing"), is_there)

    async def take_one_and_stop() -> str:
        async for event in first:
            if event.id == "2.0":
                return event.id
        return ""

    taking = asyncio.create_task(take_one_and_stop())
    await clock.run(1)
    assert await taking == "2.0"
    assert list(durable.pending) == [2]  # the body of 1.0 ran to its end, that of 2.0 did not
    closing = asyncio.create_task(first.close())
    await clock.run(0.1)
    await closing
    second = Subscription(bus.work("EVENTS_main", "lab_billing"), is_there)
    again = asyncio.ensure_future(anext(second))
    await clock.run(1)
    assert (await again).id == "2.0"

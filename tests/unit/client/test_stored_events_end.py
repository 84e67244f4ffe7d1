"""Stored events on NATS: read to the newest of the beginning, and then no further, however many come meanwhile."""

import pytest

from tessera.client.commands.jobs import events as events_command
from tessera.client.commands.jobs.events import stored_events
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Message, Outgoing
from tessera_schemas import subjects
from tessera_schemas.events import CloudEvent
from tests.builders import SHARD


class Shard:
    """An EVENTS stream, and a bus on it."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(SystemClock())
        self.broker.add_shard(SHARD)
        self.bus = MemoryBus(self.broker)

    def store(self, name: str, tenant: str = "lab") -> None:
        about = {"source": "s", "type": "t", "subject": "s", "time": "now", "dataschema": "d", "sequence": "1"}
        event = CloudEvent(specversion="1.0", id=name, tenant=tenant, data={}, **about)
        data = event.model_dump_json().encode()
        self.broker.store(Outgoing(subjects.event(SHARD, tenant, "q", "job.bound.v1"), data))


@pytest.fixture
def shard() -> Shard:
    return Shard()


async def test_reading_ends_although_events_never_stop_coming(shard: Shard) -> None:
    for name in ("one", "two", "three"):
        shard.store(name)
    found = []
    async for event in stored_events(shard.bus, SHARD, None, follow=False):
        found.append(event.id)
        shard.store(f"after {event.id}")
    assert found == ["one", "two", "three"]


async def test_the_newest_event_of_a_tenant_ends_the_reading_of_it(shard: Shard) -> None:
    shard.store("one")
    shard.store("two", "ops")
    assert [event.id async for event in stored_events(shard.bus, SHARD, "lab", follow=False)] == ["one"]
    assert [event.id async for event in stored_events(shard.bus, SHARD, "nobody", follow=False)] == []


async def test_a_stream_that_falls_silent_before_its_newest_event_is_told(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.store("one")
    monkeypatch.setattr(events_command, "SILENCE_SECONDS", 0.01)

    async def newest(stream: str, subject: str) -> Message:
        return Message(subject, 9, b"")

    monkeypatch.setattr(shard.bus, "last", newest)
    with pytest.raises(Transient, match="silent for"):
        [event async for event in stored_events(shard.bus, SHARD, None, follow=False)]

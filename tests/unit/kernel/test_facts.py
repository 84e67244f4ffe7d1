"""A fact carries no message id, under which somebody else could have stored something before."""

from collections.abc import Sequence

from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Outgoing
from tessera_schemas.facts import FactMessage, PodsBound, RunStarted
from tessera_schemas.subjects import stream
from tests.builders import SHARD
from tests.virtual_time import VirtualClock

STARTED = RunStarted(kind="run_started", run_id="a" * 20 + "-1")


async def test_whatever_is_said_is_stored_without_an_id_and_with_its_cause() -> None:
    broker = MemoryBroker(VirtualClock())
    broker.add_shard(SHARD)
    facts = Facts(MemoryBus(broker), SHARD, "binder")
    assert [await facts.publish(STARTED), await facts.publish(STARTED, "SUBMIT_main.1")] == [1, 2]
    stored = broker.stream(stream("FACTS", SHARD)).messages.values()
    assert [FactMessage.model_validate_json(message.data).cause for message in stored] == ["", "SUBMIT_main.1"]
    assert not any("Nats-Msg-Id" in message.headers for message in stored)


async def test_facts_of_one_look_are_on_their_way_before_any_is_acknowledged() -> None:
    broker, together = MemoryBroker(VirtualClock()), list[int]()
    broker.add_shard(SHARD)

    class Noting(MemoryBus):
        async def publish_all(self, batch: Sequence[Outgoing]) -> list[int]:
            together.append(len(batch))
            return await super().publish_all(batch)

    facts = Facts(Noting(broker), SHARD, "binder")
    bound = PodsBound(kind="pods_bound", run_id=STARTED.run_id)
    assert await facts.publish_all([bound, STARTED]) == [1, 2]
    assert await facts.publish_all([]) == []
    stored = broker.stream(stream("FACTS", SHARD)).messages.values()
    assert [FactMessage.model_validate_json(message.data).fact for message in stored] == [bound, STARTED]
    assert together == [2, 0]

"""A fact carries no message id, under which somebody else could have stored something before."""

from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.messaging.facts import Facts
from tessera_schemas.facts import FactMessage, RunStarted
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

"""Saying something twice is one fact; saying it again after the opposite is another."""

from tessera.kernel.facts import Facts
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera_schemas.facts import RunStarted
from tessera_schemas.subjects import stream
from tests.builders import SHARD, node_seen
from tests.virtual_time import VirtualClock

RUN = "a" * 20 + "-1"


async def _stored(*said: tuple[object, str]) -> int:
    broker = MemoryBroker(VirtualClock())
    broker.add_shard(SHARD)
    facts = Facts(MemoryBus(broker), SHARD, "binder")
    for fact, identity in said:
        await facts.publish(fact, identity)  # type: ignore[arg-type]
    return len(broker.stream(stream("FACTS", SHARD)).messages)


async def test_a_fact_with_an_identity_is_stored_once() -> None:
    started = RunStarted(kind="run_started", run_id=RUN)
    assert await _stored((started, RUN), (started, RUN)) == 1


async def test_a_node_that_is_ready_then_not_then_ready_again_is_three_facts() -> None:
    up, down = node_seen(), node_seen(ready=False)
    assert await _stored((up, ""), (down, ""), (up, "")) == 3

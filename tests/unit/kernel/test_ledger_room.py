"""How much of the ledger is a reserve, and what becomes of what was seen while nobody answers."""

from dataclasses import replace

import pytest

from tessera.kernel.ledger.room import LedgerRoom, reserve_of
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Usage
from tessera.kernel.service.metrics import Metrics
from tessera_schemas import subjects
from tests.builders import SHARD
from tests.unit.scheduler.committers import World

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("bytes_max", "reserve"), [(8 * GIB, 8 * GIB // 10), (100 * MIB, 16 * MIB), (8 * MIB, 4 * MIB)]
)
def test_the_reserve_is_a_tenth_and_enough_for_what_is_on_its_way(bytes_max: int, reserve: int) -> None:
    assert reserve_of(Usage(0, bytes_max)) == reserve


async def test_what_was_seen_stays_while_nobody_answers_and_is_measured() -> None:
    world, metrics = World(), Metrics("admission")
    room = LedgerRoom(MemoryBus(world.broker), world.clock, metrics, SHARD)
    await room.look()
    assert room.problem() is None
    (stream,) = [stream for name, stream in world.broker.streams.items() if name.startswith("LEDGER")]
    stream.config = replace(stream.config, bytes_max=64 * MIB)
    stream.bytes = 60 * MIB
    await room.look()
    assert "60Mi of 64Mi are used" in (room.problem() or "")
    del world.broker.streams[stream.config.name]
    await room.look()
    assert "LedgerFull" in (room.problem() or "")
    measured = {m.name: m.samples[0].value for m in metrics.registry.collect() if m.name.startswith("tessera_ledger_b")}
    assert measured == {"tessera_ledger_bytes": 60 * MIB, "tessera_ledger_bytes_max": 64 * MIB}


async def test_what_nobody_has_taken_in_yet_needs_room_as_well() -> None:
    """Else all that was accepted while the committer was away would use the reserve up at once."""
    world = World()
    room = LedgerRoom(MemoryBus(world.broker), world.clock, Metrics("admission"), SHARD)
    ledger, facts = (world.broker.stream(subjects.stream(kind, SHARD)) for kind in ("LEDGER", "FACTS"))
    ledger.config = replace(ledger.config, bytes_max=640 * MIB)
    ledger.bytes, facts.bytes = 500 * MIB, 4000 * MIB
    await room.look()
    assert room.against_work() is None
    facts.bytes += 70 * MIB
    await room.look()
    assert room.against_work() is None
    facts.bytes += 10 * MIB
    await room.look()
    assert "500Mi of 640Mi are used, 80Mi are on their way" in (room.problem() or "")
    ledger.bytes += 75 * MIB
    facts.bytes -= 3000 * MIB  # too old to be kept
    await room.look()
    assert "575Mi of 640Mi are used, 5Mi are on their way" in (room.problem() or "")
    ledger.config = replace(ledger.config, bytes_max=6400 * MIB)
    await room.look()
    assert room.against_work() is None


async def test_each_tenant_has_an_equal_share_of_the_last_tenth_before_the_reserve() -> None:
    world = World()
    room = LedgerRoom(MemoryBus(world.broker), world.clock, Metrics("admission"), SHARD)
    ledger = world.broker.stream(subjects.stream("LEDGER", SHARD))
    ledger.config, ledger.bytes = replace(ledger.config, bytes_max=1000 * MIB), 799 * MIB
    await room.look()
    room.let_in("flood", 900 * MIB)  # while there is enough nobody counts; it is on its way until the next look
    ledger.bytes, parts = 800 * MIB + 1, 2 * 2  # two tenants, two replicas
    await room.look()
    room.let_in("flood", 24 * MIB)
    assert room.against_work("flood", parts) is None
    room.let_in("flood", 1 * MIB)
    why = room.against_work("flood", parts)
    assert why is not None
    assert "a tenant's share of the rest, 24" in why.sentence()
    assert room.against_work("other", parts) is None
    assert room.problem() is None  # work of others is taken in
    ledger.config = replace(ledger.config, bytes_max=2000 * MIB)
    await room.look()
    assert room.against_work("flood", parts) is None

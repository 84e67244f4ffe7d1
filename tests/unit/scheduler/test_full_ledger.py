"""A ledger without room: the committer waits, loses nothing, says so, and takes what still fits."""

from dataclasses import replace

from tessera.engine import ENGINE_ID
from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.shard.orders import Order
from tests.builders import SHARD, admitted, config_proposed, node_seen
from tests.unit.scheduler.committers import Leader, World, outgoing

LEDGER = subjects.stream("LEDGER", SHARD)


def bound(world: World, left: int | None) -> None:
    """Let the ledger hold `left` bytes more than it does; None: as many as come."""
    stream = world.broker.stream(LEDGER)
    stream.config = replace(stream.config, bytes_max=0 if left is None else stream.bytes + left)


async def test_a_full_ledger_halts_nobody_and_loses_nothing() -> None:
    world = World()
    async with Leader(world) as leader:
        await world.fact(config_proposed())
        await world.clock.run(0.1)
        assert leader.ports.health.readiness()["ledger"] == "ok"
        bound(world, 100)
        await world.fact(admitted("k1"))
        await world.clock.run(10)
        assert not leader.task.done()
        assert "LedgerFull" in leader.ports.health.readiness()["ledger"]
        assert world.said == ["config_set"]
        bound(world, None)
        await world.clock.run(5)
        assert world.said == ["config_set", "job_queued"]
        assert leader.ports.health.readiness()["ledger"] == "ok"


async def test_many_facts_that_do_not_fit_together_get_in_one_by_one() -> None:
    world = World()
    async with Leader(world):
        await world.fact(config_proposed())
        await world.clock.run(0.1)
        bound(world, 1800)
        world.at_once(*[outgoing(admitted(f"k{number}")) for number in range(64)])
        await world.clock.run(5)
        taken = world.said.count("job_queued")
        assert 1 <= taken < 64
        bound(world, None)
        await world.clock.run(5)
        assert world.said.count("job_queued") == 64


async def test_a_start_that_found_no_room_is_tried_again_although_nothing_else_comes() -> None:
    world = World()
    async with Leader(world):
        await world.fact(config_proposed())
        await world.fact(node_seen())
        await world.fact(admitted("k1"))
        await world.clock.run(0.1)
        bound(world, 100)
        last, jobs = world.ledger[-1], (job_id(SHARD, "lab", "k1"),)
        await world.order(Order(v=1, pool="default", basis_n=last.n, ts=last.ts, engine=ENGINE_ID, policy=1, jobs=jobs))
        await world.clock.run(5)
        assert "allocated" not in world.said
        bound(world, None)
        await world.clock.run(5)
        assert world.said[-1] == "allocated"


async def test_who_waits_for_room_ends_when_it_is_told_to() -> None:
    world = World()
    bound(world, 10)
    leader = Leader(world)
    await world.clock.run(3)
    leader.stop.set()
    await world.clock.run(3)
    assert leader.task.done()
    assert leader.task.exception() is None

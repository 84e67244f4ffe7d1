"""Who is alive and knows a format of the ledger, from what instances of this and of earlier versions leave behind."""

import asyncio

from tessera.kernel.errors import Transient
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.kernel.process.known_formats import SILENT_SECONDS, KnownFormats
from tessera.kernel.process.leases import Leadership
from tessera.kernel.process.store_probe import StoreProbe
from tessera_schemas import subjects
from tessera_schemas.ledger import FORMAT
from tests.builders import SHARD
from tests.unit.scheduler.committers import World

LEASE, OBSERVER = 2.0, "scheduler-observer"


def observer(world: World) -> KnownFormats:
    return KnownFormats(MemoryBus(world.broker, "scheduler"), world.clock, SHARD, OBSERVER, LEASE)


async def held(world: World, instance: str) -> Leadership:
    lease = Leadership(world.bus, world.clock, SHARD, "projection", instance, LEASE)
    await lease.acquire()
    return lease


async def test_before_it_has_looked_it_knows_nothing() -> None:
    assert observer(World()).behind(FORMAT) is None


async def test_who_says_its_format_is_behind_a_newer_one_alone() -> None:
    world = World()
    await StoreProbe(world.ports("scheduler-1"), SHARD, "scheduler").probe()
    formats = observer(world)
    await formats.look()
    assert formats.behind(FORMAT) == []
    assert formats.behind(FORMAT + 1) == ["scheduler-1"]


async def test_who_holds_a_lease_and_says_nothing_is_of_an_earlier_version_until_it_lets_go() -> None:
    world = World()
    lease = await held(world, "projection-old")
    formats = observer(world)
    await formats.look()
    assert formats.behind(1) == ["projection-old"]
    await lease.release()
    await formats.look()
    assert formats.behind(1) == []


async def test_who_holds_a_lease_and_says_its_format_is_known() -> None:
    world = World()
    await held(world, "projection-new")
    await StoreProbe(world.ports("projection-new"), SHARD, "projection").probe()
    formats = observer(world)
    await formats.look()
    assert formats.behind(FORMAT) == []


async def test_who_is_silent_for_long_is_gone() -> None:
    world = World()
    await StoreProbe(world.ports("scheduler-1"), SHARD, "scheduler").probe()
    formats = observer(world)
    await formats.look()
    await world.clock.run(SILENT_SECONDS - 1)
    await formats.look()
    assert formats.behind(FORMAT + 1) == ["scheduler-1"]
    await world.clock.run(1)
    await formats.look()
    assert formats.behind(FORMAT + 1) == []


async def test_who_stops_says_so() -> None:
    world = World()
    watching = asyncio.create_task(StoreProbe(world.ports("scheduler-1"), SHARD, "scheduler").watch())
    await world.clock.run(1)
    formats = observer(world)
    await formats.look()
    assert formats.behind(FORMAT + 1) == ["scheduler-1"]
    watching.cancel()
    await world.clock.run(1)
    await formats.look()
    assert formats.behind(FORMAT + 1) == []


async def test_while_the_bus_is_away_the_view_stays() -> None:
    world = World()
    await held(world, "projection-old")
    formats = observer(world)
    await formats.look()

    async def away(*_: object) -> list[object]:
        raise Transient("gone")

    formats._bus.last_all = away  # type: ignore[method-assign,assignment]
    await formats.look()
    assert formats.behind(1) == ["projection-old"]


async def test_bytes_that_no_instance_writes_are_nobody() -> None:
    world = World()
    for name, data in (("leader", b"\xff"), ("probe.x", b"[]"), ("probe.store", b"{}")):
        await world.bus.publish(Outgoing(subjects.lease(SHARD, "scheduler", name), data))
    formats = observer(world)
    await formats.look()
    assert formats.behind(FORMAT) == []

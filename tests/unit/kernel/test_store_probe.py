"""Readiness says whether NATS stores, not only whether it answers."""

import asyncio

from tessera.kernel.errors import Full, Transient
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.process.store_probe import StoreProbe, read_probe
from tessera.kernel.tasks.task_group import cancel_all
from tessera_schemas import subjects
from tests.builders import SHARD
from tests.unit.scheduler.committers import Faults, World


async def test_what_is_not_stored_is_trouble_until_something_is() -> None:
    world, faults = World(), Faults()
    probe = StoreProbe(world.ports("scheduler-1", faults), SHARD, "scheduler")
    await probe.probe()
    assert probe.trouble is None
    faults.before_publish["lease."] = [Transient("no space left on device"), Full("insufficient storage")]
    await probe.probe()
    assert probe.trouble is not None
    assert "NATS does not store: no space left on device; is its disk full?" in probe.trouble
    await probe.probe()
    assert "insufficient storage" in probe.trouble
    await probe.probe()
    assert probe.trouble is None


async def test_a_probe_is_no_replica() -> None:
    world = World()
    await StoreProbe(world.ports(), SHARD, "scheduler").probe()
    leases = await MemoryBus(world.broker).last_all(subjects.stream("LEASES", SHARD), f"lease.{SHARD}.scheduler.*")
    assert leases == []


async def test_what_changes_is_said_at_once_and_the_rest_every_five_seconds() -> None:
    world = World()
    ports = world.ports()
    probing = asyncio.create_task(StoreProbe(ports, SHARD, "scheduler").watch())
    leases = world.broker.stream(subjects.stream("LEASES", SHARD))
    await world.clock.run(4)
    assert leases.last_seq == 1
    ports.health.started()
    await world.clock.run(1)
    assert [read_probe(one.data) for one in leases.last_all("lease.>")] == [(False, {})]
    assert leases.last_seq == 2
    await world.clock.run(10)
    assert leases.last_seq == 4
    await cancel_all(probing)


async def test_a_probe_says_whether_its_instance_leads_and_what_of_it_is_not_well() -> None:
    world = World()
    ports = world.ports()
    ports.health.check("looks", lambda: "no good look for 35 s")
    ports.health.started()
    ports.metrics.leading.set(1)
    await StoreProbe(ports, SHARD, "scheduler").probe()
    (said,) = await world.bus.last_all(subjects.stream("LEASES", SHARD), f"lease.{SHARD}.scheduler.probe.*")
    assert read_probe(said.data) == (True, {"looks": "no good look for 35 s"})
    assert read_probe(b'{"format":3}') == (False, {})
    assert read_probe(b"{}") is None
    assert read_probe(b"[") is None

"""Wiring of the scheduler: one instance leads its shard, the others fold along and wait."""

import asyncio

import structlog

from tessera.kernel.errors import Transient
from tessera.kernel.ledger.shard import Shard, decode_entry, restore
from tessera.kernel.process.leases import Leadership
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import cancel_all
from tessera.scheduler.cycle import Committer, Deposed
from tessera.scheduler.free_slots import measuring
from tessera.scheduler.settings import SchedulerSettings

log = structlog.get_logger()


async def serve(ports: Ports, settings: SchedulerSettings, stop: asyncio.Event) -> None:
    """Lead whenever the lease is ours; raises InvariantViolation to halt."""
    shard = await restore(ports.bus, ports.ledger, settings.shard)
    lease = Leadership(ports.bus, ports.clock, settings.shard, "scheduler", ports.instance, settings.lease_seconds)
    ports.health.started()
    while not stop.is_set():
        await stand_by(ports, shard, lease, stop)
        if stop.is_set():
            break
        ports.metrics.leading.set(1)
        try:
            async with measuring(ports, shard, settings.slots_seconds):
                await Committer(ports, settings, shard).lead(stop)
        except Deposed as error:
            log.info("deposed", reason=str(error))
        finally:
            ports.metrics.leading.set(0)
            await lease.release()


async def stand_by(ports: Ports, shard: Shard, lease: Leadership, stop: asyncio.Event) -> None:
    """Fold along until the lease is ours or we are told to stop."""
    tasks = [
        asyncio.create_task(lease.acquire()),
        asyncio.create_task(fold_along(ports, shard)),
        asyncio.create_task(stop.wait()),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(*tasks)
    for task in done:
        await task


async def fold_along(ports: Ports, shard: Shard) -> None:
    """A hot standby: the state is at hand when its turn comes."""
    while True:
        source = ports.ledger.follow(shard.state.n)
        try:
            while True:
                for message in await source.next():
                    shard.fold(decode_entry(message))
                ports.metrics.ledger_n.set(shard.state.n)
        except Transient as error:
            log.warning("standby_retries", error=str(error))
            await ports.clock.sleep(0.5)
        finally:
            await source.close()

"""Wiring of the scheduler: one instance leads its shard, the others fold along and wait."""

import asyncio

import structlog

from tessera.kernel.errors import Transient
from tessera.kernel.ledger.shard import Shard, decode_entry, restore
from tessera.kernel.process.known_formats import KnownFormats
from tessera.kernel.process.leases import Leadership
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import cancel_all, run_beside
from tessera.scheduler.cycle import Committer, Deposed
from tessera.scheduler.free_slots import measuring
from tessera.scheduler.settings import SchedulerSettings
from tessera_schemas.ledger import FORMAT

FOLD_POLL_SECONDS, FORMAT_POLL_SECONDS = 0.05, 0.5

log = structlog.get_logger()


async def serve(ports: Ports, settings: SchedulerSettings, stop: asyncio.Event) -> None:
    """Lead whenever the lease is ours; raises InvariantViolation to halt."""
    shard = await restore(ports.bus, ports.ledger, settings.shard)
    lease = Leadership(ports.bus, ports.clock, settings.shard, "scheduler", ports.instance, settings.lease_seconds)
    formats = KnownFormats(ports.bus, ports.clock, settings.shard, ports.instance, settings.lease_seconds)
    ports.health.check("format", lambda: trouble_of_format(shard, formats))
    ports.health.started()
    while not stop.is_set():
        await stand_by(ports, shard, lease, formats, stop)
        if stop.is_set():
            break
        ports.metrics.leading.set(1)
        try:
            async with measuring(ports, shard, settings.slots_seconds), run_beside(keep_lease(lease)):
                await Committer(ports, settings, shard).lead(stop)
        except Deposed as error:
            log.info("deposed", reason=str(error))
        finally:
            ports.metrics.leading.set(0)
            await lease.release()


async def keep_lease(lease: Leadership) -> None:
    """
    Take the lease back whenever it was lost, as by a pause or an outage of NATS.

    Who leads goes on without it: only a younger epoch ends that. Any standby that came would depose it for nothing.
    """
    while True:
        await lease.lost()
        log.warning("lease_lost")
        await lease.acquire()


async def stand_by(ports: Ports, shard: Shard, lease: Leadership, formats: KnownFormats, stop: asyncio.Event) -> None:
    """Fold along until the lease is ours or we are told to stop."""
    tasks = [
        asyncio.create_task(succeed(ports, shard, lease, formats)),
        asyncio.create_task(fold_along(ports, shard)),
        asyncio.create_task(stop.wait()),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(*tasks)
    for task in done:
        await task


async def succeed(ports: Ports, shard: Shard, lease: Leadership, formats: KnownFormats) -> None:
    """
    Lead once the lease is ours and everybody who is alive knows the format in which we would write.

    Nobody is asked on a ledger that has this format already, or none yet.
    """
    while not shard.state.n and await has_begun(ports):
        await ports.clock.sleep(FOLD_POLL_SECONDS)  # the first record, which says the format, is on its way
    while True:
        while trouble_of_format(shard, formats):
            await formats.look()
            await ports.clock.sleep(FORMAT_POLL_SECONDS)
        await lease.acquire()
        await formats.look()  # somebody of an earlier version may have come meanwhile
        if not trouble_of_format(shard, formats):
            return
        await lease.release()


async def has_begun(ports: Ports) -> bool:
    """Whether the ledger has a record, as far as can be told."""
    try:
        return await ports.ledger.tail() is not None
    except Transient:
        return True


def trouble_of_format(shard: Shard, formats: KnownFormats) -> str | None:
    """Why a committer of this version must not write yet; None when it may."""
    at = shard.state.format
    if not 0 < at < FORMAT:
        return None
    behind = formats.behind(FORMAT)
    if behind is None:
        return f"asking who knows format {FORMAT} of the ledger, which has format {at}"
    if not behind:
        return None
    return f"the ledger gets format {FORMAT} once these are replaced, which know {at} at most: {', '.join(behind)}"


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

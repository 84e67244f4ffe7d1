"""Wiring of queueing: everybody folds, the leader publishes."""

import asyncio

from tessera.kernel.ledger.loop import fold_ledger
from tessera.kernel.ledger.shard import restore
from tessera.kernel.process.leases import Leadership
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import run_loops
from tessera.queueing.handlers import OrderPublisher
from tessera.queueing.settings import QueueingSettings


async def serve(ports: Ports, settings: QueueingSettings, stop: asyncio.Event) -> None:
    """Fold the ledger; while leading, keep the newest order of every pool published."""
    shard = await restore(ports.bus, ports.ledger, settings.shard)
    lease = Leadership(ports.bus, ports.clock, settings.shard, "queueing", ports.instance, settings.lease_seconds)
    publisher = OrderPublisher(ports, settings.shard, shard.state)
    ports.health.started()
    try:
        await run_loops(stop, fold_ledger(ports, shard, publisher.on_ledger, stop), publisher.keep_published(lease))
    finally:
        await lease.release()

"""Wiring of queueing: everybody folds, the leader publishes."""

import asyncio

from tessera.kernel.ledger.loop import fold_ledger
from tessera.kernel.ledger.shard import restore
from tessera.kernel.process.leases import Leadership
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import together
from tessera.queueing.handlers import Lines
from tessera.queueing.settings import QueueingSettings


async def serve(ports: Ports, settings: QueueingSettings, stop: asyncio.Event) -> None:
    """Fold the ledger; while leading, keep the newest order of every pool published."""
    shard = await restore(ports.bus, ports.ledger, settings.shard)
    lease = Leadership(ports.bus, ports.clock, settings.shard, "queueing", ports.instance, settings.lease_seconds)
    lines = Lines(ports, settings.shard, shard.state)
    ports.health.started()
    try:
        await together(stop, fold_ledger(ports, shard, lines.on_ledger, stop), lines.keep_published(lease))
    finally:
        await lease.release()

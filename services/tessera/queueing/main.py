"""Wiring of queueing: everybody folds, the leader publishes."""

import asyncio

from tessera.kernel.ledger.loop import BooksReader, open_books
from tessera.kernel.process.leases import Leadership
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import run_loops
from tessera.queueing.handlers import OrderPublisher
from tessera.queueing.settings import QueueingSettings


async def serve(ports: Ports, settings: QueueingSettings, stop: asyncio.Event) -> None:
    """Fold the ledger; while leading, keep the newest order of every pool published."""
    books = await open_books(ports, settings.shard)
    lease = Leadership(ports.bus, ports.clock, settings.shard, "queueing", ports.instance, settings.lease_seconds)
    publisher = OrderPublisher(ports, settings.shard, books.state)
    reader = BooksReader(books, ports, publisher.on_ledger)
    ports.health.started()
    try:
        await run_loops(stop, reader.follow(stop), publisher.keep_published(lease))
    finally:
        await lease.release()

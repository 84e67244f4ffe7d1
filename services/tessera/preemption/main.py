"""Wiring of preemption: fold the ledger, propose for the jobs of our partitions."""

import asyncio

from tessera.engine.preemption.plans import proposing
from tessera.kernel.ledger.loop import BooksReader, open_books
from tessera.kernel.process.leases import Members
from tessera.kernel.process.proposing import PAUSE_SECONDS, Proposals
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import run_loops
from tessera.preemption.decide import preemption_heads, preemption_plan
from tessera.preemption.settings import PreemptionSettings


async def serve(ports: Ports, settings: PreemptionSettings, stop: asyncio.Event) -> None:
    """Propose plans for waiting jobs of our partitions, one at a time for each."""
    books = await open_books(ports, settings.shard)
    members = Members(ports.bus, ports.clock, settings.shard, "preemption", ports.instance, settings.lease_seconds)
    proposals = Proposals(
        ports,
        settings.shard,
        "preemption",
        books.state,
        members,
        proposing(preemption_plan),
        preemption_heads,
        settings.heads,
    )
    reader = BooksReader(books, ports, proposals.on_ledger, lambda: ports.clock.sleep(PAUSE_SECONDS))
    await members.join()
    ports.health.started()
    try:
        await run_loops(stop, reader.follow(stop), proposals.propose())
    finally:
        await members.leave()

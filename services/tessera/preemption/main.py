"""Wiring of preemption: fold the ledger, propose for the jobs of our partitions."""

import asyncio

from tessera.engine.preemption.plans import proposing
from tessera.engine.queueing.ordering import stuck_heads
from tessera.kernel.ledger.loop import fold_ledger
from tessera.kernel.ledger.shard import restore
from tessera.kernel.process.leases import Members
from tessera.kernel.process.proposing import PAUSE_SECONDS, Proposals
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import run_loops
from tessera.preemption.decide import preemption_plan
from tessera.preemption.settings import PreemptionSettings


async def serve(ports: Ports, settings: PreemptionSettings, stop: asyncio.Event) -> None:
    """Propose plans for waiting jobs of our partitions, one at a time for each."""
    shard = await restore(ports.bus, ports.ledger, settings.shard)
    members = Members(ports.bus, ports.clock, settings.shard, "preemption", ports.instance, settings.lease_seconds)
    proposals = Proposals(
        ports,
        settings.shard,
        "preemption",
        shard.state,
        members,
        proposing(preemption_plan),
        stuck_heads,
        settings.heads,
    )
    await members.join()
    ports.health.started()
    try:
        folding = fold_ledger(ports, shard, proposals.on_ledger, stop, linger=lambda: ports.clock.sleep(PAUSE_SECONDS))
        await run_loops(stop, folding, proposals.propose())
    finally:
        await members.leave()

"""Drives a SimCluster by a Clock, real or virtual, where no server does."""

import asyncio

from tessera.kernel.ports import Clock
from tessera.kernel.tasks.waiting import wait_for
from tessera_local.cluster.core import SimCluster


async def drive(cluster: SimCluster, clock: Clock) -> None:
    """Advance the cluster whenever something is due, until cancelled."""
    earlier = asyncio.Event()
    cluster.call_on_earlier(earlier.set)
    while True:
        cluster.advance()
        earlier.clear()
        due_ms = cluster.next_due_ms()
        if due_ms is None:
            await earlier.wait()
        else:
            await wait_for(earlier, clock, max(due_ms - clock.now_ms(), 0) / 1000)

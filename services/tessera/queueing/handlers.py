"""Publish an order when it says something new, and when a job's back-off ends."""

import asyncio

import structlog

from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.ledger.timestamps import LedgerTime
from tessera.kernel.ports import Outgoing
from tessera.kernel.process.leases import Leadership
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.waiting import wait_for
from tessera.queueing.decide import OrderCache, next_retry, orders
from tessera_schemas import subjects

TICK_SECONDS = 1.0
RETRY_SECONDS = 0.2
FIRST = 8
"""Jobs at the head of a line that its log names."""

log = structlog.get_logger()


class OrderPublisher:
    """The orders of a shard's pools, as this replica has published them."""

    def __init__(self, ports: Ports, shard: str, state: State) -> None:
        self._ports, self._shard, self._state = ports, shard, state
        self._time = LedgerTime(ports.clock, state.ts)
        self._changed = asyncio.Event()
        self._published: dict[str, tuple[str, ...]] = {}
        self._capacity = OrderCache()
        self._believed_at = ports.clock.monotonic()

    async def on_ledger(self, entries: list[Entry]) -> None:
        self._changed.set()

    async def keep_published(self, lease: Leadership) -> None:
        """Publish changed orders for as long as the lease is ours."""
        while True:
            await lease.acquire()
            self._ports.metrics.leading.set(1)
            self._published.clear()
            while lease.held:
                self._changed.clear()
                self._believe_the_ledger()
                await self._publish()
                await wait_for(self._changed, self._ports.clock, self._seconds_until_retry())
            self._ports.metrics.leading.set(0)

    def _believe_the_ledger(self) -> None:
        """
        Now and then, what counts as published is what the committer took in.

        An order may be overwritten by an older one that hung somewhere, and then nobody would ever hear of it.
        """
        now = self._ports.clock.monotonic()
        if now - self._believed_at >= TICK_SECONDS:
            self._believed_at = now
            self._published = {pool: line.jobs for pool, line in self._state.lines.items()}

    async def _publish(self) -> None:
        ts = self._time.now(self._state.ts)
        try:
            for fresh in orders(self._state, self._published, ts, self._capacity):
                await self._ports.bus.publish(Outgoing(subjects.order(self._shard, fresh.pool), fresh.to_bytes()))
                self._published[fresh.pool] = fresh.jobs
                log.info("order_published", pool=fresh.pool, jobs=len(fresh.jobs), first=fresh.jobs[:FIRST])
        except Transient as error:
            log.warning("order_not_published", error=str(error))
            self._published.clear()
            await self._ports.clock.sleep(RETRY_SECONDS)
            self._changed.set()
        self._ports.metrics.queue_depth.set(sum(len(line) for line in self._state.index.waiting.values()))

    def _seconds_until_retry(self) -> float:
        now_ms = self._time.now(self._state.ts)
        due = next_retry(self._state, now_ms)
        return TICK_SECONDS if due is None else min(TICK_SECONDS, max(0.0, (due - now_ms) / 1000))

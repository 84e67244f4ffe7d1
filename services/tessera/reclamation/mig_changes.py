"""
Proposals to change the MIG geometry of idle nodes, for the pools of our partitions, one open for each pool; and the
numbers of changes that an operator should look at.
"""

import structlog

from tessera.domain.devices.mig.changes import changes_by_pool
from tessera.domain.state import State
from tessera.engine.defragmentation.mig_changes import count_troubled, next_change
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.timestamps import LedgerTime
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members, partition_of, rounds
from tessera.kernel.service.context import Ports

LOOK_SECONDS = 2.0

log = structlog.get_logger()


class MigProposals:
    """`propose` runs for ever; the ledger having taken a proposal in is the answer to it."""

    def __init__(self, ports: Ports, shard: str, state: State, members: Members) -> None:
        self._ports, self._state, self._members = ports, state, members
        self._facts = Facts(ports.bus, shard, "reclamation")
        self._time = LedgerTime(ports.clock, state.ts)
        self._open: dict[str, int] = {}

    async def propose(self) -> None:
        """Looks at the pools that allow changes again and again, for ever."""
        async for _ in rounds(self._members, self._ports.clock, LOOK_SECONDS):
            pools = sorted(changes_by_pool(self._state.tree.pools))
            ours = [pool for pool in pools if partition_of(pool) in self._members.partitions()]
            now = self._time.now(self._state.ts)
            # Before anything waits: a pool that went to another replica is shown there.
            self._ports.metrics.mig_changes({pool: count_troubled(self._state, pool, now) for pool in ours})
            for pool in ours:
                await self._look(pool)

    async def _look(self, pool: str) -> None:
        if self._open.get(pool, 0) > self._state.facts_upto:
            return
        change = next_change(self._state, pool, self._time.now(self._state.ts))
        if change is None:
            return
        try:
            self._open[pool] = await self._facts.publish(change)
        except Transient as error:
            log.warning("mig_change_not_published", node=change.node, error=str(error))
        else:
            log.info("mig_change_proposed", node=change.node, config=change.config, job=change.job_id)

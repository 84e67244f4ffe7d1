"""Proposals of test jobs for suspected nodes of our partitions, one open for each node."""

import structlog

from tessera.domain.health.node_tests import is_broken
from tessera.domain.state import State
from tessera.engine.defragmentation.node_tests import due_tests
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.timestamps import LedgerTime
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members, partition_of, rounds
from tessera.kernel.service.context import Ports

LOOK_SECONDS = 5.0

log = structlog.get_logger()


class NodeTestProposals:
    """`propose` runs for ever; the ledger having taken a proposal in is the answer to it."""

    def __init__(self, ports: Ports, shard: str, state: State, members: Members) -> None:
        self._ports, self._shard, self._state, self._members = ports, shard, state, members
        self._facts = Facts(ports.bus, shard, "reclamation")
        self._time = LedgerTime(ports.clock, state.ts)
        self._open: dict[str, int] = {}
        self._told = False

    async def propose(self) -> None:
        """Looks at the suspected nodes again and again, for ever."""
        async for _ in rounds(self._members, self._ports.clock, LOOK_SECONDS):
            self._tell_broken()
            upto, now = self._state.facts_upto, self._time.now(self._state.ts)
            self._open = {node: seq for node, seq in self._open.items() if seq > upto}
            for fact in list(due_tests(self._state, self._shard, now)):
                if fact.node in self._open or partition_of(fact.node) not in self._members.partitions():
                    continue
                try:
                    self._open[fact.node] = await self._facts.publish(fact)
                except Transient as error:
                    log.warning("node_test_not_published", node=fact.node, error=str(error))
                else:
                    log.info("node_test_proposed", node=fact.node, job=fact.job_id)

    def _tell_broken(self) -> None:
        """Says, each time that it comes to be so, that nobody is tested since the test fails wherever it is tried."""
        failed = sorted(name for name, row in self._state.node_tests.items() if row.failures)
        broken = is_broken(self._state.node_tests.values())
        if broken and not self._told:
            log.warning("node_test_broken", nodes=failed)
        self._told = broken
        self._ports.metrics.node_test_broken.set(len(failed) if broken else 0)

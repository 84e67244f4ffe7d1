"""Runs that hold GPUs and use none: measured every while, and said when it changes what the policy does about them."""

from typing import Protocol

import structlog

from tessera.domain.idle import anybody_is_judged, idle_policy
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members, partition_of
from tessera.kernel.service.context import Ports
from tessera.reclamation.idle_runs.decide import Activity, GpuUsage, find_idleness
from tessera.reclamation.settings import ReclamationSettings
from tessera_schemas.ledger import Released

GAP_PERIODS = 4

log = structlog.get_logger()


class Utilisation(Protocol):
    """Source of measured GPU use. Raises Transient while it is away."""

    async def usage(self) -> GpuUsage: ...


class Idleness:
    """
    Idle runs, remembered in memory only: after a restart a run must be idle for the whole time again.

    The decision is the committer's, so that a repeat or a fact of a replica that is behind changes nothing.
    """

    def __init__(
        self, ports: Ports, settings: ReclamationSettings, state: State, utilisation: Utilisation, members: Members
    ) -> None:
        self._ports, self._settings, self._state = ports, settings, state
        self._utilisation, self._members = utilisation, members
        self._facts = Facts(ports.bus, settings.shard, "reclamation")
        period = settings.utilisation_seconds
        self._activity = Activity(settings.utilisation_busy_percent, GAP_PERIODS * period)

    async def on_ledger(self, entries: list[Entry]) -> None:
        """Forgets the activity of each run that new entries release."""
        for entry in entries:
            for record in entry.message.records:
                if type(record) is Released:
                    self._activity.forget(record.run_id)

    async def report(self) -> None:
        """Measures the use of GPUs every `utilisation_seconds`, for ever, while any policy judges it."""
        while True:
            await self._ports.clock.sleep(self._settings.utilisation_seconds)
            if not anybody_is_judged(self._state.tree):
                continue
            try:
                await self._measure()
            except Transient as error:
                log.warning("utilisation_not_read", error=str(error))

    async def _measure(self) -> None:
        usage = await self._utilisation.usage()
        clock, ours = self._ports.clock, self._members.partitions()
        for run in list(self._state.runs.values()):
            if not run.started or run.stopping or partition_of(run.job_id) not in ours:
                continue
            policy = idle_policy(self._state.tree, run.queue, self._state.jobs.get(run.job_id))
            idle_seconds = self._activity.look(run, usage, int(clock.monotonic()), policy.busy_percent)
            fact = find_idleness(run, idle_seconds, policy)
            if fact is not None:  # it may be so, not so, and so again: no identity
                await self._facts.publish(fact)
                log.info("run_idle", run=run.run_id, idle_seconds=fact.idle_seconds)

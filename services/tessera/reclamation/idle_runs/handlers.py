"""
Use of the GPUs that runs hold: measured every while, shown in metrics, and said: how much of it there was, at growing
intervals, and that there is none, when it changes what the policy does about the run.
"""

from typing import Protocol

import structlog

from tessera.domain.entities import Run
from tessera.domain.quota.idle import idle_policy
from tessera.domain.state import State
from tessera.domain.work.stops import pool_of
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members, partition_of
from tessera.kernel.service.context import Ports
from tessera.reclamation.idle_runs.decide import Activity, GpuUsage, HeldGpus, find_idleness
from tessera.reclamation.idle_runs.measured_use import UseMeters
from tessera.reclamation.settings import ReclamationSettings
from tessera_schemas.facts import RunIdle, RunUsed
from tessera_schemas.ledger import Finished, Released, Revoked
from tessera_schemas.shard.ledger_form import GPU_USE_FROM

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
        self._meters = UseMeters(settings.utilisation_busy_percent, GAP_PERIODS * period * 1000)

    async def on_ledger(self, entries: list[Entry]) -> None:
        """Says the last of each run that new entries stop or end, and forgets those that they release."""
        for entry in entries:
            for record in entry.message.records:
                if type(record) is Released and not record.ranks:
                    self._activity.forget(record.run_id)
                    self._meters.forget(record.run_id)
                elif type(record) is Revoked:
                    await self._report_last(record.run_id)
                elif type(record) is Finished and (ended := self._state.ended.get(record.job_id)) is not None:
                    await self._report_last(f"{ended.job_id}-{ended.attempt}")

    async def _report_last(self, run_id: str) -> None:
        """Says the rest of a run of ours, which is told to be absent only after this."""
        run = self._state.runs.get(run_id)
        if run is not None and self._speaks_of(run) and (fact := self._meters.last(run)) is not None:
            await self._facts.publish(fact)

    def _speaks_of(self, run: Run) -> bool:
        """Whether this replica says what was measured of the run, and the ledger can hold it."""
        return self._state.format >= GPU_USE_FROM and partition_of(run.job_id) in self._members.partitions()

    def unused_seconds(self, run_id: str) -> int:
        """Seconds for which none of a run's GPUs has been used by the last look; 0 where one was, or nobody knows."""
        return self._activity.known(run_id, int(self._ports.clock.monotonic()))

    async def report(self) -> None:
        """Measures the use of GPUs every `utilisation_seconds`, for ever."""
        while True:
            await self._ports.clock.sleep(self._settings.utilisation_seconds)
            try:
                await self._measure()
            except Transient as error:
                self._ports.metrics.sharing.show([])  # an old value would look like a reading
                log.warning("utilisation_not_read", error=str(error))

    async def _measure(self) -> None:
        """Every replica shows all runs in its metrics, and tells what there is to say about those of its partitions."""
        usage = await self._utilisation.usage()
        now_ms, ours = int(self._ports.clock.monotonic() * 1000), self._members.partitions()
        held = HeldGpus()
        facts: list[RunIdle | RunUsed] = []
        for run in self._state.runs.values():
            if not run.started or run.stopping or not run.amount.gpu_milli:
                continue
            policy = idle_policy(self._state.tree, run.queue, self._state.jobs.get(run.job_id))
            idle_seconds = self._activity.look(run, usage, now_ms // 1000, policy.busy_percent)
            self._meters.look(run, usage, self._state.nodes, now_ms, policy.busy_percent)
            labels = (pool_of(self._state, run.queue), run.tenant, run.queue)
            held.add(labels, run.amount.gpu_milli, idle_seconds)
            if partition_of(run.job_id) in ours:
                used = self._meters.due(run) if self._state.format >= GPU_USE_FROM else None
                facts += [fact for fact in (find_idleness(run, idle_seconds, policy), used) if fact is not None]
        self._ports.metrics.sharing.show(held.gauges())
        for fact in facts:  # it may be so, not so, and so again: no identity
            await self._facts.publish(fact)
            if isinstance(fact, RunIdle):
                log.info("run_idle", run=fact.run_id, idle_seconds=fact.idle_seconds)

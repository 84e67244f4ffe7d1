"""
Reports of progress, looked at every `LOOK_SECONDS`: what is said of them is that a run stalls, and that it goes on.

The newest report of each pod is on the pod itself, so that no report is stored and none is lost; since when it stands
is in memory only. After a restart, and after a gap in which nobody looked, each run has its whole time again.
"""

from collections.abc import Callable

import structlog

from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.pods_by_run import PodsByRun
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members, partition_of
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.freshness import Freshness
from tessera.reclamation.progress.decide import StallWatch, judge, steps_of
from tessera.reclamation.settings import ReclamationSettings
from tessera_schemas.base import Json
from tessera_schemas.job import JobProgress
from tessera_schemas.ledger import Released, Revoked
from tessera_schemas.reasons import Code
from tessera_schemas.shard.ledger_form import PROGRESS_FROM
from tessera_schemas.shard.records import GroupRestarted, RunStalled

LOOK_SECONDS = 5.0
AGAIN_SECONDS = 60.0
"""From a report that changed nothing until it is made again: too many at once may have been stopped."""

log = structlog.get_logger()


class ProgressLooks:
    """The decision is the committer's, so that a repeat, or a fact of a replica that is behind, changes nothing."""

    def __init__(
        self,
        ports: Ports,
        settings: ReclamationSettings,
        state: State,
        pods: PodsByRun[Json],
        members: Members,
        fresh: Freshness,
        unused_seconds: Callable[[str], int],
    ) -> None:
        self._ports, self._state, self._pods, self._members, self._fresh = ports, state, pods, members, fresh
        self._unused_seconds = unused_seconds
        self._facts = Facts(ports.bus, settings.shard, "reclamation")
        self._seen: dict[str, StallWatch] = {}
        self._said: dict[str, tuple[str, float]] = {}

    async def on_ledger(self, entries: list[Entry]) -> None:
        """Forgets the reports of runs that stop, and of those of which a part starts again."""
        for entry in entries:
            for record in entry.message.records:
                if isinstance(record, Revoked | Released | GroupRestarted):
                    self._seen.pop(record.run_id, None)
                    self._said.pop(record.run_id, None)

    async def report(self) -> None:
        """Looks every `LOOK_SECONDS`, for ever."""
        while True:
            await self._ports.clock.sleep(LOOK_SECONDS)
            try:
                await self._look_at_all()
            except Transient as error:
                log.warning("stall_not_said", error=str(error))

    async def _look_at_all(self) -> None:
        if not self._fresh.is_fresh or self._state.format < PROGRESS_FROM:
            return
        ours = self._members.partitions()
        stalled = sum(run.stalled is not None for run in self._state.runs.values())
        self._ports.metrics.stalled_runs.set(stalled)  # every replica shows all of them
        for run in list(self._state.runs.values()):
            job = self._state.jobs.get(run.job_id)
            if job is None or job.progress is None or not run.started or run.stopping:
                continue
            if partition_of(run.job_id) in ours and not any(copy.deadline for copy in run.restarts):
                await self._look(run, job.progress)

    async def _look(self, run: Run, rule: JobProgress) -> None:
        now, seen = self._ports.clock.monotonic(), self._seen.setdefault(run.run_id, StallWatch())
        seen.look(steps_of(run, self._pods.of(run.run_id)), rule, now, self._fresh.since)
        still = int(self._fresh.seconds(seen.moved_at))
        fact = judge(run, seen, rule, still, self._unused_seconds(run.run_id))
        if fact is None and run.stalled is not None and seen.steps:
            fact = RunStalled(kind="run_stalled", run_id=run.run_id)
        if fact is not None and self._is_news(run, fact, rule, now):
            await self._facts.publish(fact)
            code = "" if fact.reason is None else fact.reason.code
            self._said[run.run_id] = code, now
            log.info("run_stalled", run=run.run_id, reason=code, nodes=fact.nodes)

    def _is_news(self, run: Run, fact: RunStalled, rule: JobProgress, now: float) -> bool:
        """Whether the ledger says something else of the run, or the run is to stop, and that was not just said."""
        code = "" if fact.reason is None else fact.reason.code
        then = rule.then if code == Code.HUNG else rule.straggler_then
        if then == "warn" and code == ("" if run.stalled is None else run.stalled.code):
            return False
        said, at = self._said.get(run.run_id, (None, 0.0))
        return said != code or now - at >= AGAIN_SECONDS

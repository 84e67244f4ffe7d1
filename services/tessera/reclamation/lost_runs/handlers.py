"""
Runs that lost a node, a device or their time, found by looking again and again, and reported.

The report only revokes a lost run: its devices come back when it is absent, and on a node that does not answer that
is when it is back, or fenced. A run that goes on although the committer has taken its report in (too many are lost at
once, a cordoned one has no place elsewhere) is reported again every `AGAIN_SECONDS` for as long as it is found.
"""

from collections.abc import Iterable, Mapping

import structlog

from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.domain.work.stops import waiting_on
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.node_troubles import NodeTroubles, Trouble, TroubleKind, unhealthy_devices
from tessera.kernel.kubernetes.pods_by_run import PodsByRun
from tessera.kernel.kubernetes.users_pods import UsersPods
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import ApiError
from tessera.kernel.process.leases import Members, partition_of
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.freshness import Freshness
from tessera.reclamation.lost_runs.decide import (
    broken,
    find_drained,
    is_short,
    lost_with_nodes,
    overdue,
    works_still,
)
from tessera.reclamation.settings import ReclamationSettings
from tessera_schemas.base import Json
from tessera_schemas.facts import NodeSeen, RunLost
from tessera_schemas.ledger import NodeChanged, Released, Spared, Started
from tessera_schemas.reasons import Code
from tessera_schemas.shard.ledger_form import SUMS_FROM

LOOK_FIRST_SECONDS = 10.0
"""So long after a gap no run is said to be beyond its time limit: who saw its end may say so first."""

log = structlog.get_logger()

AGAIN_SECONDS = 60.0
"""From when a report was taken in that stopped nobody until it is made again."""
LEDGER_LAG_SECONDS = 2.0
"""The committer counts a cordon from when the ledger took it in, which is later than when the node showed it."""


class LostRuns:
    """Level-triggered: everything is looked at every `recheck_seconds`, deadlines of runs ten times less often."""

    def __init__(
        self,
        ports: Ports,
        settings: ReclamationSettings,
        state: State,
        pods: PodsByRun[Json],
        users: UsersPods[Json],
        troubles: NodeTroubles,
        members: Members,
        fresh: Freshness,
    ) -> None:
        """`fresh` says since when the ledger and the cluster were looked at without a gap."""
        self._fresh = fresh
        self._ports, self._settings, self._state, self._pods, self._users = ports, settings, state, pods, users
        self._troubles, self._members = troubles, members
        self._facts = Facts(ports.bus, settings.shard, "reclamation")
        self._reported: dict[str, dict[tuple[int, ...], float | None]] = {}
        self._resized: dict[str, None] = {node.name: None for node in state.nodes.values()}
        self._short_since: dict[str, float] = {}
        self._running_since: dict[str, tuple[int, float]] = {}
        self._outage = False

    async def on_ledger(self, entries: list[Entry]) -> None:
        """
        Notes the nodes that changed and the reports that were taken in, and forgets the reports on runs that are
        released as a whole, or spared: of one that was to stop anyway nothing was taken in.
        """
        for entry in entries:
            self._note_taken(entry)
            for record in entry.message.records:
                if type(record) is Started:
                    self._running_since[record.run_id] = entry.message.ts, self._ports.clock.monotonic()
                elif type(record) is NodeChanged:
                    fact = entry.message.facts[record.fact].fact
                    if isinstance(fact, NodeSeen):
                        self._resized[fact.name] = None
                elif type(record) is Spared or (type(record) is Released and not record.ranks):
                    self._reported.pop(record.run_id, None)
                    if type(record) is Released:
                        self._running_since.pop(record.run_id, None)

    def _note_taken(self, entry: Entry) -> None:
        for taken in entry.message.facts:
            reported = self._reported.get(taken.fact.run_id, {}) if isinstance(taken.fact, RunLost) else {}
            if isinstance(taken.fact, RunLost) and taken.fact.ranks in reported:
                reported[taken.fact.ranks] = self._ports.clock.monotonic()

    async def report(self) -> None:
        """Looks for lost runs every `recheck_seconds`, for ever, and reports each one found."""
        clock, looks = self._ports.clock, 0
        while True:
            await clock.sleep(self._settings.recheck_seconds)
            if self._outage:
                self._is_outage()  # over also when no node is left to be judged: its end is logged
            found = [*self._on_lost_nodes(), *self._on_short_nodes()]
            self._measure()
            looks += 1
            if looks % 10 == 0:
                found += self._beyond_their_time()
            try:
                for fact in found:
                    await self._report_lost(fact)
            except (Transient, ApiError) as error:
                log.warning("loss_not_said", error=str(error))

    async def _report_lost(self, fact: RunLost) -> None:
        run, reported = self._state.runs.get(fact.run_id), self._reported.setdefault(fact.run_id, {})
        if run is None or run.stopping or not self._is_due(fact, reported):
            return
        if partition_of(run.job_id) not in self._members.partitions():
            return
        if fact.reason.code is Code.NODE_LOST and not await self._is_still_lost(fact):
            return
        await self._facts.publish(fact)
        again = fact.ranks in reported
        reported[fact.ranks] = None
        if not again:
            why = fact.reason
            log.warning("run_lost", run=fact.run_id, reason=why.code, detail=why.detail, nodes=fact.nodes)

    def _is_due(self, fact: RunLost, reported: Mapping[tuple[int, ...], float | None]) -> bool:
        """Whether it was never reported, or was taken in a while ago and stopped nobody."""
        if fact.ranks not in reported:
            return True
        taken, again = reported[fact.ranks], min(AGAIN_SECONDS, self._state.tree.policy.mass_stop_seconds)
        return taken is not None and self._ports.clock.monotonic() - taken >= again

    async def _is_still_lost(self, fact: RunLost) -> bool:
        """Whether the API server itself says of one of these nodes, now, what the copy says."""
        for node in fact.nodes:
            trouble = self._troubles.of(node)
            if trouble is not None and await self._troubles.is_still(self._ports.cluster, node, trouble.kind):
                return True
        return False

    # -- nodes ------------------------------------------------------------------------------------------------------

    def _on_lost_nodes(self) -> list[RunLost]:
        troubles = {name: trouble for name in self._state.index.runs_on if (trouble := self._troubles.of(name))}
        lost = {name: (str(t.kind), int(t.seconds)) for name, t in troubles.items() if self._is_lost(t)}
        off = TroubleKind.OUT_OF_SERVICE
        reads = self._state.format >= SUMS_FROM  # a committer of an earlier version reads no later field
        told = {name for name in lost if reads and troubles[name].kind is off}
        cordoned = {name: int(t.seconds) for name, t in troubles.items() if self._is_to_be_left(t)}
        found = [lost_with_nodes(run, lost, told) for run in self._active(self._on(lost))]
        found += [find_drained(run, cordoned) for run in self._active(self._on(cordoned)) if self._may_move(run)]
        return [fact for fact in found if fact is not None]

    def _on(self, nodes: Iterable[str]) -> dict[str, None]:
        return {run_id: None for name in nodes for run_id in self._state.index.runs_on[name]}

    def _is_lost(self, trouble: Trouble) -> bool:
        if trouble.kind is not TroubleKind.NOT_READY:
            return self._troubles.is_fence(trouble)
        return trouble.seconds >= self._state.tree.policy.node_lost_seconds and not self._is_outage()

    def _is_to_be_left(self, trouble: Trouble) -> bool:
        policy = self._state.tree.policy
        patient = trouble.seconds >= policy.cordoned_seconds + LEDGER_LAG_SECONDS
        return trouble.kind is TroubleKind.CORDONED and policy.cordoned == "restart" and patient

    def _may_move(self, run: Run) -> bool:
        """The node is well: whoever is not to be interrupted is not."""
        job = self._state.jobs.get(run.job_id)
        return job is not None and job.preemptible and not job.in_minimum

    def _is_outage(self) -> bool:
        """Most nodes silent at once is the network's or the API server's trouble, and no reason to stop what runs."""
        percent = self._troubles.percent_not_ready()
        outage = percent > self._settings.outage_percent
        if outage is not self._outage:
            self._outage = outage
            log.error("outage" if outage else "outage_over", nodes_not_ready_percent=percent)
        return outage

    def _on_short_nodes(self) -> list[RunLost]:
        """Runs on nodes that stay short of devices, whose pods say that theirs are broken."""
        found, now, fresh = list[RunLost](), self._ports.clock.monotonic(), self._fresh
        for name in list(self._resized):
            node, runs = self._state.nodes.get(name), self._active(self._state.index.runs_on.get(name, ()))
            if node is None or not is_short(node, runs):
                del self._resized[name]
                self._short_since.pop(name, None)
            elif fresh.seconds(self._short_since.setdefault(name, now)) >= self._state.tree.policy.node_lost_seconds:
                found += [fact for run in runs if (fact := broken(run, node, self._unhealthy(run))) is not None]
        return found

    def _unhealthy(self, run: Run) -> dict[int, tuple[str, ...]]:
        """Resources of which a pod of the run has a device that is unhealthy, by rank."""
        ranks = {uid: rank for rank, uid in enumerate(run.uids)}
        ranks |= {extra.uid: extra.placement.rank for extra in run.extra if extra.uid}
        pods = {**self._pods.of(run.run_id), **self._users.bound(run.run_id)}
        return {ranks[uid]: names for uid, pod in pods.items() if uid in ranks and (names := unhealthy_devices(pod))}

    def _measure(self) -> None:
        """Measure what waits for an operator: every replica sees all of it."""
        state = self._state
        silent = [node.name for node in state.nodes.values() if node.silent]
        waiting = {run_id for name in silent for run_id in waiting_on(state, name)}
        held_back = sum(run.held_back is not None for run in state.runs.values()) if len(state.stops) else 0
        self._ports.metrics.awaited(short=len(self._short_since), waiting=len(waiting), held_back=held_back)

    # -- time -------------------------------------------------------------------------------------------------------

    def _beyond_their_time(self) -> list[RunLost]:
        """After a gap what has ended meanwhile is seen first: until then nobody is judged."""
        if self._fresh.seconds(0.0) < LOOK_FIRST_SECONDS:
            return []
        slack, found = self._settings.overtime_seconds, []
        for run_id in (*self._pods.runs(), *self._users.runs()):
            run = self._state.runs.get(run_id)
            pods = (*self._pods.of(run_id).values(), *self._users.bound(run_id).values())
            job = None if run is None else self._state.jobs.get(run.job_id)
            if run is None or not works_still(run, pods):
                continue
            by_kubelet = [int(limit) for pod in pods if (limit := pod["spec"].get("activeDeadlineSeconds"))]
            by_us = job.time_limit_seconds if job is not None else 0  # users' pods need not say it themselves
            if by_kubelet or by_us:
                # The longest: pods of a group that started again have only what is left of their run's time.
                limit, more = (max(by_kubelet), slack) if by_kubelet else (by_us, 0)
                if job is not None and job.adopted is None and 0 < by_us < limit:
                    limit = by_us  # lowered since: the binder has yet to tell the kubelets
                found.append(overdue(run, limit, more, self._seconds_run(run)))
        return [fact for fact in found if fact is not None]

    def _seconds_run(self, run: Run) -> int:
        """
        Seconds since the run started, by our own clock from when we heard of it, and by the ledger's before that.

        Our wall clock and the ledger's may differ by any amount.
        """
        ts, at = self._running_since.setdefault(run.run_id, (self._state.ts, self._ports.clock.monotonic()))
        return (max(0, ts - run.started_ts) + int((self._ports.clock.monotonic() - at) * 1000)) // 1000

    def _active(self, run_ids: dict[str, None] | tuple[str, ...]) -> list[Run]:
        runs = (self._state.runs.get(run_id) for run_id in run_ids)
        return [run for run in runs if run is not None and not run.stopping]

"""
One run at a time: look at the ledger's state and at its pods, do the next step, publish the outcome.

Every step may be repeated: names and UIDs are fixed, a refused repeat is compared with what is there. Published facts
are remembered only to save messages; the committer recognises a repeat.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tessera.binder.adoption.runs import AdoptedRuns
from tessera.binder.claims.calls import PodClaims
from tessera.binder.claims.published import PublishedDevices
from tessera.binder.decide.ends import end_for
from tessera.binder.decide.lost_runs import find_whole_gang
from tessera.binder.decide.pods import spec_label
from tessera.binder.decide.steps import (
    Boots,
    Pod,
    as_told,
    find_cancel,
    find_own_end,
    missing,
    nodes_in_doubt,
    pods_beyond,
    seconds_to_settle,
    to_report,
)
from tessera.binder.launchers.naming import service_name
from tessera.binder.nodes.hami_lock import HamiLock
from tessera.binder.nodes.other_ledgers import LedgerReach
from tessera.binder.nodes.ownership import Ownership
from tessera.binder.pods.calls import Calls, RefusedByCluster, all_of, refuse
from tessera.binder.pods.checkpoints import Checkpoints, SessionWarnings
from tessera.binder.pods.events import PodEvents
from tessera.binder.pods.group_pods import GroupPods, without_former
from tessera.binder.pods.late_pods import LatePods
from tessera.binder.pods.names import Names
from tessera.binder.pods.resizes import PodResizes
from tessera.binder.pods.sparing import Sparing
from tessera.binder.pods.starting import Starting
from tessera.binder.pods.stopping import Stopping, gone_is_fine
from tessera.binder.pods.surplus_pods import SurplusPods
from tessera.binder.pods.templates import Templates
from tessera.binder.pods.volume_reach import check_volume_reach, claims_by_role
from tessera.binder.pods.warnings import PodWarnings
from tessera.binder.settings import BinderSettings
from tessera.domain.entities import Job, Run
from tessera.domain.folding.steps import FORMAT_OF_LATER
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Delta
from tessera.kernel.kubernetes.node_troubles import NodeTroubles
from tessera.kernel.kubernetes.pods_by_run import PodsByRun
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members, partition_of, rounds
from tessera.kernel.service.context import Ports
from tessera.kernel.service.spans import step_span
from tessera.kernel.service.trace import TRACEPARENT, bind, trace_of_job
from tessera.kernel.tasks.freshness import Freshness
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.base import run_id as id_of_run
from tessera_schemas.cluster.labels import RUN_LABEL, is_of_another
from tessera_schemas.facts import AnyFact, BindFailed, PodsMade, RunEnded
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import (
    Allocated,
    EarmarkEnded,
    Finished,
    Grown,
    JobUpdated,
    NodeDrained,
    Permitted,
    Released,
    Revoked,
    Saved,
    Shrunk,
    Spared,
)
from tessera_schemas.reasons import Code
from tessera_schemas.shard.ledger_form import RUN_ENDS_FROM
from tessera_schemas.shard.records import (
    GroupPermitted,
    GroupRestarted,
    GroupResumed,
    ResizeBegun,
    ResizeEnded,
    RolesShifted,
)
from tessera_schemas.work.placement import Placement

CLAIM_AGAIN_SECONDS = 2.0
OWNER_AGAIN_SECONDS = 0.5
ATTEMPTS_LOOKED_FOR = 32
"""So many attempts beyond the present one a job may have had before its ledger was restored."""
LOST_RUN_SECONDS, LOST_RUN_DOUBLINGS = 2.0, 5
"""From the first look at pods that work on for a run that the ledger lost to the next, and how often that doubles."""
OF_GROUPS, OF_SIZES = (GroupRestarted, GroupPermitted, GroupResumed), (ResizeBegun, ResizeEnded)
NAME_A_RUN = (Permitted, Revoked, Spared, Released, Saved, Grown, Shrunk, RolesShifted, *OF_GROUPS, *OF_SIZES)


@dataclass(slots=True)
class RunProgress:
    """
    Steps done for one run, and claims by role where its pods were made here, remembered to save calls; and when
    (monotonic seconds) a pod first broke it.
    """

    published: dict[str, None] = field(default_factory=dict)
    claims: dict[str, list[tuple[str, str]]] | None = None
    made: dict[int, str] = field(default_factory=dict)
    bound: dict[str, None] = field(default_factory=dict)
    broken_at: float | None = None


class Runs:
    """Runs of our partitions, and what is left of those that ended. Each change of pods is told to `listeners`."""

    def __init__(
        self,
        ports: Ports,
        settings: BinderSettings,
        state: State,
        pods: PodsByRun[Pod],
        troubles: NodeTroubles,
        ownership: Ownership,
        members: Members,
        adopted: AdoptedRuns,
        fresh: Freshness,
    ) -> None:
        self._adopted = adopted
        self._ports, self._settings, self._state, self._pods, self._members = ports, settings, state, pods, members
        self._facts, self._templates = Facts(ports.bus, settings.shard, "binder"), Templates(ports.ledger)
        self._said_lost: dict[str, int] = {}
        self._progress: defaultdict[str, RunProgress] = defaultdict(RunProgress)
        self.listeners: list[Callable[[list[Delta]], None]] = []
        places = settings.runs_at_once, settings.runs_at_once_per_tenant
        self.worklist = Worklist(self._work_in_trace, ports.clock, places[0], state.tenant_of_run, places[1])
        self._reach = reach = LedgerReach(ports.ledger, ports.clock, state)
        self.published = PublishedDevices(ports.cluster, ports.clock, ports.instance)
        self.published.on_left = self.worklist.name
        self._claims = claims = PodClaims(ports.cluster, ports.clock, self.published)
        self._stopping = Stopping(ports, settings, state, troubles, self.worklist, adopted, reach, fresh, claims)
        self.events = PodEvents(ports.cluster, ports.clock, settings.scheduled_events_per_second)
        hami = HamiLock(ownership.nodes, ports.cluster, ports.clock)
        told = self.events
        self._calls = Calls(ports.cluster, settings, pods, ownership, self.worklist, state, hami, adopted, told, claims)
        shard, new_key = settings.shard, ports.new_key
        self._names = Names(ports.cluster, ports.clock, shard, self._calls, state, reach, new_key)
        self._boots, self._ask_boot = ownership.boot_of, ownership.ask_boot
        self._surplus = SurplusPods(self._calls, self._stopping, self._facts, self._templates, state, self._boots)
        self._groups = GroupPods(
            self._calls, self._stopping, self._facts, self._templates, state, ports.clock, self.worklist
        )
        self._late = LatePods(self._calls, adopted, self._facts, state)
        self._sparing = Sparing(state, adopted, self._facts, self.events, ports.clock, self.worklist)
        self.warnings = PodWarnings(ports.cluster, ports.clock, settings.pod_warnings_per_second)
        self._starting = Starting(self._facts, state, ports.clock, self.worklist, self.warnings, adopted)
        self._session_warnings = SessionWarnings(self._facts, state)
        self._resizes = PodResizes(ports.cluster, self._facts, self._templates)
        self._checkpoints = Checkpoints(self._facts, settings, state, ports.clock, self.worklist)

    # -- what makes a run worth a look ----------------------------------------------------------------------------

    async def on_ledger(self, entries: list[Entry]) -> None:
        """Names each run that a new entry is about for another look."""
        for entry in entries:
            self._templates.note(entry)
            for record in entry.message.records:
                if type(record) is Allocated:
                    self.worklist.name(f"{record.job_id}-{record.attempt}", new=True)
                elif type(record) is Finished and (ended := self._state.ended.get(record.job_id)) is not None:
                    self.worklist.name(f"{record.job_id}-{ended.attempt}")
                elif type(record) is JobUpdated and (job := self._state.jobs.get(record.job_id)) is not None:
                    self.worklist.name(job.run_id)
                elif isinstance(record, NAME_A_RUN):
                    if type(record) is Spared:
                        self._say_again(record.run_id)
                    elif isinstance(record, OF_GROUPS):
                        self._may_end_again(record.run_id)
                    self.worklist.name(record.run_id)
                elif type(record) is EarmarkEnded or type(record) is NodeDrained:
                    self._name_stopping()

    def _name_stopping(self) -> None:
        """Whoever stops for a job that has gone, or a drain that is over, may be spared."""
        for run in self._state.runs.values():
            if run.then == "requeue":
                self.worklist.name(run.run_id)

    def _say_again(self, run_id: str) -> None:
        """Forget that something was said of a run while it was to stop: it has changed nothing."""
        self._progress.pop(run_id, None)
        self._surplus.forget(run_id)
        self._groups.forget(run_id)
        self._resizes.forget(run_id)

    def _may_end_again(self, run_id: str) -> None:
        """Forget an end that was said of one copy of a group: it says nothing of the next end of a pod."""
        progress = self._progress[run_id]
        progress.published.pop("run_ended", None)
        progress.broken_at = None

    async def follow_pods(self) -> None:
        """Follows the watch of our pods for ever; names the runs whose pods changed, and calls the listeners."""
        while True:
            deltas = await self._pods.informer.next()
            for run_id in self._pods.take(deltas):
                self.worklist.name(run_id)
            for listener in self.listeners:
                listener(deltas)

    def on_users(self, deltas: list[Delta]) -> None:
        """Names the runs whose users' pods changed for another look."""
        for run_id in self._adopted.take(deltas):
            self.worklist.name(run_id)

    async def follow_services(self) -> None:
        """Follows the watch of headless Services for ever, and names the runs whose Service changed."""
        while True:
            for run_id in await self._names.next():
                self.worklist.name(run_id)

    async def resync(self) -> None:
        """Look at everything once the pods are listed, now and then, and as soon as our partitions change."""
        async for _ in rounds(self._members, self._ports.clock, self._settings.resync_seconds, lambda: self._is_synced):
            held = (run.run_id for run in self._state.runs.values())
            for run_id in dict.fromkeys([*held, *self._pods.runs(), *self._adopted.runs(), *self._names.runs()]):
                self.worklist.name(run_id, new=True)  # of most of them nothing is to be done

    def problem(self) -> str | None:
        """Objects of ours that have not been listed yet."""
        return None if self._names.synced else "the services have not been listed yet"

    async def close(self) -> None:
        """Ends the watches of headless Services, and of devices and their claims."""
        await self._names.close()
        await self.published.close()

    # -- one run --------------------------------------------------------------------------------------------------

    @property
    def _is_synced(self) -> bool:
        """Tell whether pods are listed; earlier, runs seem to have none, and each adopted run would list them."""
        return self._pods.informer.synced and self._adopted.synced

    async def _work_in_trace(self, run_id: str) -> None:
        """Put logs and facts of this work into the trace of the job."""
        job = self._state.jobs.get(run_id.rpartition("-")[0])
        if job is None or not (job.trace or self._ports.spans.on):
            await self._work(run_id)
            return
        with bind({TRACEPARENT: trace_of_job(job.job_id, job.trace)}):
            await self._work(run_id)

    async def _work(self, run_id: str) -> None:
        if not self._is_synced:
            return  # `resync` names everything once it is
        if partition_of(run_id.rpartition("-")[0]) not in self._members.partitions():
            return
        run = self._state.runs.get(run_id)
        if run is None:
            await self._clear_away(run_id)
            return
        pods = await self._own_pods(run)
        if (job := self._state.jobs.get(run.job_id)) is not None and job.adopted is not None:
            run = await self._adopted.without_left(job, run, pods)
        if run.revoked is not None:
            await self._stop(run, pods)
            await self._free_claims(run, pods)
        elif run.over:  # its gang has ended; a pod that it grew by may not have
            await all_of([self._stopping.stop(run, pod) for pod in list(pods.values())])
            await self._free_claims(run, pods)
        elif job is not None:
            if await self._take_over(run, pods):
                return  # their change brings us back
            told = [pod for pod in pods.values() if pod.evict_at_ms is not None and pod.uid in run.uids]
            await all_of([self._stopping.take_back(pod) for pod in told])
            await self._groups.work(job, run, pods)
            await self._advance(job, run, without_former(run, pods))
            await self._checkpoints.report(run, pods)
            await self._session_warnings.report(job, run, pods)
            await self._surplus.work(job, run, pods)
            await self._late.work(job, run_id, pods)
            await self._keep_time_limit(job, pods)
            await self._resizes.work(job, run, pods)

    async def _keep_time_limit(self, job: Job, pods: Mapping[str, Pod]) -> None:
        """Lower the deadlines of pods to the job's time limit; the API server lets nobody raise or take off one."""
        if job.adopted is not None:
            return
        limit, late = job.time_limit_seconds, pods_beyond(job.time_limit_seconds, pods.values())
        calls = [self._ports.cluster.limit_pod(pod.namespace, pod.name, pod.uid, limit) for pod in late]
        await all_of([gone_is_fine(call) for call in calls])

    def _is_strange(self, run: Run, pod: Pod) -> bool:
        """
        Whether a pod with the run's name is not the run's: another ledger's, or bound without a permit of this run.

        After a restore the run of a job that was sent again has the id of one that the ledger lost.
        """
        bound = bool(pod.node) and pod.uid not in run.permitted
        return bound or is_of_another(pod.ledger, self._state.ledger_id)

    def _is_earlier(self, run: Run, strange: Pod) -> bool:
        """Whether a strange pod is of another submit of the job, and not of a permit that is only to be read yet."""
        job = self._state.jobs.get(run.job_id)
        return job is not None and strange.spec != spec_label(job)

    def _check_no_earlier_pod(self, job: Job, run: Run) -> None:
        """A pod of the job that the ledger lost works on: the job begins no second time beside it."""
        own = spec_label(job)
        attempts = range(1, run.attempt + ATTEMPTS_LOOKED_FOR)
        for name in self._pods.present(id_of_run(job.job_id, attempt) for attempt in attempts):
            for pod in self._pods.of(name).values():
                at_work = pod.node and not pod.over and pod.namespace == job.tenant
                unknown = not pod.deleting and self._state.runs.get(name) is None
                if at_work and (unknown or pod.spec != own):
                    raise refuse(0, Code.BIND_REFUSED, describe_earlier(pod))

    async def _clear_away(self, run_id: str) -> None:
        """Clear away what is left of a run that the ledger has let go of, or never knew."""
        self._progress.pop(run_id, None)
        noted = self._checkpoints, self._session_warnings
        of_pods = self._surplus, self._groups, self._late, self._resizes
        for part in (*noted, *of_pods, self._starting, self._sparing, self._adopted):
            part.forget(run_id)
        await self._find_lost(run_id)
        if not self._is_named_by(run_id):
            await self._names.clear_away(run_id)
        for pod in [*self._pods.of(run_id).values(), *self._adopted.bound(run_id).values()]:
            await self._stopping.clear_away(run_id, pod)

    async def _find_lost(self, run_id: str) -> None:
        """
        Say which pods work for a job that the ledger has, and for a run that it lost, so that they go on as its next.

        It is said again, after twice the time each time, until the job is no longer in line: it may have to wait for
        quota, or may just be refused where it was to start a second time.
        """
        job, lost = self._state.jobs.get(run_id.rpartition("-")[0]), self._pods.of(run_id).values()
        if job is None or not any(pod.node and not pod.over for pod in lost) or self._state.format < RUN_ENDS_FROM:
            self._said_lost.pop(run_id, None)
            return
        if (found := find_whole_gang(job, lost, self._state.ledger_id)) is not None:
            await self._reach.check(max(pod.allocated_n for pod in lost), "pod")
            await self._facts.publish(found)
            self._said_lost[run_id] = self._said_lost.get(run_id, 0) + 1
        again = LOST_RUN_SECONDS * 2 ** min(self._said_lost.get(run_id, 0), LOST_RUN_DOUBLINGS)
        self.worklist.name_later(run_id, again)

    def _is_named_by(self, run_id: str) -> bool:
        """Whether pods still find each other by the Service of a run that is no more, or that the ledger lost."""
        job, named = self._state.jobs.get(run_id.rpartition("-")[0]), service_name(run_id)
        own = self._pods.of(run_id).values()
        taken_over = () if job is None else self._pods.of(job.run_id).values()
        return any(pod.subdomain == named and pod.node and not pod.over for pod in (*own, *taken_over))

    async def _take_over(self, run: Run, pods: Mapping[str, Pod]) -> bool:
        """Give pods of a run that the ledger lost the name of the one that they go on as; whether some had another."""
        if run.started or not run.uids or all(uid in pods for uid in run.uids):
            return False
        names = [id_of_run(run.job_id, attempt) for attempt in range(1, run.attempt + ATTEMPTS_LOOKED_FOR)]
        others = (pod for name in names if name != run.run_id for pod in self._pods.of(name).values())
        found = [pod for pod in others if pod.uid in run.uids and pod.namespace == run.tenant]
        label = {RUN_LABEL: run.run_id}
        calls = [self._ports.cluster.label_pod(pod.namespace, pod.name, pod.uid, label) for pod in found]
        await all_of([gone_is_fine(call) for call in calls])
        return bool(found)

    async def _own_pods(self, run: Run) -> Mapping[str, Pod]:
        """The run's pods by UID. Others may give theirs any label; what stands under its name and is not its goes."""
        there = {uid: pod for uid, pod in self._pods.of(run.run_id).items() if pod.namespace == run.tenant}
        strange = [pod for pod in there.values() if self._is_strange(run, pod)]
        for pod in [pod for pod in strange if self._is_earlier(run, pod)]:
            await self._stopping.clear_away(run.run_id, pod)
        for pod in strange:
            del there[pod.uid]
        return self._adopted.with_ours(run, there)

    async def _stop(self, run: Run, pods: Mapping[str, Pod]) -> None:
        """Stop a revoked run, unless it has ended by itself; what it saved is said before its end."""
        await self._checkpoints.report(run, pods)
        own_end = find_own_end(run, pods.values(), self._boots)
        if own_end is not None and nodes_in_doubt(run, pods, self._boots):
            if self._must_settle(run, pods):
                return
            own_end = find_own_end(run, pods.values(), await self._boots_by_now(run, pods))
        own_end = own_end or find_cancel(run, pods.values())
        if own_end is not None:
            await self._publish_once(run.run_id, end_for(own_end, self._state.format))
        if await self._sparing.may_stop(run, pods):
            await all_of([self._stopping.stop(run, pod) for pod in pods.values()])
            self._sparing.notify(run, pods)

    async def _free_claims(self, run: Run, pods: Mapping[str, Pod]) -> None:
        """Give back what claims keep for a PodGroup of a run that is over or stopped, once no pod of it is at work."""
        if not any(pod.node and not pod.over for pod in pods.values()):
            await self._claims.free(run)

    async def _advance(self, job: Job, run: Run, pods: Mapping[str, Pod]) -> None:
        """Make, then bind, then report."""
        try:
            if not run.uids:
                if "pods_made" not in self._progress[run.run_id].published:
                    await self._make(job, run)
                return
            if not run.bound:
                await self._bind(job, run)
        except RefusedByCluster as refused:
            await self._publish_once(run.run_id, self._refusal(run, refused))
            return
        await self._names.keep(job, run, pods.values())
        if self._must_settle(run, pods):
            return
        seen = to_report(run, pods.values(), await self._boots_by_now(run, pods))
        judged = [await self._judged(job, run, fact) if isinstance(fact, RunEnded) else fact for fact in seen]
        await self._publish_once(run.run_id, *as_told(judged, self._state.format))
        await self._starting.report(job, run, pods)
        for rank in missing(run, pods, self._adopted.gone):
            await self._report_vanished(job, run, rank)

    def _must_settle(self, run: Run, pods: Mapping[str, Pod]) -> bool:
        """
        Whether the run's end is told a moment later, once it is known what broke it.

        Users' pods may be gone by then; those of ours stay until they were told of.
        """
        if (undecided := self._adopted.seconds_undecided(run.run_id)) > 0:
            self.worklist.name_later(run.run_id, min(undecided, OWNER_AGAIN_SECONDS))
            return True
        settle_seconds = seconds_to_settle(run, pods, self._boots)
        if not settle_seconds or any(pod.adopted for pod in pods.values()):
            return False
        progress, now = self._progress[run.run_id], self._ports.clock.monotonic()
        if progress.broken_at is None:
            progress.broken_at = now
        left = progress.broken_at + settle_seconds - now
        if left > 0:
            self.worklist.name_later(run.run_id, left)
        return left > 0

    async def _boots_by_now(self, run: Run, pods: Mapping[str, Pod]) -> Boots:
        """Boots of nodes; of those that alone could clear the program, as the server says now, not as our copy does."""
        if "run_ended" in self._progress[run.run_id].published:
            return self._boots
        doubtful = nodes_in_doubt(run, pods, self._boots)
        asked = dict(zip(doubtful, await all_of([self._ask_boot(node) for node in doubtful]), strict=True))
        return lambda node: asked[node] if node in asked else self._boots(node)

    async def _judged(self, job: Job, run: Run, fact: RunEnded) -> RunEnded:
        if job.restarts and fact.reason is not None:
            fact = fact.model_copy(update={"uid": run.uids[fact.rank]})
        return end_for(await self._adopted.judged(job, fact), self._state.format)

    def _report_span(self, name: str, job: Job, run: Run, began_ms: int) -> None:
        spans, now_ms = self._ports.spans, self._ports.clock.now_ms()
        if spans.on:
            pods = {"tessera.pods": len(run.placements)}
            spans.report(step_span(name, job.job_id, job.trace, began_ms, now_ms, run.attempt, **pods))

    def _refusal(self, run: Run, refused: RefusedByCluster) -> BindFailed:
        """A committer that is not of this version yet knows nothing of `within`."""
        within = refused.within if self._state.format >= FORMAT_OF_LATER else ()
        rank, reason = refused.rank, refused.reason
        return BindFailed(kind="bind_failed", run_id=run.run_id, rank=rank, reason=reason, within=within)

    async def _report_vanished(self, job: Job, run: Run, rank: int) -> None:
        """Somebody took our finalizer off and deleted the pod: nothing will ever be seen to end."""
        where = self._calls if job.adopted is None else self._adopted
        reason = await where.vanished(job, run, rank, run.uids[rank])
        if reason is not None:
            ended = RunEnded(kind="run_ended", run_id=run.run_id, reason=reason, rank=rank)
            await self._publish_once(run.run_id, await self._judged(job, run, ended))

    async def _publish_once(self, run_id: str, *facts: AnyFact) -> None:
        published = self._progress[run_id].published
        new = [fact for fact in facts if fact.kind not in published]
        await self._facts.publish_all(new)
        published.update((fact.kind, None) for fact in new)

    # -- make -----------------------------------------------------------------------------------------------------

    async def _make(self, job: Job, run: Run) -> None:
        began = self._ports.clock.now_ms()
        if job.adopted is not None:
            await self._claim(job, run)
            return
        self._check_no_earlier_pod(job, run)
        spec, progress = await self._templates.of(job), self._progress[run.run_id]
        progress.claims = claims_by_role(spec)
        await check_volume_reach(self._adopted.volumes, self._state, job, run, spec)
        await self._names.make(job, run, spec)
        made, ranks = progress.made, range(len(run.placements))
        await all_of([self._make_one(job, run, rank, spec, made) for rank in ranks if rank not in made])
        uids = tuple(made[rank] for rank in ranks)
        await self._publish_once(run.run_id, PodsMade(kind="pods_made", run_id=run.run_id, uids=uids))
        self._report_span("make_pods", job, run, began)

    async def _make_one(self, job: Job, run: Run, rank: int, spec: JobSpec, made: dict[int, str]) -> None:
        made[rank] = await self._calls.make(job, run, rank, spec)

    async def _claim(self, job: Job, run: Run) -> None:
        uids = await self._adopted.claim(job, run)
        if uids is None:
            self.worklist.name_later(run.run_id, CLAIM_AGAIN_SECONDS)
            return
        await self._publish_once(run.run_id, PodsMade(kind="pods_made", run_id=run.run_id, uids=uids))

    # -- bind -----------------------------------------------------------------------------------------------------

    async def _bind(self, job: Job, run: Run) -> None:
        """Bind every permitted UID that is not bound yet; one that is, is compared."""
        began = self._ports.clock.now_ms()
        bound = self._progress[run.run_id].bound
        pairs = zip(run.placements, run.uids, strict=True)
        todo = [(placement, uid) for placement, uid in pairs if uid and uid not in bound]
        if not todo:
            return  # the ledger does not know it yet
        await self._prepare_volumes(job, run, todo)
        if job.adopted is not None and not bound and len(todo) > 1:  # a gang that lost a pod meanwhile loses no more
            await all_of([self._adopted.target(job, run, uid, fresh=False) for _, uid in todo])
        # As volumes, for all pods first.
        claiming = [each for each in todo if self._has_claims(job, run, *each)]
        # The first in rank order has the devices of a claim that pods share, and the others join it.
        sharing = any(role.need.shared for role in run.roles)
        for some in [[each] for each in claiming] if sharing else [claiming]:
            await all_of([self._calls.reserve(job, run, *each) for each in some])
        await all_of([self._bind_one(job, run, placement, uid, bound) for placement, uid in todo])
        self._report_span("bind_pods", job, run, began)

    def _has_claims(self, job: Job, run: Run, placement: Placement, uid: str) -> bool:
        if placement.drawn or job.adopted is None:
            return bool(placement.drawn or run.gang.need_of[placement.role].claims)
        return self._adopted.names_devices(uid) or self._calls.may_name_claim(job)

    async def _prepare_volumes(self, job: Job, run: Run, todo: list[tuple[Placement, str]]) -> None:
        """All volumes first, since a pod that is bound without one holds its devices for nothing."""
        if job.adopted is None:
            if (of_role := self._progress[run.run_id].claims) is None:
                of_role = claims_by_role(await self._templates.of(job))
            claims = [(placement, uid, of_role[placement.role]) for placement, uid in todo]
        else:
            claims = [(placement, uid, self._adopted.claim_names(uid)) for placement, uid in todo]
        await all_of([self._prepare_one(job, *each) for each in claims if each[2]])

    async def _prepare_one(self, job: Job, placement: Placement, uid: str, claims: list[tuple[str, str]]) -> None:
        node = self._state.nodes.get(placement.node)
        if node is None:
            raise Transient(f"node {placement.node} is gone")
        against = await self._adopted.volumes.prepare(job.tenant, claims, node, uid)
        if against is not None:
            raise RefusedByCluster(placement.rank, against)

    async def _bind_one(self, job: Job, run: Run, placement: Placement, uid: str, bound: dict[str, None]) -> None:
        await self._calls.bind(job, run, placement, uid)
        bound[uid] = None


def describe_earlier(pod: Pod) -> str:
    """Words for a pod that works for a job, and for no run that the ledger knows."""
    return (
        f"pod {pod.name} on {pod.node} works for this job and for no run that the ledger knows, as after a restore, "
        "and goes on: the job starts once that pod has ended or was deleted"
    )

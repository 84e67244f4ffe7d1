"""Watch over stopping runs and pods that end early or shrink away; a fact says when no pod of them is left."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from tessera.domain.entities import Run, SurplusPod
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.node_troubles import unhealthy_devices
from tessera.kernel.kubernetes.pods_by_run import PodsByRun
from tessera.kernel.kubernetes.users_pods import UsersPods
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import ApiError
from tessera.kernel.process.leases import Members, partition_of
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import gather_all
from tessera.kernel.tasks.waiting import wait_for
from tessera.reclamation.absence.decide import (
    PresenceVerdict,
    claims_devices,
    ended_ranks,
    has_unsaid_end,
    is_over,
    judge,
    judge_surplus_pod,
    select_pods_of_rank,
    steps_of,
    uids_in_use,
)
from tessera.reclamation.settings import ReclamationSettings
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import (
    CLAIMS_API,
    GIVEN_BACK_ANNOTATION,
    NAMES_US,
    PERMIT_ANNOTATION,
    RUN_ANNOTATION,
    RUN_LABEL,
    USERS_PODS,
    bound_for,
    has_ended,
    has_succeeded,
    is_of_another,
    ledger_of,
)
from tessera_schemas.facts import PodsLost, RunAbsent
from tessera_schemas.ledger import Finished, Released, Revoked, Shrunk, Spared
from tessera_schemas.shard.ledger_form import SCRIPT_WORDS_FROM
from tessera_schemas.shard.records import RolesShifted

KEPT_META = ("uid", "name", "namespace", "resourceVersion", "deletionTimestamp")
NOTES = (RUN_ANNOTATION, PERMIT_ANNOTATION, GIVEN_BACK_ANNOTATION)

ALL_EVERY = 10
"""Looks after which all runs are looked at for ended pods, whatever changed."""

log = structlog.get_logger()


def only_what_is_judged(pod: Json) -> Json:
    """Reduce a user's pod to the fields that are judged."""
    meta, spec, notes = pod["metadata"], pod.get("spec") or {}, pod["metadata"].get("annotations") or {}
    status = pod.get("status") or {}
    return {
        "metadata": {name: meta[name] for name in KEPT_META if name in meta}
        | {"annotations": {name: notes[name] for name in NOTES if name in notes}},
        "spec": {name: spec[name] for name in ("nodeName", "activeDeadlineSeconds") if name in spec},
        "status": {"phase": status.get("phase", "")}
        | ({"containerStatuses": status["containerStatuses"]} if unhealthy_devices(pod) else {}),
    }


class GonePods:
    """The pods of live runs that were seen to go, and whether they had succeeded. No UID comes back."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._succeeded: dict[str, dict[str, bool]] = {}

    def note(self, run_id: str, pod: Json) -> None:
        """Notes a pod of a live run that has gone, and whether the pod had succeeded; other pods are passed over."""
        if self._state.runs.get(run_id) is not None:
            self._succeeded.setdefault(run_id, {})[pod["metadata"]["uid"]] = has_succeeded(pod)

    def of(self, run: Run) -> set[str]:
        """The UIDs that say something: while the run goes on, those of pods that had succeeded."""
        return {uid for uid, succeeded in self._succeeded.get(run.run_id, {}).items() if succeeded or run.stopping}

    def forget(self, run_id: str) -> None:
        """Forgets the pods of a run that is no more."""
        self._succeeded.pop(run_id, None)


class Absences:
    """
    Level-triggered: each run of which something is to go is looked at when anything about it changes, and again every
    while. Single pods of a run that have ended are looked for `recheck_seconds` after a change, so that what ends
    together is said together, most often as the whole run.
    """

    def __init__(
        self,
        ports: Ports,
        settings: ReclamationSettings,
        state: State,
        pods: PodsByRun[Json],
        users: UsersPods[Json],
        members: Members,
        gone: GonePods,
    ) -> None:
        self._gone = gone
        self._ports, self._settings, self._state, self._members = ports, settings, state, members
        self._pods, self._users = pods, users
        self._facts = Facts(ports.bus, settings.shard, "reclamation")
        self._stopping = {run.run_id: None for run in state.runs.values() if run.stopping or _leaving(run)}
        self._look_at: dict[str, None] = dict(self._stopping)
        self._reported: dict[str, None] = {}
        self._reported_ranks: dict[str, set[int]] = {}
        self._left: dict[str, dict[int, None]] = {}
        self._changed_at: dict[str, float] = {}
        self._ended_at: dict[str, float] = {}
        self._looks = 0
        self._wake = asyncio.Event()
        self._lists = asyncio.Semaphore(settings.lists_at_once)

    async def on_ledger(self, entries: list[Entry]) -> None:
        """Begins to look at runs that new entries stop, shrink or end, and no longer at those released or spared."""
        for entry in entries:
            for record in entry.message.records:
                if isinstance(record, Revoked | Shrunk | RolesShifted):
                    self._stops(record.run_id)
                elif type(record) is Finished and record.phase == "succeeded":
                    ended_job = self._state.ended.get(record.job_id)
                    if ended_job is not None:
                        self._stops(f"{record.job_id}-{ended_job.attempt}")
                elif type(record) is Released or type(record) is Spared:
                    self._is_released(record.run_id)
            for taken in entry.message.facts:
                if type(taken.fact) is PodsLost:
                    self._note_left(taken.fact)
        self._wake.set()

    def _note_left(self, fact: PodsLost) -> None:
        """Pods of a gang that their owner took away, since it wants fewer: the run goes on, and they are to go."""
        run = self._state.runs.get(fact.run_id)
        left = {} if run is None else dict.fromkeys(rank for rank in fact.ranks if rank < len(run.uids))
        if left:
            self._left.setdefault(fact.run_id, {}).update(left)
            self._stops(fact.run_id)

    def _is_released(self, run_id: str) -> None:
        """Forget what the record released; the rest of the run stays under watch."""
        run = self._state.runs.get(run_id)
        left = () if run is None else [rank for rank in self._left.get(run_id, ()) if rank not in run.released_ranks]
        if run is not None and (run.stopping or _leaving(run) or left):
            return
        self._left.pop(run_id, None)
        self._stopping.pop(run_id, None)
        self._look_at.pop(run_id, None)
        self._ended_at.pop(run_id, None)
        if run is None:
            self._reported.pop(run_id, None)
            self._reported_ranks.pop(run_id, None)
            self._changed_at.pop(run_id, None)
            self._gone.forget(run_id)

    def _stops(self, run_id: str) -> None:
        """A run that was spared may have been said to be absent before, which released nothing: it is said again."""
        self._reported.pop(run_id, None)
        self._stopping[run_id] = self._look_at[run_id] = None

    async def follow_pods(self) -> None:
        """Follows the watch of our pods for ever."""
        while True:
            self._changed(await self._pods.next())

    async def follow_users(self) -> None:
        """Follows the watch of users' pods for ever."""
        while True:
            self._changed(self._users.take(await self._users.informer.next()))

    def _changed(self, run_ids: list[str]) -> None:
        now = self._ports.clock.monotonic()
        for run_id in run_ids:
            self._changed_at.setdefault(run_id, now)
            if run_id in self._stopping:
                self._look_at[run_id] = None
                self._wake.set()

    async def report(self) -> None:
        """Look at what changed at once, and at every stopping run again every `recheck_seconds`."""
        clock, every = self._ports.clock, self._settings.recheck_seconds
        again_at = clock.monotonic() + every
        while True:
            await wait_for(self._wake, clock, max(0.0, again_at - clock.monotonic()))
            self._wake.clear()
            if clock.monotonic() >= again_at:
                self._look_at, again_at = dict.fromkeys(self._stopping), clock.monotonic() + every
                await gather_all(*(self._look(run_id, self._look_for_ended) for run_id in self._due()))
            batch, self._look_at = self._look_at, {}
            await gather_all(*(self._look(run_id, self._look_at_run) for run_id in batch))

    def _due(self) -> list[str]:
        """The runs whose pods changed a while ago; every now and then all, since partitions come and go."""
        self._looks += 1
        latest = self._ports.clock.monotonic() - self._settings.recheck_seconds
        due = [run_id for run_id, at in self._changed_at.items() if at <= latest]
        for run_id in due:
            del self._changed_at[run_id]
        return due if self._looks % ALL_EVERY else list(dict.fromkeys([*due, *self._pods.runs(), *self._users.runs()]))

    async def _look(self, run_id: str, how: Callable[[Run], Awaitable[None]]) -> None:
        run = self._state.runs.get(run_id)
        if run is None or run_id in self._reported or not (self._pods.informer.synced and self._users.informer.synced):
            return
        if partition_of(run.job_id) not in self._members.partitions():
            return
        try:
            await how(run)
        except (Transient, ApiError) as error:
            self._reported.pop(run_id, None)
            log.warning("absence_not_settled", run=run_id, error=str(error))

    async def _look_at_run(self, run: Run) -> None:
        await (self._look_at_all(run) if run.stopping else self._look_at_leaving(run))

    async def _look_at_all(self, run: Run) -> None:
        if await self._absent(run) and not self._awaits_its_end(run) and not await self._uids_in_use(run):
            self._reported[run.run_id] = None
            told = steps_of(run, self._cached(run)) if self._state.format >= SCRIPT_WORDS_FROM else None
            await self._facts.publish(RunAbsent(kind="run_absent", run_id=run.run_id, steps=told))

    def _awaits_its_end(self, run: Run) -> bool:
        """Whether how the run ended is still to be said; not for ever, since the binder may be away."""
        if not has_unsaid_end(run, self._cached(run)):
            return False
        now = self._ports.clock.monotonic()
        return now - self._ended_at.setdefault(run.run_id, now) < self._settings.unsaid_end_seconds

    async def _look_at_leaving(self, run: Run) -> None:
        reported = self._reported_ranks.get(run.run_id, set())
        absent = await self._absent_of([e for e in _leaving(run) if e.placement.rank not in reported], run)
        in_use = await self._uids_in_use(run) if absent else ()
        absent = [extra for extra in absent if extra.uid not in in_use]
        # Pods that leave for others of their run are told together: released one by one, their room would go to whoever
        # comes first.
        if not {extra.placement.rank for extra in absent} | reported >= set(run.shift_ranks):
            absent = [extra for extra in absent if extra.placement.rank not in run.shift_ranks]
        await self._report_ranks(run, [extra.placement.rank for extra in absent])
        if run.run_id in self._left:
            await self._look_for_ended(run)

    async def _look_for_ended(self, run: Run) -> None:
        """Pods that have ended while others of the run have not."""
        gone = self._gone.of(run)
        if run.stopping:
            gone |= {uid for uid in run.permitted if uid in self._users.gone}
        else:
            gone |= await self._left_for_good(run)
        left = {run.uids[rank] for rank in self._left.get(run.run_id, ())}
        ended = ended_ranks(run, self._cached(run), gone, left)
        reported = self._reported_ranks.get(run.run_id, set())
        fresh = [rank for rank in ended if rank not in reported]
        in_use = await self._uids_in_use(run) if fresh else ()
        uids = dict(enumerate(run.uids)) | {extra.placement.rank: extra.uid for extra in run.extra}
        await self._report_ranks(run, [rank for rank in fresh if uids[rank] not in in_use])
        if in_use:
            self._changed_at.setdefault(run.run_id, self._ports.clock.monotonic())

    async def _left_for_good(self, run: Run) -> set[str]:
        """The UIDs of pods that left a run which goes on, and of which no object is there any more."""
        uids = {run.uids[rank] for rank in self._left.get(run.run_id, ()) if rank not in run.released_ranks}
        uids -= self._users.of(run).keys()
        unseen = {uid for uid in uids if uid not in self._users.gone}
        return uids - {pod["metadata"]["uid"] for pod in (await self._list_users(run) if unseen else ())}

    async def _report_ranks(self, run: Run, ranks: list[int]) -> None:
        if ranks:
            await self._facts.publish(RunAbsent(kind="run_absent", run_id=run.run_id, ranks=tuple(ranks)))
            self._reported_ranks.setdefault(run.run_id, set()).update(ranks)

    def _cached(self, run: Run) -> list[Json]:
        ours = self._select_own(run, self._pods.of(run.run_id).values())
        return [*ours, *self._users.of(run).values()]

    async def _absent_of(self, leaving: list[SurplusPod], run: Run) -> list[SurplusPod]:
        """Surplus pods without any object left; the API server is asked only where the cache cannot tell."""
        cached = self._select_own(run, self._pods.of(run.run_id).values())
        verdicts = [(extra, judge_surplus_pod(extra, cached)) for extra in leaving]
        if not any(verdict is PresenceVerdict.ASK for _, verdict in verdicts):
            return [extra for extra, verdict in verdicts if verdict is PresenceVerdict.ABSENT]
        pods = await self._list(run)
        asked = [extra for extra, verdict in verdicts if verdict is not PresenceVerdict.PRESENT]
        return [extra for extra in asked if all(has_ended(pod) for pod in select_pods_of_rank(extra, pods))]

    async def _absent(self, run: Run) -> bool:
        verdict = judge(run, self._cached(run), self._users.gone)
        if verdict is not PresenceVerdict.ASK:
            return verdict is PresenceVerdict.ABSENT
        return all(is_over(run, pod) for pod in [*await self._list(run), *await self._list_users(run)])

    async def _uids_in_use(self, run: Run) -> set[str]:
        """
        Pods of the run whose claims still have devices: a kubelet, or Kubernetes' controller of claims, is not done.

        Users' pods share claims, and others may use a claim of ours, so that each claim of the namespace is looked at.
        """
        if not run.permitted or not claims_devices(run):
            return set()
        async with self._lists:
            of_tenant = f"metadata.namespace={run.tenant}"
            claims, _ = await self._ports.cluster.list(f"{CLAIMS_API}/ResourceClaim", "", of_tenant, _only_users)
        return uids_in_use(run, claims)

    async def _list_users(self, run: Run) -> list[Json]:
        """Pods of users that are permitted to the run, and that no other run has bound, whatever they wear by now."""
        job = self._state.jobs.get(run.job_id)
        if not run.permitted or (job is not None and job.adopted is None):
            return []
        of_tenant = f"{NAMES_US},metadata.namespace={run.tenant}"
        async with self._lists:
            pods, _ = await self._ports.cluster.list("pods", USERS_PODS, of_tenant, only_what_is_judged)
        permitted = [pod for pod in pods if pod["metadata"]["uid"] in run.permitted]
        return [pod for pod in permitted if bound_for(pod) in ("", run.run_id)]

    async def _list(self, run: Run) -> list[Json]:
        async with self._lists:
            pods, _ = await self._ports.cluster.list("pods", f"{RUN_LABEL}={run.run_id}")
        return self._select_own(run, pods)

    def _select_own(self, run: Run, pods: Iterable[Json]) -> list[Json]:
        """
        Pods in namespaces of the run's tenant, without those of another ledger, where the same run id may be in use.

        Labels prove nothing: others could copy them and keep the run's devices. Nor is a pod the run's that is bound
        without its permit: it is of a run that the ledger lost, and counts as used on its node as long as it is there.
        """
        there = [pod for pod in pods if pod["metadata"]["namespace"] == run.tenant]
        ours = [pod for pod in there if not is_of_another(ledger_of(pod), self._state.ledger_id)]
        return [pod for pod in ours if pod["metadata"]["uid"] in run.permitted or not _is_bound(pod)]


def _only_users(claim: Json) -> Json:
    status, meta = claim.get("status") or {}, claim["metadata"]
    marks = {name: meta[name] for name in ("labels", "annotations") if name in meta}
    return {
        "metadata": marks,
        "status": {name: status[name] for name in ("allocation", "reservedFor") if name in status},
    }


def _is_bound(pod: Json) -> bool:
    return bool((pod.get("spec") or {}).get("nodeName"))


def _leaving(run: Run) -> list[SurplusPod]:
    return [extra for extra in run.extra if extra.leaving]

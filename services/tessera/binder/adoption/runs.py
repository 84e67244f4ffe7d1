"""
Runs of users' pods: the pods are found instead of made, have names of their own, may be removed by their owner once
they are done, and are evicted instead of deleted.
"""

import asyncio
from collections.abc import Container, Mapping, Sequence

import structlog

from tessera.binder.adoption.cache import Adoptions
from tessera.binder.adoption.claim import Claims, Incomplete, NotResumed
from tessera.binder.adoption.decide.owner_conditions import ending_of
from tessera.binder.adoption.decide.suspending import Suspender, can_be_suspended, is_suspended
from tessera.binder.adoption.decide.verdicts import (
    Verdict,
    describe_blocked_eviction,
    describe_missing_pods,
    describe_not_resumed,
    describe_overridden_budget,
    describe_refused_pods,
    describe_slow_start,
)
from tessera.binder.adoption.decide.volumes import claim_names
from tessera.binder.adoption.owners.budgets import EvictionBlock, find_eviction_block
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.adoption.reports.conditions import Conditions
from tessera.binder.adoption.volume_claims import VolumeClaims
from tessera.binder.adoption.watch import Groups
from tessera.binder.adoption.waves import Waves
from tessera.binder.decide.steps import Pod, broken_of, is_broken, is_touched, no_boots, read_pod, reason_of
from tessera.binder.pods.calls import RefusedByCluster, refuse
from tessera.binder.settings import BinderSettings
from tessera.binder.workloads.batch_jobs import INDEX, has_given_up, may_give_up
from tessera.binder.workloads.mark_table import KUEUE
from tessera.binder.workloads.reading import items, mapping, text
from tessera.binder.workloads.references import OwnerRef
from tessera.binder.workloads.registry import kind_of_object, wanted_pods
from tessera.domain.entities import Job, Run
from tessera.domain.storing.fast import replace
from tessera.kernel.kubernetes.informer import Delta
from tessera.kernel.kubernetes.users_pods import UsersPods
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import ApiError, without_managed_fields
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.freshness import Freshness
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import GIVEN_BACK_ANNOTATION, NAMES_US, USERS_PODS, is_given_back
from tessera_schemas.facts import EvictionBlocked, PodsLost, RunEnded
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.adopted import Adopted
from tessera_schemas.work.run_ends import end_of

FORBIDDEN, BLOCKED = 403, 429
POD_GROUPS_OF_KUEUE = f"gang/{KUEUE}pod-group-name/"
GIVES_UP_SECONDS = 5.0
"""So long a Job has to say of a failed index that it goes on without it; its controller looks once a second."""
TAKES_AWAY_SECONDS = 30.0
"""So long a controller has to take the pods of a suspended owner away; then they are evicted."""

log = structlog.get_logger()


class AdoptedRuns:
    """Every step may be repeated. Pods that succeeded are remembered until their run is forgotten."""

    def __init__(
        self,
        ports: Ports,
        settings: BinderSettings,
        groups: Groups,
        owners: Owners,
        adoptions: Adoptions,
        volumes: VolumeClaims,
        fresh: Freshness,
    ) -> None:
        self._fresh = fresh
        self.volumes = volumes
        self._cluster, self._clock, self._settings = ports.cluster, ports.clock, settings
        self._groups, self._owners = groups, owners
        self._users = UsersPods(groups.informer, read_pod, self._note_gone)
        self._claims = Claims(ports.cluster, ports.clock, groups, owners, adoptions)
        self._waves = Waves(groups, owners)
        self._conditions = Conditions(ports.cluster, ports.clock)
        self._succeeded: dict[str, dict[str, Pod]] = {}
        self._facts = Facts(ports.bus, settings.shard, "binder")
        self._blocked: dict[str, None] = {}
        self._half_gone: dict[str, float] = {}
        self._suspending = asyncio.Lock()
        self._suspended: dict[str, float] = {}
        self._left: dict[str, dict[int, None]] = {}
        self._undecided: dict[str, float] = {}

    @property
    def synced(self) -> bool:
        """Whether users' pods have been listed."""
        return self._groups.informer.synced

    @property
    def gone(self) -> Container[str]:
        """The UIDs of users' pods that were seen to go."""
        return self._users.gone

    def forget(self, run_id: str) -> None:
        """Forgets all that is remembered of a run, its pods that succeeded too."""
        self._claims.forget(run_id)
        self._succeeded.pop(run_id, None)
        self._blocked.pop(run_id, None)
        self._half_gone.pop(run_id, None)
        self._suspended.pop(run_id, None)
        self._left.pop(run_id, None)
        self._undecided.pop(run_id, None)

    # -- pods -----------------------------------------------------------------------------------------------------

    def take(self, deltas: list[Delta]) -> list[str]:
        """Take in changes from the informer of users' pods; returns the runs whose bound pods changed."""
        return self._users.take(deltas)

    def runs(self) -> list[str]:
        """Runs that pods are bound for, known to the ledger or not."""
        return self._users.runs()

    def bound(self, run_id: str) -> Mapping[str, Pod]:
        """Users' pods by UID whose bind wrote the run's name, whether the ledger knows the run or not."""
        return self._users.bound(run_id)

    def with_ours(self, run: Run, ours: Mapping[str, Pod]) -> Mapping[str, Pod]:
        """The run's pods by UID: those that we made, those of users, and those that succeeded and are gone."""
        users, succeeded = self._users.of(run), self._succeeded.get(run.run_id, {})
        # A pod that is still seen goes before what is remembered of it. Runs without users' pods, most of all, get
        # their own mapping back uncopied.
        return {**succeeded, **users, **ours} if users or succeeded else ours

    async def without_left(self, job: Job, run: Run, pods: Mapping[str, Pod]) -> Run:
        """
        The run without the ranks whose pods its owner took away since it wants fewer, or which failed and it gives up:
        they count as released here, and are told to have left until the ledger releases them. A pod that is to be
        replaced is a loss of the gang; a late one, which its owner makes again by itself, is not.
        """
        await self._let_replaced_go(job, run, pods)
        left, lost = self._left.setdefault(run.run_id, {}), list[int]()
        late = range(len(run.placements) - run.late, len(run.placements))
        known = {*run.released_ranks, *left, *late}
        there = {rank: pods.get(uid) for rank, uid in enumerate(run.uids) if rank not in known}
        if run.uids and not run.stopping:
            # It may want fewer a moment after all have a node, before the ledger knows that; until then a pod that is
            # not seen has gone only if it was seen to go.
            gone = {rank for rank, uid in enumerate(run.uids) if run.started or uid in self._users.gone}
            away = [rank for rank, pod in there.items() if (_is_taken_away(pod, rank) if pod else rank in gone)]
            lost += away if away and await self._wants_fewer(job) else []
        if run.started and not run.stopping:
            failed = {rank: pod for rank, pod in there.items() if pod is not None and pod.phase == "Failed"}
            lost += await self._given_up(job, run, failed)
        if lost:
            reason, ranks = Reason(code=Code.SHRUNK, detail="its owner goes on without them"), (*left, *lost)
            lost_pods = PodsLost(kind="pods_lost", run_id=run.run_id, ranks=tuple(sorted(ranks)), reason=reason)
            await self._facts.publish(lost_pods)
            # Known only once it is said: a store that was away for a moment would keep their devices for the whole run.
            left.update(dict.fromkeys(lost))
        without = tuple(sorted({*run.released_ranks, *left, *late}))
        return replace(run, released_ranks=without) if left or late else run

    async def _let_replaced_go(self, job: Job, run: Run, pods: Mapping[str, Pod]) -> None:
        """Of a pod group of Kueue the others go on without a pod that failed, until its user has made another."""
        if not _is_replaced_one_by_one(job) or not run.started or run.stopping:
            return
        # Nobody makes the whole of a plain group again: stopped for one pod, the work of all others would be lost.
        left = self._left.setdefault(run.run_id, {})
        ours = {rank: (uid, pods.get(uid)) for rank, uid in enumerate(run.uids)}
        staying = {rank: pod for rank, (_, pod) in ours.items() if rank not in left and rank not in run.released_ranks}
        lost = [r for r, pod in staying.items() if (is_broken(pod) if pod else ours[r][0] in self._users.gone)]
        if not lost or all(rank in lost or (pod is not None and pod.over) for rank, pod in staying.items()):
            return  # nobody is left to go on
        left.update(dict.fromkeys(lost))
        reason, pod = Reason(code=Code.POD_DELETED), staying[lost[0]]
        if pod is not None:
            reason = reason_of(broken_of(pod, lost[0], run.started, no_boots))
        await self._facts.publish(PodsLost(kind="pods_lost", run_id=run.run_id, ranks=tuple(lost), reason=reason))

    def _judge_unreplaced(self, job: Job, fact: RunEnded) -> RunEnded:
        """The end of a pod group of Kueue: well where another pod came for each that failed, else by the first."""
        pods = list(self._users.bound(fact.run_id).values())
        failed = [pod for pod in pods if pod.phase == "Failed"]
        assert job.adopted is not None
        if all(pod.over for pod in pods) and self._groups.count_standing(job.adopted.group) >= job.pods:
            return RunEnded(kind="run_ended", run_id=fact.run_id)
        if fact.reason is not None or not failed:
            return fact
        end = broken_of(min(failed, key=lambda pod: pod.name), 0, True, no_boots)
        why = {"reason": reason_of(end), "own": end_of(end.code).spends, "exit_code": end.end.exit_code}
        return fact.model_copy(update=why)

    async def _given_up(self, job: Job, run: Run, failed: Mapping[int, Pod]) -> list[int]:
        """The ranks of failed pods whose indexes a Job with a limit for each gives up; it has its time to say so."""
        owner = await self._owners.of(job.tenant, job.adopted) if failed and job.adopted is not None else None
        if owner is None or not may_give_up(owner) or ending_of(owner):
            self._undecided.pop(run.run_id, None)
            return []
        # Its controller writes that a moment after the pod has failed; until then the pod may as well be made again,
        # which ends the run.
        self._undecided.setdefault(run.run_id, self._clock.monotonic() + GIVES_UP_SECONDS)
        objects = {rank: self._groups.informer.objects.get(run.uids[rank]) for rank in failed}
        return [rank for rank, pod in objects.items() if has_given_up(owner, text(pod, "metadata", "labels", INDEX))]

    def seconds_undecided(self, run_id: str) -> float:
        """Time for which the owner may yet say that it goes on without a pod that has failed."""
        return self._undecided.get(run_id, 0.0) - self._clock.monotonic()

    async def _wants_fewer(self, job: Job) -> bool:
        """Whether the owner still has at work as many pods of each part as it wants by now."""
        if job.adopted is None or not can_be_suspended(job.adopted):
            return False
        owner = await self._owners.of(job.tenant, job.adopted, fresh=True)
        over = owner is None or ending_of(owner) or "deletionTimestamp" in mapping(owner, "metadata")
        wanted = None if owner is None or over or is_suspended(owner) else wanted_pods(owner)
        there = self._groups.at_work(job.adopted.group)
        # What it wants none of at all it does not go on without: then it pauses.
        return (
            wanted is not None
            and any(wanted.values())
            and all((there[part] if part else there.total()) >= number for part, number in wanted.items())
        )

    def _note_gone(self, run_id: str, pod: Pod) -> None:
        """Owners tidy up: a pod that was seen to succeed has succeeded, whether it is still there or not."""
        if pod.phase == "Succeeded":
            self._succeeded.setdefault(run_id, {})[pod.uid] = pod

    # -- start ----------------------------------------------------------------------------------------------------

    async def claim(self, job: Job, run: Run) -> tuple[str, ...] | None:
        """The UIDs once all pods are there; None to look again soon. Refused when they do not come."""
        try:
            found = await self._claims.claim(job, run)
        except NotResumed as error:
            await self._conditions.make_event_once(error.owner, describe_not_resumed(error.reason))
            raise RefusedByCluster(0, error.reason) from error
        if not isinstance(found, Incomplete):
            return found
        await self._check_not_refused(job, run, found)
        seconds = self._settings.resumed_seconds if found.coming else self._settings.claim_seconds
        if found.coming and found.behind:
            seconds = self._settings.controller_seconds
        # Seconds in which nothing could be seen do not count: pods may have come meanwhile, unseen (ADR 0042).
        if self._fresh.seconds(found.since) < seconds:
            return None
        self._claims.forget(run.run_id)
        if found.coming:
            await self._report_on_owner(job, describe_missing_pods(found.reason, round(seconds), found.behind))
        raise RefusedByCluster(0, found.reason)

    async def _check_not_refused(self, job: Job, run: Run, found: Incomplete) -> None:
        """The ledger tries one job of a namespace after the other that takes none, or not all, of their pods."""
        if not found.coming or found.behind or job.adopted is None:
            return
        ref = OwnerRef(job.adopted.api_version, job.adopted.owner_kind, job.tenant, "", job.adopted.owner_uid)
        # What was said before the allocation is about an earlier try, and would end each later one.
        why = await self._owners.why_refused(ref, since_ms=run.allocated_ts)
        if why:
            self._claims.forget(run.run_id)
            await self._report_on_owner(job, describe_refused_pods(found.reason, why))
            raise refuse(0, Code.BIND_REFUSED, why, status=FORBIDDEN)

    async def _report_on_owner(self, job: Job, verdict: Verdict) -> None:
        found = await self._owners.suspension_of(job)
        if found is not None:
            await self._conditions.make_event_once(found[0], verdict)

    def ready_to_claim(self, group_id: str) -> str:
        """The run that waits for the pods of this group, now that they may all be there; else ""."""
        return self._claims.ready(group_id)

    async def target(self, job: Job, run: Run, uid: str, fresh: bool) -> tuple[str, str]:
        """
        The name and version of the pod to bind, if no run since has let go of it.

        Held to that version, a bind fails once the pod was given back: so a binder that is behind cannot bind it for a
        run that is over. For the same reason a version that the watch has shown is as good as one that was looked at,
        unless a bind has failed before (`fresh`); only a yes is taken from there.
        """
        # The bind is held to this version: if the watch is behind, the API server refuses, and the next look is a fresh
        # one. So the cheap answer is safe, and only wrong at the cost of a try.
        seen = self._groups.informer.objects.get(uid)
        if not fresh and seen is not None and _may_be_bound(seen, job, run):
            return text(seen, "metadata", "name"), text(seen, "metadata", "resourceVersion")
        pod = await self._looked_up(job, uid)
        name = text(pod, "metadata", "name")
        # The name alone says nothing: its owner may have made another pod of the same name.
        if text(pod, "metadata", "uid") != uid or "deletionTimestamp" in mapping(pod, "metadata"):
            raise refuse(run.uids.index(uid), Code.POD_DELETED, f"pod {name or uid} went away before it was bound")
        if not _may_be_bound(pod, job, run):
            detail = f"pod {name} is not this run's any more: {GIVEN_BACK_ANNOTATION} says so"
            raise refuse(run.uids.index(uid), Code.POD_DELETED, detail)
        return name, text(pod, "metadata", "resourceVersion")

    async def _looked_up(self, job: Job, uid: str) -> Json:
        """The pod, by the name that the watch has shown, else from a list; {} when it is not there."""
        name = text(self._groups.informer.objects.get(uid), "metadata", "name")
        if not name:
            return {} if uid in self._users.gone else (await self._listed(job)).get(uid, {})
        try:
            return await self._cluster.get_pod(job.tenant, name)
        except ApiError as error:
            if error.status != 404:
                raise
            return {}

    async def _listed(self, job: Job) -> dict[str, Json]:
        of_tenant = f"{NAMES_US},metadata.namespace={job.tenant}"
        pods, _ = await self._cluster.list("pods", USERS_PODS, of_tenant, without_managed_fields)
        return {text(pod, "metadata", "uid"): pod for pod in pods}

    def claim_names(self, uid: str) -> list[tuple[str, str]]:
        """The volume claims of a user's pod, each with its field."""
        pod = self._groups.informer.objects.get(uid)
        return [] if pod is None else claim_names(mapping(pod, "spec"))

    def names_devices(self, uid: str) -> bool:
        """Whether a user's pod names claims on devices."""
        return bool(items(self._groups.informer.objects.get(uid), "spec", "resourceClaims"))

    # -- end ------------------------------------------------------------------------------------------------------

    async def vanished(self, job: Job, run: Run, rank: int, uid: str) -> Reason | None:
        """Why a pod that is not to be seen is gone; None when it is only that the watch has not brought it."""
        # A UID that was seen to go never comes back; only what the watch cannot tell, as after a restart, costs a list.
        listed = {} if uid in self._users.gone else await self._listed(job)
        if uid in self._groups.informer.objects or uid in listed:
            return None
        return Reason(code=Code.POD_DELETED, numbers={"rank": rank}, detail=f"pod {uid} is gone")

    async def judged(self, job: Job, fact: RunEnded) -> RunEnded:
        """
        An owner that is complete takes away what is left of its pods, and one that its user pauses all of them: neither
        is a failure.
        """
        if _is_replaced_one_by_one(job):
            return self._judge_unreplaced(job, fact)
        # Only a pod that is gone leaves room for doubt. Whatever ended with a word of its own is judged by that word.
        if fact.reason is None or fact.reason.code is not Code.POD_DELETED or job.adopted is None:
            return fact
        owner = await self._owners.of(job.tenant, job.adopted, fresh=True)
        if owner is not None and ending_of(owner) == "complete":
            return RunEnded(kind="run_ended", run_id=fact.run_id)
        if owner is None or ending_of(owner) or not _is_paused(owner):
            return fact
        reason = Reason(code=Code.REQUEUE_ASKED, detail=f"{job.adopted.owner} wants no pods for now")
        return fact.model_copy(update={"reason": reason, "own": False, "nodes": ()})

    # -- stop -----------------------------------------------------------------------------------------------------

    async def give_back(self, run: Run, pod: Pod) -> None:
        """Return a pod whose run ended before it was bound: the pod waits again. 409 when it changed meanwhile."""
        # The mark bears the time of the run that lets go, so that it fences this run and all before it, and no later
        # one that may have the pod.
        if pod.given_back_ms < run.allocated_ts:
            mark = {GIVEN_BACK_ANNOTATION: str(run.allocated_ts)}
            await self._cluster.annotate_pod(pod.namespace, pod.name, pod.uid, mark, pod.version)

    async def suspend(self, job: Job, run: Run) -> bool:
        """
        Have the owner of its pods take them away, where its kind can be suspended; False when they are to be evicted.

        Also once the owner has been given its time: its controller may be down, or too old to know of suspension.
        """
        if job.adopted is None:
            return False
        # One at a time: two stops of one run would both find the owner awake, and the second one would begin its time
        # anew.
        async with self._suspending:
            if run.run_id not in self._suspended:
                done = await self._suspend_owner(job, job.adopted, run)
                self._suspended[run.run_id] = self._clock.monotonic() + (TAKES_AWAY_SECONDS if done else 0.0)
            return self._clock.monotonic() < self._suspended[run.run_id]

    async def is_kept_failed(self, job: Job, pod: Pod) -> bool:
        """Whether a pod has failed which its owner neither takes away nor makes anew for as long as it is there."""
        if pod.phase != "Failed" or pod.deleting or job.adopted is None or not can_be_suspended(job.adopted):
            return False
        owner = await self._owners.of(job.tenant, job.adopted)
        kind = None if owner is None else kind_of_object(owner)
        return owner is not None and kind is not None and kind.keeps_failed(owner)

    async def _suspend_owner(self, job: Job, adopted: Adopted, run: Run) -> bool:
        if not can_be_suspended(adopted):
            pods = (self._groups.informer.objects.get(uid) for uid in self._users.bound(run.run_id))
            return await self._waves.suspend(run, [pod for pod in pods if pod is not None])
        found = await self._owners.suspension_of(job, fresh=True)
        # An owner that somebody else suspends is that one's to resume; we would take it for ours afterwards.
        if found is None or found[1].suspender is Suspender.ANOTHER:
            return False
        owner, look = found
        if look.suspended:
            return True
        # Without the right, or without the owner, its pods are evicted as those of any other kind.
        return await self._owners.try_to_suspend(owner, job=job.job_id)

    async def evict(self, run: Run, pod: Pod, budget_seconds: float, grace_seconds: int | None = None) -> None:
        """
        Evict a pod; a disruption budget that forbids it is reported, and asked again after a while.

        Once the gang has lost a pod the rest does no work, holds its devices, and cannot start again before all of it
        is gone. After `budget_seconds` of refusals such a pod is deleted, with an event that says so; one of a run that
        is called in is deleted at once.
        """
        try:
            await self._cluster.evict_pod(pod.namespace, pod.name, pod.uid, grace_seconds)
        except ApiError as error:
            # Gone, or another pod by now: what was to be evicted is no more.
            if error.status in (404, 409):
                return
            # A 429 that says when to come again is the API server's own load, and no budget.
            if error.status != BLOCKED or error.retry_after_seconds is not None:
                raise
            if run.called_in:
                await self._override(run, pod, describe_overridden_budget(error.message))
                return
            await self._report_blocked_pod(run.run_id, pod, error)
            if not self._is_overdue(run, budget_seconds):
                raise
            await self._override(run, pod, describe_overridden_budget(error.message, budget_seconds))

    def _is_overdue(self, run: Run, budget_seconds: float) -> bool:
        """Whether a budget has kept half a gang for too long, as far as we have seen it."""
        # While the gang is whole its budget keeps it for as long as it likes: it works. Half a gang does nothing but
        # hold devices (ADR 0021).
        if not is_touched(run, self.with_ours(run, {})):
            return False
        since = self._half_gone.setdefault(run.run_id, self._clock.monotonic())
        return self._fresh.seconds(since) >= budget_seconds

    async def _override(self, run: Run, pod: Pod, why: Verdict) -> None:
        log.warning("disruption_budget_overridden", pod=pod.name, namespace=pod.namespace, run=run.run_id)
        # The event first: once the pod is deleted there is nothing left to write it on.
        await self._make_event(pod.uid, why)
        await self._cluster.delete_pod(pod.namespace, pod.name, pod.uid)

    async def find_eviction_block(self, runs: Sequence[Run]) -> EvictionBlock | None:
        """Why users' pods of these runs cannot all be evicted now. Raises ApiError, Transient."""
        bound = [pod for run in runs for pod in self._users.bound(run.run_id).values()]
        found = (self._groups.informer.objects.get(pod.uid) for pod in bound if not (pod.over or pod.deleting))
        pods = [pod for pod in found if pod is not None]
        return await self._waves.find_block(pods) or await find_eviction_block(self._cluster, pods)

    async def report_blocked(self, run: Run, against: EvictionBlock) -> None:
        """Report a run that is to stop and waits whole until all of it may."""
        await self.make_blocked_events(run, against)
        await self._publish_blocked(run.run_id, against.reason)

    async def make_blocked_events(self, run: Run, against: EvictionBlock) -> None:
        """Make an event on each pod that a disruption budget protects."""
        for uid in sorted(against.uids.intersection(run.permitted)):
            await self._make_event(uid, describe_blocked_eviction(against.reason))

    async def _report_blocked_pod(self, run_id: str, pod: Pod, error: ApiError) -> None:
        reason = Reason(code=Code.BLOCKED_BY_DISRUPTION_BUDGET, detail=f"pod {pod.name}: {error.message}"[:512])
        await self._make_event(pod.uid, describe_blocked_eviction(reason))
        await self._publish_blocked(run_id, reason)

    async def warn_of_start(self, uid: str, seconds: int, reason: Reason | None) -> None:
        """Make an event on a pod that has not started for so long."""
        await self._make_event(uid, describe_slow_start(seconds, reason))

    async def _make_event(self, uid: str, verdict: Verdict) -> None:
        """Make an event, once for each code, on a pod that is still there."""
        found = self._groups.informer.objects.get(uid)
        if found is not None:
            await self._conditions.make_event_once(found, verdict)

    async def _publish_blocked(self, run_id: str, reason: Reason) -> None:
        if run_id not in self._blocked:
            await self._facts.publish(EvictionBlocked(kind="eviction_blocked", run_id=run_id, reason=reason))
            self._blocked[run_id] = None


def _is_replaced_one_by_one(job: Job) -> bool:
    return job.adopted is not None and job.adopted.group.startswith(POD_GROUPS_OF_KUEUE)


def _is_paused(owner: Json) -> bool:
    wanted = wanted_pods(owner)
    return is_suspended(owner) or (wanted is not None and not any(wanted.values()))


def _is_taken_away(pod: Pod, rank: int) -> bool:
    """Whether a pod that had not ended by itself is on its way out; its program may have ended since, by SIGTERM."""
    by = broken_of(pod, rank, True, no_boots).code if is_broken(pod) else None
    return pod.deleting and (not pod.over or by is Code.POD_DELETED)


def _may_be_bound(pod: Json, job: Job, run: Run) -> bool:
    meta = mapping(pod, "metadata")
    is_there = text(meta, "namespace") == job.tenant and "deletionTimestamp" not in meta
    return is_there and not is_given_back(pod, run.allocated_ts)

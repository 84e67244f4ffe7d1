"""
The end of pods: notice, deletion by UID, and our finalizer off once nothing can run any more.

What is next is read from what the cluster shows, the notice's end included, so that a binder may die between any two
lines and another goes on.
"""

from collections.abc import Awaitable

import structlog

from tessera.binder.adoption.runs import AdoptedRuns
from tessera.binder.claims.calls import PodClaims
from tessera.binder.decide.steps import Pod, is_due_notice
from tessera.binder.nodes.other_ledgers import LedgerReach, knows_job
from tessera.binder.settings import BinderSettings
from tessera.binder.workloads.reading import format_time
from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.node_troubles import NodeTroubles, TroubleKind
from tessera.kernel.ports import ApiError
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.freshness import Freshness
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.cluster.labels import EVICT_AT_ANNOTATION, FINALIZER, is_of_another
from tessera_schemas.reasons import Code

UNHEARD_AGAIN_SECONDS = 2.0
ORPHAN_TOLD_SECONDS = 5.0

log = structlog.get_logger()


class Stopping:
    """Pods of revoked runs, and what is left of runs that the ledger has let go of or never knew."""

    def __init__(
        self,
        ports: Ports,
        settings: BinderSettings,
        state: State,
        troubles: NodeTroubles,
        worklist: Worklist,
        adopted: AdoptedRuns,
        reach: LedgerReach,
        fresh: Freshness,
        claims: PodClaims,
    ) -> None:
        self._adopted, self._reach, self._fresh, self._claims = adopted, reach, fresh, claims
        self._clock, self._cluster, self._settings = ports.clock, ports.cluster, settings
        self._state, self._troubles, self._worklist = state, troubles, worklist
        self._first_seen: dict[tuple[str, str], float] = {}
        self._unheard: dict[str, float] = {}

    async def stop(self, run: Run, pod: Pod) -> None:
        """A pod of a revoked run: terminal ones stay readable, the others are deleted by UID, after their notice."""
        if pod.adopted:
            await self._stop_users(run, pod)
        elif pod.deleting:
            await self._let_go(run.run_id, pod)
        elif pod.over:
            return
        elif pod.node and self._troubles.fenced(pod.node):
            await self._force_off(pod)
        elif is_due_notice(run, pod):
            await self._give_notice(run, pod)
        else:
            await self._end(run, pod)

    async def replace(self, run: Run, pod: Pod) -> None:
        """A pod whose group starts again: an ended one goes as well, since its successor gets its name."""
        if pod.over and not pod.deleting:
            await self._delete(pod)
        elif pod.deleting or (pod.node and self._troubles.fenced(pod.node)):
            await self.stop(run, pod)
        else:
            await self._end(run, pod)

    async def _end(self, run: Run, pod: Pod) -> None:
        """Tell a pod to stop whose node hears it."""
        if self._is_out_of_reach(run.run_id, pod):
            return
        if pod.adopted:
            await self._take_users(run, pod)
        else:
            await self._delete(pod)

    def _is_out_of_reach(self, run_id: str, pod: Pod) -> bool:
        """
        Whether the pod's node does not answer, or has only just come back; the run is looked at again then.

        A kubelet that does not answer cannot stop a pod. Once it is back it says first what has ended meanwhile: a
        program that had is not told to stop, so that its end counts.
        """
        trouble, now = self._troubles.of(pod.node) if pod.node else None, self._clock.monotonic()
        if trouble is not None and trouble.kind is TroubleKind.NOT_READY:
            self._unheard[pod.uid] = now
        elif pod.uid not in self._unheard or now - self._unheard[pod.uid] >= self._settings.node_back_seconds:
            self._unheard.pop(pod.uid, None)
            return False
        self._worklist.name_later(run_id, UNHEARD_AGAIN_SECONDS)
        return True

    async def _stop_users(self, run: Run, pod: Pod) -> None:
        """One that its user made is evicted, if it runs at all, and is not ours to delete."""
        if pod.over:
            await self._evict_kept(run, pod)
        elif not pod.node:
            if not pod.deleting:
                await self._adopted.give_back(run, pod)
                await self._undo_claims(run, pod)
        elif self._troubles.fenced(pod.node):
            # Its owner first, too: an eviction would count against it. What it took away then goes off the node.
            if pod.deleting or not await self._suspend_owner(run):
                await self._adopted.evict(run, pod, self._budget_seconds(), 0)
        elif pod.deleting:
            return
        elif is_due_notice(run, pod):
            await self._give_notice(run, pod)
        else:
            await self._end(run, pod)

    async def _evict_kept(self, run: Run, pod: Pod) -> None:
        """Evict a failed pod whose owner would not come through whole with it, once that one is suspended."""
        job = self._state.jobs.get(run.job_id)
        if job is not None and await self._adopted.is_kept_failed(job, pod) and await self._suspend_owner(run):
            await self._adopted.evict(run, pod, self._budget_seconds())

    async def _undo_claims(self, run: Run, pod: Pod) -> None:
        """Take a user's pod off its claims, once it shows that this run has let go of it: no bind succeeds after."""
        if pod.given_back_ms >= run.allocated_ts:
            await self._claims.undo(pod.namespace, pod.claims, pod.uid, run.run_id)

    async def _take_users(self, run: Run, pod: Pod) -> None:
        """The owner is suspended, unless its time is over; its pods are evicted where that cannot be."""
        if not await self._suspend_owner(run):
            await self._adopted.evict(run, pod, self._budget_seconds())

    async def _suspend_owner(self, run: Run) -> bool:
        job = self._state.jobs.get(run.job_id)
        # A suspended owner comes back: one whose time is over has failed, and its pods count.
        is_over = run.revoked is not None and run.revoked.code is Code.TIME_LIMIT
        return job is not None and not is_over and await self._adopted.suspend(job, run)

    def _budget_seconds(self) -> float:
        """Half of the time for which a plan keeps room: then it is still kept once a budget has been overridden."""
        return self._state.tree.policy.earmark_seconds / 2

    async def clear_away(self, run_id: str, pod: Pod) -> None:
        """A pod whose run the ledger has released, or never knew. One that another scheduler runs is not ours."""
        self._unheard.pop(pod.uid, None)
        if pod.adopted:
            self._report_users(run_id, pod)
            return
        if is_of_another(pod.ledger, self._state.ledger_id):
            return
        await self._reach.check(pod.allocated_n, "pod")
        if pod.deleting:
            await self._let_go(run_id, pod)
        elif not pod.is_ours or not (pod.ledger or knows_job(self._state, run_id)):
            if not pod.over:  # what has ended holds nothing
                self._report_orphan(run_id, pod)  # without the ledger's name, it may be another installation's
        elif pod.over or not pod.node:
            seconds = self._seconds_to_keep(pod) if pod.over else 0
            if seconds > 0:
                self._worklist.name_later(run_id, seconds)
            else:
                await self._delete(pod)
        else:
            await self._end_orphan(run_id, pod)

    def _report_users(self, run_id: str, pod: Pod) -> None:
        """
        One that runs all the same holds what the ledger believes free; we may only be behind, so it is said after a
        while.
        """
        if not pod.node or pod.over or pod.deleting:
            return
        left = self._settings.orphan_seconds - self._fresh.seconds(self._since("seen", pod))
        if left > 0:
            self._worklist.name_later(run_id, left)
        else:
            self._report_orphan(run_id, pod)

    async def _end_orphan(self, run_id: str, pod: Pod) -> None:
        """
        Delete an orphan after a delay, in which operators get time to find out why. One of a job that lives goes on:
        a restored ledger knows the job that was sent again under its key, and not the run that works for it.
        """
        left = self._settings.orphan_seconds - self._fresh.seconds(self._report_orphan(run_id, pod))
        if self._state.jobs.get(run_id.rpartition("-")[0]) is not None:
            self._worklist.name_later(run_id, self._settings.orphan_seconds)
            return
        if left > 0:
            self._worklist.name_later(run_id, left)
            return
        log.error("orphan_pod_deleted", pod=pod.name, namespace=pod.namespace, node=pod.node, run=run_id)
        await self._delete(pod)

    def _report_orphan(self, run_id: str, pod: Pod) -> float:
        """
        Log an orphan once it has looked like one for a while: who stood still has folded the end of a run before its
        copy of the pods has it. Returns when it was first seen as one.
        """
        since = self._since("orphan", pod)
        if self._fresh.seconds(since) < ORPHAN_TOLD_SECONDS:
            self._worklist.name_later(run_id, ORPHAN_TOLD_SECONDS)
        elif ("told", pod.uid) not in self._first_seen:
            self._since("told", pod)
            about = {"pod": pod.name, "namespace": pod.namespace, "node": pod.node, "is_ours": pod.is_ours}
            log.error("orphan_pod", run=run_id, **about)
        return since

    async def _give_notice(self, run: Run, pod: Pod) -> None:
        """
        Say when the pod will be deleted, then wait until then.

        The time on the pod outlives us; it never makes the wait longer than one notice from when we first saw it.
        """
        if pod.evict_at_ms is None:
            at_ms = self._clock.now_ms() + pod.notice_seconds * 1000
            notice = {EVICT_AT_ANNOTATION: format_time(at_ms, "milliseconds")}
            await gone_is_fine(self._cluster.annotate_pod(pod.namespace, pod.name, pod.uid, notice))
            return  # its change brings us back
        left = self._since("noticed", pod) + pod.notice_seconds - self._clock.monotonic()
        left = min(left, (pod.evict_at_ms - self._clock.now_ms()) / 1000)
        if left > 0:
            self._worklist.name_later(run.run_id, left)
        else:
            await self._end(run, pod)

    async def take_back(self, pod: Pod) -> None:
        """Withdraw the notice from a pod whose run goes on after all."""
        if pod.evict_at_ms is not None and not (pod.deleting or pod.over):
            self._first_seen.pop(("noticed", pod.uid), None)
            await gone_is_fine(
                self._cluster.annotate_pod(pod.namespace, pod.name, pod.uid, {EVICT_AT_ANNOTATION: None})
            )

    async def _let_go(self, run_id: str, pod: Pod) -> None:
        """Take our finalizer off once the kubelet has ended the pod, it was never bound, or its node is fenced."""
        for what in ("noticed", "over", "orphan", "told", "seen"):
            self._first_seen.pop((what, pod.uid), None)
        if not pod.node:  # nobody can bind it any more
            await self._claims.undo(pod.namespace, pod.claims, pod.uid, run_id)
        if pod.over or not pod.node:
            await self._take_finalizer_off(pod)
            return
        trouble = self._troubles.of(pod.node)
        if trouble is not None and self._troubles.is_fence(trouble):
            await self._force_off(pod)
        elif trouble is not None and trouble.kind is TroubleKind.GONE:
            self._worklist.name_later(run_id, self._settings.node_gone_seconds)

    async def _force_off(self, pod: Pod) -> None:
        """
        Delete the pod's object at once: nothing can run on a fenced node, and no kubelet will ever end the pod there.
        """
        trouble = self._troubles.of(pod.node)
        if trouble is None or not await self._troubles.is_still(self._cluster, pod.node, trouble.kind):
            raise Transient(f"node {pod.node} is not what the watch shows")
        log.warning("pod_forced_off", pod=pod.name, namespace=pod.namespace, node=pod.node)
        await gone_is_fine(self._cluster.delete_pod(pod.namespace, pod.name, pod.uid, 0))
        await self._take_finalizer_off(pod)

    async def _take_finalizer_off(self, pod: Pod) -> None:
        if pod.held:
            await gone_is_fine(self._cluster.remove_finalizer(pod.namespace, pod.name, pod.uid, FINALIZER))

    async def _delete(self, pod: Pod) -> None:
        await gone_is_fine(self._cluster.delete_pod(pod.namespace, pod.name, pod.uid))

    def _seconds_to_keep(self, pod: Pod) -> float:
        """Seconds until the ttl is over, by the kubelet's clock; at most the ttl from when we first saw the end."""
        ttl = max(pod.ttl_seconds, self._settings.ended_pod_seconds)
        left = self._since("over", pod) + ttl - self._clock.monotonic()
        if pod.end.finished_ms is not None:
            left = min(left, ttl + (pod.end.finished_ms - self._clock.now_ms()) / 1000)
        return left

    def _since(self, what: str, pod: Pod) -> float:
        return self._first_seen.setdefault((what, pod.uid), self._clock.monotonic())


async def gone_is_fine(call: Awaitable[None]) -> None:
    """404: it is gone already. 409: the UID is another one's now, or it changed under us and an event will follow."""
    try:
        await call
    except ApiError as error:
        if error.status not in (404, 409):
            raise

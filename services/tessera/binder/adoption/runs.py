"""
What is different about a run whose pods are users': they are claimed instead of made, have names of their own, may be
taken away by their owner once they are done, and are evicted instead of deleted.
"""

from collections.abc import Mapping

from tessera.binder.adoption.claim import Claims, Incomplete, unclaim
from tessera.binder.adoption.conditions import Conditions
from tessera.binder.adoption.known import Adoptions
from tessera.binder.adoption.owners import Owners, ending_of
from tessera.binder.adoption.reading import Json, mapping, text
from tessera.binder.adoption.verdicts import of_blocked_eviction
from tessera.binder.adoption.watch import Groups
from tessera.binder.calls import Refused
from tessera.binder.decide import Pod, read_pod
from tessera.binder.settings import BinderSettings
from tessera.domain.entities import Job, Run
from tessera.kernel.errors import Transient
from tessera.kernel.facts import Facts
from tessera.kernel.ports import ApiError
from tessera.kernel.service import Ports
from tessera_schemas.facts import EvictionBlocked, RunEnded
from tessera_schemas.labels import RANK_LABEL, RUN_LABEL
from tessera_schemas.reasons import Code, Reason

BLOCKED = 429


class AdoptedRuns:
    """Every step may be repeated. Pods that succeeded are remembered until their run is forgotten."""

    def __init__(
        self, ports: Ports, settings: BinderSettings, groups: Groups, owners: Owners, adoptions: Adoptions
    ) -> None:
        self._cluster, self._clock, self._settings = ports.cluster, ports.clock, settings
        self._groups, self._owners = groups, owners
        self._claims = Claims(ports.cluster, ports.clock, groups, owners, adoptions, settings.shard)
        self._conditions = Conditions(ports.cluster, ports.clock)
        self._succeeded: dict[str, dict[str, Pod]] = {}
        self._facts = Facts(ports.bus, settings.shard, "binder")
        self._blocked: dict[str, None] = {}

    def forget(self, run_id: str) -> None:
        self._claims.forget(run_id)
        self._succeeded.pop(run_id, None)
        self._blocked.pop(run_id, None)

    # -- start ----------------------------------------------------------------------------------------------------

    async def claim(self, job: Job, run: Run) -> tuple[str, ...] | None:
        """The UIDs once all pods are the run's; None to look again soon. Refused when they do not come."""
        found = await self._claims.claim(job, run)
        if not isinstance(found, Incomplete):
            return found
        if self._clock.monotonic() - found.since >= self._settings.claim_seconds:
            self._claims.forget(run.run_id)
            raise Refused(0, found.reason)
        return None

    async def target(self, job: Job, run: Run, rank: int, uid: str, fresh: bool) -> tuple[str, str]:
        """
        The name and version of the pod to bind, if it is still this run's.

        Held to that version, a bind fails once the pod was given back: so a binder that is behind cannot bind it for a
        run that is over. For the same reason a version that the watch has shown is as good as one that was looked at,
        unless a bind has failed before (`fresh`); only a yes is taken from there.
        """
        seen = self._groups.informer.objects.get(uid)
        if not fresh and _is_claimed(seen, job, run, rank):
            return text(seen, "metadata", "name"), text(seen, "metadata", "resourceVersion")
        name = self._name(uid) or await self._listed_name(run, uid)
        try:
            pod = await self._cluster.get_pod(job.tenant, name) if name else {}
        except ApiError as error:
            if error.status != 404:
                raise
            pod = {}
        meta = mapping(pod, "metadata")
        if text(meta, "uid") != uid or "deletionTimestamp" in meta:
            raise Refused(rank, Reason(code=Code.POD_DELETED, detail=f"pod {name} went away before it was bound"))
        if text(meta, "labels", RUN_LABEL) != run.run_id:
            raise Refused(rank, Reason(code=Code.POD_DELETED, detail=f"pod {name} is not this run's any more"))
        if text(meta, "labels", RANK_LABEL) != str(rank):  # claimed once more by a binder that knew of no permit yet
            await self._cluster.label_pod(job.tenant, name, uid, text(meta, "resourceVersion"), {RANK_LABEL: str(rank)})
            raise Transient(f"pod {name} has just become rank {rank} of run {run.run_id}")
        return name, text(meta, "resourceVersion")

    def _name(self, uid: str) -> str:
        return text(self._groups.informer.objects.get(uid), "metadata", "name")

    async def _listed_name(self, run: Run, uid: str) -> str:
        return text((await self._listed(run)).get(uid), "metadata", "name")

    async def _listed(self, run: Run) -> dict[str, Json]:
        pods, _ = await self._cluster.list("pods", f"{RUN_LABEL}={run.run_id}")
        return {text(pod, "metadata", "uid"): pod for pod in pods}

    # -- end ------------------------------------------------------------------------------------------------------

    def note_gone(self, run_id: str, pod: Pod) -> None:
        """Owners tidy up: a pod that was seen to succeed has succeeded, whether it is still there or not."""
        if pod.adopted and pod.phase == "Succeeded":
            self._succeeded.setdefault(run_id, {})[pod.uid] = pod

    def seen(self, run: Run, pods: Mapping[str, Pod]) -> Mapping[str, Pod]:
        """The run's pods with those that are gone, and those that users took our labels off."""
        found = dict(self._succeeded.get(run.run_id, {}))
        for uid in run.permitted:
            pod = None if uid in pods else self._groups.informer.objects.get(uid)
            if pod is not None:
                found[uid] = read_pod(pod)
        return {**found, **pods} if found else pods

    async def vanished(self, job: Job, run: Run, rank: int, uid: str) -> Reason | None:
        """Why a pod that is not to be seen is gone; None when it is only that the watch has not brought it."""
        if uid in self._groups.informer.objects or uid in await self._listed(run):
            return None
        return Reason(code=Code.POD_DELETED, numbers={"rank": rank}, detail=f"pod {uid} is gone")

    async def judged(self, job: Job, fact: RunEnded) -> RunEnded:
        """An owner that is complete takes away what is left of its pods: then that is no failure."""
        if fact.reason is None or fact.reason.code is not Code.POD_DELETED or job.adopted is None:
            return fact
        owner = await self._owners.of(job.tenant, job.adopted, fresh=True)
        if owner is None or ending_of(owner) != "complete":
            return fact
        return RunEnded(kind="run_ended", run_id=fact.run_id)

    # -- stop -----------------------------------------------------------------------------------------------------

    async def give_back(self, pod: Pod) -> None:
        """Its run is over before the pod was bound: it waits again."""
        await unclaim(self._cluster, pod)

    async def evict(self, run_id: str, pod: Pod, grace_seconds: int | None = None) -> None:
        """Politely, always: a disruption budget that forbids it is shown, and asked again after a while."""
        try:
            await self._cluster.evict_pod(pod.namespace, pod.name, pod.uid, grace_seconds)
        except ApiError as error:
            if error.status in (404, 409):
                return
            if error.status == BLOCKED and error.retry_after_seconds is None:
                await self._say_blocked(run_id, pod, error)
            raise

    async def _say_blocked(self, run_id: str, pod: Pod, error: ApiError) -> None:
        reason = Reason(code=Code.BLOCKED_BY_DISRUPTION_BUDGET, detail=f"pod {pod.name}: {error.message}"[:512])
        found = self._groups.informer.objects.get(pod.uid)
        if found is not None:
            await self._conditions.tell_once(found, of_blocked_eviction(reason))
        if run_id not in self._blocked:
            await self._facts.publish(EvictionBlocked(kind="eviction_blocked", run_id=run_id, reason=reason), run_id)
            self._blocked[run_id] = None


def _is_claimed(pod: Json | None, job: Job, run: Run, rank: int) -> bool:
    meta = mapping(pod, "metadata")
    labels = mapping(meta, "labels")
    ours = (labels.get(RUN_LABEL), labels.get(RANK_LABEL)) == (run.run_id, str(rank))
    return ours and text(meta, "namespace") == job.tenant and "deletionTimestamp" not in meta

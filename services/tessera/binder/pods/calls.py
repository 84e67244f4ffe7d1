"""One pod at a time: made, or found as made before; bound by its UID. `RefusedByCluster`: a no that stays."""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from tessera.binder.claims.calls import PodClaims
from tessera.binder.decide.devices import NoDevice, at_bind
from tessera.binder.decide.pods import in_shard, placement_of, pod_of, spec_label
from tessera.binder.decide.steps import Pod
from tessera.binder.launchers.port import Surroundings
from tessera.binder.launchers.session_address import session_ingress
from tessera.binder.launchers.steps import key_of
from tessera.binder.nodes.hami_lock import HamiLock
from tessera.binder.nodes.ownership import Ownership
from tessera.binder.pods.events import PodEvents
from tessera.binder.settings import BinderSettings
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.pods_by_run import PodsByRun
from tessera.kernel.ports import ApiError, Cluster
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import (
    BOOT_ANNOTATION,
    PERMIT_ANNOTATION,
    RANK_ANNOTATION,
    RUN_ANNOTATION,
    RUN_LABEL,
    SPEC_LABEL,
    bound_for,
    is_given_back,
    is_of_another,
    ledger_of,
    pod_name,
)
from tessera_schemas.job import JobSpec, RoleReach
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.measured_use import SessionIngress
from tessera_schemas.work.placement import Placement

RETRY_STATUS = (408, 409, 429)
CHANGES_MAX = 3
"""So often in a row a pod may have changed right before its bind, until that waits for its back-off."""

T = TypeVar("T")


class RefusedByCluster(Exception):
    """The API server said no in a way that a repeat does not change; on other nodes (`within`) it may not."""

    def __init__(self, rank: int, reason: Reason, within: tuple[RoleReach, ...] = ()) -> None:
        super().__init__(reason.sentence())
        self.rank, self.reason, self.within = rank, reason, within


def refuse(rank: int, code: Code, detail: str, /, **numbers: int) -> RefusedByCluster:
    """The refusal of the pod of one rank; too long a detail is cut."""
    return RefusedByCluster(rank, Reason(code=code, numbers=numbers, detail=detail[:512]))


class Targets(Protocol):
    """Locations of users' pods."""

    def bound(self, run_id: str) -> Mapping[str, Pod]: ...

    async def target(self, job: Job, run: Run, uid: str, fresh: bool) -> tuple[str, str]: ...


class Calls:
    """Raises `RefusedByCluster`, or what is worth another try."""

    def __init__(
        self,
        cluster: Cluster,
        settings: BinderSettings,
        pods: PodsByRun[Pod],
        ownership: Ownership,
        worklist: Worklist,
        state: State,
        hami: HamiLock,
        adopted: Targets,
        events: PodEvents,
        claims: PodClaims,
    ) -> None:
        self._cluster, self._settings, self._pods = cluster, settings, pods
        self._ownership, self._worklist, self._state, self._hami = ownership, worklist, state, hami
        self._adopted, self._events, self._claims = adopted, events, claims
        self._around = Surroundings(settings.steps_image, settings.steps_pull_policy, settings.cluster_domain)

    async def make(self, job: Job, run: Run, rank: int, spec: JobSpec) -> str:
        """The UID of the pod of this rank, made now or by an earlier try, with the claims that it owns."""
        pod = self._pod(job, run, rank, spec)
        try:
            made = await self._cluster.create_pod(job.tenant, self._in_shard(pod))
        except ApiError as error:
            if error.status != 409:
                raise self._judged(run, rank, error) from error
            name = pod["metadata"]["name"]
            made = await self._cluster.get_pod(job.tenant, name)
            labels = made["metadata"].get("labels", {})
            ours = labels.get(RUN_LABEL) == run.run_id and labels.get(SPEC_LABEL) == spec_label(job)
            if not ours or self._is_of_another(made):
                raise refuse(rank, Code.BIND_REFUSED, f"pod {name} exists and is not ours") from error
            if "deletionTimestamp" in made["metadata"]:
                raise refuse(rank, Code.POD_DELETED, f"pod {name} is being deleted") from error
            if made["spec"].get("nodeName"):  # by a permit that is still to be read, or that the ledger lost
                raise Transient(f"pod {name} is bound, and its run has no permit yet") from error
        await self._make_claims(run, rank, spec, made)
        uid: str = made["metadata"]["uid"]
        return uid

    async def _make_claims(self, run: Run, rank: int, spec: JobSpec, pod: Json) -> None:
        """Before the pod is said to be made: it can be bound from then on."""
        place = placement_of(run, rank)
        role = next(role for role in spec.roles if role.name == place.role)
        if role.resources.claims:
            drawn = run.gang.need_at(place).shared
            await self._not_refused(run, rank, self._claims.make(pod, role, drawn))

    async def reserve(self, job: Job, run: Run, placement: Placement, uid: str) -> None:
        """Give the claims of an unbound pod their devices. Raises as `bind`, and Transient until all are ready."""
        pod, node = await self._unbound(job, run, placement, uid), self._state.nodes.get(placement.node)
        if node is None:
            raise Transient(f"node {placement.node} is gone")
        if pod is not None:
            await self._not_refused(run, placement.rank, self._claims.reserve(run, placement, pod, node))

    def may_name_claim(self, job: Job) -> bool:
        """Whether an earlier attempt may have named a claim for what a pod counts on: users' pods outlive attempts."""
        classes = (known for _, known in self._state.device_classes.items())
        return job.adopted is not None and any(known.extended_resource for known in classes)

    async def _unbound(self, job: Job, run: Run, placement: Placement, uid: str) -> Json | None:
        """The pod as the cluster has it now; None where it is bound already."""
        self._check_ours(placement)
        name = pod_name(run.run_id, placement.rank)
        if job.adopted is not None:
            name, _ = await self._adopted.target(job, run, uid, self._worklist.failures(run.run_id) > 0)
        try:
            pod = await self._cluster.get_pod(job.tenant, name)
        except ApiError as error:
            if error.status != 404:
                raise
            pod = {"metadata": {"uid": ""}}
        gone = pod["metadata"]["uid"] != uid or "deletionTimestamp" in pod["metadata"]
        if gone or is_given_back(pod, run.allocated_ts):
            raise refuse(placement.rank, Code.POD_DELETED, f"pod {name} went away before it was bound")
        return None if pod["spec"].get("nodeName") else pod

    async def _not_refused(self, run: Run, rank: int, call: Awaitable[Reason | None]) -> None:
        try:
            against = await call
        except ApiError as error:
            raise self._judged(run, rank, error) from error
        if against is not None:
            raise RefusedByCluster(rank, against)

    def _pod(self, job: Job, run: Run, rank: int, spec: JobSpec) -> Json:
        """A node that is gone may be back in a moment, and else the run ends with it."""
        node = self._state.nodes.get(placement_of(run, rank).node)
        if node is not None and node.gone:
            raise Transient(f"node {node.name} is gone")
        try:
            around = replace(self._around, session_form=self._session_form)
            return pod_of(job, run, rank, spec, self._state.n, node, around)
        except NoDevice as error:
            raise RefusedByCluster(rank, error.reason) from error

    async def make_service(self, job: Job, run: Run, service: Json) -> tuple[str, bool]:
        """UID of the run's Service, and whether it is new; else an earlier try made it, of the same content."""
        try:
            made = await self._cluster.create_service(job.tenant, self._in_shard(service))
        except ApiError as error:
            if error.status != 409:
                raise self._judged(run, 0, error) from error
            name = service["metadata"]["name"]
            there = await self._cluster.get_service(job.tenant, name)
            of_run = (there["metadata"].get("labels") or {}).get(RUN_LABEL) == run.run_id
            if not of_run or self._is_of_another(there):
                raise refuse(0, Code.BIND_REFUSED, f"service {name} exists and is not ours") from error
            return there["metadata"]["uid"], False
        return made["metadata"]["uid"], True

    async def make_key(self, job: Job, run: Run, service: Json, key: bytes) -> None:
        """The run's Service and the Secret that it owns, made now or by an earlier try: nobody here reads Secrets."""
        if not self._around.steps_image:
            raise refuse(0, Code.BIND_REFUSED, "its launcher needs the setting steps_image, which this binder lacks")
        uid, is_new = await self.make_service(job, run, service)
        secret = self._in_shard(key_of(service, uid, key))
        await self._make_owned(run, "secret", self._cluster.create_secret(job.tenant, secret), service, is_new)

    async def make_ingress(self, job: Job, run: Run, service: Json) -> None:
        """The Service of a session's run and the Ingress that it owns, made now or by an earlier try."""
        if (form := self._session_form) is None:
            raise refuse(0, Code.BIND_REFUSED, "its session asks for an Ingress, and the configuration has none by now")
        uid, is_new = await self.make_service(job, run, service)
        ingress = self._in_shard(session_ingress(job, service, uid, form))
        await self._make_owned(run, "ingress", self._cluster.create_ingress(job.tenant, ingress), service, is_new)

    async def _make_owned(self, run: Run, kind: str, call: Awaitable[None], service: Json, is_new: bool) -> None:
        """
        Make what a run's Service owns, which is never read.

        The Service comes first: under one that was made just now no earlier try left anything.
        """
        try:
            await call
        except ApiError as error:
            if error.status != 409:
                raise self._judged(run, 0, error) from error
            if is_new:
                name = service["metadata"]["name"]
                raise refuse(0, Code.BIND_REFUSED, f"{kind} {name} exists and is not ours") from error

    @property
    def _session_form(self) -> SessionIngress | None:
        return self._state.tree.defaults.sessions.ingress

    def _in_shard(self, made: Json) -> Json:
        return in_shard(made, self._settings.shard, self._state.ledger_id)

    def _is_of_another(self, found: Json) -> bool:
        return is_of_another(ledger_of(found), self._state.ledger_id)

    async def bind(self, job: Job, run: Run, placement: Placement, uid: str) -> None:
        """
        Bind the pod of one rank, unless it is bound already.

        A user's pod that has changed meanwhile is bound as it is then, at once: it was told something, mostly, and
        each moment of back-off would leave its gang bound in part.
        """
        seen = (self._pods.of if job.adopted is None else self._adopted.bound)(run.run_id).get(uid)
        if seen is None or not seen.node:
            error = await self._try_bind(job, run, placement, uid, self._worklist.failures(run.run_id) > 0)
            changes = 0
            while error is not None and error.status == 409 and job.adopted is not None and changes < CHANGES_MAX:
                error, changes = await self._try_bind(job, run, placement, uid, fresh=True), changes + 1
            if error is not None:
                raise self._judged(run, placement.rank, error) from error

    async def _try_bind(self, job: Job, run: Run, placement: Placement, uid: str, fresh: bool) -> ApiError | None:
        """The refusal of a bind after which the pod is still there and unbound; None once it is bound."""
        self._check_ours(placement)
        name, version, more = pod_name(run.run_id, placement.rank), "", {PERMIT_ANNOTATION: uid}
        if job.adopted is not None:
            name, version = await self._adopted.target(job, run, uid, fresh)
            more |= {RUN_ANNOTATION: run.run_id, RANK_ANNOTATION: str(placement.rank)}
        boot = self._ownership.boot_of(placement.node)
        if not boot and not self._ownership.nodes.synced:
            # Without it nobody could tell a restart of the machine from a program that failed, for as long as it runs.
            boot = await self._ownership.ask_boot(placement.node)
        annotations = await self._at_bind(job, name, placement) | more | ({BOOT_ANNOTATION: boot} if boot else {})
        try:
            await self._cluster.bind_pod(job.tenant, name, uid, placement.node, annotations, version)
        except ApiError as error:
            return None if await self._is_bound(job, run, placement, name, uid, error) else error
        self._events.note_scheduled(job, run, placement, name, uid)
        return None

    async def _at_bind(self, job: Job, name: str, placement: Placement) -> dict[str, str]:
        """Annotations for the node's plugin, once it is this pod's turn."""
        node = self._state.nodes.get(placement.node)
        try:
            annotations = at_bind(placement, node, self._hami.now())
        except NoDevice as error:
            raise RefusedByCluster(placement.rank, error.reason) from error
        if node is not None and node.device_profile == "hami" and placement.devices:
            await self._hami.take(placement.node, job.tenant, name)
        return annotations

    def _check_ours(self, placement: Placement) -> None:
        owner = self._ownership.shard_of(placement.node)
        if owner != self._settings.shard:
            raise refuse(placement.rank, Code.BIND_REFUSED, f"node {placement.node} belongs to shard {owner} by now")

    async def vanished(self, job: Job, run: Run, rank: int, uid: str) -> Reason | None:
        """
        Why a pod that is not to be seen has no end that could be: somebody took our finalizer off and deleted it.

        None when it is only that the watch has not brought it.
        """
        name = pod_name(run.run_id, rank)
        try:
            pod = await self._cluster.get_pod(job.tenant, name)
            if pod["metadata"]["uid"] == uid:
                return None
        except ApiError as error:
            if error.status != 404:
                raise
        return Reason(code=Code.POD_DELETED, numbers={"rank": rank}, detail=f"{name} is gone")

    async def _is_bound(self, job: Job, run: Run, placement: Placement, name: str, uid: str, error: ApiError) -> bool:
        """Whether a refused bind is a lost reply of our own; raises where the pod is gone, or the no is a real one."""
        rank = placement.rank
        if error.status not in (404, 409):
            raise self._judged(run, rank, error) from error
        try:
            pod = await self._cluster.get_pod(job.tenant, name)
        except ApiError as missing:
            if missing.status != 404:
                raise
            pod = {"metadata": {"uid": ""}}
        if pod["metadata"]["uid"] != uid or "deletionTimestamp" in pod["metadata"]:
            raise refuse(rank, Code.POD_DELETED, f"pod {name} went away before it was bound")
        node = pod["spec"].get("nodeName")
        ours = job.adopted is None or bound_for(pod) == run.run_id
        if node and (node != placement.node or not ours):
            raise refuse(rank, Code.BIND_REFUSED, f"pod {name} is on {node} already")
        return bool(node)

    def _judged(self, run: Run, rank: int, error: ApiError) -> Exception:
        """
        Worth another try, or the end of this run: what is refused for now gives its devices back and waits without.

        A webhook that fails is in the way of this pod, other trouble of the API server in the way of all.
        """
        passing = error.status >= 500 or error.status in RETRY_STATUS
        if passing and self._worklist.failures(run.run_id) + 1 < self._settings.attempts:
            return error
        if passing and error.status != 409 and "webhook" not in error.message:
            return error  # the API server is in trouble, not this pod: the run's own deadline bounds the wait
        return refuse(rank, Code.BIND_REFUSED, f"{error.reason}: {error.message}", rank=rank, status=error.status)


async def all_of(calls: list[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all calls, made at once; when some failed, the first error after all have ended."""
    if len(calls) < 2:
        return [await call for call in calls]
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]

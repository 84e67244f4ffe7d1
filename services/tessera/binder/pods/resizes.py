"""
Pods of a run that are resized in place: each is given its size, and once the nodes of all have taken it that is said.

Every step may be repeated. A pod whose node has taken the size is remembered, only to save calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from tessera.binder.decide.resizes import resize_of, unfit
from tessera.binder.decide.steps import Pod
from tessera.binder.pods.calls import RETRY_STATUS, all_of
from tessera.binder.pods.templates import Templates
from tessera.domain.entities import Job, Run
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import ApiError, Cluster
from tessera_schemas.job import Role
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import PodsResized
from tessera_schemas.work.spec_changes import PodResize

UNKNOWN_PATH = "could not find the requested resource"
TOO_OLD = "the API server knows no resize in place; Kubernetes 1.33 is the first that does"

log = structlog.get_logger()


@dataclass(slots=True)
class _ResizeProgress:
    """Progress of one resize: pods by UID whose node has taken it, and whether its end was said."""

    of: PodResize
    taken: dict[str, None] = field(default_factory=dict)
    said: bool = False


class _NeverTaken(Exception):
    """A pod will not get its size, for `reason`."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.sentence())
        self.reason = reason


class PodResizes:
    def __init__(self, cluster: Cluster, facts: Facts, templates: Templates) -> None:
        self._cluster, self._facts, self._templates = cluster, facts, templates
        self._progress: dict[str, _ResizeProgress] = {}

    def forget(self, run_id: str) -> None:
        """Forgets what was done of a run's resize."""
        self._progress.pop(run_id, None)

    async def work(self, job: Job, run: Run, pods: Mapping[str, Pod]) -> None:
        """Advance the resize of a run that goes on; raises what is worth another try."""
        resize = run.resize
        if resize is None:
            self.forget(run.run_id)
            return
        progress = self._progress.get(run.run_id)
        if progress is None or progress.of != resize:
            progress = self._progress[run.run_id] = _ResizeProgress(resize)
        if progress.said:
            return
        spec = await self._templates.of(job)
        role = next(role for role in spec.roles if role.name == resize.to.role)
        try:
            if not await self._have_taken(run, role, pods, progress):
                return  # a change of a pod brings us back
        except _NeverTaken as never:
            if resize.is_back:  # both sizes are held, and it is tried again
                log.warning("resize_not_taken_back", run=run.run_id, reason=never.reason.sentence())
                return
            await self._publish_end(run, progress, never.reason)
            return
        await self._publish_end(run, progress, None)

    async def _publish_end(self, run: Run, progress: _ResizeProgress, reason: Reason | None) -> None:
        key = progress.of.request
        await self._facts.publish(PodsResized(kind="pods_resized", run_id=run.run_id, key=key, reason=reason))
        progress.said = True

    async def _have_taken(self, run: Run, role: Role, pods: Mapping[str, Pod], progress: _ResizeProgress) -> bool:
        """Whether no pod of the role, at work or on its way out, can have any other size. Raises _NeverTaken."""
        if why := "" if progress.of.is_back else unfit(role, progress.of.to):
            raise _NeverTaken(Reason(code=Code.RESIZE_REFUSED, field=f"roles.{role.name}"[:300], detail=why[:512]))
        uids = dict(enumerate(run.uids)) | {extra.placement.rank: extra.uid for extra in run.extra}
        there = [pods.get(uids.get(place.rank, "")) for place in run.places if place.role == role.name]
        asked = [pod for pod in there if pod is not None and not pod.over and pod.uid not in progress.taken]
        # One that is not bound yet gets its size once it is; one that is being deleted keeps what it has to its end.
        able = [pod for pod in asked if pod.node and not pod.deleting]
        results = await all_of([self._has_taken(pod, role, progress) for pod in able])
        return all(results) and len(able) == len(asked) and all(pod is not None for pod in there)

    async def _has_taken(self, pod: Pod, role: Role, progress: _ResizeProgress) -> bool:
        """Give one pod its size, if it has another; whether its node has taken it."""
        found = await self._cluster.get_pod(pod.namespace, pod.name)
        if found["metadata"]["uid"] != pod.uid:
            return False
        step = resize_of(found, role, progress.of.leaves_as_it_was)
        if step.why:
            raise self._never(pod, step.why)
        if step.taken:
            progress.taken[pod.uid] = None
        if step.patch is None:
            return step.taken
        try:
            await self._cluster.resize_pod(pod.namespace, pod.name, pod.uid, role.name, step.patch)
        except ApiError as error:
            if error.status >= 500 or error.status in RETRY_STATUS:
                raise
            if error.status != 404:
                raise self._never(pod, f"{error.reason}: {error.message}") from error
            if UNKNOWN_PATH in error.message:
                raise self._never(pod, TOO_OLD) from error
        return False

    def _never(self, pod: Pod, why: str) -> _NeverTaken:
        return _NeverTaken(Reason(code=Code.RESIZE_REFUSED, field=f"pods.{pod.name}"[:300], detail=why[:512]))

"""
The headless Services that give runs their names: made before the pods, kept while the run is held, gone with it.

What is there is seen by a watch of its own, so that one that is left over, by us or by a binder that died, is found
and deleted, and one that somebody deleted under a run is made again. A run's key is made with its Service, which owns
it, and Kubernetes takes it away with that: under pods that have not started by then their run starts anew. So it goes
with the Ingress of a session, whose Service has an address of its own; one that somebody deleted under a session stays
away until that runs again.
"""

from collections.abc import Callable, Iterable

import structlog

from tessera.binder.decide.steps import Pod, count_of
from tessera.binder.launchers.naming import service_name, service_of
from tessera.binder.launchers.registry import launcher_of
from tessera.binder.launchers.session_address import session_service
from tessera.binder.nodes.other_ledgers import LedgerReach, knows_job
from tessera.binder.pods.calls import Calls, RefusedByCluster
from tessera.binder.pods.stopping import gone_is_fine
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.kubernetes.pods_by_run import PodsByRun
from tessera.kernel.ports import Clock, Cluster
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import ALLOCATED_N_ANNOTATION, is_of_another, ledger_of, pods_of_shard
from tessera_schemas.job import JobSpec

KEPT_SECONDS = 2.0
"""One Service is made again no more often; `resync` of the runs leads here again."""

log = structlog.get_logger()


class Names:
    """Every step may be repeated: a Service's name and content follow from its run."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        shard: str,
        calls: Calls,
        state: State,
        reach: LedgerReach,
        new_key: Callable[[], bytes],
    ) -> None:
        self._reach, self._new_key = reach, new_key
        self._cluster, self._clock, self._calls, self._state = cluster, clock, calls, state
        self._not_again_before: dict[str, float] = {}
        self._there: PodsByRun[Json] = PodsByRun(Informer(cluster, "services", clock, pods_of_shard(shard)), dict)

    @property
    def synced(self) -> bool:
        """Tells whether the watch has shown all Services that are there."""
        return self._there.informer.synced

    async def next(self) -> list[str]:
        """Wait for changes; the runs whose Services changed."""
        return await self._there.next()

    def runs(self) -> list[str]:
        """Runs that have a headless Service, known to the ledger or not."""
        return self._there.runs()

    async def close(self) -> None:
        """Ends the watch of Services."""
        await self._there.informer.close()

    async def make(self, job: Job, run: Run, spec: JobSpec) -> None:
        """
        Make the run's Service before its pods, with its key or its session's Ingress, as its launcher or session asks.

        Raises RefusedByCluster, ApiError.
        """
        launcher, service = launcher_of(spec), service_of(job, run.run_id, self._state.n)
        if job.session is not None and job.session.ingress:
            await self._calls.make_ingress(job, run, session_service(job, run.run_id, self._state.n, spec))
        elif launcher.has_key:
            await self._calls.make_key(job, run, service, self._new_key())
        elif launcher.has_names:
            await self._calls.make_service(job, run, service)

    async def keep(self, job: Job, run: Run, pods: Iterable[Pod]) -> None:
        """
        Make the Service again that somebody deleted while pods of the run need it. A refusal leaves the run as it is.

        A delay between two tries keeps a binder that is behind on the ledger from undoing another's deletions.
        """
        named, now = service_name(run.run_id), self._clock.monotonic()
        if now < self._not_again_before.get(run.run_id, 0.0):
            return
        if self.synced and not self._is_there(job.tenant, named) and any(pod.subdomain == named for pod in pods):
            self._not_again_before[run.run_id] = now + KEPT_SECONDS
            try:
                await self._calls.make_service(job, run, service_of(job, run.run_id, self._state.n))
            except RefusedByCluster as refused:
                log.warning("service_not_made_again", run=run.run_id, reason=refused.reason.sentence())

    def _is_there(self, namespace: str, name: str) -> bool:
        return self._there.informer.named(name, namespace) is not None

    async def clear_away(self, run_id: str) -> None:
        """Delete the Service of a run that the ledger has released, or never knew."""
        self._not_again_before.pop(run_id, None)
        for uid, service in list(self._there.of(run_id).items()):
            meta, named = service["metadata"], ledger_of(service)
            if is_of_another(named, self._state.ledger_id) or not (named or knows_job(self._state, run_id)):
                continue
            n = count_of((meta.get("annotations") or {}).get(ALLOCATED_N_ANNOTATION, ""))
            await self._reach.check(n, "service")
            await gone_is_fine(self._cluster.delete_service(meta["namespace"], meta["name"], uid))

"""
Jobs in waves: each pod starts by itself, and an evicted one counts as a failure of the Job.

Where all of such a Job's pods that are at work stop for others, the Job is suspended instead, which counts none, and is
resumed once they are gone: the next pods queue one by one. Where only some stop they are evicted, as far as the Job
goes on after that.
"""

from collections.abc import Sequence

import structlog

from tessera.binder.adoption.decide.suspending import Suspender, is_suspended, is_suspended_by_us, look_at
from tessera.binder.adoption.owners.budgets import EvictionBlock
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.adoption.watch import Groups
from tessera.binder.workloads.batch_jobs import comes_in_waves, is_winding_up, job_survives
from tessera.binder.workloads.reading import no, text
from tessera.binder.workloads.references import OwnerRef, controller_of
from tessera.domain.entities import Run
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code

log = structlog.get_logger()


class Waves:
    def __init__(self, groups: Groups, owners: Owners) -> None:
        self._groups, self._owners = groups, owners

    async def suspend(self, run: Run, pods: Sequence[Json]) -> bool:
        """Suspend the Job of these pods, if all of its pods at work are to stop for others; False: evict them."""
        # Suspension takes all pods of the Job away: it has to be wanted of all. Looked at freshly, since the run of
        # another of its pods may have suspended it a moment ago.
        ref = _job_of(pods[0]) if pods and run.then == "requeue" else None
        job = None if ref is None else await self._owners.look(ref, fresh=True)
        if ref is None or job is None or not comes_in_waves(job) or not self._groups.is_stopping_whole(_id_of(ref)):
            return False
        if is_suspended(job):
            return is_suspended_by_us(job)
        if look_at(job, False, None).suspender is Suspender.ANOTHER:
            return False
        return await self._owners.try_to_suspend(job, run=run.run_id)

    async def resume(self, job: Json | None, group_id: str) -> bool:
        """Resume a Job that was suspended so, once its pods are gone; whether it is one."""
        if job is None or not (comes_in_waves(job) and is_suspended_by_us(job)):
            return False
        # Resumed earlier, its controller would make pods beside those that still hold their GPUs, and may count the old
        # ones as failures.
        if not self._groups.has_pods(group_id):
            await self._owners.suspend(job, False)
            log.info("owner_resumed", owner=f"Job/{text(job, 'metadata', 'name')}")
        return True

    async def find_block(self, pods: Sequence[Json]) -> EvictionBlock | None:
        """Why a Job of which these pods are to be evicted would lose their work, or end for it."""
        # Counted by Job and not by pod: each pod alone has room for itself in the limit, and all of them end the Job.
        by_job: dict[OwnerRef, list[Json]] = {}
        for pod in pods:
            if (ref := _job_of(pod)) is not None:
                by_job.setdefault(ref, []).append(pod)
        for ref, stopped in by_job.items():
            job = await self._owners.look(ref)
            why = ""
            if job is not None and is_winding_up(job):
                why = "its Job makes no pod again once one has succeeded"
            elif job is not None and comes_in_waves(job) and not self._groups.is_stopping_whole(_id_of(ref)):
                survives = job_survives(job, stopped, len(stopped))
                why = "" if survives else "its Job counts each evicted pod as a failure, and would end"
            if why:
                uids = frozenset(text(pod, "metadata", "uid") for pod in stopped)
                return EvictionBlock(no(Code.BLOCKED_BY_DISRUPTION_BUDGET, f"Job {ref.name}", why), uids)
        return None


def _job_of(pod: Json) -> OwnerRef | None:
    ref = controller_of(pod)
    return ref if ref is not None and (ref.group, ref.kind) == ("batch", "Job") else None


def _id_of(ref: OwnerRef) -> str:
    return f"{ref.group}/{ref.kind}/{ref.namespace}/{ref.uid}"

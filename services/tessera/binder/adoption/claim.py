"""
Pods of users for a run that was allocated before they were there, as of a suspended Job: found, and checked against
what was allocated.

Nothing is written on them: they are the run's once the ledger permits them to it, by UID and in this order.
"""

from dataclasses import dataclass

import structlog

from tessera.binder.adoption.known import Adoptions
from tessera.binder.adoption.owners import Owners
from tessera.binder.adoption.spec import Adoption
from tessera.binder.adoption.suspending import can_be_suspended, is_left_alone, is_ours_to_suspend, is_suspended
from tessera.binder.adoption.watch import Groups
from tessera.domain.entities import Job, Run
from tessera.kernel.ports import Clock, Cluster
from tessera_schemas.reasons import Code, Reason

GENERATION = "~"
"""In a key, before the number of a later job with the owner and shape of one that has ended."""


def is_of(job: Job, adoption: Adoption) -> bool:
    """Whether the job is what the pods ask for, whichever time it is that they do."""
    return job.key.partition(GENERATION)[0] == adoption.key


def is_as_said(job: Job, adoption: Adoption) -> bool:
    """Whether the job is that, and is known to survive what its owner survives now."""
    return is_of(job, adoption) and job.preemptible == adoption.spec.preemptible


def is_up_to_date(job: Job, adoption: Adoption) -> bool:
    """Whether the ledger knows all there is to know of a job that waits: also which pods it has."""
    known = () if job.adopted is None else job.adopted.uids
    return is_as_said(job, adoption) and not job.away and known == adoption.uids


@dataclass(frozen=True, slots=True)
class Incomplete:
    """The pods are not there yet, or are not what was allocated; since when, by the monotonic clock."""

    reason: Reason
    since: float


log = structlog.get_logger()


class Claims:
    def __init__(self, cluster: Cluster, clock: Clock, groups: Groups, owners: Owners, adoptions: Adoptions) -> None:
        self._cluster, self._clock = cluster, clock
        self._groups, self._owners, self._adoptions = groups, owners, adoptions
        self._since: dict[str, float] = {}

    def forget(self, run_id: str) -> None:
        self._since.pop(run_id, None)

    async def claim(self, job: Job, run: Run) -> tuple[str, ...] | Incomplete:
        """
        The UIDs in rank order, once all pods are there as they were allocated; to be asked once users' pods are listed.

        Raises ApiError, Transient.
        """
        found = await self._pods_for(job)
        if isinstance(found, Reason):
            if await self._resume(job):
                self._since[run.run_id] = self._clock.monotonic()
            return Incomplete(found, self._since.setdefault(run.run_id, self._clock.monotonic()))
        return found.uids

    async def _pods_for(self, job: Job) -> Adoption | Reason:
        """The group's pods as the job that was allocated, or why they are not."""
        assert job.adopted is not None
        group = self._groups.get(job.adopted.group)
        waiting = self._groups.waiting(job.adopted.group)
        if group is None or not waiting:
            numbers = {"pods": 0, "pods_wanted": job.pods}
            return Reason(code=Code.GANG_INCOMPLETE, detail=job.adopted.owner, numbers=numbers)
        found = await self._adoptions.of(group, waiting)
        if isinstance(found, Reason) or is_as_said(job, found):
            return found
        return Reason(code=Code.GANG_DISAGREES, detail=f"{job.adopted.owner}: its pods ask for something else by now")

    async def _resume(self, job: Job) -> bool:
        """An owner that is suspended, by nothing else that looks after it, makes its pods once it is let go."""
        if job.adopted is None or not can_be_suspended(job.adopted):
            return False
        owner = await self._owners.of(job.tenant, job.adopted, fresh=True)
        if owner is None or not is_suspended(owner) or is_left_alone(owner, job) or not is_ours_to_suspend(owner):
            return False
        await self._owners.suspend(job.tenant, job.adopted, owner, False)
        log.info("owner_resumed", job=job.job_id, owner=job.adopted.owner, namespace=job.tenant)
        return True

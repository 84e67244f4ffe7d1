"""
Pods of users for a run that was allocated before they were there, as of a suspended Job: found, and checked against
what was allocated.

Nothing is written on them: they are the run's once the ledger permits them to it, by UID and in this order.
"""

from dataclasses import dataclass

import structlog

from tessera.binder.adoption.cache import Adoptions
from tessera.binder.adoption.decide.spec import Adoption
from tessera.binder.adoption.decide.suspending import is_controller_behind
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.adoption.watch import Groups
from tessera.domain.entities import Job, Run
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason

GENERATION = "~"
"""In a key, before the number of a later job with the owner and shape of one that has ended."""


def is_of(job: Job, adoption: Adoption) -> bool:
    """Whether the job is what the pods ask for, whichever time it is that they do."""
    # The number behind the key says only how often the same was asked for.
    return job.key.partition(GENERATION)[0] == adoption.key


def matches(job: Job, adoption: Adoption) -> bool:
    """Whether the job is that, and is known to survive what its owner survives now."""
    return is_of(job, adoption) and job.preemptible == adoption.spec.preemptible


def is_up_to_date(job: Job, adoption: Adoption) -> bool:
    """Whether the ledger knows all there is to know of a job that waits: also its pods, their budget and service."""
    known, now = job.adopted, adoption.adopted
    if known is None or not matches(job, adoption) or job.away:
        return False
    # A service whose minimum was taken back is remembered with 0.
    had = known.service if known.service is not None and known.service.min_replicas else None
    has = now.service if now.service is not None and now.service.min_replicas else None
    return (known.uids, known.budget, had) == (adoption.uids, now.budget, has)


@dataclass(frozen=True, slots=True)
class Incomplete:
    """
    The pods are not there yet, or are not what was allocated; since when, by the monotonic clock.

    `coming`: their owner goes on, and its controller has yet to make them, or what they wait for. `behind`: that
    controller has not acted on the resumption yet.
    """

    reason: Reason
    since: float
    coming: bool
    behind: bool


@dataclass(slots=True)
class _Waits:
    since: float
    group: str
    pods: int


log = structlog.get_logger()


class NotResumed(Exception):
    """The API server does not let us resume the owner; a repeat does not change that."""

    def __init__(self, owner: Json, reason: Reason) -> None:
        super().__init__(reason.sentence())
        self.owner, self.reason = owner, reason


class Claims:
    def __init__(self, cluster: Cluster, clock: Clock, groups: Groups, owners: Owners, adoptions: Adoptions) -> None:
        self._cluster, self._clock = cluster, clock
        self._groups, self._owners, self._adoptions = groups, owners, adoptions
        self._waits: dict[str, _Waits] = {}
        self._waits_for: dict[str, str] = {}

    def forget(self, run_id: str) -> None:
        """Lets go of a run that waits for users' pods, and of the group that was to bring them."""
        waits = self._waits.pop(run_id, None)
        if waits is not None:
            self._waits_for.pop(waits.group, None)

    def ready(self, group_id: str) -> str:
        """The run that waits for this group's pods, once there may be enough of them; else ""."""
        run_id = self._waits_for.get(group_id, "")
        waits = self._waits.get(run_id)
        return run_id if waits is not None and len(self._groups.waiting(group_id)) >= waits.pods else ""

    async def claim(self, job: Job, run: Run) -> tuple[str, ...] | Incomplete:
        """
        The UIDs in rank order, once all pods are there as they were allocated; to be asked once users' pods are listed.

        Raises NotResumed, ApiError, Transient.
        """
        resumed, owner = await self._resume(job, at_first=run.run_id not in self._waits)
        found = _none_yet(job) if resumed else await self._pods_for(job)
        if not isinstance(found, Reason):
            return found.uids
        group = "" if job.adopted is None else job.adopted.group
        # The time of the first look stays: each look anew would begin the patience anew, and a run would wait for ever
        # for pods that do not come.
        waits = self._waits.setdefault(run.run_id, _Waits(self._clock.monotonic(), group, _pods_awaited(job)))
        self._waits_for[group] = run.run_id
        # Pods that ask for something else will not turn into others by waiting.
        coming = owner is not None and found.code is not Code.GANG_DISAGREES
        return Incomplete(found, waits.since, coming, owner is not None and is_controller_behind(owner))

    async def _pods_for(self, job: Job) -> Adoption | Reason:
        """The group's pods as the job that was allocated, or why they are not."""
        assert job.adopted is not None
        group = self._groups.get(job.adopted.group)
        waiting = self._groups.waiting(job.adopted.group)
        if group is None or not waiting:
            return _none_yet(job)
        found = await self._adoptions.of(group, waiting)
        if isinstance(found, Reason) or matches(job, found):
            return found
        return Reason(code=Code.GANG_DISAGREES, detail=f"{job.adopted.owner}: its pods ask for something else by now")

    async def _resume(self, job: Job, at_first: bool) -> tuple[bool, Json | None]:
        """
        Resume an owner that waits for us; whether it just was, and the owner, if it goes on and so is to make pods.
        Pods that are there before that are about to be taken away.

        What was seen of it last is good enough, since the patch names that version; another replica may have
        suspended it a moment ago, so that one nobody watches is fetched at first.
        """
        found = await self._owners.suspension_of(job, fresh=at_first and not self._owners.watches(job))
        if found is None or job.adopted is None:
            return False, None
        if not found[1].waits_for_us:
            return False, None if found[1].suspended else found[0]
        try:
            await self._owners.suspend(found[0], False)
        except ApiError as error:
            if error.status == 404:
                return False, None
            if error.status != 409:
                detail = f"{job.adopted.owner} is not resumed: {error.message}"
                reason = Reason(code=Code.FORBIDDEN, field="spec.suspend", detail=detail[:512])
                raise NotResumed(found[0], reason) from error
            found = await self._owners.suspension_of(job, fresh=True)  # its controller writes to it, too
            if found is None or not found[1].waits_for_us:
                return False, None if found is None or found[1].suspended else found[0]
            await self._owners.suspend(found[0], False)
        log.info("owner_resumed", job=job.job_id, owner=job.adopted.owner, namespace=job.tenant)
        return True, found[0]


def _none_yet(job: Job) -> Reason:
    owner = "" if job.adopted is None else job.adopted.owner
    return Reason(code=Code.GANG_INCOMPLETE, detail=owner, numbers={"pods": 0, "pods_wanted": _pods_awaited(job)})


def _pods_awaited(job: Job) -> int:
    return job.pods - (0 if job.adopted is None else job.adopted.late_pods)

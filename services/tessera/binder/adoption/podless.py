"""
Jobs of users whose pods are not there: their owner is suspended, or has yet to make them again, or is no more.
"""

from collections.abc import Callable, Sequence

import structlog

from tessera.binder.adoption.decide.owner_conditions import ending_of, why_failed
from tessera.binder.adoption.decide.spec import queue_of
from tessera.binder.adoption.decide.suspending import look_at
from tessera.binder.adoption.decide.verdicts import (
    Verdict,
    describe_suspended_by_user,
    describe_suspended_while_waiting,
)
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.adoption.reports.conditions import Conditions
from tessera.binder.adoption.submitting import NO_PODS, Submitting
from tessera.binder.settings import BinderSettings
from tessera.binder.workloads.references import OwnerRef, ref_of
from tessera.binder.workloads.registry import kind_of_object
from tessera.domain.entities import Job
from tessera.domain.work.phases import Phase
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.freshness import Freshness
from tessera_schemas.base import Json
from tessera_schemas.facts import OwnerEnded, PodsBack, PodsGone

REPLACED_SECONDS = 1.0  # so long its owner takes to make another pod in the place of one

log = structlog.get_logger()


class PodlessJobs:
    """`look_later` names a group for another look after so many seconds."""

    def __init__(
        self,
        clock: Clock,
        settings: BinderSettings,
        owners: Owners,
        facts: Facts,
        conditions: Conditions,
        submitting: Submitting,
        look_later: Callable[[str, float], None],
        fresh: Freshness,
    ) -> None:
        self._fresh = fresh
        self._clock, self._settings, self._owners, self._facts = clock, settings, owners, facts
        self._conditions, self._submitting, self._look_later = conditions, submitting, look_later
        self._since: dict[str, float] = {}

    def there(self, job: Job) -> None:
        """Forget a job whose pods exist, or for which nobody waits."""
        self._since.pop(job.job_id, None)

    async def look(self, group_id: str, job: Job) -> None:
        """
        Wait for pods that the owner is to bring back; not for ever, and not without an owner.

        The job is suspended meanwhile, unless its pods are only being replaced.
        """
        if job.phase is not Phase.QUEUED or job.adopted is None:
            self.there(job)
            # Said while its run still stops, and kept by the ledger: an owner may be removed as soon as it has ended.
            end = await self._why_over(job) if job.owner_end is None and self._owners.watches(job) else ""
            if isinstance(end, OwnerEnded):
                await self._submitting.end(job, end)
            return
        # Whether anybody will bring the pods is asked before anything else: a job of an owner that is gone must not
        # wait suspended.
        why = await self._why_over(job)
        if not why and await self.waits_suspended(job):
            await self.report_in_queue_order(job)
            return
        now = self._clock.monotonic()
        since = self._since.setdefault(job.job_id, now)
        # Seconds in which nothing could be seen do not count (ADR 0042).
        left = self._settings.pods_gone_seconds - self._fresh.seconds(since)
        if why or left <= 0:
            await self._submitting.end(job, why or NO_PODS)
            return
        if not job.away:
            # A pod that its controller replaces is gone for a moment. Out of line and back again would be two records
            # for nothing.
            until_away = since + REPLACED_SECONDS - now
            if until_away > 0:
                self._look_later(group_id, until_away)
                return
            await self._facts.publish(PodsGone(kind="pods_gone", job_id=job.job_id))
        self._look_later(group_id, left)

    async def report_in_queue_order(self, job: Job) -> None:
        """Report that the job is in the queue order again; pods that still exist are about to be taken away."""
        if job.phase is Phase.QUEUED and job.adopted is not None and (job.away or job.adopted.uids):
            # Without UIDs: those that the ledger knows are about to go, and a run must not be permitted to them.
            said = {"preemptible": job.preemptible, "budget": job.adopted.budget, "service": job.adopted.service}
            back = PodsBack.model_validate({"kind": "pods_back", "job_id": job.job_id} | said)
            await self._facts.publish(back, "")

    async def waits_suspended(self, job: Job) -> bool:
        """Whether the owner makes its pods once it is resumed, so that the job may be allocated."""
        found = await self._owners.suspension_of(job)
        return found is not None and found[1].waits_for_us

    async def are_left_alone(self, live: list[Job]) -> bool:
        """Keep jobs whose owner was suspended by its user suspended, in their place, for as long as that is so."""
        for job in live:
            found = await self._owners.suspension_of(job) if job.phase is Phase.QUEUED else None
            if found is None or ending_of(found[0]) or not found[1].is_left_alone:
                return False
            self.there(job)
            await self._conditions.make_event_once(found[0], describe_suspended_by_user(job))
            if not job.away:
                await self._facts.publish(PodsGone(kind="pods_gone", job_id=job.job_id), "")
        return bool(live)

    async def suspend(self, job: Job, verdict: Verdict) -> bool:
        """
        Suspend the owner of a waiting job and show on it why. A refusal leaves it as it is, and its namespace is not
        tried again for a while.
        """
        found = await self._owners.suspension_of(job)
        if found is None or not await self._suspend(found[0], verdict):
            return False
        await self.report_in_queue_order(job)
        return True

    async def suspend_incomplete(self, ref: OwnerRef, waiting: Sequence[Json], live: list[Job], why: Verdict) -> None:
        """
        Suspend an owner of which the namespace takes only some pods, where policy wants waiting work suspended: these
        would keep the quota from another that lacks as little. Whoever is resumed then comes through whole.
        """
        owner = await self._owners.look(ref)
        if owner is None:
            return
        # Kept apart from `suspend`: a group that was never whole has no job that could say who may suspend its owner.
        began = any(job.adopted is not None and job.adopted.suspended for job in live)
        look = look_at(owner, began, self._owners.by_queue(queue_of(waiting[0], owner)[0]))
        if look.waits_suspended:
            await self._suspend(owner, why)

    async def _suspend(self, owner: Json, why: Verdict) -> bool:
        # A right that is missing is missing for all of the namespace: thousands of its owners are not tried one by one.
        if not await self._owners.may_suspend(ref_of(owner)):
            return False
        if not await self._owners.try_to_suspend(owner, why=why.code):
            return False
        await self._conditions.make_event_once(owner, describe_suspended_while_waiting(why))
        return True

    async def is_to_wait_suspended(self, job: Job) -> bool:
        """Whether policy wants its owner suspended for as long as it waits, and it is not yet."""
        if job.phase is not Phase.QUEUED:
            return False
        found = await self._owners.suspension_of(job)
        return found is not None and found[1].waits_suspended

    async def _why_over(self, job: Job) -> OwnerEnded | str:
        """The end of the owner, or why else nobody will bring the pods back; "" while somebody may."""
        assert job.adopted is not None
        is_pod = job.adopted.owner_kind == "Pod"  # it has just ended: what was remembered of it says that it runs
        owner = await self._owners.of(job.tenant, job.adopted, fresh=is_pod)
        if owner is None and not is_pod:
            # Asked once more before a job is cancelled for it: a watch that is behind, or just begins, shows nothing
            # where something is.
            owner = await self._owners.of(job.tenant, job.adopted, fresh=True)
        said = await self._owners.last_word(job.adopted, owner)
        if ending := ending_of(said):
            reason = None if ending == "complete" else why_failed(said)
            return OwnerEnded(kind="owner_ended", job_id=job.job_id, reason=reason)
        if owner is None:
            return f"{job.adopted.owner} is gone"
        kind, gang = kind_of_object(owner), job.adopted.group.rpartition("/")[2]
        return "" if kind is None or kind.keeps(owner, gang) else f"{job.adopted.owner} wants these pods no more"

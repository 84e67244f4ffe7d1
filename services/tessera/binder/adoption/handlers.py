"""
One group of users' pods at a time: submitted as a job once it is whole, told why it waits, and its job cancelled when
the group is no more.

Level-triggered, from the pods and the ledger's state. What was submitted, refused or cancelled is remembered only to
save messages: the same key is the same job. A group has one job at a time. What its pods ask for is part of the key:
pods that ask for something else make another job, once the one before has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from tessera.binder.adoption.cache import Adoptions
from tessera.binder.adoption.claim import GENERATION, is_of, is_up_to_date
from tessera.binder.adoption.conditions import Conditions
from tessera.binder.adoption.decide.ending import ending_of, why_failed
from tessera.binder.adoption.decide.groups import GroupKind, OwnerRef, controller_of
from tessera.binder.adoption.decide.reading import Json, no, text
from tessera.binder.adoption.decide.spec import Adoption
from tessera.binder.adoption.decide.verdicts import (
    Verdict,
    is_refusal,
    of_ended,
    of_group,
    of_job,
    of_not_let_in,
    of_refusal,
    of_suspended_by_user,
    of_suspended_while_waiting,
)
from tessera.binder.adoption.gate import Gate
from tessera.binder.adoption.group_status import GroupStatus
from tessera.binder.adoption.index import GroupIndex
from tessera.binder.adoption.let_in import LetIn
from tessera.binder.adoption.owners import NotAllowed, Owners
from tessera.binder.adoption.places import PODS_RENEWED, Places, Renewal
from tessera.binder.adoption.refusals import RefusalReports
from tessera.binder.adoption.report_delay import Patience, Settling
from tessera.binder.adoption.suspended import Suspended
from tessera.binder.adoption.watch import ALONE, Groups
from tessera.binder.settings import BinderSettings
from tessera.domain.entities import EndedJob, Job
from tessera.domain.phases import Phase
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.room import LedgerRoom
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import ApiError, Outgoing
from tessera.kernel.process.leases import Members, partition_of, rounds
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.commands import AdoptJob, CancelJob
from tessera_schemas.facts import JobAdmitted, JobRefused, PodsBack, PodsGone
from tessera_schemas.labels import has_ended
from tessera_schemas.ledger import JobTurnedAway
from tessera_schemas.reasons import Code, Reason

OTHER_PODS = "its pods ask for something else now"
NO_PODS = "its pods have been gone for too long"
BY_BINDER = (OTHER_PODS, NO_PODS)
"""Why a job was cancelled whose pods may yet come back."""
GENERATIONS_MAX = 1000
ABOUT_TO_START = (Phase.ALLOCATED, Phase.BINDING)
REPLACED_SECONDS = 1.0  # so long its owner takes to make another pod in the place of one
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 15.0, 600.0
VOLUME_AGAIN_SECONDS = 2.0
REMEMBERED = 16_384

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SubmitUnderWay:
    """A submit on its way: not sent again before `again_at`, then after twice the wait; what it was refused for."""

    group: str
    again_at: float
    wait: float
    reasons: tuple[Reason, ...] = ()


class Adopting:
    """The groups of our partitions, by the group's id."""

    def __init__(
        self,
        ports: Ports,
        settings: BinderSettings,
        state: State,
        groups: Groups,
        owners: Owners,
        adoptions: Adoptions,
        suspended: Suspended,
        members: Members,
        room: LedgerRoom,
    ) -> None:
        self._ports, self._settings, self._state, self._members = ports, settings, state, members
        self._groups, self._owners, self._adoptions, self._suspended = groups, owners, adoptions, suspended
        self._facts = Facts(ports.bus, settings.shard, "binder")
        self._books = GroupIndex(state)
        self._gate = Gate(ports.clock, state, room, lambda: members.count)
        self._conditions = Conditions(ports.cluster, ports.clock)
        self._refusals = RefusalReports(state, self._facts, ports.clock, settings.shard)
        self._against: dict[str, Sequence[Reason]] = {}
        self._places, self._renewal = Places(state), Renewal(ports.clock)
        self._let_in = LetIn(ports.cluster, ports.clock)
        self._group_status = GroupStatus(ports.cluster, ports.clock, owners)
        self._patience = Patience(ports.clock, settings.tell_seconds)
        self._settling = Settling(ports.clock, settings.settle_seconds)
        self._submitted: dict[str, SubmitUnderWay] = {}
        self._cancelled: dict[str, float] = {}
        self._not_let_in_until: dict[str, float] = {}
        self._without_pods_since: dict[str, float] = {}
        self.worklist = Worklist(self._work, ports.clock, settings.groups_at_once)

    # -- what makes a group worth a look --------------------------------------------------------------------------

    async def on_ledger(self, entries: list[Entry]) -> None:
        """Names the groups that new entries are about for another look, and notes jobs that were turned away."""
        for entry in entries:
            for group in self._books.take_in(entry):
                self.worklist.name(group)
            for record in entry.message.records:
                if type(record) is JobTurnedAway:
                    fact = entry.message.facts[record.fact].fact
                    if isinstance(fact, JobAdmitted | JobRefused):
                        self._turned_away(fact.job_id, record.reasons or getattr(fact, "reasons", ()))

    def _turned_away(self, job: str, reasons: tuple[Reason, ...]) -> None:
        submitted = self._submitted.get(job)
        if submitted is not None:
            self._submitted[job] = replace(submitted, reasons=reasons)
            self.worklist.name(submitted.group)

    async def resync(self) -> None:
        """Look at everything once users' pods are listed, now and then, and as soon as our partitions change."""
        async for _ in rounds(self._members, self._ports.clock, self._settings.resync_seconds, lambda: self._is_synced):
            self._groups.resolve_again()
            known = (*self._groups.ids(), *self._books.groups(), *self._suspended.ids(), *self._refusals.groups())
            for group in dict.fromkeys((*known, *(f"{ALONE}{uid}" for uid in self._groups.alone))):
                self.worklist.name(group)

    # -- one group ------------------------------------------------------------------------------------------------

    @property
    def _is_synced(self) -> bool:
        return self._groups.informer.synced

    async def _work(self, group_id: str) -> None:
        if not self._is_synced:
            return  # `resync` names everything once they are listed
        if partition_of(group_id) not in self._members.partitions():
            return
        self._against.pop(group_id, None)
        if group_id.startswith(ALONE):
            await self._tell_alone(group_id.removeprefix(ALONE))
        else:
            await self._look(group_id)
        await self._say_refused(group_id, self._against.pop(group_id, ()))

    async def _look(self, group_id: str) -> None:
        live, waiting = self._books.jobs(group_id), self._groups.waiting(group_id)
        await self._tell_if_placed(group_id, live)
        if live and all(job.phase in ABOUT_TO_START for job in live):
            self._is_placed(group_id, live)
            return  # what becomes of its run leads here again
        if not waiting and await self._is_left_alone(group_id, live):
            return
        found = await self._found(group_id, waiting)
        if isinstance(found, Adoption):
            await self._settle(group_id, waiting, found, live)
            return
        if found is not None:
            if found.code is Code.VOLUME_NOT_READY:  # nobody tells of volumes
                self.worklist.name_later(group_id, VOLUME_AGAIN_SECONDS)
            if is_refusal(found):
                self._against[group_id] = (found,)
            await self._tell(group_id, waiting, of_group(found))
        else:
            self._adoptions.forget(group_id)
            self._patience.settled(group_id)
            self._renewal.forget(group_id)
        for job in live:
            await self._without_pods(group_id, job)

    def _is_placed(self, group_id: str, live: list[Job]) -> None:
        self._patience.settled(group_id)
        self._renewal.forget(group_id)
        for job in live:
            self._without_pods_since.pop(job.job_id, None)

    async def _tell_if_placed(self, group_id: str, live: list[Job]) -> None:
        """Kubernetes' own group of the pods says when as many as it needs have their nodes."""
        group = self._groups.get(group_id)
        if group is None or group.pod_group is None or not live:
            return
        placed = sum(bool(text(pod, "spec", "nodeName")) for pod in self._groups.pods(group_id))
        if placed >= live[0].pods:
            await self._group_status.tell(group.pod_group, None)

    async def _found(self, group_id: str, waiting: list[Json]) -> Adoption | Reason | None:
        """The job that the group amounts to now; None when nothing of it waits."""
        group = self._groups.get(group_id)
        if group is None or not waiting:
            self._settling.forget(group_id)
            return await self._suspended.adoption(group_id)
        left = self._settling.left(group_id, waiting) if group.settles else 0.0
        if left > 0:
            self.worklist.name_later(group_id, left)
            detail = "nothing says how many pods it has; further ones are waited for"
            return Reason(code=Code.GANG_INCOMPLETE, field=f"{group.kind} {group.name}", detail=detail)
        try:
            return await self._adoptions.of(group, waiting)
        except NotAllowed as error:
            return error.why

    async def _settle(self, group_id: str, waiting: list[Json], found: Adoption, live: list[Job]) -> None:
        """One life at a time: a job that is not what the pods ask for goes first, if it is not at work."""
        for job in live:
            self._without_pods_since.pop(job.job_id, None)
            if waiting and is_of(job, found) and await self._waits_suspended(job):
                await self._say_without_pods(job)
            elif is_of(job, found) and not is_up_to_date(job, found) and job.phase is Phase.QUEUED:
                await self._conditions.tell_wishes(waiting, found.wishes)
                preemptible = found.spec.preemptible
                back = PodsBack(kind="pods_back", job_id=job.job_id, preemptible=preemptible, uids=found.uids)
                await self._facts.publish(back)
            elif is_of(job, found):
                verdict = of_job(job, self._state.ts, self._places.said(job))
                if not await self._suspend_waiting(group_id, waiting, job, verdict):
                    await self._tell(group_id, waiting, verdict)
                    await self._renew(group_id, waiting, job, verdict)
            elif job.phase is Phase.QUEUED:
                await self._cancel(job, OTHER_PODS)
        if not live:
            await self._submit(group_id, waiting, found)

    async def _suspend_waiting(self, group_id: str, waiting: list[Json], job: Job, verdict: Verdict | None) -> bool:
        """
        By policy what does not start at once waits without pods; its user reads on the owner why. What has a pod at
        work keeps the others. A refusal leaves the owner as it is, and its namespace is not tried again for a while.
        """
        if verdict is None or job.phase is not Phase.QUEUED or job.adopted is None or not waiting:
            return False
        found = await self._owners.suspension_of(job)
        if found is None or not found[1].waits_suspended or self._patience.left(group_id, verdict) > 0:
            return False
        if any(text(pod, "spec", "nodeName") and not has_ended(pod) for pod in self._groups.pods(group_id)):
            return False
        now = self._ports.clock.monotonic()
        if now < self._not_let_in_until.get(job.tenant, 0.0):
            return False
        owner, _ = found
        try:
            await self._owners.suspend(job.tenant, job.adopted, owner, True)
        except ApiError as error:
            if error.status != 403:
                raise
            self._not_let_in_until[job.tenant] = now + AGAIN_SECONDS_MAX
            log.warning("owner_not_suspended", job=job.job_id, owner=job.adopted.owner, error=error.message)
            return False
        await self._say_without_pods(job)
        await self._conditions.tell_once(owner, of_suspended_while_waiting(verdict))
        log.info("owner_suspended", job=job.job_id, owner=job.adopted.owner, namespace=job.tenant, why=verdict.code)
        return True

    async def _tell_alone(self, uid: str) -> None:
        pod, reason = self._groups.informer.objects.get(uid), self._groups.alone.get(uid)
        if pod is not None and reason is not None:
            if is_refusal(reason):
                self._against[f"{ALONE}{uid}"] = (reason,)
            await self._conditions.tell([pod], of_group(reason))

    async def _say_refused(self, group_id: str, reasons: Sequence[Reason]) -> None:
        """For those who list jobs: the work is no job, and its objects say it one by one."""
        if not self._gate.has_room:
            return
        group, uid = self._groups.get(group_id), group_id.removeprefix(ALONE)
        pods = self._groups.pods(group_id) if group is not None else [self._groups.informer.objects.get(uid)]
        thing = next((pod for pod in pods if pod is not None), None) or self._suspended.job(group_id)
        await self._refusals.say(group_id, reasons if thing is not None else (), group, thing)

    async def _tell(self, group_id: str, waiting: list[Json], verdict: Verdict | None) -> None:
        """On the pods; on the suspended Job that has none yet; on their owner, too, where somebody has to act."""
        left = self._patience.left(group_id, verdict)
        if left > 0:
            self.worklist.name_later(group_id, left)
            return
        await self._conditions.tell(waiting, verdict)
        group = self._groups.get(group_id)
        if (
            verdict is not None
            and group is not None
            and group.pod_group is not None
            and group.kind is not GroupKind.POD
        ):
            await self._group_status.tell(group.pod_group, verdict)
        job = None if waiting else self._suspended.job(group_id)
        if job is None and waiting and verdict is not None and verdict.warning:
            controller = controller_of(waiting[0])
            job = None if controller is None else await self._owner_to_tell(controller)
        if job is not None and verdict is not None:
            await self._conditions.tell_once(job, verdict)

    async def _renew(self, group_id: str, waiting: list[Json], job: Job, verdict: Verdict | None) -> None:
        """Now and then its pods say its new place, if it has one."""
        if verdict is not None and self._places.of(job) is not None and self._renewal.is_due(group_id):
            written = await self._conditions.renew(waiting[:PODS_RENEWED], verdict)
            self._renewal.spend(group_id, written)

    async def _owner_to_tell(self, ref: OwnerRef) -> Json | None:
        """Whom `kubectl describe` shows it on; None where we may not look, since the pods say it all the same."""
        try:
            return await self._owners.look(ref)
        except (NotAllowed, ApiError):
            return None

    # -- a group that is whole ------------------------------------------------------------------------------------

    async def _submit(self, group_id: str, waiting: list[Json], found: Adoption) -> None:
        key, ended = self._next_key(found)
        if ended is not None:
            await self._tell(group_id, waiting, of_ended(ended))
            return
        if not await self._let_in.holds(found.group.namespace):
            detail = "has not let the binder in"
            self._against[group_id] = (no(Code.FORBIDDEN, f"namespace {found.group.namespace}", detail),)
            await self._tell(group_id, waiting, of_not_let_in(found.group.namespace))
            return
        job, now = job_id(self._settings.shard, found.group.namespace, key), self._ports.clock.monotonic()
        before = self._submitted.get(job)
        if before is not None and before.reasons:
            self._against[group_id] = before.reasons
            await self._tell(group_id, waiting, of_refusal(before.reasons))
        if before is not None and now < before.again_at:
            self.worklist.name_later(group_id, before.again_at - now)
            return
        known = {"group": group_id, "suspended": not waiting, "uids": found.uids}
        adopted = found.adopted.model_copy(update=known)
        command = AdoptJob(kind="adopt_job", v=1, key=key, spec=found.spec, adopted=adopted)
        if await self._is_put_off(group_id, waiting, found.group.namespace, command, before is not None):
            return
        wait = AGAIN_SECONDS if before is None else min(2 * before.wait, AGAIN_SECONDS_MAX)
        if len(self._submitted) >= REMEMBERED:
            self._submitted.clear()
        reasons = () if before is None else before.reasons
        self._submitted[job] = SubmitUnderWay(group_id, now + wait, wait, reasons)
        await self._conditions.tell_wishes(waiting, found.wishes)
        await self._send(found.group.namespace, command)
        log.debug("group_submitted", group=group_id, job=job, pods=len(waiting))
        self.worklist.name_later(group_id, wait)

    async def _is_put_off(
        self, group_id: str, waiting: list[Json], tenant: str, command: AdoptJob, again: bool
    ) -> bool:
        """Whether it has to wait for its tenant's budget or for room in the ledger; then its pods say so."""
        turn = self._gate.against(group_id, tenant, len(command.to_bytes()), again)
        if turn is None:
            return False
        await self._tell(group_id, waiting, of_group(turn.why.model_copy(update={"numbers": {}})))
        self.worklist.name_later(group_id, max(0.0, turn.at - self._ports.clock.monotonic()))
        return True

    def _next_key(self, found: Adoption) -> tuple[str, EndedJob | None]:
        """The first key that no job of before has; or the one of the job that is not to be done again."""
        for generation in range(1, GENERATIONS_MAX):
            key = found.key if generation == 1 else f"{found.key}{GENERATION}{generation}"
            ended = self._state.ended.get(job_id(self._settings.shard, found.group.namespace, key))
            if ended is None or not may_come_again(ended):
                return key, ended
        raise Transient(f"{found.key} has ended {GENERATIONS_MAX} times; its keys are not forgotten yet")

    # -- a job whose pods are not there ---------------------------------------------------------------------------

    async def _without_pods(self, group_id: str, job: Job) -> None:
        """
        It waits for pods that its owner is to bring back; not for ever, and not when there is no owner any more.

        Out of line, unless they are only being replaced.
        """
        if job.phase is not Phase.QUEUED or job.adopted is None:
            self._without_pods_since.pop(job.job_id, None)
            return
        why = await self._why_over(job)
        if not why and await self._waits_suspended(job):
            await self._say_without_pods(job)
            return
        now = self._ports.clock.monotonic()
        since = self._without_pods_since.setdefault(job.job_id, now)
        left = since + self._settings.pods_gone_seconds - now
        if why or left <= 0:
            await self._cancel(job, why or NO_PODS)
            return
        if not job.away:
            until_away = since + REPLACED_SECONDS - now
            if until_away > 0:
                self.worklist.name_later(group_id, until_away)
                return
            await self._facts.publish(PodsGone(kind="pods_gone", job_id=job.job_id))
        self.worklist.name_later(group_id, left)

    async def _say_without_pods(self, job: Job) -> None:
        """It is in line all the same; pods that are still there are about to be taken away."""
        if job.phase is Phase.QUEUED and job.adopted is not None and (job.away or job.adopted.uids):
            back = PodsBack(kind="pods_back", job_id=job.job_id, preemptible=job.preemptible)
            await self._facts.publish(back, "")

    async def _waits_suspended(self, job: Job) -> bool:
        """Its owner makes its pods once it is resumed, so that it may be allocated; said once."""
        found = await self._owners.suspension_of(job)
        return found is not None and found[1].waits_for_us

    async def _is_left_alone(self, group_id: str, live: list[Job]) -> bool:
        """Its user has suspended the owner: the jobs keep their place, out of line, for as long as that is so."""
        for job in live:
            found = await self._owners.suspension_of(job) if job.phase is Phase.QUEUED else None
            if found is None or ending_of(found[0]) or not found[1].is_left_alone:
                return False
            self._without_pods_since.pop(job.job_id, None)
            await self._conditions.tell_once(found[0], of_suspended_by_user(job))
            if not job.away:
                await self._facts.publish(PodsGone(kind="pods_gone", job_id=job.job_id), "")
        return bool(live)

    async def _why_over(self, job: Job) -> str:
        """Why nobody will bring the pods back, "" while somebody may."""
        assert job.adopted is not None
        owner = await self._owners.of(job.tenant, job.adopted)
        if owner is None:
            owner = await self._owners.of(job.tenant, job.adopted, fresh=True)
        if owner is None:
            return f"{job.adopted.owner} is gone"
        ending = ending_of(owner)
        return f"{job.adopted.owner} is {ending}: {why_failed(owner)}".removesuffix(": ") if ending else ""

    async def _cancel(self, job: Job, why: str) -> None:
        now = self._ports.clock.monotonic()
        if now < self._cancelled.get(job.job_id, 0.0):
            return
        if len(self._cancelled) >= REMEMBERED:
            self._cancelled.clear()
        self._cancelled[job.job_id] = now + AGAIN_SECONDS
        await self._send(job.tenant, CancelJob(kind="cancel_job", v=1, job_id=job.job_id, why=why[:1024]))
        log.info("adopted_job_cancelled", job=job.job_id, why=why)

    async def _send(self, tenant: str, command: AdoptJob | CancelJob) -> None:
        subject = subjects.submit_adopted(self._settings.shard, tenant)
        await self._ports.bus.publish(Outgoing(subject, command.to_bytes()))


def may_come_again(ended: EndedJob) -> bool:
    """Whether pods that ask for the same as a job that ended make a new one: nobody stopped that one on purpose."""
    if ended.phase is Phase.SUCCEEDED:
        return True
    stopped = ended.reason is not None and ended.reason.code is Code.CANCELLED
    return stopped and ended.reason is not None and ended.reason.detail in BY_BINDER

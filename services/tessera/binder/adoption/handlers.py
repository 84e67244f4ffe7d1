"""
One group of users' pods at a time: submitted as a job once it is whole, told why it waits, and its job cancelled when
the group is no more.

Level-triggered, from the pods and the ledger's state. What was submitted, refused or cancelled is remembered only to
save messages: the same key is the same job.
"""

from collections.abc import Sequence
from dataclasses import replace

from tessera.binder.adoption.cache import Adoptions
from tessera.binder.adoption.claim import is_of, is_up_to_date
from tessera.binder.adoption.decide.spec import Adoption
from tessera.binder.adoption.decide.verdicts import (
    Verdict,
    describe_finding,
    describe_job,
    describe_refused_pods,
    is_refusal,
)
from tessera.binder.adoption.gate import Gate
from tessera.binder.adoption.index import GroupIndex
from tessera.binder.adoption.owners.budgets import find_forbidding_budget
from tessera.binder.adoption.owners.failed_nodes import FailedNodes
from tessera.binder.adoption.owners.known import REMEMBERED_SECONDS, NotAllowed, Owners
from tessera.binder.adoption.owners.late_pods import LateComers
from tessera.binder.adoption.owners.services import find_service
from tessera.binder.adoption.owners.suspended import Suspended
from tessera.binder.adoption.podless import PodlessJobs
from tessera.binder.adoption.reports.delay import Settling
from tessera.binder.adoption.reports.reporting import GroupReports
from tessera.binder.adoption.submitting import OTHER_PODS, Submitting
from tessera.binder.adoption.watch import ALONE, Groups
from tessera.binder.adoption.waves import Waves
from tessera.binder.settings import BinderSettings
from tessera.binder.workloads.port import GroupKind
from tessera.binder.workloads.reading import text
from tessera.binder.workloads.references import controller_of
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.kernel.ledger.room import LedgerRoom
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members, partition_of, rounds
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.freshness import Freshness
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import has_ended
from tessera_schemas.facts import JobAdmitted, JobRefused, PodsBack
from tessera_schemas.ledger import Bound, JobTurnedAway, Released, Started
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import BUDGETS_FROM, MINIMUMS_FROM

ABOUT_TO_START = (Phase.ALLOCATED, Phase.BINDING)
VOLUME_AGAIN_SECONDS = 2.0
RESTING_ROUNDS = 8
"""A suspended owner that waits is looked at again in one of so many rounds."""
REFUSED_MS = 90_000
"""A controller that may not make a pod tries again, and says so again, once a minute at least."""
JOB_API = ("batch/v1", "Job")
"""The Job controller makes pods just as the template says."""


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
        failed: FailedNodes,
        members: Members,
        room: LedgerRoom,
        fresh: Freshness,
    ) -> None:
        self._ports, self._settings, self._state, self._members = ports, settings, state, members
        self._groups, self._owners, self._adoptions, self._suspended = groups, owners, adoptions, suspended
        self._waves = Waves(groups, owners)
        self._facts = Facts(ports.bus, settings.shard, "binder")
        self._index = GroupIndex(state)
        self._late = LateComers(state, self._index, owners, self._facts)
        self._gate = Gate(ports.clock, state, room, lambda: members.count)
        self._settling = Settling(ports.clock, settings.settle_seconds)
        self.worklist = Worklist(self._work, ports.clock, settings.groups_at_once, self._tenant_of)
        later = self.worklist.name_later
        self._reports = GroupReports(ports, settings, state, groups, owners, suspended, self._facts, later)
        conditions = self._reports.conditions
        self._submitting = Submitting(ports, settings, state, self._gate, self._reports, failed, later)
        self._podless = PodlessJobs(
            ports.clock, settings, owners, self._facts, conditions, self._submitting, later, fresh
        )
        self.write_owner_conditions = self._reports.status.run

    # -- what makes a group worth a look --------------------------------------------------------------------------

    async def on_ledger(self, entries: list[Entry]) -> None:
        """Names the groups that new entries are about for another look, and notes jobs that were turned away."""
        for entry in entries:
            for group in self._index.take_in(entry):
                self.worklist.name(group)
            for record in entry.message.records:
                if isinstance(record, Bound | Released):  # then what its owner made meanwhile may start by itself
                    run_job = self._state.jobs.get(record.run_id.rpartition("-")[0])
                    if run_job is not None and run_job.adopted is not None:
                        self._groups.look_again(run_job.adopted.group)
                elif type(record) is Started:
                    for group in self._late.groups_of(record.run_id.rpartition("-")[0]):
                        self.worklist.name(group)
                elif type(record) is JobTurnedAway:
                    fact = entry.message.facts[record.fact].fact
                    if isinstance(fact, JobAdmitted | JobRefused):
                        self._turned_away(fact.job_id, record.reasons or getattr(fact, "reasons", ()))

    def _tenant_of(self, group_id: str) -> str:
        group, jobs = self._groups.get(group_id), self._index.jobs(group_id)
        return group.namespace if group is not None else jobs[0].tenant if jobs else ""

    def _turned_away(self, job: str, reasons: tuple[Reason, ...]) -> None:
        group = self._submitting.turned_away(job, reasons)
        if group:
            self.worklist.name(group)

    async def resync(self) -> None:
        """Look at everything once users' pods are listed, now and then, and as soon as our partitions change."""
        ours, number = frozenset[int](), 0
        async for _ in rounds(self._members, self._ports.clock, self._settings.resync_seconds, lambda: self._is_synced):
            # After a change of partitions nobody rests: what the other binder knew of a group is not known here.
            before, ours, number = ours, self._members.partitions(), number + 1
            self._groups.resolve_again()
            refused = self._reports.refused_groups()
            known = (*self._groups.ids(), *self._index.groups(), *self._suspended.ids(), *refused)
            resting = self._resting(number) if before == ours else ()
            for group in dict.fromkeys((*known, *(f"{ALONE}{uid}" for uid in self._groups.alone))):
                if group not in resting:
                    self.worklist.name(group)

    def _resting(self, number: int) -> frozenset[str]:
        """
        Groups without a pod whose owner is suspended, but for those whose turn it is in round `number`: there may be
        thousands, and whatever happens to one names it.
        """
        waiting = (group for group in self._suspended.ids() if self._groups.get(group) is None)
        return frozenset(group for group in waiting if (partition_of(group) - number) % RESTING_ROUNDS)

    # -- one group ------------------------------------------------------------------------------------------------

    @property
    def _is_synced(self) -> bool:
        return self._groups.informer.synced

    async def _work(self, group_id: str) -> None:
        if not self._is_synced:
            return  # `resync` names everything once they are listed
        # Two binders that looked at one group would submit the same key, which does no harm, and charge its tenant
        # twice.
        if partition_of(group_id) not in self._members.partitions():
            return
        # A refusal holds for one look: what is not found again below is withdrawn by that.
        self._reports.note_refusal(group_id, ())
        if group_id.startswith(ALONE):
            await self._reports.report_ungrouped(group_id.removeprefix(ALONE))
        elif not await self._waves.resume(self._suspended.owner(group_id), group_id):
            await self._look(group_id)
        if self._gate.has_room:
            await self._reports.publish_refusal(group_id)

    async def _look(self, group_id: str) -> None:
        live, waiting = self._index.jobs(group_id), self._groups.waiting(group_id)
        await self._reports.report_if_placed(group_id, live)
        # Between allocation and bind the pods belong to the run. A look at what they ask for would only find what was
        # just decided.
        if live and all(job.phase in ABOUT_TO_START for job in live):
            self._reports.forget(group_id)
            for job in live:
                self._podless.there(job)
            return  # what becomes of its run leads here again
        if await self._is_left_alone(group_id, waiting, live):
            return
        found = await self._with_budget(await self._found(group_id, waiting, live), bool(live))
        found = await self._with_service(found, waiting)
        if isinstance(found, Adoption):
            await self._settle(group_id, waiting, found, live)
            return
        if found is not None:
            if found.code in (Code.VOLUME_NOT_READY, Code.CLAIM_NOT_READY) or self._has_groups(group_id):
                # Nobody tells of them.
                self.worklist.name_later(group_id, VOLUME_AGAIN_SECONDS)
            if is_refusal(found):
                self._reports.note_refusal(group_id, (found,))
            await self._report_found(group_id, waiting, found, live)
        else:
            self._adoptions.forget(group_id)
            self._reports.forget(group_id)
        for job in live:
            await self._podless.look(group_id, job)
            if self._suspended.owner(group_id) is not None:
                await self._reports.report(group_id, waiting, self._describe(job))

    async def _is_left_alone(self, group_id: str, waiting: list[Json], live: list[Job]) -> bool:
        """Whether there is nothing to submit or to cancel: a late pod of a run, or a job that waits for its pods."""
        if waiting:
            return not live and await self._late.is_awaited(group_id, waiting)
        return await self._podless.are_left_alone(live)

    def _has_groups(self, group_id: str) -> bool:
        group = self._groups.get(group_id)
        return group is not None and group.kind is GroupKind.COMPOSITE

    async def _report_found(self, group_id: str, waiting: list[Json], found: Reason, live: list[Job]) -> None:
        """Show why a group is no job; one whose pods its namespace refuses says why, and may be suspended."""
        verdict, ref = describe_finding(found), controller_of(waiting[0]) if waiting else None
        # Most gangs are whole a moment later, so that events are read of those alone that have waited for a while.
        if ref is not None and found.code is Code.GANG_INCOMPLETE and not self._reports.delay.left(group_id, verdict):
            why = await self._owners.why_refused(ref, self._ports.clock.now_ms() - REFUSED_MS)
            if why:
                verdict = describe_refused_pods(found, why)
                is_whole = (ref.api_version, ref.kind) == JOB_API and group_id.endswith(f"/{ref.uid}")
                if is_whole and not self._is_at_work(group_id):
                    await self._podless.suspend_incomplete(ref, waiting, live, verdict)
                if not live:
                    self._reports.note_refusal(group_id, (found.model_copy(update={"detail": why}),))
        await self._reports.report(group_id, waiting, verdict)

    async def _found(self, group_id: str, waiting: list[Json], live: list[Job]) -> Adoption | Reason | None:
        """The job that the group amounts to now; None when nothing of it waits."""
        group = self._groups.get(group_id)
        if group is None or not waiting:
            self._settling.forget(group_id)
            if any(map(_goes_by_its_pods, live)):
                return None
            found = await self._suspended.adoption(group_id)
            owner = self._suspended.owner(group_id)
            return self._adoptions.with_late(found, owner) if isinstance(found, Adoption) else found
        # Without a size of its own a group is whole once no further pod comes: submitted with its first pod it would be
        # another job with each that follows.
        left = self._settling.left(group_id, waiting) if group.settles else 0.0
        if left > 0:
            self.worklist.name_later(group_id, left)
            detail = "nothing says how many pods it has; further ones are waited for"
            return Reason(code=Code.GANG_INCOMPLETE, field=f"{group.kind} {group.name}", detail=detail)
        try:
            return await self._adoptions.of(group, waiting)
        except NotAllowed as error:
            return error.why

    async def _with_budget(self, found: Adoption | Reason | None, known: bool) -> Adoption | Reason | None:
        """The same; of a job with the disruption budget that lets none of its pods go, where budgets may be read."""
        if not isinstance(found, Adoption) or self._state.format < BUDGETS_FROM:
            return found
        # Budgets are often made with the pods, a moment before: none of them may be missed by a first submit.
        age = REMEMBERED_SECONDS if known else 0.0
        budgets = await self._owners.all_of("poddisruptionbudgets", age, where_allowed=True)
        budget = find_forbidding_budget(budgets, found.metadata)[:600]
        return replace(found, adopted=found.adopted.model_copy(update={"budget": budget}))

    async def _with_service(self, found: Adoption | Reason | None, waiting: list[Json]) -> Adoption | Reason | None:
        """The same; of a replica with its service and the number of replicas that is guaranteed."""
        if not isinstance(found, Adoption) or self._state.format < MINIMUMS_FROM:
            return found
        service = await find_service(self._owners, found, waiting)
        if isinstance(service, Reason):
            return service
        return replace(found, adopted=found.adopted.model_copy(update={"service": service}))

    async def _settle(self, group_id: str, waiting: list[Json], found: Adoption, live: list[Job]) -> None:
        """One life at a time: a job that is not what the pods ask for goes first, if it is not at work."""
        for job in live:
            self._podless.there(job)
            if not is_of(job, found):
                if job.phase is Phase.QUEUED:
                    await self._submitting.end(job, OTHER_PODS)
            # The pods are those that the owner's controller is about to take away: news of them would put a job back in
            # line that waits without pods.
            elif waiting and await self._podless.waits_suspended(job):
                await self._podless.report_in_queue_order(job)
            elif not is_up_to_date(job, found) and job.phase is Phase.QUEUED:
                await self._reports.report_wishes(group_id, waiting, found.wishes)
                survives, budget = found.spec.preemptible, found.adopted.budget
                said = {"preemptible": survives, "uids": found.uids, "budget": budget, "service": found.adopted.service}
                back = {"kind": "pods_back", "job_id": job.job_id} | said
                await self._facts.publish(PodsBack.model_validate(back))
            else:
                await self._report_wait(group_id, waiting, job)
        # Only once nothing of the group lives: two jobs of one group would share its pods, and both be permitted to
        # them.
        if not live:
            await self._submitting.submit(group_id, waiting, found)

    async def _report_wait(self, group_id: str, waiting: list[Json], job: Job) -> None:
        """Suspend the owner where policy wants waiting work suspended; else write on the pods why they wait."""
        verdict = self._describe(job)
        if await self._is_to_be_suspended(group_id, waiting, job, verdict):
            assert verdict is not None
            if await self._podless.suspend(job, verdict):
                return
        await self._reports.report(group_id, waiting, verdict)
        await self._reports.renew(group_id, waiting, job, verdict)

    def _describe(self, job: Job) -> Verdict | None:
        """Why the job waits, with its position in the queue order."""
        return describe_job(job, self._state.ts, self._reports.places.describe(job))

    async def _is_to_be_suspended(
        self, group_id: str, waiting: Sequence[Json], job: Job, verdict: Verdict | None
    ) -> bool:
        """Tell whether to suspend the owner now: its job has waited for a while, and none of its pods is at work."""
        if verdict is None or not waiting or not await self._podless.is_to_wait_suspended(job):
            return False
        # What starts at once is never suspended: a suspension and a resumption cost two writes and all pods made anew.
        if self._reports.delay.left(group_id, verdict) > 0:
            return False
        # Suspension takes all pods of the owner away, also those that are at work already.
        return not self._is_at_work(group_id)

    def _is_at_work(self, group_id: str) -> bool:
        return any(text(pod, "spec", "nodeName") and not has_ended(pod) for pod in self._groups.pods(group_id))


def _goes_by_its_pods(job: Job) -> bool:
    """Whether it is of pods of a kind whose controller adds to its templates; suspended, it stays what they made it."""
    adopted = job.adopted
    return adopted is not None and not adopted.suspended and (adopted.api_version, adopted.owner_kind) != JOB_API

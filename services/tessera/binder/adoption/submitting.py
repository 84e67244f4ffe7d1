"""
Groups that are whole, sent as jobs, and jobs cancelled whose pods are no more or ask for something else.

What was submitted, refused or cancelled is remembered only to save messages: the same key is the same job.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from tessera.binder.adoption.claim import GENERATION
from tessera.binder.adoption.decide.spec import Adoption
from tessera.binder.adoption.decide.verdicts import (
    describe_closed_namespace,
    describe_ended,
    describe_finding,
    describe_refusal,
)
from tessera.binder.adoption.gate import Gate
from tessera.binder.adoption.owners.failed_nodes import FailedNodes
from tessera.binder.adoption.owners.namespace_access import NamespaceAccess
from tessera.binder.adoption.reports.reporting import GroupReports
from tessera.binder.bounded import BoundedDict
from tessera.binder.settings import BinderSettings
from tessera.binder.workloads.reading import no
from tessera.domain.entities import EndedJob, Job
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.kernel.errors import Transient
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Outgoing
from tessera.kernel.service.context import Ports
from tessera_schemas import subjects
from tessera_schemas.base import Json, job_id
from tessera_schemas.commands import AdoptJob, CancelJob
from tessera_schemas.facts import OwnerEnded
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import NODE_FAILURES_FROM, OWNER_ENDS_FROM

OTHER_PODS = "its pods ask for something else now"
NO_PODS = "its pods have been gone for too long"
BY_BINDER = (OTHER_PODS, NO_PODS)
"""Why a job was cancelled whose pods may yet come back."""
GENERATIONS_MAX = 1000
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 15.0, 600.0
REMEMBERED = 16_384

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SubmitUnderWay:
    """A submit on its way: not sent again before `again_at`, then after twice the wait; what it was refused for."""

    group: str
    again_at: float
    wait: float
    reasons: tuple[Reason, ...] = ()


class Submitting:
    """`look_later` names a group for another look after so many seconds."""

    def __init__(
        self,
        ports: Ports,
        settings: BinderSettings,
        state: State,
        gate: Gate,
        reports: GroupReports,
        failed: FailedNodes,
        look_later: Callable[[str, float], None],
    ) -> None:
        self._ports, self._settings, self._state = ports, settings, state
        self._gate, self._reports, self._failed, self._look_later = gate, reports, failed, look_later
        self._facts = Facts(ports.bus, settings.shard, "binder")
        self._access = NamespaceAccess(ports.cluster, ports.clock)
        self._submitted: BoundedDict[str, SubmitUnderWay] = BoundedDict(REMEMBERED)
        self._cancelled: BoundedDict[str, float] = BoundedDict(REMEMBERED)

    def turned_away(self, job: str, reasons: tuple[Reason, ...]) -> str:
        """The group whose submit was refused; "" where none of ours was."""
        submitted = self._submitted.get(job)
        if submitted is None:
            return ""
        self._submitted[job] = replace(submitted, reasons=reasons)
        return submitted.group

    async def submit(self, group_id: str, waiting: list[Json], found: Adoption) -> None:
        """Send the group as a job, unless it is on its way, or tell its pods what keeps it from being sent."""
        key, ended = self._next_key(found)
        # The job was ended on purpose, and the same pods are still there: a submit would undo that in silence.
        if ended is not None:
            await self._reports.report(group_id, waiting, describe_ended(ended))
            return
        namespace = found.group.namespace
        if not await self._access.is_granted(namespace):
            self._reports.note_refusal(
                group_id, (no(Code.FORBIDDEN, f"namespace {namespace}", "has not let the binder in"),)
            )
            await self._reports.report(group_id, waiting, describe_closed_namespace(namespace))
            return
        job, now = job_id(self._settings.shard, namespace, key), self._ports.clock.monotonic()
        before = self._submitted.get(job)
        # Told again at each look, since conditions are written only where they change; and sent again all the same,
        # later and later, since a refusal may rest on a configuration that is mended.
        if before is not None and before.reasons:
            self._reports.note_refusal(group_id, before.reasons)
            await self._reports.report(group_id, waiting, describe_refusal(before.reasons))
        if before is not None and now < before.again_at:
            self._look_later(group_id, before.again_at - now)
            return
        failed_on = self._failed.of(waiting) if self._state.format >= NODE_FAILURES_FROM else ()
        known = {"group": group_id, "suspended": not waiting, "uids": found.uids, "failed_on": failed_on}
        adopted = found.adopted.model_copy(update=known)
        command = AdoptJob(kind="adopt_job", v=1, key=key, spec=found.spec, adopted=adopted)
        if await self._is_put_off(group_id, waiting, namespace, command, before is not None):
            return
        await self._reports.report_wishes(group_id, waiting, found.wishes)
        await self._send(namespace, command)
        log.debug("group_submitted", group=group_id, job=job, pods=len(waiting))
        self._look_later(group_id, self._note(job, group_id, before))

    def _note(self, job: str, group_id: str, before: SubmitUnderWay | None) -> float:
        """After how many seconds it is sent again, if nothing comes of it."""
        # Doubled up to a bound: the same key is the same job, so that a repeat is harmless, and with thousands of
        # refused groups still not free.
        wait = AGAIN_SECONDS if before is None else min(2 * before.wait, AGAIN_SECONDS_MAX)
        reasons = () if before is None else before.reasons
        self._submitted[job] = SubmitUnderWay(group_id, self._ports.clock.monotonic() + wait, wait, reasons)
        return wait

    async def _is_put_off(
        self, group_id: str, waiting: list[Json], tenant: str, command: AdoptJob, again: bool
    ) -> bool:
        """Whether it has to wait for its tenant's budget or for room in the ledger; then its pods say so."""
        turn = self._gate.against(group_id, tenant, len(command.to_bytes()), again)
        if turn is None:
            return False
        await self._reports.report(group_id, waiting, describe_finding(turn.why.model_copy(update={"numbers": {}})))
        self._look_later(group_id, max(0.0, turn.at - self._ports.clock.monotonic()))
        return True

    def _next_key(self, found: Adoption) -> tuple[str, EndedJob | None]:
        """The first key that no job of before has; or the one of the job that is not to be done again."""
        # The numbers of a group's past are looked up and not remembered: ended jobs are in the state until they are
        # forgotten, and then their keys are free again.
        for generation in range(1, GENERATIONS_MAX):
            key = found.key if generation == 1 else f"{found.key}{GENERATION}{generation}"
            ended = self._state.ended.get(job_id(self._settings.shard, found.group.namespace, key))
            if ended is None or not may_come_again(ended):
                return key, ended
        raise Transient(f"{found.key} has ended {GENERATIONS_MAX} times; its keys are not forgotten yet")

    async def end(self, job: Job, why: OwnerEnded | str) -> None:
        """End a job as its owner has ended, or cancel one that waits; not said again for a while."""
        now = self._ports.clock.monotonic()
        if now < self._cancelled.get(job.job_id, 0.0):
            return
        self._cancelled[job.job_id] = now + AGAIN_SECONDS
        if isinstance(why, OwnerEnded):
            if self._state.format >= OWNER_ENDS_FROM:
                await self._facts.publish(why)
                return
            why = "its owner is complete" if why.reason is None else why.reason.detail
        if job.phase is Phase.QUEUED:
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

"""
Orders about jobs: cancel, hold, release, another class, a checkpoint. One about a job that is nowhere is refused.

It may have overtaken the submit of its job. So it goes on to the committer at once, who knows what is there by then,
and comes to us again a second later; only then is it answered, and a cancel whose job has come meanwhile is sent on
once more. Nobody waits for the answer of an order that wants none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tessera.admission.decide.outcome import Origin, Outcome, Request, refuse_absent_job, refuse_for
from tessera.admission.known_jobs import LONG_SECONDS, SHORT_SECONDS, JobPresence, KnownJobs
from tessera.domain.work.phases import Phase
from tessera.engine.queueing.updates import faults_with_a_run, size_fault
from tessera.kernel.errors import Transient
from tessera.kernel.ports import Delivery, Message
from tessera.kernel.tasks.task_group import gather_all
from tessera_schemas.facts import (
    CancelRequested,
    CheckpointReported,
    HoldRequested,
    JobAdmitted,
    MoveReplied,
    UpdateRequested,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import ResizeRequested, RolesRequested, RolloutRequested, ScaleRequested
from tessera_schemas.views import JobView
from tessera_schemas.work.spec_changes import SpecChanges

ENDED = (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)
JudgedByViews = (
    HoldRequested
    | CheckpointReported
    | MoveReplied
    | UpdateRequested
    | RolesRequested
    | ResizeRequested
    | ScaleRequested
    | RolloutRequested
)
AT_WORK = (Phase.RUNNING, Phase.EVICTING)
"""Phases of a job whose run can have saved its work."""


@dataclass(frozen=True, slots=True)
class Case:
    """One command that could be judged, with what came of it; `identity` makes its fact the same for every repeat."""

    message: Message
    origin: Origin
    outcome: Outcome
    identity: str

    @property
    def taken_in(self) -> JobAdmitted | None:
        """Job that the command takes in; None for a refused one, a dry run and other commands."""
        fact = self.outcome.fact
        return fact if isinstance(fact, JobAdmitted) and not self.outcome.dry_run else None

    @property
    def about_a_job(self) -> Request | None:
        """Order about a job that the command is; None for other commands and for those of adopted jobs."""
        return self.outcome.fact if isinstance(self.outcome.fact, Request) and not self.origin.adopted else None


class Doubtful(Transient):
    """The job is not to be seen yet: the order is passed on, and answered when it comes again."""

    def __init__(self, case: Case) -> None:
        super().__init__(f"{case.outcome.fact.kind}: its job is not known yet")
        self.case = case


class Orders:
    def __init__(self, jobs: KnownJobs) -> None:
        self._jobs = jobs

    async def checked(
        self, batch: Sequence[Delivery], results: Sequence[object], answered: Sequence[bool], patient: bool = True
    ) -> list[object]:
        """
        The results, where those about jobs that are not there are refused or, when `patient`, looked at again later.

        Only those are checked whose sender is to be `answered`.
        """
        checked = list(results)
        orders = {
            index: case
            for index, case in enumerate(results)
            if isinstance(case, Case) and case.about_a_job is not None and answered[index]
        }
        last = {index for index in orders if not patient or batch[index].deliveries > 1}
        found = await self._look(orders)
        absent = {index: orders[index] for index, seen in found.items() if seen is JobPresence.ABSENT}
        complete = bool(absent) and await self._jobs.caught_up(LONG_SECONDS if last & absent.keys() else SHORT_SECONDS)
        found |= await self._look(absent)
        for index, case in orders.items():
            if found[index] is JobPresence.SOMEBODY_ELSES or (
                found[index] is JobPresence.ABSENT and index in last and complete
            ):
                checked[index] = _refused(case)
            elif found[index] is JobPresence.ABSENT and index not in last:
                checked[index] = Doubtful(case)
            elif (why := await self._why_not(case)) is not None:
                checked[index] = replace(case, outcome=refuse_for(case.outcome, case.origin, why))
            elif found[index] is JobPresence.THERE and batch[index].deliveries > 1:
                checked[index] = _once_more(case)
        return checked

    async def _why_not(self, case: Case) -> Reason | None:
        """Reason why the committer would pass over the order, as far as the views know."""
        fact = case.about_a_job
        if not isinstance(fact, JudgedByViews):
            return None
        return await self._jobs.find_refusal(fact.job_id, partial(_against, fact))

    async def _look(self, orders: Mapping[int, Case]) -> dict[int, JobPresence]:
        asked = [case.about_a_job for case in orders.values()]
        looks = [self._jobs.look(order.job_id, order.tenant) for order in asked if order is not None]
        return dict(zip(orders, await gather_all(*looks), strict=True))


def _refused(case: Case) -> Case:
    return replace(case, outcome=refuse_absent_job(case.outcome, case.origin))


def _against(fact: JudgedByViews, job: JobView) -> Reason | None:
    """
    Reason against a tenant's release of an operator's hold, a word of a run that is not there, a shift between
    the roles or a resize of none, what no run gets any more, and what no service gets, or none that is over.
    """
    if isinstance(fact, ScaleRequested):
        return _against_scale(fact.replicas, job)
    if isinstance(fact, RolloutRequested):
        return _against_scale(None, job)
    if isinstance(fact, UpdateRequested):
        return _against_update(fact.changes, job)
    if isinstance(fact, HoldRequested):
        held = fact.undo and fact.tenant and job.operator_hold
        return Reason(code=Code.HELD_BY_OPERATOR, field="job_id") if held else None
    if isinstance(fact, RolesRequested | ResizeRequested):  # all else is for the committer to judge
        return None if job.phase == Phase.RUNNING else Reason(code=Code.NOT_RUNNING, field="job_id", detail=job.phase)
    if job.phase not in AT_WORK:
        return Reason(code=Code.NOT_RUNNING, field="job_id", detail=job.phase)
    if fact.attempt not in (0, job.attempt):
        numbers = {"attempt": job.attempt, "said": fact.attempt}
        return Reason(code=Code.NOT_RUNNING, field="attempt", numbers=numbers)
    return None


def _against_scale(replicas: int | None, job: JobView) -> Reason | None:
    """Reason against so many replicas, or None for as many as it has, of what may be no service, or be over."""
    if job.phase in ENDED:
        return Reason(code=Code.ALREADY_ENDED, field="job_id", detail=job.phase)
    least, most = (job.array.min_replicas, job.array.max_replicas) if job.array is not None else (0, 0)
    return size_fault(least, most, least if replicas is None else replicas)


def _against_update(changes: SpecChanges, job: JobView) -> Reason | None:
    """Reason that the views tell; all others are for the committer to judge."""
    if job.phase in ENDED:
        return Reason(code=Code.ALREADY_ENDED, field="job_id", detail=job.phase)
    as_it_is = {"time_limit_seconds": job.time_limit_seconds, "name": job.name, "after": job.after, "begin_ts": 0}
    news = {field: value for field, value in changes.given.items() if value != as_it_is[field]}
    if job.phase == Phase.QUEUED or not news:
        return None
    return next(iter(faults_with_a_run(job.phase, job.time_limit_seconds, SpecChanges.model_validate(news))), None)


def _once_more(case: Case) -> Case:
    """A cancel that came before its job had nothing to cancel; twice is no more than once. Other orders are not so."""
    if isinstance(case.outcome.fact, CancelRequested):
        return replace(case, identity=f"{case.identity}.again")
    return case

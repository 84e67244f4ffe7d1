"""The outcome of one command: the fact to publish and the answer to its sender. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tessera.admission.decide import verdict
from tessera.admission.decide.amounts import NO_LIMITS, fill_amounts, fill_replicas
from tessera.admission.decide.configuration import find_config_faults
from tessera.admission.decide.gres import fill_gres
from tessera.admission.decide.launching import advise
from tessera.admission.decide.mounts import fill_mounts
from tessera.admission.decide.pods import find_program_faults
from tessera.admission.decide.policy import AdmissionPolicy
from tessera.admission.decide.templates import from_template
from tessera.admission.decide.verdict import fill_session, fill_time_limit
from tessera.domain.devices.costs import most_of_run
from tessera_schemas.base import Strict, job_id
from tessera_schemas.cluster.device_claims import OF_CLASS
from tessera_schemas.cluster.devices import OF_REPLICAS
from tessera_schemas.commands import (
    AdoptJob,
    Answer,
    AnswerMove,
    ApplyConfig,
    CancelJob,
    DrainNode,
    EndReservation,
    GrantBudget,
    HoldJob,
    MoveJob,
    ReleaseJob,
    ReportCheckpoint,
    ReportHealth,
    RequeueJob,
    ReserveNodes,
    ResizePods,
    RollService,
    ScaleService,
    SetPriority,
    ShiftRoles,
    SubmitJob,
    SubmitTemplate,
    TellDataset,
    UpdateJob,
)
from tessera_schemas.facts import (
    BookingAsked,
    BookingEndAsked,
    CancelRequested,
    CheckpointReported,
    ConfigProposed,
    DrainRequested,
    GrantRequested,
    HealthReported,
    HoldRequested,
    JobAdmitted,
    JobRefused,
    MoveReplied,
    MoveRequested,
    PriorityRequested,
    RequeueRequested,
    UpdateRequested,
)
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason, is_temporary
from tessera_schemas.shard.bookings import BookingWish
from tessera_schemas.shard.ledger_form import (
    BOOKINGS_FROM,
    FENCING_FROM,
    GPU_RESOURCES_FROM,
    LENDING_HOURS_FROM,
    MOVES_FROM,
    NODE_TESTS_FROM,
    POOL_PARTS_FROM,
    PRICES_FROM,
    PUBLISHED_DEVICES_FROM,
    QUEUE_NAMES_FROM,
    SPARES_FROM,
    SPENDING_FROM,
)
from tessera_schemas.shard.moves import Moves
from tessera_schemas.shard.records import (
    DatasetTold,
    ResizeRequested,
    RolesRequested,
    RolloutRequested,
    ScaleRequested,
)
from tessera_schemas.text.reading import Parsed, bounded, refusal
from tessera_schemas.work.templates import FromTemplate

BY_POLICY = frozenset(
    {
        Code.NOT_CONFIGURED,
        Code.NO_SUCH_TENANT,
        Code.NO_SUCH_QUEUE,
        Code.QUEUE_NOT_ALLOWED,
        Code.NO_SUCH_TEMPLATE,
        Code.NO_SUCH_PRIORITY_CLASS,
        Code.NO_SUCH_TOPOLOGY_LEVEL,
        Code.PRIORITY_NOT_ALLOWED,
        Code.NOT_GRANTED,
        Code.EXCEEDS_JOB_LIMIT,
        Code.EXCEEDS_MAX_QUOTA,
        Code.INADMISSIBLE,
    }
)
"""What a newer configuration or a new node may lift, so that it is worth looking again before refusing."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_JOB_ID = re.compile(r"[a-z2-7]{20}")

Request = (
    CancelRequested
    | HoldRequested
    | PriorityRequested
    | MoveRequested
    | UpdateRequested
    | RequeueRequested
    | ScaleRequested
    | RolloutRequested
    | RolesRequested
    | ResizeRequested
    | CheckpointReported
    | MoveReplied
)
Fact = (
    JobAdmitted
    | JobRefused
    | Request
    | DrainRequested
    | GrantRequested
    | HealthReported
    | ConfigProposed
    | DatasetTold
    | BookingAsked
    | BookingEndAsked
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a dry run the answer alone counts."""

    fact: Fact
    answer: Answer
    dry_run: bool = False

    @property
    def refused_by_policy(self) -> bool:
        """Tells whether any reason of the answer is one of policy (`BY_POLICY`)."""
        return any(reason.code in BY_POLICY for reason in self.answer.reasons)

    @property
    def refused_for_now(self) -> bool:
        """Tells whether a reason of the answer is temporary, so that the same command may pass later."""
        return is_temporary(self.answer.reasons)


@dataclass(frozen=True, slots=True)
class Origin:
    """
    The origin of a command: the tenant of its subject (`operator` on CONTROL), its sequence there, its trace.

    `adopted`: from the binder, which found it in the tenant's namespace. `by_operator`: from the gateway, for an
    operator who orders about a job of the tenant.
    """

    shard: str
    tenant: str
    seq: int
    trace: str = ""
    adopted: bool = False
    by_operator: bool = False


def is_tenant_name(name: str) -> bool:
    """Tells whether the text is formed like a tenant's name, whether or not there is such a tenant."""
    return _NAME.fullmatch(name) is not None


def needs_policy(parsed: Parsed) -> bool:
    """
    Tells whether the command is judged by the admission policy: jobs, moves and priority changes are, all other
    commands are not.
    """
    return parsed.command is None or isinstance(
        parsed.command, SubmitJob | SubmitTemplate | AdoptJob | SetPriority | MoveJob
    )


def judge_tenant_command(parsed: Parsed, origin: Origin, policy: AdmissionPolicy, now_ms: int = 0) -> Outcome:
    """The outcome of a command on SUBMIT; what the binder adopts is never a dry run, whose answer tells the cost."""
    dry_run = parsed.raw.get("dry_run") is True and not origin.adopted
    outcome = replace(_judge_tenant_command(parsed, origin, policy), dry_run=dry_run)
    if not dry_run or policy.tree is None or not isinstance(outcome.fact, JobAdmitted):
        return outcome
    cost = most_of_run(policy.tree, outcome.fact.spec, now_ms)
    return replace(outcome, answer=outcome.answer.model_copy(update={"notes": (*outcome.answer.notes, *cost)}))


def _judge_tenant_command(parsed: Parsed, origin: Origin, policy: AdmissionPolicy) -> Outcome:
    command = parsed.command
    if command is None:
        return _refused(
            parsed, origin, [*parsed.reasons, *verdict.find_submit_faults(parsed.raw, origin.tenant, policy)]
        )
    if isinstance(command, SubmitJob | AdoptJob):
        spec, notes = _filled(command, origin, policy)
        filled = command if spec is command.spec else command.model_copy(update={"spec": spec})
        against = verdict.find_job_faults(filled, origin.tenant, policy)
        asked = "" if filled is command and not notes else command.spec.digest()
        return _refused(parsed, origin, against) if against else _admitted(filled, origin, notes=notes, asked=asked)
    if isinstance(command, SubmitTemplate):
        made = from_template(command, policy)
        if isinstance(made, tuple):
            return _refused(parsed, origin, [*verdict.mismatch(command.tenant, origin.tenant), *made])
        spec, notes = _filled(made.command, origin, policy)
        filled_job = made.command.model_copy(update={"spec": spec})
        against = verdict.find_job_faults(filled_job, origin.tenant, policy)
        return _refused(parsed, origin, against) if against else _admitted(filled_job, origin, made.source, notes)
    against = verdict.mismatch(parsed.raw.get("tenant"), origin.tenant)
    if isinstance(command, SetPriority):
        against += verdict.find_priority_faults(command.priority_class, origin.tenant, policy)
    if isinstance(command, MoveJob):
        against += verdict.find_queue_faults(command.queue, origin.tenant, policy)
    if isinstance(command, RollService):
        against += find_program_faults(command.programs)
    if against:
        return _refused(parsed, origin, against)
    if isinstance(command, TellDataset):
        told = {"tenant": origin.tenant, "dataset": command.dataset, "places": command.places}
        return Outcome(DatasetTold.model_validate({"kind": "dataset_told", **told}), Answer(accepted=True))
    by_operator = origin.by_operator and not isinstance(command, ReportCheckpoint)
    return _requested(command, "" if by_operator else origin.tenant)


def _filled(command: SubmitJob | AdoptJob, origin: Origin, policy: AdmissionPolicy) -> tuple[JobSpec, tuple[str, ...]]:
    """The spec with what it does not say itself, and notes about that; the time limit of users' own pods is theirs."""
    is_adopted = isinstance(command, AdoptJob)
    limits = NO_LIMITS if policy.tree is None or is_adopted else policy.tree.limits_of(origin.tenant)
    spec, notes = fill_amounts(command.spec, policy.tree, policy.pools.nodes, limits, as_made=is_adopted)
    if isinstance(command, AdoptJob):
        return spec, notes
    spec, limited = fill_time_limit(spec, origin.tenant, policy.tree)
    spec, culled = fill_session(spec, policy.tree)
    spec, mounted = fill_mounts(spec, origin.tenant, policy.tree)
    spec, claimed = fill_gres(spec, policy.tree)
    if spec.attach_to is not None:
        spec = spec.model_copy(update={"attach_to": spec.attach_to.by_id(origin.shard, origin.tenant)})
    spec = fill_replicas(spec)
    return spec, (*notes, *limited, *culled, *mounted, *claimed, *advise(spec, policy.tree, policy.pools.nodes))


def format_needed(parsed: Parsed) -> int:
    """The ledger format from which on a committer can read what the command asks for; 0: any can."""
    command = parsed.command
    if isinstance(command, ReserveNodes):
        return BOOKINGS_FROM
    if not isinstance(command, ApplyConfig):
        return 0
    parts = any(quota.part_percent is not None for queue in command.body.queues for quota in queue.quotas)
    classes = any(q.resource.startswith(OF_CLASS) for queue in command.body.queues for q in queue.quotas)
    needs = (
        LENDING_HOURS_FROM * any(queue.lending for queue in command.body.queues),
        POOL_PARTS_FROM * parts,
        bool(command.body.queue_names) * QUEUE_NAMES_FROM,
        FENCING_FROM * (command.body.fencing is not None),
        PUBLISHED_DEVICES_FROM * (classes or bool(command.body.gres)),
        GPU_RESOURCES_FROM * any(pool.device_profile in OF_REPLICAS for pool in command.body.pools),
        SPARES_FROM * any(pool.spare_nodes for pool in command.body.pools),
        NODE_TESTS_FROM * (command.body.health is not None and command.body.health.test is not None),
        MOVES_FROM * bool(command.body.policy.move_answer_seconds or command.body.policy.moves != Moves()),
    )
    return max(*needs, bool(command.body.money) * PRICES_FROM, bool(command.body.budgets) * SPENDING_FROM)


def judge_operator_command(parsed: Parsed, origin: Origin, committer_format: int | None = None) -> Outcome:
    """The outcome of a command on CONTROL; `committer_format` is what the committer knows, None if nobody says."""
    command = parsed.command
    if command is None:
        return _refused(parsed, origin, list(parsed.reasons))
    against = find_config_faults(command.body) if isinstance(command, ApplyConfig) else []
    if committer_format is not None and committer_format < format_needed(parsed):
        is_config = isinstance(command, ApplyConfig)
        field, what = ("queues.quotas", "a part of the pool") if is_config else ("", "a reservation")
        detail = f"{what}; a scheduler of an earlier version leads, replace it first (docs/upgrade.md)"
        against.append(refusal(Code.UNAVAILABLE, field, detail))
    if isinstance(command, RollService):
        against += find_program_faults(command.programs)
    if against:
        return _refused(parsed, origin, against)
    if isinstance(command, ApplyConfig):
        return _proposed(command)
    fact = _fact_of_shard(command)
    return _requested(command, getattr(command, "tenant", None) or "") if fact is None else Outcome(fact, TAKEN)


TAKEN = Answer(accepted=True)


def _fact_of_shard(command: Strict) -> Fact | None:
    """The fact that an operator, or an agent, says something of nodes or budgets; None for an order about a job."""
    match command:
        case DrainNode():
            node, evict, undo, why = command.node, command.evict, command.undo, command.why
            return DrainRequested(kind="drain_requested", node=node, evict=evict, undo=undo, why=why)
        case ReserveNodes():
            wish = BookingWish.model_validate(command.model_dump(exclude={"kind", "v", "why", "by"}))
            return BookingAsked(kind="booking_asked", wish=wish, why=command.why, by=command.by)
        case EndReservation():
            return BookingEndAsked(kind="booking_end_asked", name=command.name)
        case ReportHealth():
            return HealthReported(kind="health_reported", **command.model_dump(exclude={"kind", "v"}))
        case GrantBudget():
            return GrantRequested(kind="grant_requested", **command.model_dump(exclude={"kind", "v"}))
    return None


def _requested(command: Strict, tenant: str) -> Outcome:
    """The fact that somebody wants something of a job; `tenant` is empty when an operator does."""
    whose: dict[str, Any] = {"job_id": getattr(command, "job_id", ""), "tenant": tenant}
    fact: Request
    match command:
        case CancelJob():
            fact = CancelRequested(kind="cancel_requested", why=command.why, now=command.now, **whose)
        case HoldJob():
            fact = HoldRequested(kind="hold_requested", **whose)
        case ReleaseJob():
            fact = HoldRequested(kind="hold_requested", undo=True, **whose)
        case SetPriority():
            fact = PriorityRequested(kind="priority_requested", priority_class=command.priority_class, **whose)
        case MoveJob():
            fact = MoveRequested(kind="move_requested", queue=command.queue, **whose)
        case UpdateJob():
            fact = UpdateRequested(kind="update_requested", changes=command.changes, **whose)
        case RequeueJob():
            fact = RequeueRequested(kind="requeue_requested", **whose)
        case ScaleService() | RollService() | ShiftRoles() | ResizePods():
            fact = _resized(command, whose)
        case ReportCheckpoint() | AnswerMove():
            fact = _said_of_run(command, whose)
        case _:
            raise TypeError(f"{type(command).__name__} asks nothing of a job")
    return Outcome(fact, Answer(accepted=True, job_id=fact.job_id))


def _said_of_run(command: ReportCheckpoint | AnswerMove, whose: Mapping[str, Any]) -> CheckpointReported | MoveReplied:
    """Words of the job's own program about the run that there is."""
    if isinstance(command, AnswerMove):
        return MoveReplied(kind="move_replied", accept=command.accept, attempt=command.attempt, **whose)
    at: dict[str, Any] = {"path": command.path, "attempt": command.attempt, "at": command.at}
    return CheckpointReported(kind="checkpoint_reported", **whose, **at)


def _resized(
    command: ScaleService | RollService | ShiftRoles | ResizePods, whose: Mapping[str, Any]
) -> ScaleRequested | RolloutRequested | RolesRequested | ResizeRequested:
    if isinstance(command, ResizePods):
        return ResizeRequested(kind="resize_requested", size=command.size, key=command.key, **whose)
    if isinstance(command, ScaleService):
        return ScaleRequested(kind="scale_requested", replicas=command.replicas, **whose)
    if isinstance(command, RollService):
        return RolloutRequested.model_validate({"kind": "rollout_requested", **whose, **command.wish})
    steps: dict[str, Any] = {"roles": command.roles, "key": command.key, "have": command.have}
    return RolesRequested(kind="roles_requested", **whose, **steps)


def _admitted(
    command: SubmitJob | AdoptJob,
    origin: Origin,
    template: FromTemplate | None = None,
    notes: tuple[str, ...] = (),
    asked: str = "",
) -> Outcome:
    job = job_id(origin.shard, origin.tenant, command.key)
    fact = JobAdmitted(
        kind="job_admitted",
        job_id=job,
        tenant=origin.tenant,
        key=command.key,
        spec=command.spec,
        adopted=command.adopted if isinstance(command, AdoptJob) else None,
        held=isinstance(command, SubmitJob) and command.held,
        template=template,
        trace=origin.trace,
        asked=asked,
        notes=command.notes if isinstance(command, SubmitJob) else (),
    )
    return Outcome(fact, Answer(accepted=True, job_id=job, notes=notes))


def _proposed(command: ApplyConfig) -> Outcome:
    expected, body = command.expected_version, command.body
    fact = ConfigProposed(kind="config_proposed", expected_version=expected, body=body, abandon=command.abandon)
    return Outcome(fact, Answer(accepted=True))


def _refused(parsed: Parsed, origin: Origin, against: list[Reason]) -> Outcome:
    job, name = _named(parsed, origin)
    fact = _refusal_of(job, name, bounded(against), origin)
    return Outcome(fact, Answer(accepted=False, job_id=job, reasons=fact.reasons))


def _refusal_of(job: str, name: str, why: tuple[Reason, ...], origin: Origin) -> JobRefused:
    fields: dict[str, Any] = {"source_seq": origin.seq, "trace": origin.trace}
    return JobRefused(kind="job_refused", tenant=origin.tenant, job_id=job, name=name, reasons=why, **fields)


def refuse_for(outcome: Outcome, origin: Origin, why: Reason) -> Outcome:
    """The outcome of a command that is refused for `why` alone; the record of a refused job command names no job."""
    admitted = outcome.fact if isinstance(outcome.fact, JobAdmitted) else None
    job, name = (admitted.job_id, admitted.spec.name) if admitted else ("", "")
    answer = Answer(accepted=False, job_id=outcome.answer.job_id, reasons=(why,))
    return Outcome(_refusal_of(job, name, (why,), origin), answer, outcome.dry_run)


def refuse_absent_job(outcome: Outcome, origin: Origin) -> Outcome:
    """
    The outcome of a command about an absent job or another tenant's; the answer is the same for both.

    The record names no job: it is public to the sender's tenant, and the job may be another's.
    """
    reasons = (refusal(Code.NO_SUCH_JOB, "job_id"),)
    fact = JobRefused(
        kind="job_refused", tenant=origin.tenant, reasons=reasons, source_seq=origin.seq, trace=origin.trace
    )
    return Outcome(fact, Answer(accepted=False, job_id=outcome.answer.job_id, reasons=reasons))


def _named(parsed: Parsed, origin: Origin) -> tuple[str, str]:
    """The job's id and name as far as the input gives them in a form that can be trusted."""
    raw = parsed.raw
    named, key, spec = raw.get("job_id"), raw.get("key"), raw.get("spec")
    name = spec.get("name") if isinstance(spec, dict) else raw.get("name")
    job = named if isinstance(named, str) and _JOB_ID.fullmatch(named) else ""
    if isinstance(key, str) and _KEY.fullmatch(key):
        job = job_id(origin.shard, origin.tenant, key)
    return job, name if isinstance(name, str) and _NAME.fullmatch(name) else ""

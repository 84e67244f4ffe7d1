"""
Requests and answers of the API as pydantic models; `openapi.json` is made from them.

Requests forbid unknown fields. Answers only ever gain optional ones, and say as of which ledger record they hold.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, JsonValue, create_model

from tessera_schemas.base import Count, JobId, Key, Lenient, Name, Strict, later
from tessera_schemas.commands import (
    AnswerMove,
    ApplyConfig,
    CancelJob,
    ChosenValues,
    DrainNode,
    MoveJob,
    ReportCheckpoint,
    RequeueJob,
    ReserveNodes,
    ScaleService,
    SetPriority,
    SubmitJob,
    SubmitTemplate,
)
from tessera_schemas.config import Config
from tessera_schemas.events import BudgetSpentV1
from tessera_schemas.job import CheckpointPath, JobSpec
from tessera_schemas.reasons import PublicReason
from tessera_schemas.shard.quotes import StartQuote
from tessera_schemas.views import JobView, LineStart, NodeView, QueueView, ShareView
from tessera_schemas.work.short_form import full_job
from tessera_schemas.work.spec_changes import PodSize, RoleSizes, RoleSteps, ShiftKey, SpecChanges
from tessera_schemas.work.templates import Parameter

Body = TypeVar("Body", bound=Strict)

AsOf = Annotated[int, Field(description="Ledger number as of which the answer holds")]


ADDRESS = ("kind", "v", "job_id", "tenant", "dataset")
# Fields of a command that no body has: the path says what is ordered of which job or data set, the token for whom.


def says(*commands: type[Strict], unjudged: bool = False) -> Callable[[type[Body]], type[Body]]:
    """Decorator of a body: beside its own it has the fields of commands, as the contract has them or as any JSON."""

    def with_fields(body: type[Body]) -> type[Body]:
        found = {name: field for command in commands for name, field in command.model_fields.items()}
        more: Any = {
            name: (JsonValue, None) if unjudged else (field.annotation, field)
            for name, field in found.items()
            if name not in {*ADDRESS, *body.model_fields}
        }
        return create_model(body.__name__, __base__=body, __doc__=body.__doc__, __module__=__name__, **more)

    return with_fields


@says(SubmitTemplate, SubmitJob)
class SubmitBody(Strict):
    """
    A job and the key under which it may be sent again; the header `Idempotency-Key` says the key as well.

    Either its whole `spec`, or a `template` of the configuration with its parameters and what it lets be said.
    """

    key: Key | None = None
    spec: JobSpec | None = None
    template: Name | None = None


@says(SubmitTemplate, SubmitJob, unjudged=True)
class SubmitEnvelope(Strict):
    """The body of a submit as far as the gateway reads it: the job is admission's to judge, with all reasons."""

    key: Key | None = None
    spec: dict[str, Any] | None = None
    template: JsonValue = None

    def command(self, key: str, tenant: str) -> dict[str, Any]:
        """The command to send, its spec in full form; what the client left out stays out. Raises ShortFormError."""
        kind = "submit_job" if self.template is None else "submit_template"
        said = {field: value for field, value in self.model_dump().items() if value is not None}
        if self.spec is not None:
            said["spec"] = full_job(self.spec)
        return {"kind": kind, "v": 1, "tenant": tenant, **said, "key": key}


@says(ReportCheckpoint)
class CheckpointBody(Strict):
    """Path of the program's saved work; `attempt` is its TESSERA_ATTEMPT, so that an old run speaks for itself."""

    path: CheckpointPath  # first, as a refusal names the faults of fields in their order
    attempt: Annotated[int | None, Field(ge=1, strict=True)] = None


@says(AnswerMove)
class AnswerBody(Strict):
    """Answer of a job that is asked to move; `attempt` is its TESSERA_ATTEMPT, so that an old run answers nothing."""

    attempt: Annotated[int | None, Field(ge=1, strict=True)] = None


@says(CancelJob)
class CancelBody(Strict):
    """Cancel request; with `now` a running job gets no checkpoint notice, and loses what is left of one."""


class CancelJobsBody(CancelBody):
    """Cancel of many jobs at once."""

    jobs: Annotated[tuple[JobId, ...], Field(min_length=1, max_length=1000)]


@says(SetPriority)
class PriorityBody(Strict):
    """The class that a job gets; it must be granted to the job's tenant."""


@says(MoveJob)
class QueueBody(Strict):
    """The queue that a waiting job goes to; the job's tenant must be allowed there."""


@says(ScaleService)
class ScaleBody(Strict):
    """The number of replicas that a service is to have, from its minimum to its maximum."""


class UpdateBody(SpecChanges):
    """New values of fields of a job's spec; what is not said, or null, stays as it is."""


class RolesBody(Strict):
    """Pods that move between the elastic roles of a running job; the header `Idempotency-Key` may say the key."""

    roles: RoleSteps
    have: RoleSizes = Field(default_factory=dict)
    key: ShiftKey | None = None


class SizeBody(PodSize):
    """CPU and memory of each pod of a role of a running job; the header `Idempotency-Key` may say the key."""

    key: ShiftKey | None = None


class ConsequencesBody(Strict):
    """An order that somebody means to give, in the form of the contract's commands; it is not carried out."""

    command: Annotated[
        ApplyConfig | SetPriority | DrainNode | ReserveNodes | CancelJob | RequeueJob | ScaleService,
        Field(discriminator="kind"),
    ]


class NoBody(Strict):
    """An empty body or `{}`."""


class Problem(Lenient):
    """Why a request was refused; `code` is the same word as in events, logs and metrics."""

    code: str
    sentence: str
    field: str = ""
    retry_after: Annotated[
        int | None, Field(description="Seconds until a retry makes sense; also in the header Retry-After")
    ] = None
    reasons: Annotated[tuple[PublicReason, ...], Field(description="All reasons, this one first")] = ()


class StoredSubmit(Lenient):
    """
    The submit is stored and will not be lost; that of a dry run would be admitted, and nothing was stored.

    queued: the ledger has it. existing: it was there before, under the same key. admitted: admission took it, the
    ledger has not answered in time. stored: nobody has answered in time; events tell what becomes of it.
    """

    job_id: str
    key: str
    state: Literal["queued", "existing", "admitted", "stored", "dry_run"]
    as_of: AsOf
    number: Annotated[int, Field(description="Number of the job in its shard; 0 while the ledger has not answered")] = 0
    notes: ChosenValues = ()


class Ordered(Lenient):
    """The request is stored. accepted: admission took it. stored: it has not answered in time."""

    job_id: str
    state: Literal["accepted", "stored"]
    as_of: AsOf


class CancelledJob(Lenient):
    """The cancel of one of many jobs. accepted and stored as for one alone; refused: why it is not cancelled."""

    job_id: str
    state: Literal["accepted", "stored", "refused"]
    reason: PublicReason | None = None


class CancelledJobs(Lenient):
    """Outcome of the cancel of each job, in the order in which they were named."""

    as_of: AsOf
    items: tuple[CancelledJob, ...]


class OneJob(Lenient):
    as_of: AsOf
    job: JobView
    quote: Annotated[StartQuote | None, Field(description="When it starts, of a job that waits for GPUs")] = None


class JobPage(Lenient):
    """Some jobs, maybe none, while `next` is there; without `next` these are the last."""

    as_of: AsOf
    items: tuple[JobView, ...]
    next: str | None = None
    count: Annotated[int | None, Field(description="Number of all jobs that match, where it was asked for")] = later(
        None
    )


class JobGroup(Lenient):
    """Live jobs that have something in common."""

    name: Annotated[str, Field(description="Tenant, or code of the reason; empty where no reason was found yet")]
    running: Annotated[int, Field(description="Number of jobs that hold devices")]
    waiting: Annotated[int, Field(description="Number of queued jobs")]
    gpu_milli: Annotated[int, Field(description="GPUs held, in thousandths")]
    wanted_milli: Annotated[int, Field(description="GPUs that queued jobs ask for, in thousandths")]
    oldest_ts: Annotated[int, Field(description="Submit of the oldest queued job, in ms since the epoch; 0: none")]


class IdleGroup(Lenient):
    """Running jobs of a tenant in a queue that were warned that they use none of their GPUs."""

    tenant: str
    queue: str
    jobs: Annotated[int, Field(description="Number of the jobs")]
    gpu_milli: Annotated[int, Field(description="GPUs held by them, in thousandths")]


class WorkGroups(Lenient):
    """
    Live jobs by tenant, queued jobs by reason, and jobs that hold GPUs and use none; most GPUs first. Tasks count,
    their array does not.
    """

    as_of: AsOf
    tenants: tuple[JobGroup, ...]
    reasons: tuple[JobGroup, ...]
    idle: tuple[IdleGroup, ...] = ()


class ShownConfig(Lenient):
    """Configuration in force; version 0 and no body before the first one."""

    as_of: AsOf
    config: Config


class Me(Lenient):
    """Whom a token speaks for."""

    tenant: Annotated[
        str, Field(description="Name of the tenant; empty for an operator, who sees all and submits nothing")
    ] = ""
    user: Annotated[str, Field(description="User to whom the token is bound: who submits; empty for none")] = ""


class NodeList(Lenient):
    as_of: AsOf
    items: tuple[NodeView, ...]


_BUDGET = BudgetSpentV1.model_fields


class BudgetStanding(Lenient):
    """One budget in this month; amounts are millionths of `unit`, a currency or GPU-hours."""

    budget: Annotated[str, Field(description=_BUDGET["budget"].description)]
    unit: str
    month: Annotated[str, Field(description=_BUDGET["month"].description)]
    until_ts: Annotated[int, Field(description=_BUDGET["until_ts"].description)]
    spent_micros: int
    limit_micros: Annotated[int, Field(description="Most of this month, with what was granted")]
    granted_micros: int
    expected_micros: Annotated[int, Field(description="Spent at the month's end if runs hold on what they hold now")]
    before_micros: Annotated[int, Field(description="Spent in the month before")]
    percent: int
    when_spent: Annotated[str, Field(description=_BUDGET["when_spent"].description)]
    is_spent: bool


class BudgetList(Lenient):
    as_of: AsOf
    items: tuple[BudgetStanding, ...]


class ServiceRow(Lenient):
    """
    A service with its replicas, each a job: one that was submitted, or users' own object with a guaranteed minimum.

    Of users' objects only those replicas are known that are there: `replicas` is their number.
    """

    name: Annotated[str, Field(description="Kind and name: service/chat, Deployment/chat")]
    tenant: str
    queue: Annotated[str, Field(description="Queue of its replicas; of several the first by name")]
    job_id: Annotated[str, Field(description="Job to scale; empty for users' own objects, which their owners scale")]
    replicas: Annotated[int, Field(description="Replicas that it is to have")]
    running: int
    waiting: Annotated[int, Field(description="Replicas that wait for room")]
    min_replicas: Annotated[int, Field(description="Replicas that no plan stops")]
    guaranteed: Annotated[int, Field(description="Of those that run, how many no plan stops now")] = 0
    max_replicas: Annotated[int, Field(description="Most replicas; 0: not known here")]
    gpu_milli: Annotated[int, Field(description="GPU that its replicas hold, in thousandths")]
    why: Annotated[str, Field(description="Reason of the first replica that waits; empty where none does")] = ""
    revision: Annotated[int, Field(description="Revision of what its replicas run, from 1; 0: not known here")] = 0
    renewed: Annotated[int, Field(description="Replicas of this revision that run")] = 0
    rollout: Annotated[
        Literal["", "rolling", "stopped"], Field(description="Rollout that goes on, or stopped; empty: none or done")
    ] = ""


class ServiceList(Lenient):
    as_of: AsOf
    items: tuple[ServiceRow, ...]


class QueueList(Lenient):
    as_of: AsOf
    items: tuple[QueueView, ...]


class LinePlace(Lenient):
    """A job that waits in line. Of another tenant's only place, queue, size and wait are told."""

    pool: str
    position: Annotated[Count, Field(description="Position within the pool, from 1")]
    queue: str
    gpu_milli: int
    submitted_ts: int
    job_id: str = ""
    name: str = ""
    tenant: str = ""
    user: Annotated[str, Field(description="User within the tenant, where the job names one")] = ""
    why: Annotated[str, Field(description="Last recorded reason to wait; empty before the first")] = ""
    earlier_ms: Annotated[
        int, Field(description="Milliseconds since the submit spent in earlier runs, not in waiting")
    ] = 0
    expected_start: Annotated[LineStart | None, Field(description="Expected start; left out where unknown")] = None
    quote: Annotated[StartQuote | None, Field(description="When it starts; left out where unknown")] = None
    borrows: Annotated[bool, Field(description="Whether it is beyond the nominal quotas above it")] = False


class QueueLine(Lenient):
    """The next jobs of each pool, at most 512 of one, as of `ts`."""

    as_of: AsOf
    ts: int
    items: tuple[LinePlace, ...]


class ShareList(Lenient):
    """Shares as of `ts`; `half_life_seconds` is 0 where only what is held now counts."""

    as_of: AsOf
    ts: int
    half_life_seconds: int
    items: tuple[ShareView, ...]


class TemplateView(Lenient):
    """A template that may be submitted by name: its parameters, and further fields that may be set."""

    name: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    overrides: tuple[str, ...] = ()


class TemplateList(Lenient):
    as_of: AsOf
    items: tuple[TemplateView, ...]


class ShownHolder(Lenient):
    """
    A run that holds something the job waits for, or (`kept`) a job for which room is kept; `text` says it in words.

    Of other tenants' jobs the names are "". Times are 0 where a run has not started, or nobody knows its end.
    """

    text: str
    name: str = ""
    run_id: str = ""
    job_id: str = ""
    queue: str = ""
    since_ts: int = 0
    until_ts: int = 0
    stopping: bool = False
    kept: bool = False


class ShownChange(Lenient):
    """One change after which the job would start at once; `kind` is one word for programs."""

    kind: str
    text: str
    nodes: tuple[str, ...]
    after: tuple[str, ...] = ()
    role: str = ""
    value: str = ""
    submittable: Annotated[
        bool,
        Field(description="Whether the change is one of the job's spec, shown by `spec`; else a person has to act"),
    ] = False


class SpecDifference(Lenient):
    """A field by its path, with its value in the job's spec and in the changed one."""

    field: str
    before: JsonValue
    after: JsonValue


class ShownSpec(Lenient):
    """The full spec of a job, with the change that was asked for; it may be submitted as it is."""

    as_of: AsOf
    job_id: str
    spec: JobSpec
    differences: tuple[SpecDifference, ...] = ()


class ClassValue(Lenient):
    """A priority class; higher goes first."""

    name: str
    value: int


class JobClasses(Lenient):
    """The class of a job, and those that it may get, the highest first; none where Kubernetes sets its priority."""

    as_of: AsOf
    job_id: str
    priority_class: str
    classes: tuple[ClassValue, ...]


class Explained(Lenient):
    """
    Why a job stands where it stands, recomputed from the state; names of other tenants are left out.

    `notes` are all sentences beside the first; `said`, `others`, `holders` and `changes` have them apart. `tried` is
    how many changes were tried. `quote` says when a job that waits starts, left out where that is not known.
    """

    as_of: AsOf
    taken_n: Annotated[Count, Field(description="Ledger number that took the job in; 0: unknown")] = 0
    job_id: str
    name: str
    phase: str
    sentence: str
    reason: PublicReason | None = None
    position: Count = 0
    in_line: Count = 0
    notes: tuple[str, ...] = ()
    queue: str = ""
    pool: str = ""
    others: tuple[PublicReason, ...] = ()
    said: tuple[str, ...] = ()
    holders: tuple[ShownHolder, ...] = ()
    other_holders: tuple[str, ...] = ()
    changes: tuple[ShownChange, ...] = ()
    tried: Count = 0
    quote: StartQuote | None = None


class StoppedWork(Lenient):
    """
    A run that an order would stop, or with `pods` so many pods of an elastic run.

    Of another tenant's the id, name, tenant and queue are "". `lost_gpu_seconds` are those since it last saved or
    started.
    """

    job_id: str
    run_id: str
    name: str
    tenant: str
    queue: str
    gpu_milli: int
    lost_gpu_seconds: int
    code: Annotated[str, Field(description="Reason that its job is told")]
    pods: Count = 0


class ExceededPromise(Lenient):
    """Nominal quotas that an order makes larger than the pool's capacity, or that of its nodes of the flavor."""

    pool: str
    flavor: str
    resource: str
    promised: int
    capacity: int
    queues: tuple[str, ...]


class ToldConsequences(Lenient):
    """
    Consequences of an order, if it were carried out now; `sentences` say all of it for people.

    Sums are of all runs, of which the `stopped` lose most; `at_least`: too many wait to try all.
    """

    as_of: AsOf
    sentences: tuple[str, ...]
    runs: Annotated[int, Field(description="Number of runs that would be stopped or shrunk")]
    gpu_milli: int
    lost_gpu_seconds: int
    at_least: bool
    stopped: Annotated[tuple[StoppedWork, ...], Field(description="The first 100")]
    promises: tuple[ExceededPromise, ...]

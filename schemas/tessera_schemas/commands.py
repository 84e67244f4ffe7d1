"""
Commands: submit and control on SUBMIT (from tenants), configuration and control on CONTROL (from operators), and, on a
part of SUBMIT of its own, adoption of users' work in Kubernetes (from the binder).

The tenant is the subject's, which the server enforces; a `tenant` in the payload must agree with it.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter

from tessera_schemas.base import (
    LATE,
    Count,
    JobId,
    JobName,
    Key,
    Lenient,
    Name,
    NodeName,
    Notes,
    Sentence,
    Strict,
    all_printable,
    printable,
)
from tessera_schemas.cluster.health import ReportedAilments, Source
from tessera_schemas.cluster.node_terms import ToldPlaces
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import CheckpointAt, CheckpointPath, JobSpec, LabelValue
from tessera_schemas.reasons import PublicReason, Reason
from tessera_schemas.shard.bookings import BookingWish
from tessera_schemas.work.adopted import Adopted
from tessera_schemas.work.arrays import ServiceReplicas
from tessera_schemas.work.budgets import BudgetName, Month, WholeUnits
from tessera_schemas.work.spec_changes import PodSize, RoleSizes, RoleSteps, RolloutWish, ShiftKey, SpecChanges
from tessera_schemas.work.templates import ParameterName, Value, digest_of


class SubmitJob(Strict):
    """Take this job in, once, however often it is sent with this key."""

    kind: Literal["submit_job"]
    v: Literal[1]
    key: Key
    tenant: Name | None = None
    spec: JobSpec
    held: Annotated[bool, Field(description="Hold the job: no start before its release")] = False
    dry_run: Annotated[bool, Field(description="Judge and answer without taking the job in")] = False
    notes: Annotated[
        Notes,
        AfterValidator(all_printable),
        Field(description="Sentences for the job's story, such as options that a script lost"),
    ] = ()

    def digest(self) -> str:
        """Hash of what was sent: the same key with another is another job's."""
        return self.spec.digest()


class SubmitTemplate(Strict):
    """Take in the job that a template of the configuration makes of these parameters, once, as with `SubmitJob`."""

    kind: Literal["submit_template"]
    v: Literal[1]
    key: Key
    tenant: Name | None = None
    template: Name
    parameters: Annotated[dict[ParameterName, Value], Field(max_length=64)] = Field(default_factory=dict)
    name: Annotated[
        JobName | None,
        Field(description="Name of the job, where the template lets users set it; likewise the fields below"),
    ] = None
    queue: Name | None = None
    priority_class: Name | None = None
    user: Annotated[LabelValue | None, Field(description="User within the tenant, in place of the template's")] = None
    project: Annotated[
        LabelValue | None, Field(description="Project within the tenant, where the template has none")
    ] = None
    held: Annotated[bool, Field(description="Hold the job: no start before its release")] = False
    dry_run: Annotated[bool, Field(description="Judge and answer without taking the job in")] = False

    @property
    def overrides(self) -> dict[str, str]:
        """Values that the submit sets beside the parameters."""
        said = {"name": self.name, "queue": self.queue, "priority_class": self.priority_class}
        said |= {"user": self.user, "project": self.project}
        return {field: value for field, value in said.items() if value is not None}

    def digest(self) -> str:
        """Hash of what was asked, whatever the template made of it: the same key with another is a conflict."""
        return digest_of({"template": self.template, "parameters": self.parameters, **self.overrides})


class AdoptJob(Strict):
    """Take this in as a job of the tenant whose namespace it is in, once, however often it is sent with this key."""

    kind: Literal["adopt_job"]
    v: Literal[1]
    key: Key
    spec: JobSpec
    adopted: Adopted


class CancelJob(Strict):
    kind: Literal["cancel_job"]
    v: Literal[1]
    job_id: JobId
    tenant: Name | None = None
    why: Sentence = ""
    now: Annotated[bool, Field(description="Stop without the rest of the checkpoint notice")] = False


class HoldJob(Strict):
    """Keep a queued job from starting."""

    kind: Literal["hold_job"]
    v: Literal[1]
    job_id: JobId
    tenant: Name | None = None


class ReleaseJob(Strict):
    """Let a held job start again."""

    kind: Literal["release_job"]
    v: Literal[1]
    job_id: JobId
    tenant: Name | None = None


class SetPriority(Strict):
    """Give a job another priority class; its place in line follows it."""

    kind: Literal["set_priority"]
    v: Literal[1]
    job_id: JobId
    priority_class: Name
    tenant: Name | None = None


class MoveJob(Strict):
    """Let a waiting job wait in another queue, with all tasks of an array that have not started."""

    kind: Literal["move_job"]
    v: Literal[1]
    job_id: JobId
    queue: Name
    tenant: Name | None = None


class UpdateJob(SpecChanges):
    """
    Change the spec of a waiting job, with all tasks of an array that have not started; of a run, lower its time limit.
    """

    kind: Literal["update_job"]
    v: Literal[1]
    job_id: JobId
    tenant: Name | None = None

    @property
    def changes(self) -> SpecChanges:
        """The fields that change, apart from whose they are."""
        return SpecChanges.model_validate(self.given)


class RequeueJob(Strict):
    """Stop the job's run, with its notice, and put the job back in line without an attempt spent; what waits stays."""

    kind: Literal["requeue_job"]
    v: Literal[1]
    job_id: JobId
    tenant: Name | None = None


class ScaleService(Strict):
    """Give a service another number of replicas, from its minimum to its maximum."""

    kind: Literal["scale_service"]
    v: Literal[1]
    job_id: JobId
    replicas: Annotated[ServiceReplicas, Field(description="Number of replicas that the service is to have")]
    tenant: Name | None = None


class RollService(RolloutWish):
    """Give a service's replicas another program, one after the other."""

    kind: Literal["roll_service"]
    v: Literal[1]
    job_id: JobId
    tenant: Name | None = None


class ShiftRoles(Strict):
    """Move pods between the elastic roles of the job's run: what some give up the others get, and nobody else."""

    kind: Literal["shift_roles"]
    v: Literal[1]
    job_id: JobId
    roles: RoleSteps
    key: ShiftKey
    have: RoleSizes = Field(default_factory=dict)
    tenant: Name | None = None


class ResizePods(PodSize):
    """Give the pods of a role of the job's run other CPU and memory in place: no pod of it is stopped."""

    kind: Literal["resize_pods"]
    v: Literal[1]
    job_id: JobId
    key: ShiftKey
    tenant: Name | None = None


class ReportCheckpoint(Strict):
    """The job's program has saved its work here: stopping it now loses only what comes after."""

    kind: Literal["report_checkpoint"]
    v: Literal[1]
    job_id: JobId
    path: CheckpointPath
    attempt: Annotated[Count, Field(description="Attempt of the run that saved; 0: the present run")] = 0
    tenant: Name | None = None
    at: Annotated[
        CheckpointAt,
        AfterValidator(printable),
        Field(description="Marker of one checkpoint among several at a path, such as a step"),
    ] = ""


class AnswerMove(Strict):
    """Answer for the job's run, which is asked to move: it does, or it stays where it is."""

    kind: Literal["answer_move"]
    v: Literal[1]
    job_id: JobId
    accept: Annotated[bool, Field(description="Whether the run moves; false: it stays")]
    attempt: Annotated[Count, Field(description="Attempt of the run that answers; 0: the present run")] = 0
    tenant: Name | None = None


class TellDataset(ToldPlaces):
    """Say which nodes have a data set of the tenant, and which have it no more."""

    kind: Literal["tell_dataset"]
    v: Literal[1]
    dataset: Name
    tenant: Name | None = None

    @property
    def places(self) -> ToldPlaces:
        """The nodes, apart from whose data set it is."""
        return ToldPlaces(size_bytes=self.size_bytes, nodes=self.nodes, gone=self.gone)


class DrainNode(Strict):
    """
    Let nothing new start on a node; with `evict`, what runs there restarts elsewhere. `undo` makes it common again.
    """

    kind: Literal["drain_node"]
    v: Literal[1]
    node: NodeName
    evict: bool = False
    undo: bool = False
    why: Sentence = ""


class ReportHealth(Strict):
    """
    Say all that is wrong with a node now, as one source sees it, in place of what that source said before.

    Without `ailments` the node is well again as far as the source can tell.
    """

    kind: Literal["report_health"]
    v: Literal[1]
    node: NodeName
    source: Source
    ailments: ReportedAilments = ()
    by: Annotated[Sentence, Field(description="Person or agent who reports, as the sender says")] = ""


class GrantBudget(Strict):
    """
    Add to a budget for one month. `granted` is what the sender knows to be granted for it already, so that a command
    that is sent twice, or beside another one, adds nothing twice.
    """

    kind: Literal["grant_budget"]
    v: Literal[1]
    budget: BudgetName
    month: Month
    amount: Annotated[WholeUnits, Field(description="Whole units of the currency, or GPU-hours, as the budget is in")]
    granted: Annotated[Count, Field(description="Whole units granted for the month so far")] = 0
    why: Annotated[Sentence, Field(min_length=1, description="Reason, for the record")]
    by: Annotated[Sentence, Field(description="Person who grants, as the sender says")] = ""


class ReserveNodes(BookingWish):
    """Keep nodes in windows of time, once by this name. `by` is the person who asks, as the sender says."""

    kind: Literal["reserve_nodes"]
    v: Literal[1]
    why: Sentence = ""
    by: Sentence = ""


class EndReservation(Strict):
    """Keep the nodes of a reservation no longer."""

    kind: Literal["end_reservation"]
    v: Literal[1]
    name: Name


class ApplyConfig(Strict):
    """
    Make this the configuration if it was made from version `expected_version`.

    A configuration that takes away what live jobs name is refused, unless an entry says that it `was` that name.
    """

    kind: Literal["apply_config"]
    v: Literal[1]
    expected_version: Count
    body: ConfigBody
    abandon: Annotated[
        bool,
        Field(description="Also remove entries that live jobs name: running jobs go on, waiting jobs do not start"),
    ] = False


JobCommand = (
    CancelJob
    | HoldJob
    | ReleaseJob
    | SetPriority
    | MoveJob
    | UpdateJob
    | RequeueJob
    | ScaleService
    | RollService
    | ShiftRoles
    | ResizePods
)
AnyTenantCommand = SubmitJob | SubmitTemplate | ReportCheckpoint | AnswerMove | TellDataset | JobCommand
AnyClusterCommand = AdoptJob | CancelJob
AnyOperatorCommand = ApplyConfig | DrainNode | ReportHealth | GrantBudget | ReserveNodes | EndReservation | JobCommand
TenantCommand = Annotated[AnyTenantCommand, Field(discriminator="kind")]
OperatorCommand = Annotated[AnyOperatorCommand, Field(discriminator="kind")]

TENANT_COMMAND: TypeAdapter[AnyTenantCommand] = TypeAdapter(TenantCommand, config=LATE)

REPLY_HEADER = "Tessera-Reply"
"""Where the client wants its answer: a subject below `_INBOX.<tenant>.`; anything else is not answered."""
END_HEADER = "Tessera-Tell-End"
"""With any value: a submit that repeats one whose job has ended already is answered with that end."""


class JobEnd(Lenient):
    """End of a job."""

    phase: str
    reason: PublicReason | None = None


ChosenValues = Annotated[tuple[str, ...], Field(description="Sentences about values chosen where the job gave none")]


class Answer(Lenient):
    """Admission's answer to the client's inbox: accepted, or all reasons why not."""

    accepted: bool
    job_id: str = ""
    reasons: tuple[Reason, ...] = ()
    ended: Annotated[JobEnd | None, Field(description="How the job of a repeated submit ended, if the submit asks")] = (
        None
    )
    existing: Annotated[
        bool,
        Field(description="Whether the ledger already had the job with this spec; set if the submit asks for its end"),
    ] = False
    number: Annotated[int, Field(description="Number of an existing job")] = 0
    notes: ChosenValues = ()

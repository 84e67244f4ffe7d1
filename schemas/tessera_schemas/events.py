"""
Public events: CloudEvents 1.0 in structured JSON, on `events.<shard>.<tenant>.<queue>.<type>`.

Those of nodes and pools are the operator's, with the pool in the queue's place; no tenant is called so.

Readers ignore unknown fields. An optional field may be added within a version; anything else is a new class and
subject. `id` is the ledger cursor `n.i`, so an event seen twice is the same event.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tessera_schemas.base import Lenient
from tessera_schemas.cluster.health import PublicKnownAilment
from tessera_schemas.reasons import PublicReason
from tessera_schemas.work.arrays import Dependency
from tessera_schemas.work.measured_use import PublicMeasuredUse
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.run_steps import PublicRunSteps

PREFIX = "io.tessera."
CONTENT_TYPE = "application/cloudevents+json"
CURSOR_HEADER = "Tessera-Cursor"


EVENT_TYPES: list[type["PublicEvent"]] = []
"""Every type of event, in the order of this page."""


def short_types() -> list[str]:
    """The types of all events that there are, as filters say them."""
    return [short_type(event.type) for event in EVENT_TYPES]


class PublicEvent(Lenient):
    """The `data` of an event; `type` is its CloudEvents type."""

    type: ClassVar[str]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "type" in vars(cls):
            EVENT_TYPES.append(cls)

    def to_data(self) -> dict[str, object]:
        """The event as the envelope's `data`."""
        return self.model_dump(mode="json", exclude_defaults=True)


class JobEvent(PublicEvent):
    job_id: str
    name: str = ""
    queue: str = ""


class RunEvent(JobEvent):
    attempt: Annotated[int, Field(ge=0, description="Attempt of the job; events of an older attempt may be ignored")]


class JobAdmittedV1(JobEvent):
    """The job is in the ledger and waits for its turn."""

    type: ClassVar[str] = "io.tessera.job.admitted.v1"
    key: str
    gpu_milli: int = 0
    pods: int = 0
    array: Annotated[str, Field(description="Id of a task's array")] = ""
    task: Annotated[int, Field(description="Index of a task")] = 0
    tasks: Annotated[int, Field(description="Number of tasks of an array")] = 0
    number: Annotated[int, Field(description="Number of the job in the shard, from 1")] = 0
    digest: Annotated[str, Field(description="Beginning of the digest of what was sent; empty for a task")] = ""
    notes: Annotated[tuple[str, ...], Field(description="Sentences about the submit by its sender")] = ()


class JobRefusedV1(PublicEvent):
    """The input had no effect; these are all the reasons."""

    type: ClassVar[str] = "io.tessera.job.refused.v1"
    job_id: str = ""
    name: str = ""
    reasons: tuple[PublicReason, ...]
    repeats: Annotated[int, Field(description="Number of further refusals that this event stands for")] = 0
    key: Annotated[str, Field(description="Key of a submit that the ledger turned away")] = ""
    digest: Annotated[str, Field(description="Beginning of the digest of what was sent with it")] = ""
    conflicts_with: Annotated[
        str, Field(description="Job that has this key with another spec; its details are not told")
    ] = ""


class JobWaitingV1(JobEvent):
    """The dominant reason why the job does not start has changed."""

    type: ClassVar[str] = "io.tessera.job.waiting.v1"
    reason: PublicReason


class JobAllocatedV1(RunEvent):
    """Every pod of the gang has a node and its devices; nothing runs until it is bound."""

    type: ClassVar[str] = "io.tessera.job.allocated.v1"
    placements: Annotated[
        tuple[Placement, ...], Field(min_length=1, description="One placement per pod, in rank order")
    ]


class JobBindingV1(RunEvent):
    """Every pod exists and may be bound; with `ranks`, these pods that an elastic run grew by."""

    type: ClassVar[str] = "io.tessera.job.binding.v1"
    ranks: tuple[int, ...] = ()


class JobBoundV1(RunEvent):
    """Every pod is bound to its node."""

    type: ClassVar[str] = "io.tessera.job.bound.v1"


class JobRunningV1(RunEvent):
    """Every pod has started."""

    type: ClassVar[str] = "io.tessera.job.running.v1"


class JobEvictingV1(RunEvent):
    """The run is being stopped; its devices stay held until `job.released`."""

    type: ClassVar[str] = "io.tessera.job.evicting.v1"
    reason: PublicReason
    by: Annotated[
        str, Field(description="Cause: a job of the same tenant, tenant or operator; other tenants' jobs are not named")
    ] = ""
    steps: Annotated[PublicRunSteps | None, Field(description="Steps of the run, where it ended by itself")] = None


class JobSparedV1(RunEvent):
    """The run that was to be stopped goes on: nothing of it had been stopped, and the plan could not be carried out."""

    type: ClassVar[str] = "io.tessera.job.spared.v1"
    reason: PublicReason


class JobStopHeldBackV1(RunEvent):
    """The run seems lost, and so do too many others at once: it goes on until an operator says that it is."""

    type: ClassVar[str] = "io.tessera.job.stop-held-back.v1"
    reason: PublicReason


class JobGrownV1(RunEvent):
    """The elastic run gets these pods besides those it has."""

    type: ClassVar[str] = "io.tessera.job.grown.v1"
    placements: Annotated[tuple[Placement, ...], Field(min_length=1, description="Placements in rank order")]


class JobShrunkV1(RunEvent):
    """Some pods of the elastic run are being stopped; the others go on."""

    type: ClassVar[str] = "io.tessera.job.shrunk.v1"
    ranks: tuple[int, ...]
    reason: PublicReason
    by: Annotated[str, Field(description="As in `job.evicting`")] = ""


class JobGroupRestartedV1(RunEvent):
    """A pod of a copy of a group of the run failed: the pods of this copy start again, and the others go on."""

    type: ClassVar[str] = "io.tessera.job.group-restarted.v1"
    group: str
    copy_number: Annotated[int, Field(description="Number of the copy among those of its group, from 0")] = 0
    ranks: tuple[int, ...]
    reason: PublicReason
    count: Annotated[int, Field(description="Restarts of the copy since it last held")]
    not_before: Annotated[int, Field(description="End of its pause, in milliseconds since the Unix epoch")] = 0


class ResizeEvent(RunEvent):
    """A size of the pods of one role, in CPU and memory; sidecars and init containers are included."""

    role: Annotated[str, Field(description="Role of the pods")]
    cpu_milli: Annotated[int, Field(description="CPU of each pod in thousandths of a core")]
    memory_bytes: Annotated[int, Field(description="Memory of each pod in bytes")]
    request: Annotated[str, Field(description="Key of the request to resize")] = ""


class JobResizingV1(ResizeEvent):
    """The pods of a role are to have this size in place; the run goes on meanwhile."""

    type: ClassVar[str] = "io.tessera.job.resizing.v1"
    by: Annotated[str, Field(description="Tenant that asked, or `operator`")] = ""


class JobResizedV1(ResizeEvent):
    """The pods of a role have this size; with a reason, a new one was refused, and they go back to this one."""

    type: ClassVar[str] = "io.tessera.job.resized.v1"
    reason: Annotated[PublicReason | None, Field(description="Why the resize was refused")] = None


class JobReleasedV1(RunEvent):
    """The run's devices are free; with `ranks`, those of these pods."""

    type: ClassVar[str] = "io.tessera.job.released.v1"
    ranks: tuple[int, ...] = ()
    steps: Annotated[PublicRunSteps | None, Field(description="Steps of the run, where it was stopped")] = None
    gpu_use: Annotated[PublicMeasuredUse | None, Field(description="Use of the run's GPUs, as far as measured")] = None


class CostEvent(RunEvent):
    """A run is over: what all runs of its job have cost up to then, where there are prices."""

    cost_micros: Annotated[int | None, Field(description="Cost of all runs, in millionths of the currency's unit")] = (
        None
    )
    currency: str = ""


class JobRequeuedV1(CostEvent):
    """The job waits for another attempt. What the run itself cost is what it has beyond that of the attempt before."""

    type: ClassVar[str] = "io.tessera.job.requeued.v1"
    not_before: Annotated[int, Field(description="Earliest next attempt, in milliseconds since the Unix epoch")]
    reason: PublicReason
    strike: Annotated[bool, Field(description="Whether the run counts against the job's attempts")] = True


class JobHeldV1(JobEvent):
    """The job does not start until `job.unheld`; a run of it goes on."""

    type: ClassVar[str] = "io.tessera.job.held.v1"
    by: str = ""


class JobUnheldV1(JobEvent):
    """The job may start again."""

    type: ClassVar[str] = "io.tessera.job.unheld.v1"
    by: str = ""


class JobReprioritizedV1(JobEvent):
    """From here on the job stands in line with this priority class."""

    type: ClassVar[str] = "io.tessera.job.reprioritized.v1"
    priority_class: str


class JobMovedV1(JobEvent):
    """From here on the job is of this queue; a run of it goes on."""

    type: ClassVar[str] = "io.tessera.job.moved.v1"
    from_queue: str = ""
    by: Annotated[
        str, Field(description="Tenant that asked, or `operator`; empty: the queue replaced the former one")
    ] = ""


class JobUpdatedV1(JobEvent):
    """From here on fields of the job's spec have these values; what is not said stays."""

    type: ClassVar[str] = "io.tessera.job.updated.v1"
    time_limit_seconds: Annotated[int | None, Field(description="New time limit in seconds; 0: none")] = None
    after: Annotated[tuple[Dependency, ...] | None, Field(description="New conditions on other jobs; may be empty")] = (
        None
    )
    begin_ts: Annotated[
        int | None, Field(description="New earliest start in milliseconds since the Unix epoch; 0: none")
    ] = None
    from_name: Annotated[str, Field(description="Former name, where `name` is new")] = ""
    by: Annotated[str, Field(description="Tenant that asked, or `operator`")] = ""


class JobWarnedV1(RunEvent):
    """The run holds GPUs and uses none; by policy it may be stopped for that."""

    type: ClassVar[str] = "io.tessera.job.warned.v1"
    idle_seconds: Annotated[int, Field(description="Idle seconds; 0: the GPUs are in use again")] = 0


class JobSessionWarnedV1(RunEvent):
    """The session stops about then, since nobody uses it; or it is in use again, and `stops_ts` is 0."""

    type: ClassVar[str] = "io.tessera.job.session-warned.v1"
    user: Annotated[str, Field(description="User of the session within its tenant, where known")] = ""
    action: Annotated[str, Field(description="What happens then: `pause` or `end`")] = ""
    stops_ts: Annotated[
        int,
        Field(description="When it stops if unused, in milliseconds since the Unix epoch; 0: in use again"),
    ] = 0


class JobStalledV1(RunEvent):
    """The run's pods report no progress, or some of them less than the others; without a reason: they do again."""

    type: ClassVar[str] = "io.tessera.job.stalled.v1"
    reason: Annotated[PublicReason | None, Field(description="How the run stalls; null: it goes on")] = None
    nodes: Annotated[tuple[str, ...], Field(description="Nodes of the pods that are behind")] = ()
    held_back: Annotated[
        bool, Field(description="Whether it goes on only because too many runs would be stopped at once")
    ] = False


class JobMoveOfferedV1(RunEvent):
    """The run is asked to stop here and start elsewhere, so that a job that waits finds its room in one piece."""

    type: ClassVar[str] = "io.tessera.job.move-offered.v1"
    by: Annotated[str, Field(description="Job that waits for the room; another tenant's job is not named")] = ""
    deadline: Annotated[int, Field(description="End of the time to answer, in milliseconds since the Unix epoch")]
    net_gpu_seconds: Annotated[
        int, Field(description="GPU time that all moves for that job gain together, less what they lose")
    ] = 0
    lost_gpu_seconds: Annotated[
        int, Field(description="GPU time that this run would lose now; a checkpoint makes it less")
    ] = 0


class JobMoveAnsweredV1(RunEvent):
    """The run that was asked to move agrees, or stays; it moves only once that still helps the job that waits."""

    type: ClassVar[str] = "io.tessera.job.move-answered.v1"
    how: Annotated[str, Field(description="`accepted`, `vetoed`, `checkpoint` (a new one) or `silence` (no answer)")]
    moves: bool = False


class JobMoveWithdrawnV1(RunEvent):
    """The run that was asked to move goes on where it is."""

    type: ClassVar[str] = "io.tessera.job.move-withdrawn.v1"
    reason: PublicReason


class JobMoveScoredV1(JobEvent):
    """The job for which runs were moved has started, or has gone: what was foretold of that, and what came of it."""

    type: ClassVar[str] = "io.tessera.job.move-scored.v1"
    predicted_gain_gpu_seconds: int = 0
    predicted_lost_gpu_seconds: int = 0
    gained_gpu_seconds: Annotated[int, Field(description="Of the foretold gain, less what the job waited since")] = 0
    lost_gpu_seconds: Annotated[
        int, Field(description="Work that was not saved, and time until the runs ran again")
    ] = 0


class JobRolloutV1(JobEvent):
    """A service begins to replace its replicas by those of another revision, has done so, or stops since they fail."""

    type: ClassVar[str] = "io.tessera.job.rollout.v1"
    state: Annotated[str, Field(description="`begun`, `done` or `stopped`")]
    revision: Annotated[int, Field(description="Number of the revision; 1 is the submitted one")]
    reason: Annotated[PublicReason | None, Field(description="Why it stopped")] = None


class JobSavedV1(RunEvent):
    """The work of the run is saved up to now."""

    type: ClassVar[str] = "io.tessera.job.saved.v1"
    path: Annotated[str, Field(description="Path of the checkpoint, if the program reported one")] = ""


class JobEarmarkedV1(JobEvent):
    """Room is made and kept for the job; it starts there once the runs that still hold it are gone."""

    type: ClassVar[str] = "io.tessera.job.earmarked.v1"
    cause: str
    deadline: Annotated[int, Field(description="End of the reservation, in milliseconds since the Unix epoch")]
    placements: Annotated[
        tuple[Placement, ...], Field(min_length=1, description="One placement per pod, in rank order")
    ]
    runs_stopping: Annotated[int, Field(description="Number of runs stopped to make room for this job")] = 0
    preset: Annotated[str, Field(description="Preemption preset that allowed it")] = ""


class JobUnearmarkedV1(JobEvent):
    """The job's earmark has ended; `used`: it starts there now."""

    type: ClassVar[str] = "io.tessera.job.unearmarked.v1"
    why: str


class JobSucceededV1(CostEvent):
    type: ClassVar[str] = "io.tessera.job.succeeded.v1"
    steps: Annotated[PublicRunSteps | None, Field(description="Steps of the run")] = None


class JobFailedV1(CostEvent):
    type: ClassVar[str] = "io.tessera.job.failed.v1"
    reason: PublicReason | None = None
    exit_code: int | None = None


class JobCancelledV1(CostEvent):
    type: ClassVar[str] = "io.tessera.job.cancelled.v1"
    reason: PublicReason | None = None


class SizeLeft(Lenient):
    """Number of pods of so many whole GPUs that could start now, and the most in one domain of each topology level."""

    gpus: int
    slots: int
    largest: dict[str, int] = Field(default_factory=dict)


class ClusterFragmentationV1(PublicEvent):
    """
    Free slots of a pool have changed noticeably; for operators, and at most once per `fragmentation_event_seconds`.

    `stranded` says what keeps idle GPUs from use, in thousandths of a GPU; its sum is `idle_gpu_milli`.
    """

    type: ClassVar[str] = "io.tessera.cluster.fragmentation.v1"
    pool: str
    gpus: int = 0
    idle_gpu_milli: int = 0
    sizes: tuple[SizeLeft, ...] = ()
    stranded: dict[str, int] = Field(default_factory=dict)


class BudgetEvent(PublicEvent):
    budget: Annotated[str, Field(description="Kind and name of whose it is, as `tenant/vision`")]
    month: Annotated[str, Field(description="Month in UTC, as `2026-12`")]
    percent: int
    spent_micros: Annotated[int, Field(description="Spent in this month, in millionths of `unit`")]
    limit_micros: Annotated[int, Field(description="Most of this month with what was granted, in millionths of `unit`")]
    unit: Annotated[str, Field(description="Currency, or GPU-hours")]
    when_spent: Annotated[str, Field(description="last, hold or refuse: what becomes of new work once it is spent")]


class BudgetWarnedV1(BudgetEvent):
    """80 percent of a budget are spent. To its tenant; of a queue that several tenants use to operators."""

    type: ClassVar[str] = "io.tessera.budget.warned.v1"


class BudgetSpentV1(BudgetEvent):
    """A budget is spent; `until_ts` is when its month ends. To its tenant, or to operators."""

    type: ClassVar[str] = "io.tessera.budget.spent.v1"
    until_ts: Annotated[int, Field(description="End of the month, in milliseconds since the Unix epoch")] = 0


class NodeEvent(PublicEvent):
    """A change of a node, told to operators alone."""

    node: str
    pool: Annotated[str, Field(description="Pool of the node; empty where the node is no more")] = ""


class NodeHealthChangedV1(NodeEvent):
    """Health of the node as known from here on; without `ailments` it is well, or is no more."""

    type: ClassVar[str] = "io.tessera.node.health-changed.v1"
    ailments: Annotated[tuple[PublicKnownAilment, ...], Field(description="All that is known to be wrong with it")] = ()
    overruled: Annotated[bool, Field(description="An operator has said that it is good")] = False
    held_back: Annotated[bool, Field(description="Too many nodes of its pool are kept out for their health")] = False


class NodeDrainEvent(NodeEvent):
    why: str = ""
    by: Annotated[str, Field(description="`health` if its health keeps it out; empty: an operator does")] = ""


class NodeDrainedV1(NodeDrainEvent):
    """Drain of the node: nothing new starts there."""

    type: ClassVar[str] = "io.tessera.node.drained.v1"


class NodeUndrainedV1(NodeDrainEvent):
    """The node is open again."""

    type: ClassVar[str] = "io.tessera.node.undrained.v1"


class NodeFenceAskedV1(NodeEvent):
    """The webhook is asked to turn off the node, which does not answer or is sick."""

    type: ClassVar[str] = "io.tessera.node.fence-asked.v1"
    request: Annotated[str, Field(description="Idempotency key of the request")]
    why: str = ""
    by: Annotated[str, Field(description="Operator who asked; empty: nobody had to")] = ""
    cause: Annotated[
        str | None, Field(description="Cause for which the health of the node asks for it; null: it does not answer")
    ] = None


class NodeFenceEndedV1(NodeEvent):
    """The request to turn off the node has ended; with outcome `off` nothing runs there."""

    type: ClassVar[str] = "io.tessera.node.fence-ended.v1"
    request: Annotated[str, Field(description="Idempotency key of the request")]
    outcome: Annotated[str, Field(description="`off`, `failed`, `back`, `gone` or `undone`")]
    detail: str = ""
    by: Annotated[str, Field(description="Operator who took it back")] = ""


class PublicWindow(Lenient):
    start_ts: int
    end_ts: int


class ReservationEvent(PublicEvent):
    """A change of a reservation, told to each tenant that it is for; of one for maintenance to operators."""

    name: Annotated[str, Field(description="Name of the reservation")]
    pool: str = ""
    who: Annotated[tuple[str, ...], Field(description="Of the tenant itself: it, or users as TENANT/USER")] = ()


class ReservationMadeV1(ReservationEvent):
    """Nodes are kept in windows of time; all of the pool without `nodes`."""

    type: ClassVar[str] = "io.tessera.reservation.made.v1"
    windows: tuple[PublicWindow, ...] = ()
    nodes: tuple[str, ...] = ()
    why: str = ""
    job: Annotated[str, Field(description="Id of the job whose start in time is promised so; empty: none")] = ""
    price_gpu_ms: Annotated[
        int, Field(description="Price of the promise in thousandths of a GPU times milliseconds")
    ] = 0
    price_micros: Annotated[int, Field(description="Price of the promise in millionths of the currency's unit")] = 0


class ReservationRefusedV1(ReservationEvent):
    """A reservation that was asked for is not made; told to operators, who ask for them."""

    type: ClassVar[str] = "io.tessera.reservation.refused.v1"
    reason: PublicReason | None = None


class ReservationChangedV1(ReservationEvent):
    """Nodes that were lost before a window are replaced."""

    type: ClassVar[str] = "io.tessera.reservation.changed.v1"
    lost: tuple[str, ...] = ()
    found: Annotated[tuple[str, ...], Field(description="In their place; none where the others have enough")] = ()


class ReservationUnservedV1(ReservationEvent):
    """Nodes are missing, and none is there in their place; without any it is whole again."""

    type: ClassVar[str] = "io.tessera.reservation.unserved.v1"
    missing: tuple[str, ...] = ()


class ReservationEndedV1(ReservationEvent):
    """
    Its last window is `over`, or an operator has `asked` for its end.

    A promise is `kept`, or `broken` for the `reason` and its price given back, or `dropped` with its job.
    """

    type: ClassVar[str] = "io.tessera.reservation.ended.v1"
    why: str = ""
    job: Annotated[str, Field(description="Id of the job whose start in time was promised; empty: none")] = ""
    reason: PublicReason | None = None


class CloudEvent(Lenient):
    """The envelope; attributes as CloudEvents 1.0 names them, extensions in lower case."""

    specversion: Literal["1.0"]
    id: str
    source: str
    type: str
    subject: str
    time: str
    datacontenttype: str = "application/json"
    dataschema: str
    tenant: str
    sequence: Annotated[str, Field(description="Ledger number, zero-padded for sorting")]
    causationid: Annotated[str, Field(description="Transaction id of the ledger message")] = ""
    traceparent: str = ""
    data: dict[str, object]


def short_type(type_: str) -> str:
    """The subject's tail: `io.tessera.job.allocated.v1` becomes `job.allocated.v1`."""
    return type_.removeprefix(PREFIX)

"""
Facts: what a service saw and the committer takes into the ledger. Each kind has exactly one allowed service.

A kind is declared in one place: its class, with who may send it.

A fact not yet taken in exists for nobody. The service is the subject's second token, which the server enforces.
"""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, StringConstraints, TypeAdapter, field_validator, model_validator

from tessera_schemas.base import Count, JobId, Key, Millis, Name, NodeName, Notes, Positive, RunId, Strict, Text, Uid
from tessera_schemas.cluster import device_facts as device_facts
from tessera_schemas.cluster import mig_changes as mig_changes
from tessera_schemas.cluster.device_layouts import NodeOffer, NumaZones
from tessera_schemas.cluster.device_vendors import IsDefault, OfferedResource
from tessera_schemas.cluster.devices import DeviceProfile, GpuUuids, ShareSize, ToldDatasets
from tessera_schemas.cluster.mig import GEOMETRIES, resource_of
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import REPLICAS_MAX, CheckpointAt, CheckpointPath, JobSpec, LabelKey, LabelValue, RoleReach
from tessera_schemas.reasons import Reason
from tessera_schemas.shard.bookings import BookingAsked as BookingAsked
from tessera_schemas.shard.bookings import BookingEndAsked as BookingEndAsked
from tessera_schemas.shard.health_records import HealthReported as HealthReported
from tessera_schemas.shard.health_records import HealthSeen as HealthSeen
from tessera_schemas.shard.moves import MoveReplied as MoveReplied
from tessera_schemas.shard.records import FACTS as FACTS
from tessera_schemas.shard.records import AnyFact as AnyFact
from tessera_schemas.work.adopted import Adopted, Service
from tessera_schemas.work.budgets import BudgetName, Month, WholeUnits
from tessera_schemas.work.measured_use import MeasuredUse
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.run_steps import RunSteps
from tessera_schemas.work.spec_changes import SpecChanges
from tessera_schemas.work.templates import FromTemplate

TraceParent = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?$")]
Ranks = Annotated[tuple[Count, ...], Field(max_length=REPLICAS_MAX)]
PlanCause = Literal["preemption", "reclaim", "defragment"]

PLANNERS: dict[str, str] = {"preemption": "preemption", "reclaim": "reclamation", "defragment": "reclamation"}
"""Which service may propose a plan of which cause."""


class JobAdmitted(AnyFact, sender="admission"):
    """
    Admission found nothing against this job; limits that count are the committer's to check.

    With `adopted` it is what users made in Kubernetes; without, it was submitted.
    """

    kind: Literal["job_admitted"]
    job_id: JobId
    tenant: Name
    key: Key
    spec: JobSpec
    adopted: Adopted | None = None
    held: bool = False
    template: Annotated[FromTemplate | None, Field(description="Template from which the spec was expanded")] = None
    trace: TraceParent = ""
    asked: Annotated[str, Field(description="Digest of the spec as sent, where admission filled fields in")] = ""
    notes: Annotated[Notes, Field(description="Sentences about the submit by its sender, told in the job's story")] = ()

    def digest(self) -> str:
        """Hash of what was sent: the same key with another is another job's."""
        return self.template.asked if self.template is not None else self.asked or self.spec.digest()


class NodeTestProposed(JobAdmitted, sender="reclamation"):
    """A test job for a suspected node, by the configuration's `health.test`: it runs there or nowhere."""

    kind: Literal["node_test_proposed"]  # type: ignore[assignment]  # a job as any other to all who read how it came
    node: NodeName


class JobRefused(AnyFact, sender="admission"):
    """The audit record of input that has no other effect. `repeats` more were refused and not recorded each."""

    kind: Literal["job_refused"]
    tenant: Name
    job_id: str = ""
    name: str = ""
    reasons: Annotated[tuple[Reason, ...], Field(min_length=1, max_length=64)]
    repeats: Count = 0
    source_seq: Count = 0
    trace: TraceParent = ""


class CancelRequested(AnyFact, sender="admission"):
    """`tenant` is empty when an operator asked."""

    kind: Literal["cancel_requested"]
    job_id: JobId
    tenant: str = ""
    why: Text = ""
    now: Annotated[bool, Field(description="Stop without the rest of the checkpoint notice")] = False


class HoldRequested(AnyFact, sender="admission"):
    """Keep the job from starting, or with `undo` let it start again. `tenant` is empty when an operator asked."""

    kind: Literal["hold_requested"]
    job_id: JobId
    tenant: str = ""
    undo: bool = False


class PriorityRequested(AnyFact, sender="admission"):
    """Admission found that the tenant may use the class."""

    kind: Literal["priority_requested"]
    job_id: JobId
    priority_class: Name
    tenant: str = ""


class MoveRequested(AnyFact, sender="admission"):
    """Admission found that the tenant may use the queue. `tenant` is empty when an operator asked."""

    kind: Literal["move_requested"]
    job_id: JobId
    queue: Name
    tenant: str = ""


class UpdateRequested(AnyFact, sender="admission"):
    """Change these fields of the job's spec, of an array with its tasks that wait. `tenant`: empty for an operator."""

    kind: Literal["update_requested"]
    job_id: JobId
    changes: SpecChanges
    tenant: str = ""


class RequeueRequested(AnyFact, sender="admission"):
    """Stop the job's run and put the job back in line, of an array all that runs. `tenant`: empty for an operator."""

    kind: Literal["requeue_requested"]
    job_id: JobId
    tenant: str = ""


class CheckpointReported(AnyFact, sender="admission"):
    """
    The owner of a job says that its run `attempt` (0: the one there is) has saved its work.

    The same `path` again is new with another `at`, or a minute after the run's last checkpoint.
    """

    kind: Literal["checkpoint_reported"]
    job_id: JobId
    tenant: Name
    path: CheckpointPath
    attempt: Count = 0
    at: Annotated[CheckpointAt, Field(description="Marker of one of several checkpoints at a path, as a step")] = ""


class DrainRequested(AnyFact, sender="admission"):
    """An operator wants the node empty (`evict`: now; else as its runs end), or common again (`undo`)."""

    kind: Literal["drain_requested"]
    node: NodeName
    evict: bool = False
    undo: bool = False
    why: Text = ""


class GrantRequested(AnyFact, sender="admission"):
    """An operator adds to a budget for a month; `granted` is what was granted for it before. Whole units all."""

    kind: Literal["grant_requested"]
    budget: BudgetName
    month: Month
    amount: WholeUnits
    granted: Count = 0
    why: Text
    by: Text = ""


class ConfigProposed(AnyFact, sender="admission"):
    """An operator wants this configuration; with `abandon` also where it takes away what live jobs name."""

    kind: Literal["config_proposed"]
    expected_version: Count
    body: ConfigBody
    abandon: bool = False


class PodsMade(AnyFact, sender="binder"):
    """Every pod of the run but late ones exists, unbound; UIDs in rank order. With `ranks`, late or further ones."""

    kind: Literal["pods_made"]
    run_id: RunId
    uids: Annotated[tuple[Uid, ...], Field(min_length=1)]
    ranks: Ranks = ()


class PodsBound(AnyFact, sender="binder"):
    kind: Literal["pods_bound"]
    run_id: RunId


class BindFailed(AnyFact, sender="binder"):
    """
    Kubernetes refused to create or bind a pod for good; the run cannot start.

    `within` are roles whose volumes tie them to nodes that the run was not placed on, `nodes` those of unstarted pods.
    """

    kind: Literal["bind_failed"]
    run_id: RunId
    rank: Count
    reason: Reason
    within: Annotated[tuple[RoleReach, ...], Field(max_length=64)] = ()
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=64)] = ()


class StartDelayed(AnyFact, sender="binder"):
    """
    Pods of a bound run have not started yet. `works`: the nodes of all of them work on that, so that it may take its
    time. Else `reason` says why, in the kubelet's words, and `nodes` where; without both nothing is wrong.
    """

    kind: Literal["start_delayed"]
    run_id: RunId
    works: bool = False
    reason: Reason | None = None
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=64)] = ()


class RunStarted(AnyFact, sender="binder"):
    """Every pod of the run runs, or has run. From format 6 on this tells that all are bound, too."""

    kind: Literal["run_started"]
    run_id: RunId


class RunEnded(AnyFact, sender="binder"):
    """
    All pods succeeded (`reason` None; from format 6 on: bound and started, too), or one did not: the gang is over.

    `own`: the program itself failed. `rank` is the pod that ended first, `uid` its UID where a group of it may start
    again, and `oom`: it ran out of memory; `nodes` are of all that ended at once, `steps` its script's, as it told.
    """

    kind: Literal["run_ended"]
    run_id: RunId
    reason: Reason | None = None
    own: bool = False
    exit_code: int | None = None
    rank: Count = 0
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=64)] = ()
    steps: RunSteps | None = None
    uid: Uid | Literal[""] = ""
    oom: bool = False


class EvictionBlocked(AnyFact, sender="binder"):
    """The run is to stop, and a disruption budget forbids to evict a pod of it now; it is tried again and again."""

    kind: Literal["eviction_blocked"]
    run_id: RunId
    reason: Reason


class RunUntouched(AnyFact, sender="binder"):
    """
    No pod of the run was stopped since its revoke at `revoked_ts`, and its plan cannot be carried out now: a disruption
    budget keeps a pod of this run (`kept`), or of another that was to stop for the same job.
    """

    kind: Literal["run_untouched"]
    run_id: RunId
    revoked_ts: Millis
    reason: Reason
    kept: bool = False


REFUSED_PER_TENANT, REFUSED_MAX = 32, 1024
"""So much refused work is shown at most."""


class WorkRefused(AnyFact, sender="binder"):
    """
    Work that users made in Kubernetes and that is not taken in as it is; without `reasons` it is refused no more.

    `group` is by what its pods are found again, and `work_id` is made of it.
    """

    kind: Literal["work_refused"]
    work_id: JobId
    tenant: Name
    group: Annotated[str, StringConstraints(max_length=600, pattern=r"^[\x21-\x7e]*$")]
    owner: Annotated[str, StringConstraints(max_length=320)] = ""
    queue: Annotated[str, StringConstraints(max_length=63)] = ""
    reasons: Annotated[tuple[Reason, ...], Field(max_length=8)] = ()


class PodsBack(AnyFact, sender="binder"):
    """
    All pods of an adopted job, which were its owner's to make again, wait to be placed: it may start again.

    `uids`, `budget` and `service` are theirs, as in `Adopted`; `preemptible` tells whether their owner survives an
    eviction now, None: as before. Whichever is another than before is worth saying of a job in line, too.
    """

    kind: Literal["pods_back"]
    job_id: JobId
    preemptible: bool | None = None
    uids: tuple[Uid, ...] = ()
    budget: str = ""
    service: Service | None = None


class PodsGone(AnyFact, sender="binder"):
    """Pods of a waiting adopted job are missing: nothing is to be allocated to it until all are there again."""

    kind: Literal["pods_gone"]
    job_id: JobId


class OwnerEnded(AnyFact, sender="binder"):
    """The object that an adopted job belongs to says that it is complete, or with `reason` that and why it failed."""

    kind: Literal["owner_ended"]
    job_id: JobId
    reason: Reason | None = None


class PodsFound(AnyFact, sender="binder"):
    """
    Bound pods at work for a waiting job, one for each of its gang, of a run that this ledger lost in a restore.

    `nodes` and `uids` are theirs, in rank order.
    """

    kind: Literal["pods_found"]
    job_id: JobId
    nodes: Annotated[tuple[NodeName, ...], Field(min_length=1)]
    uids: Annotated[tuple[Uid, ...], Field(min_length=1)]


class PodsLost(AnyFact, sender="binder"):
    """
    Surplus pods of an elastic run failed, vanished or could not start, or the owner of an adopted run took pods of its
    gang away since it wants fewer: the run is to go on without them.
    """

    kind: Literal["pods_lost"]
    run_id: RunId
    ranks: Annotated[Ranks, Field(min_length=1)]
    reason: Reason


class Taint(Strict):
    key: LabelKey
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Others(Strict):
    """Use of a node by pods that Tessera does not manage; `devices` are further ones, MIG instances among them."""

    cpu_milli: Count = 0
    memory_bytes: Count = 0
    pods: Count = 0
    gpus: Count = 0
    devices: Annotated[dict[LabelKey, Positive], Field(max_length=64)] = Field(default_factory=dict)


class NodeSeen(AnyFact, sender="binder"):
    """
    A node as the cluster describes it now; `gone` when there is no such node any more.

    `cordoned`: its kubelet is well, and it takes nothing new because somebody said so; it is not `ready` then.
    """

    kind: Literal["node_seen"]
    name: NodeName
    gone: bool = False
    ready: bool = True
    pool: Name = "default"
    cpu_milli: Count = 0
    memory_bytes: Count = 0
    pods: Count = 0
    gpus: Annotated[Count, Field(le=64)] = 0
    gpu_model: Annotated[str, StringConstraints(max_length=63)] = ""
    gpu_memory_bytes: Annotated[Count, Field(description="Memory of each GPU in bytes; 0: unknown")] = 0
    device_profile: DeviceProfile = "whole"
    gpu_uuids: GpuUuids = ()
    mig_geometry: Annotated[str, Field(description="Positions of MIG instances on the GPUs of a `mig` node")] = ""
    mig_instances: Annotated[
        dict[str, Positive],
        Field(max_length=16, description="Number of MIG instances made on a `mig` node; empty: any may be"),
    ] = Field(default_factory=dict)
    trouble: Annotated[Reason | None, Field(description="Fault of the node's devices; it takes no new pods")] = None
    devices: Annotated[dict[LabelKey, Count], Field(max_length=64, description="Further devices, by name")] = Field(
        default_factory=dict
    )
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=256)] = Field(default_factory=dict)
    taints: Annotated[tuple[Taint, ...], Field(max_length=64)] = ()
    others: Others = Others()
    cordoned: bool = False
    capacity: Annotated[
        dict[LabelKey, Count],
        Field(max_length=64, description="Installed devices, GPUs too, where fewer are allocatable for a while"),
    ] = Field(default_factory=dict)
    offer: Annotated[NodeOffer, Field(description="Devices that drivers publish (DRA)")] = NodeOffer()
    gpu_resource: OfferedResource = ""
    gpu_default: IsDefault = True
    share_milli: ShareSize = 0
    zones: Annotated[NumaZones, Field(description="By NUMA zone, where the kubelet keeps each pod within one")] = ()
    datasets: ToldDatasets = ()

    @property
    def extended(self) -> dict[str, int]:
        """Further devices and MIG instances by the node's names; where any may be made, as many as there are slices."""
        if self.mig_instances or not self.mig_geometry:
            return self.devices | {resource_of(profile): count for profile, count in self.mig_instances.items()}
        geometry = GEOMETRIES[self.mig_geometry]
        return self.devices | {resource_of(profile): self.gpus * geometry.slices for profile in geometry.profiles}

    @field_validator("mig_geometry")
    @classmethod
    def _known_geometry(cls, geometry: str) -> str:
        if geometry and geometry not in GEOMETRIES:
            raise ValueError(f"not known; known are {', '.join(GEOMETRIES)}")
        return geometry


class RunAbsent(AnyFact, sender="reclamation"):
    """
    Every pod of the run, or with `ranks` these, is gone or ended by its kubelet: what they held is free.

    Of a gang that goes on only pods are named that succeeded, or that its owner gave up: any other end is the run's.
    `steps` are those of a run that was stopped, as its first pod told of them at its end.
    """

    kind: Literal["run_absent"]
    run_id: RunId
    ranks: Ranks = ()
    steps: RunSteps | None = None


class RunLost(AnyFact, sender="reclamation"):
    """
    A node or device of the run is lost: the run is to be stopped and tried again elsewhere.

    `nodes` are the ones that failed it, which its next attempt avoids while there is room on others. With `ranks`, only
    these surplus pods are lost, and the run goes on without them. `told`: an operator said so of the node, by its taint
    of being out of service. For NodeDrained the node is cordoned, and only a place elsewhere moves the run.
    """

    kind: Literal["run_lost"]
    run_id: RunId
    reason: Reason
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=64)] = ()
    ranks: Ranks = ()
    told: bool = False


class RunIdle(AnyFact, sender="reclamation"):
    """The run has held GPUs and used none for `idle_seconds`; 0: it uses them again."""

    kind: Literal["run_idle"]
    run_id: RunId
    idle_seconds: Count


class RunUsed(AnyFact, sender="reclamation"):
    """Measured use of a run's GPUs since it began; of several such facts the one that covers most time counts."""

    kind: Literal["run_used"]
    run_id: RunId
    use: MeasuredUse


class CheckpointSaved(AnyFact, sender="binder"):
    """The run's program said that its work up to now is saved: stopping it loses only what comes after."""

    kind: Literal["checkpoint_saved"]
    run_id: RunId
    path: Annotated[str, StringConstraints(max_length=1024)] = ""
    at: Annotated[CheckpointAt, Field(description="Marker of one of several checkpoints at a path, as a step")] = ""


class Shrink(Strict):
    """Surplus pods of an elastic run that give their room back."""

    run_id: RunId
    ranks: Annotated[Ranks, Field(min_length=1)]


class Move(Strict):
    """Destination of a run that is evicted to defragment: room that is free already, and earmarked for its job."""

    run_id: RunId
    placements: Annotated[tuple[Placement, ...], Field(min_length=1, description="Placements in rank order")]


class PlanProposed(AnyFact, senders=tuple(dict.fromkeys(PLANNERS.values()))):
    """
    Evict `victims` and shrink elastic runs so that `job_id` can start on `placements`: all of it, or nothing.

    A pure function of (state at `basis_n`, `ts`, engine, policy). The committer refuses it only if a victim no longer
    runs, the placements do not fit at the head once the victims are gone, or a budget is spent. To defragment, each
    victim has its move, and the plan must gain more than it loses.
    """

    kind: Literal["plan_proposed"]
    cause: PlanCause
    job_id: JobId
    basis_n: Count
    ts: Millis
    engine: str
    policy: Count
    preset: str
    victims: Annotated[tuple[RunId, ...], Field(max_length=512)] = ()
    shrinks: Annotated[tuple[Shrink, ...], Field(max_length=512)] = ()
    placements: Annotated[tuple[Placement, ...], Field(min_length=1, description="Placements in rank order")]
    flavor: str = ""
    moves: Annotated[tuple[Move, ...], Field(max_length=64)] = ()
    net_gpu_seconds: Annotated[Count, Field(description="GPU time that moves gain, less what the runs lose")] = 0

    @model_validator(mode="after")
    def _each_victim_moves(self) -> Self:
        moved = tuple(move.run_id for move in self.moves)
        if (self.cause == "defragment") != bool(moved) or (moved and (self.victims != moved or self.shrinks)):
            raise ValueError("moves: to defragment each victim has one, in the same order; nothing else has any")
        return self


PRICES_MAX = 1024
LearntBy = Literal["rehearsed", "auction"]
"""Auction: prices by supply and demand. Rehearsed: of many such auctions the ones that fill an empty cluster best."""


class PricesLearnt(AnyFact, sender="reclamation"):
    """
    Price of a pod of each kind of a pool's mix, in millionths of a GPU.

    The mix is the one that was settled for the `settled`-th time, and `prices` are in the order of its kinds. A pure
    function of that mix and of the pool's nodes in the state at `basis_n`, which have `gpus` in all.
    """

    kind: Literal["prices_learnt"]
    pool: Name
    settled: Positive
    basis_n: Count
    gpus: Positive
    engine: str
    learnt_by: LearntBy
    prices: Annotated[tuple[Count, ...], Field(min_length=1, max_length=PRICES_MAX)]


FACTS.sort(key=lambda fact: fact.__name__)  # what is generated lists them, whoever was imported first

if TYPE_CHECKING:
    Fact = AnyFact
else:
    Fact = Annotated[reduce(or_, FACTS), Field(discriminator="kind")]


def owner(fact: AnyFact) -> str:
    """The one service that may say this."""
    return PLANNERS[fact.cause] if isinstance(fact, PlanProposed) else type(fact).senders[0]


class FactMessage(Strict):
    """A fact as it is stored on `fact.<shard>.<service>.<kind>`."""

    v: Literal[1]
    fact: Fact
    cause: Annotated[str, StringConstraints(max_length=200)] = ""


FACT_MESSAGE: TypeAdapter[FactMessage] = TypeAdapter(FactMessage)

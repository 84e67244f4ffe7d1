"""
The ledger: one message = what was taken in, then the records decided from it, all or nothing.

Messages are chained: `prev` is the chain hash up to the message before, a message's chain hash is H(prev, its JSON).
`ledger_form` is how that is stored. `n` equals the stream sequence. Records are the only thing that changes state.
"""

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from tessera_schemas import events
from tessera_schemas.base import Count, Digest, JobId, Millis, Name, NodeName, Positive, RunId, Strict, Text, Uid
from tessera_schemas.cluster.fencing import FenceAsked as FenceAsked
from tessera_schemas.cluster.fencing import FenceEnded as FenceEnded
from tessera_schemas.cluster.mig_changes import MigChangeBegun as MigChangeBegun
from tessera_schemas.cluster.mig_changes import MigChangeEnded as MigChangeEnded
from tessera_schemas.facts import Fact, Ranks
from tessera_schemas.job import CheckpointAt, RoleReach
from tessera_schemas.reasons import Reason
from tessera_schemas.shard.bookings import Booked as Booked
from tessera_schemas.shard.bookings import BookingEnded as BookingEnded
from tessera_schemas.shard.bookings import BookingRefused as BookingRefused
from tessera_schemas.shard.health_records import HealthNoted as HealthNoted
from tessera_schemas.shard.moves import MoveAnswered as MoveAnswered
from tessera_schemas.shard.moves import MoveOffered as MoveOffered
from tessera_schemas.shard.moves import MoveScored as MoveScored
from tessera_schemas.shard.moves import MoveWithdrawn as MoveWithdrawn
from tessera_schemas.shard.orders import Order
from tessera_schemas.shard.records import RECORDS as RECORDS
from tessera_schemas.shard.records import AnyRecord as AnyRecord
from tessera_schemas.shard.records import BudgetGranted as BudgetGranted
from tessera_schemas.shard.records import BudgetReached as BudgetReached
from tessera_schemas.shard.records import BudgetReopened as BudgetReopened
from tessera_schemas.shard.records import PoolTold as PoolTold
from tessera_schemas.shard.records import ServiceRollout as ServiceRollout
from tessera_schemas.shard.records import ServiceScaled as ServiceScaled
from tessera_schemas.work.adopted import Service
from tessera_schemas.work.arrays import DEPENDENCIES_MAX, Dependency
from tessera_schemas.work.placement import PASSED_MAX, Passed, Placement
from tessera_schemas.work.run_ends import RuleNumber
from tessera_schemas.work.spec_changes import SpecChanges

GENESIS = "0" * 64
FORMAT = 6
"""The newest record format that this build reads and writes."""


class FormatRaised(AnyRecord):
    """From here on records of this format may appear; a service that does not know it is not ready."""

    kind: Literal["format_raised"]
    format: Positive


class EpochOpened(AnyRecord):
    """A committer took over; older ones fail at their next append."""

    kind: Literal["epoch_opened"]
    epoch: Positive
    holder: Text


class Checkpoint(AnyRecord):
    """The hash of the state after n-1; a restored or followed state that differs is not trusted."""

    kind: Literal["checkpoint"]
    state_hash: Digest


class ConfigSet(AnyRecord):
    """The configuration of fact `fact` is in force as `version`."""

    kind: Literal["config_set"]
    fact: Count
    version: Positive


class ConfigRefused(AnyRecord):
    """The configuration of fact `fact` is not put in force; `others` are further reasons."""

    kind: Literal["config_refused"]
    fact: Count
    reason: Reason
    others: Annotated[tuple[Reason, ...], Field(max_length=64)] = ()


class NodeChanged(AnyRecord):
    kind: Literal["node_changed"]
    fact: Count


class DevicesNoted(AnyRecord):
    """A layout of devices, a class, or what expressions select, as fact `fact` states it, counts from here on."""

    kind: Literal["devices_noted"]
    fact: Count


class JobQueued(AnyRecord, event=events.JobAdmittedV1):
    """The job of fact `fact` is in; from here on it reaches exactly one terminal phase."""

    kind: Literal["job_queued"]
    fact: Count
    job_id: JobId
    number: Annotated[Count, Field(description="Number of the job in the shard, from 1; 0: unnumbered")] = 0


class TaskQueued(AnyRecord, event=events.JobAdmittedV1, story="queued as task {task} of {array}"):
    """The next task of an array is in, as a job of its own; its spec is the array's."""

    kind: Literal["task_queued"]
    job_id: JobId
    array: JobId
    task: Count
    number: Annotated[Count, Field(description="Number of the task in the shard, as of any job; 0: unnumbered")] = 0


class ArrayClosed(AnyRecord, story="queues no more tasks: {reason}"):
    """The array queues no more tasks, those left are cancelled, and then it ends; a closed one takes `now` again."""

    kind: Literal["array_closed"]
    job_id: JobId
    reason: Reason
    now: Annotated[bool, Field(description="Stop running tasks without the rest of their checkpoint notice")] = False


class DependencyMet(AnyRecord, story="what it waited for has come true"):
    """Conditions of a waiting job have come true: `left` are still open; with none left it is in its queue's order."""

    kind: Literal["dependency_met"]
    job_id: JobId
    left: Annotated[tuple[Dependency, ...], Field(max_length=DEPENDENCIES_MAX)] = ()


class JobTurnedAway(AnyRecord, event=events.JobRefusedV1):
    """Refusal of a job by admission, or by the committer for what only it can count. An audit record."""

    kind: Literal["job_turned_away"]
    fact: Count
    reasons: tuple[Reason, ...]


class Waiting(AnyRecord, event=events.JobWaitingV1, story="waits: {reason}"):
    """
    Why a queued job does not start, or what keeps a run from stopping; written when the code changes, with the numbers
    of that moment.
    """

    kind: Literal["waiting"]
    job_id: JobId
    reason: Reason


class PodsTakenOver(AnyRecord, story="its pods of a run that the ledger had lost go on"):
    """
    The pods of fact `fact`, of a run that this ledger lost, go on as the next run of their job.

    What they take of their nodes counts as others' use no more. The allocation where they stand, and their permit,
    come next in the same message.
    """

    kind: Literal["pods_taken_over"]
    fact: Count
    job_id: JobId


class Allocated(AnyRecord, event=events.JobAllocatedV1):
    """Every pod of the gang has a node and its devices; capacity counts as used from here on."""

    kind: Literal["allocated"]
    job_id: JobId
    attempt: Positive
    deadline: Annotated[Millis, Field(description="Time by which the run has to start, or it is revoked")]
    placements: Annotated[tuple[Placement, ...], Field(min_length=1, description="Placements in rank order")]
    flavor: Annotated[str, Field(description="Flavor of all nodes, set when quotas of the queue have any")] = ""
    passed: Annotated[
        tuple[Passed, ...],
        Field(max_length=PASSED_MAX, description="First blocked jobs before it in line, and why it may pass each"),
    ] = ()


class Permitted(AnyRecord, event=events.JobBindingV1):
    """
    The binder may bind exactly these pods, by UID, in rank order. At most one per run, ever.

    With `ranks` they are late pods, or such as an elastic run grew by: at most one permit per rank, ever.
    """

    kind: Literal["permitted"]
    run_id: RunId
    uids: Annotated[tuple[Uid, ...], Field(min_length=1)]
    ranks: Ranks = ()


class Bound(AnyRecord, event=events.JobBoundV1, story="bound"):
    kind: Literal["bound"]
    run_id: RunId


class Delayed(AnyRecord):
    """
    Pods of a bound run have not started: `reason` says why and `nodes` where, as far as anything is wrong; the run has
    time until `deadline`, which moves while its nodes work on the pods.
    """

    kind: Literal["delayed"]
    run_id: RunId
    deadline: Millis
    reason: Reason | None = None
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=64)] = ()


class Started(AnyRecord, event=events.JobRunningV1, story="running"):
    kind: Literal["started"]
    run_id: RunId


class Revoked(AnyRecord, event=events.JobEvictingV1, story="is being stopped, then {then}: {reason}"):
    """
    The run is to be stopped and its pods removed; what it holds stays held until it is released.

    `then` says what becomes of the job once it is released. A cancel may come while the run is being stopped already:
    for a job that was to be tried again, or with `now`. So may its own end, with `ended`.
    """

    kind: Literal["revoked"]
    run_id: RunId
    reason: Reason
    then: Literal["requeue", "failed", "cancelled"]
    by: Annotated[str, Field(max_length=200, description="Cause: a job, tenant, operator or service")] = ""
    avoid: Annotated[tuple[NodeName, ...], Field(max_length=64, description="Nodes that failed the run")] = ()
    now: Annotated[bool, Field(description="Stop without the rest of the checkpoint notice")] = False
    within: Annotated[tuple[RoleReach, ...], Field(max_length=64, description="Nodes of its volumes, by role")] = ()
    ended: Annotated[bool, Field(description="The run had ended by itself before any of its pods was stopped")] = False
    observed: Annotated[
        NodeName | Literal[""],
        Field(description="Node that seems lost; the stop counts against the policy's `mass_stop_percent`"),
    ] = ""
    called_in: Annotated[bool, Field(description="Its disruption budget has kept lent quota for long enough")] = False
    rule: RuleNumber = 0


class StopHeldBack(AnyRecord, event=events.JobStopHeldBackV1, story="seems lost, and is not stopped: {reason}"):
    """
    The run is to be stopped by what was observed, and too many are at once: it goes on until an operator says so, or
    others count no more. It ends with the run, or once its node is well again.
    """

    kind: Literal["stop_held_back"]
    run_id: RunId
    reason: Reason


class Spared(AnyRecord, event=events.JobSparedV1, story="is not stopped after all: {reason}"):
    """
    The revoke is taken back before anything of the run was stopped: it goes on as if there had been none. With `kept`
    a disruption budget keeps it, and for a while no plan names it again.
    """

    kind: Literal["spared"]
    run_id: RunId
    reason: Reason
    kept: bool = False


class Grown(AnyRecord, event=events.JobGrownV1, story="grows by {pods}"):
    """An elastic run gets more pods than its gang, with ranks it never had; not bound by `deadline`, they go again."""

    kind: Literal["grown"]
    run_id: RunId
    deadline: Millis
    placements: Annotated[tuple[Placement, ...], Field(min_length=1, description="Placements in rank order")]


class Shrunk(AnyRecord, event=events.JobShrunkV1, story="shrinks by {pods}: {reason}"):
    """Some pods of an elastic run are to be removed; their resources stay held until they are released."""

    kind: Literal["shrunk"]
    run_id: RunId
    ranks: Annotated[Ranks, Field(min_length=1)]
    reason: Reason
    by: Text = ""


class Warned(AnyRecord, event=events.JobWarnedV1):
    """The run holds GPUs and uses none; `idle_seconds` 0 takes the warning back."""

    kind: Literal["warned"]
    run_id: RunId
    idle_seconds: Count


class UseNoted(AnyRecord):
    """Fact `fact` says more of the use of the run's GPUs than was known."""

    kind: Literal["use_noted"]
    fact: Count
    run_id: RunId


class Saved(AnyRecord, event=events.JobSavedV1):
    """The run's work up to this `ts` is saved; `path` tells its next attempt where."""

    kind: Literal["saved"]
    run_id: RunId
    path: Annotated[str, Field(max_length=1024)] = ""
    at: CheckpointAt = ""


class Held(AnyRecord, event=events.JobHeldV1):
    """The job does not start until it is let go; `undo`: it is. An operator's hold may come over a tenant's."""

    kind: Literal["held"]
    job_id: JobId
    by: Text = ""
    undo: bool = False
    operator: Annotated[bool, Field(description="Hold by an operator, which only an operator ends")] = False


class BackInLine(AnyRecord):
    """
    An adopted job stays out of line from its requeue until its owner has made its pods again: now it has.

    `uids` wait now. The other fields are said where they changed, of a job in line, too; a minimum taken back is 0.
    """

    kind: Literal["back_in_line"]
    job_id: JobId
    preemptible: bool | None = None
    uids: tuple[Uid, ...] = ()
    budget: str | None = None
    service: Service | None = None


class OutOfLine(AnyRecord, story="its pods are not all there: out of line until they are"):
    """An adopted job waits without its pods: it keeps its place, and nothing is allocated to it until they are back."""

    kind: Literal["out_of_line"]
    job_id: JobId


class PrioritySet(AnyRecord, event=events.JobReprioritizedV1, story="priority class {priority_class} from now on"):
    kind: Literal["priority_set"]
    job_id: JobId
    priority_class: Name


class JobMoved(AnyRecord, event=events.JobMovedV1, story="is in queue {queue} from now on"):
    """The job and its run are of another queue from here on. `by` asked; empty: it took the former one's place."""

    kind: Literal["job_moved"]
    job_id: JobId
    queue: Name
    by: str = ""


class JobUpdated(AnyRecord, event=events.JobUpdatedV1):
    """Fields of the job's spec have other values from here on; `by` is who asked."""

    kind: Literal["job_updated"]
    job_id: JobId
    changes: SpecChanges
    by: str = ""


class NodeDrained(AnyRecord, event=events.NodeDrainedV1):
    """
    New work no longer starts on the node, as an operator or its health asks; `undo`: it does again. Without a pool it
    has no public event.
    """

    kind: Literal["node_drained"]
    node: NodeName
    undo: bool = False
    why: Text = ""
    by: Literal["", "health"] = ""
    pool: PoolTold = ""


class NodeBackedOff(AnyRecord):
    """
    A node takes no pods until `until_ts`, for the `times`-th time in a row, since pods did not start or last on it.

    With `until_ts` 0 it only remembers which jobs' programs failed on it (`failed`): one program may be broken, those
    of several jobs are not. The first run that starts there, or after failed programs one that lasts, ends all of it.
    """

    kind: Literal["node_backed_off"]
    node: NodeName
    until_ts: Millis
    reason: Reason
    times: Count = 0
    failed: Annotated[tuple[JobId, ...], Field(max_length=8, description="Failed jobs and arrays, oldest first")] = ()


class Released(AnyRecord, event=events.JobReleasedV1):
    """
    The run, or with `ranks` these pods of it, is absent from the cluster; the devices are free.

    The pods of a gang that end before the others are released in parts, as many at once as are known to have ended.
    """

    kind: Literal["released"]
    run_id: RunId
    ranks: Ranks = ()


class Requeued(AnyRecord, event=events.JobRequeuedV1):
    """
    The job waits for its next attempt, not before `not_before`; only a strike counts against its retries.

    `trouble` counts towards the policy's `requeues_max`. `fresh`: the run held, so that all earlier ones are forgiven.
    """

    kind: Literal["requeued"]
    job_id: JobId
    not_before: Millis
    reason: Reason
    strike: bool = True
    trouble: bool = False
    fresh: bool = False
    rule: RuleNumber = 0


class Finished(AnyRecord):
    """The job's one terminal phase."""

    kind: Literal["finished"]
    job_id: JobId
    phase: Literal["succeeded", "failed", "cancelled"]
    reason: Reason | None = None
    exit_code: int | None = None
    quick: Annotated[bool, Field(description="The program failed within seconds of its start")] = False
    rule: RuleNumber = 0


class OwnerEndNoted(AnyRecord, story="its owner has ended"):
    """The job's run is still at work or stopping: once it is released the job ends as fact `fact` says of its owner."""

    kind: Literal["owner_end_noted"]
    fact: Count
    job_id: JobId


class PlanRefused(AnyRecord, story="a plan to make room for it was refused: {reason}"):
    """The plan of fact `fact` is not carried out; whoever proposed it may plan again."""

    kind: Literal["plan_refused"]
    fact: Count
    job_id: JobId
    reason: Reason


class EarmarkSet(AnyRecord, event=events.JobEarmarkedV1):
    """
    Devices are kept for `owner` until `deadline`; a placement's `gpu_milli` of each device is held.

    They may still be held by runs that are being stopped: the owner starts once those are released. `victims` are the
    runs stopped for it in the same message, and `preset` says which policy allowed that. Of cause `restart` it is what
    is well of the place of the owner's last run, perhaps not for all of its pods.
    """

    kind: Literal["earmark_set"]
    owner: JobId
    cause: Literal["preemption", "head", "reclaim", "defragment", "reservation", "cordon", "restart"]
    deadline: Millis
    placements: Annotated[tuple[Placement, ...], Field(min_length=1)]
    flavor: str = ""
    victims: tuple[RunId, ...] = ()
    preset: str = ""
    gain_gpu_seconds: Annotated[Count, Field(description="What the owner gains by it, of a plan of moves")] = 0


class EarmarkEnded(AnyRecord, event=events.JobUnearmarkedV1, story="no devices are kept for it any more ({why})"):
    """The kept devices are common again."""

    kind: Literal["earmark_ended"]
    owner: JobId
    why: Literal["used", "owner_gone", "node_lost", "outranked", "deadline", "blocked", "stuck", "replaced"]


class SlotsLeft(Strict):
    """Number of pods of so many whole GPUs that could start now, and the most in one domain of each level."""

    gpus: Positive
    slots: Count
    largest: Annotated[dict[str, Count], Field(max_length=16)] = Field(default_factory=dict)


class LeftChanged(AnyRecord, event=events.ClusterFragmentationV1):
    """
    Free slots of a pool differ noticeably from those last recorded.

    `free` counts pods of 1, 2, 4 … whole GPUs by GPUs alone: what is noticed. `stranded` says what keeps idle GPUs
    from use, in thousandths; its sum is `idle_gpu_milli`.
    """

    kind: Literal["left_changed"]
    pool: Name
    gpus: Count
    idle_gpu_milli: Count
    free: Annotated[tuple[Count, ...], Field(max_length=32)] = ()
    sizes: Annotated[tuple[SlotsLeft, ...], Field(max_length=32)] = ()
    stranded: Annotated[dict[str, Count], Field(max_length=16)] = Field(default_factory=dict)


class MixPriced(AnyRecord):
    """From here on decisions go by the prices of fact `fact`."""

    kind: Literal["mix_priced"]
    fact: Count
    pool: Name


class PricesRefused(AnyRecord):
    """The prices of fact `fact` change nothing; those in force stay."""

    kind: Literal["prices_refused"]
    fact: Count
    pool: Name
    reason: Reason


class RefusalNoted(AnyRecord):
    """Refusal of users' work, as fact `fact` states it, shown to readers until it is refused no more."""

    kind: Literal["refusal_noted"]
    fact: Count


RECORDS.sort(key=lambda record: record.__name__)  # as facts are

if TYPE_CHECKING:
    Record = AnyRecord
else:
    Record = Annotated[reduce(or_, RECORDS), Field(discriminator="kind")]

_BY_FIELD: dict[str, Callable[[Any], str]] = {
    "job_id": lambda record: str(record.job_id),
    "owner": lambda record: str(record.owner),
    "run_id": lambda record: str(record.run_id.rpartition("-")[0]),
}
JOB_OF: dict[type[AnyRecord], Callable[[Any], str]] = {
    model: job_of for model in RECORDS for name, job_of in _BY_FIELD.items() if name in model.model_fields
}
"""The job that a record is about. By type, since asking a model's type for an instance of another is slow."""


class TakenFact(Strict):
    """A fact, the stream sequence it came with, and the service that said it."""

    seq: Positive
    service: Name
    fact: Fact


class LedgerMessage(Strict):
    """The input taken in, and what was decided from exactly the state before plus that; kept as JSON or zlib of it."""

    v: Literal[1]
    n: Positive
    prev: Digest
    epoch: Positive
    tx: Annotated[str, Field(min_length=8, max_length=64, description="Id to find an append of unknown outcome")]
    ts: Annotated[Millis, Field(description="Ledger time; never decreases")]
    engine: str
    policy: Count
    holder: Annotated[str, Field(max_length=200, description="Committer that opens an epoch, else empty")] = ""
    facts_upto: Count = 0
    facts_wait: Annotated[
        bool,
        Field(description="Set by builds before `starts_since`: older facts wait, and no run ends by its deadline"),
    ] = False
    starts_since: Annotated[Millis, Field(description="Time since which starts are watched without a gap")] = 0
    facts: tuple[TakenFact, ...] = ()
    orders: Annotated[tuple[Order, ...], Field(description="Orders newer than those taken in before")] = ()
    records: tuple[Record, ...] = ()


LEDGER_MESSAGE: TypeAdapter[LedgerMessage] = TypeAdapter(LedgerMessage)

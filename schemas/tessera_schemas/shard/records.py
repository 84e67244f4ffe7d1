"""
The forms that all kinds of facts and of records share; records about budgets, attached jobs, shifts between roles and
resizes in place, and what is said of a service's size and program, of a session's use, of progress, of places of data
sets and of groups that start again.

All others are in `facts` and `ledger`.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from tessera_schemas import events
from tessera_schemas.base import Count, JobId, Millis, Name, NodeName, Positive, RunId, Strict, Text, Uid
from tessera_schemas.cluster.node_terms import RoleReach, ToldPlaces
from tessera_schemas.reasons import Reason
from tessera_schemas.work.arrays import ServiceReplicas
from tessera_schemas.work.budgets import BudgetName, WholeUnits
from tessera_schemas.work.spec_changes import ROLES_MAX, PodSize, RoleSizes, RoleSteps, RolloutWish, ShiftKey

FACTS: list[type["AnyFact"]] = []
"""Every kind of fact, in the order in which they are declared."""


class AnyFact(Strict):
    """A fact of some kind, declared with the services that may send it (`sender` is one of them alone)."""

    kind: str
    senders: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, *, sender: str = "", senders: tuple[str, ...] = (), **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.senders = senders or (sender,)
        if not all(cls.senders):
            raise TypeError(f"{cls.__name__} names no service that may send it")
        FACTS.append(cls)


class RolesRequested(AnyFact, sender="admission"):
    """
    Pods of the job's run are to move between its elastic roles, by the request `key`, once. `tenant`: empty for an
    operator.
    """

    kind: Literal["roles_requested"]
    job_id: JobId
    roles: RoleSteps
    key: ShiftKey
    have: RoleSizes = Field(default_factory=dict)
    tenant: str = ""


class ResizeRequested(AnyFact, sender="admission"):
    """The pods of a role of the job's run are to have another size, once by the request `key`; as `RolesRequested`."""

    kind: Literal["resize_requested"]
    job_id: JobId
    size: PodSize
    key: ShiftKey
    tenant: str = ""


class PodsResized(AnyFact, sender="binder"):
    """The nodes of all pods of a run have taken the resize `key`; with a `reason`, one of them never will."""

    kind: Literal["pods_resized"]
    run_id: RunId
    key: ShiftKey
    reason: Reason | None = None


PoolTold = Annotated[str, StringConstraints(max_length=63)]
"""Pool of a record's node, for its public event; "" before format 6, and of a node that is no more."""

RECORDS: list[type["AnyRecord"]] = []
"""Every kind of record, in the order in which they are declared."""


class AnyRecord(Strict):
    """
    A record of some kind, declared with the public `event` that it gives and the line in its job's `story`.

    It is about the job of its field `job_id`, `owner` or `run_id`. The event says each of its fields that the record
    has; what cannot be said so is in projection. In the story, fields stand in braces: `{reason}` as its sentence,
    `{pods}` as how many.
    """

    kind: str
    event: ClassVar[type[events.PublicEvent] | None]
    story: ClassVar[str]

    def __init_subclass__(cls, *, event: type[events.PublicEvent] | None = None, story: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.event, cls.story = event, story
        RECORDS.append(cls)


class ScaleRequested(AnyFact, sender="admission"):
    """A service is to have so many replicas. `tenant`: empty for an operator."""

    kind: Literal["scale_requested"]
    job_id: JobId
    replicas: ServiceReplicas
    tenant: str = ""


class GroupPodsMade(AnyFact, sender="binder"):
    """
    All pods of the copy of a group that starts again as the run's restart `restart` exist, unbound; their UIDs by rank.

    They are called as those before them, of which therefore nothing is left.
    """

    kind: Literal["group_pods_made"]
    run_id: RunId
    restart: Positive
    uids: Annotated[tuple[Uid, ...], Field(min_length=1)]


class GroupStarted(AnyFact, sender="binder"):
    """All pods of that copy run, or have run."""

    kind: Literal["group_started"]
    run_id: RunId
    restart: Positive


class RolloutRequested(RolloutWish, AnyFact, sender="admission"):
    """A service's replicas are to run other programs, or those before. `tenant`: empty for an operator."""

    kind: Literal["rollout_requested"]
    job_id: JobId
    tenant: str = ""


class DatasetTold(AnyFact, sender="admission"):
    """A tenant says which nodes have a data set of its own, and which have it no more."""

    kind: Literal["dataset_told"]
    tenant: Name
    dataset: Name
    places: ToldPlaces


class DatasetNoted(AnyRecord):
    """Nodes have a data set, or have it no more, as fact `fact` states; those that the tenant may not use stay out."""

    kind: Literal["dataset_noted"]
    fact: Count


class ServiceScaled(AnyRecord, story="has {replicas} replicas from now on, as {by} asked"):
    """A service has another number of replicas; those that are too many stop, and wait until it wants them again."""

    kind: Literal["service_scaled"]
    job_id: JobId
    replicas: ServiceReplicas
    by: Text = ""


RolloutState = Literal["begun", "done", "stopped"]


class ServiceRollout(AnyRecord, event=events.JobRolloutV1):
    """
    A service begins to give its replicas the programs of fact `fact`, has given them, or stops since they fail.

    A rollout that stopped starts no more replicas of its revision, and gives those that do not run the programs before.
    """

    kind: Literal["service_rollout"]
    job_id: JobId
    state: RolloutState
    revision: Annotated[Positive, Field(description="Number of the revision, from 2 on; 1 is the submitted one")]
    fact: Count = 0
    reason: Reason | None = None
    by: Text = ""


class SessionUnused(AnyFact, sender="binder"):
    """The session's pod says that nobody uses it and that it stops soon; `again`: it is in use again."""

    kind: Literal["session_unused"]
    run_id: RunId
    again: bool = False


class SessionWarned(AnyRecord, event=events.JobSessionWarnedV1):
    """The session of a run stops about then unless it is used; `stops_ts` 0 takes that back."""

    kind: Literal["session_warned"]
    run_id: RunId
    stops_ts: Millis = 0


class RunStalled(AnyFact, sender="reclamation"):
    """
    The run's pods report no progress, or some of them less than the others do; without a reason they do again.

    `nodes` are those of the pods that are behind, or of all of them where none is.
    """

    kind: Literal["run_stalled"]
    run_id: RunId
    reason: Reason | None = None
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=64)] = ()


class Stalled(AnyRecord, event=events.JobStalledV1):
    """
    A run stalls and goes on: its job only wants to be warned of that or, with `held_back`, too many would be stopped
    at once. Without a reason that is over.
    """

    kind: Literal["stalled"]
    run_id: RunId
    reason: Reason | None = None
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=64)] = ()
    held_back: bool = False


class RungTaken(AnyRecord):
    """
    A job's run failed for the `count`-th time on this rung of its ladder: it starts again in place, or avoids the node
    alone, or avoids the whole `domain` (`LABEL=VALUE`).
    """

    kind: Literal["rung_taken"]
    job_id: JobId
    rung: Literal["in_place", "elsewhere", "domain"]
    count: Positive
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=64)] = ()
    domain: Annotated[str, StringConstraints(max_length=400)] = ""


class BudgetReached(AnyRecord):
    """
    So many percent of a budget are spent in this month. At 100 it is spent, with what `when_spent` says.

    Amounts are millionths of `unit`. `tenant` is the one to whom the budget belongs, "" for a queue of several.
    """

    kind: Literal["budget_reached"]
    budget: BudgetName
    percent: Literal[80, 100]
    spent_micros: Count
    limit_micros: Count
    unit: str
    when_spent: str
    tenant: str = ""


class BudgetReopened(AnyRecord):
    """A budget is below what was told of it last: by a new month, a grant or a configuration; `percent` is reached."""

    kind: Literal["budget_reopened"]
    budget: BudgetName
    percent: Literal[0, 80] = 0


class BudgetGranted(AnyRecord):
    """An operator added to a budget for this month, in whole units, for a reason; `by` is who, as its sender says."""

    kind: Literal["budget_granted"]
    budget: BudgetName
    amount: WholeUnits
    why: Text
    by: Text = ""


class Attached(AnyRecord, story="the job that it is attached to runs: in line"):
    """
    The job that this one is attached to runs: it is in line until that run stops.

    `near` are the domains of that run, by role: of a job that is to stand there, terms that its nodes must meet, of
    any other terms that are preferred.
    """

    kind: Literal["attached"]
    job_id: JobId
    near: Annotated[tuple[RoleReach, ...], Field(max_length=64)] = ()


class Detached(AnyRecord, story="the job that it is attached to does not run: out of line until it does"):
    """The run of the job that this one is attached to stops: this one is out of line until there is another."""

    kind: Literal["detached"]
    job_id: JobId


class RolesShifted(AnyRecord, event=events.JobShrunkV1, story="moves pods between its roles: {reason}"):
    """
    Pods `ranks` of an elastic run are to be removed, and once all of them are released the run gets `gains` more pods
    by role, in the same message and where those were.

    `sizes` are the sizes up to which roles grow by themselves from here on; a role that is not named, to its most.
    """

    kind: Literal["roles_shifted"]
    run_id: RunId
    ranks: Annotated[tuple[Count, ...], Field(max_length=2048, description="Ranks of the pods that leave")]
    reason: Reason
    request: ShiftKey
    gains: Annotated[dict[Name, Positive], Field(max_length=ROLES_MAX)] = Field(default_factory=dict)
    sizes: Annotated[dict[Name, Count], Field(max_length=ROLES_MAX)] = Field(default_factory=dict)
    by: Text = ""


class GroupRestarted(
    AnyRecord,
    event=events.JobGroupRestartedV1,
    story="starts {pods} of group {group}, copy {copy_number}, again (the {count}. time): {reason}",
):
    """
    A pod of a copy of a group failed: pods `ranks` of that copy are to go and to come again where they were, as the
    run's restart `restart`, the `count`-th of the copy since it last held; all others go on.

    They are made from `not_before` on; a copy that does not run again by `deadline` ends the run.
    """

    kind: Literal["group_restarted"]
    run_id: RunId
    group: Name
    copy_number: Count = 0
    ranks: Annotated[tuple[Count, ...], Field(min_length=1, max_length=2048)]
    reason: Reason
    restart: Positive
    count: Positive
    not_before: Millis
    deadline: Millis


class GroupPermitted(AnyRecord, story="the next pods of restart {restart} of its groups exist and may be bound"):
    """The binder may bind exactly these pods of a copy that starts again, by UID, in the order of its ranks; once."""

    kind: Literal["group_permitted"]
    run_id: RunId
    restart: Positive
    uids: Annotated[tuple[Uid, ...], Field(min_length=1)]


class GroupResumed(AnyRecord, story="restart {restart} of its groups is over: all pods of it run"):
    """All pods of a copy that started again run."""

    kind: Literal["group_resumed"]
    run_id: RunId
    restart: Positive


class ResizeBegun(AnyRecord, event=events.JobResizingV1):
    """
    Each pod of a role of the run is to have this size. The run holds the larger of this and the one before until the
    nodes have taken it, and the next run of the job begins with this.
    """

    kind: Literal["resize_begun"]
    run_id: RunId
    role: Name
    cpu_milli: Positive
    memory_bytes: Positive
    request: ShiftKey
    by: Text = ""


class ResizeEnded(AnyRecord, event=events.JobResizedV1):
    """
    The nodes have taken a resize, and the run holds this size alone. With a `reason` the resize is refused: the pods
    are to have this size, which is the one before, and the run holds the larger of both until another record.
    """

    kind: Literal["resize_ended"]
    run_id: RunId
    role: Name
    cpu_milli: Positive
    memory_bytes: Positive
    request: ShiftKey
    reason: Reason | None = None

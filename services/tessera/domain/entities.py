"""The frozen entities of a shard's state. A change is a new value."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tessera.domain.devices.mig.instances import MigChange as MigChange
from tessera.domain.devices.resources import NOTHING, Amount, RoleNeed
from tessera.domain.storing.fast import fast_init
from tessera.domain.storing.later import later
from tessera.domain.work.gang import Gang, RestartingCopy, gang_of
from tessera.domain.work.phases import Phase
from tessera.domain.work.task_array import TaskArray
from tessera_schemas.facts import OwnerEnded
from tessera_schemas.job import JobIdle, JobProgress, Retry, RoleReach, Session
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.adopted import Adopted
from tessera_schemas.work.arrays import Attachment, Dependency
from tessera_schemas.work.measured_use import MeasuredUse
from tessera_schemas.work.placement import Passed, Placement
from tessera_schemas.work.spec_changes import PodResize, RoleAmounts, SpecChanges


@fast_init
@dataclass(frozen=True, slots=True)
class Job:
    """
    A job that has not ended. Its template stays in fact `fact_index` of ledger message `taken_n`.

    `attempt` counts runs, `strikes` the ones that count against the retry budget, `evictions` the ones that were
    stopped for other jobs, `troubles` its latest runs in a row that others broke before they held. `first_ts` is when
    its first run since one that held was allocated; `avoid` are nodes that failed it, newest last, and whole domains
    as `LABEL=VALUE`; `saved_path` is where its last checkpoint is; `told_ts` is when it was last told to wait for
    another reason than before.
    `stop_seconds` is how long a run of it takes at most to stop, by its notice and grace; None: not known. `adopted` is
    what it is in Kubernetes, where users made it there, and `away` that its owner has yet to make its pods again.
    `operator_hold`: it is `held` by an operator, and no tenant lets it go. `earlier_ms` is how long its runs before
    this one took, each from its start until the job was queued again, and `gpu_milli_ms` what its runs held in
    thousandths of a GPU times milliseconds, without what the current one holds since `Run.counted_ts`. By the prices of
    the configuration that cost `cost_micros` millionths, and `cost_rest` of the `GPU_HOUR` parts of another one.
    `nodes` are those of a run that was released just now, until the job ends or is queued again. An adopted job keeps
    them, and why, from when and until when that run was, until its next one; `owner_end` is how its owner has ended.
    `user` is whose of the tenant it is, and `project` for what, "" where nobody said. An `array` never runs: it stands
    for its tasks, jobs whose `task_of` names it and whose `task` is the index. `after` is what the job still waits for
    of others, and `changes` are the fields of its spec that were given other values since the submit. `passed` are
    blocked jobs that its current or last run passed in line. `gpu_use` is what was measured of the GPUs of released
    runs. `in_minimum`: it is one of the replicas that its service is guaranteed, or would be one if it started now
    (`folding.services`); `guaranteed` is how many these are, None for no replica of a native service. A `session` is
    used by a person while it runs. `data_until` is until when it waits for a node that has its data sets, 0 before it
    does. `attached` names the job beside whose run it is of use; while that does not run it is `detached`, and else
    `near` are the terms that its roles have for it. `restarts` are its groups of which a copy starts again by itself:
    name, restarts at most, first pause in milliseconds. `spec_at` is the message, and the fact in it, with the programs
    of its next run; () where that is its submit. `resized`: new sizes of roles. `displaced`: a node broke under its
    last run, and it was not placed since (`run_ends.DISPLACING`). Until `deadline_ts` it is to have ended, 0 for no
    such time. It runs in the windows of `booking` alone, "" for none. `tests` is the node that it tests: it runs there
    or nowhere, and stands in no line. Times are ledger milliseconds.
    """

    job_id: str
    tenant: str
    queue: str
    name: str
    key: str
    spec_hash: str
    priority_class: str
    preemptible: bool
    roles: tuple[RoleNeed, ...]
    amount: Amount
    retry: Retry
    taken_n: int
    fact_index: int
    submitted_ts: int
    trace: str = ""
    phase: Phase = Phase.QUEUED
    attempt: int = 0
    strikes: int = 0
    not_before: int = 0
    started_ts: int = 0
    reason: Reason | None = None
    held: bool = False
    evictions: int = 0
    first_ts: int = 0
    avoid: tuple[str, ...] = ()
    saved_path: str = ""
    told_ts: int = 0
    time_limit_seconds: int = 0
    adopted: Adopted | None = None
    away: bool = False
    user: str = later("")
    idle: JobIdle | None = later(None)
    array: TaskArray | None = later(None)
    task_of: str = later("")
    task: int = later(0)
    after: tuple[Dependency, ...] = later(())
    troubles: int = later(0)
    stop_seconds: int | None = later(None)
    start_timeout_seconds: int = later(0)
    operator_hold: bool = later(False)
    earlier_ms: int = later(0)
    gpu_milli_ms: int = later(0)
    array_number: int = later(0)
    number: int = later(0)
    nodes: tuple[str, ...] = later(())
    changes: SpecChanges | None = later(None)
    passed: tuple[Passed, ...] = later(())
    last_end: Reason | None = later(None)
    last_started_ts: int = later(0)
    last_ended_ts: int = later(0)
    owner_end: OwnerEnded | None = later(None)
    cost_micros: int = later(0)
    cost_rest: int = later(0)
    gpu_use: MeasuredUse | None = later(None)
    project: str = later("")
    in_minimum: bool = later(False)
    session: Session | None = later(None)
    guaranteed: int | None = later(None)
    data_until: int = later(0)
    attached: Attachment | None = later(None)
    detached: bool = later(False)
    near: tuple[RoleReach, ...] = later(())
    restarts: tuple[tuple[str, int, int], ...] = later(())
    spec_at: tuple[int, ...] = later(())
    resized: tuple[RoleAmounts, ...] = later(())
    progress: JobProgress | None = later(None)
    displaced: bool = later(False)
    tests: str = later("")
    deadline_ts: int = later(0)
    booking: str = later("")

    @property
    def latest_start_ts(self) -> int:
        """The last time at which a run of its time limit ends by its deadline; 0 without a deadline."""
        return self.deadline_ts - self.time_limit_seconds * 1000 if self.deadline_ts else 0

    @property
    def is_replica(self) -> bool:
        """Whether it is a replica of a service that was submitted, and is started again whenever it ends."""
        return self.guaranteed is not None

    @property
    def service(self) -> str:
        """Id of the service whose replica the job is, submitted or made in Kubernetes; "" for none."""
        if self.adopted is not None and self.adopted.service is not None:
            return self.adopted.service.uid
        return self.task_of if self.is_replica else ""

    @property
    def service_name(self) -> str:
        """Name for people of the service whose replica the job is: `Deployment/chat`."""
        return str(self.adopted.service) if self.adopted is not None else f"service/{self.name}"

    @property
    def hold(self) -> Reason | None:
        """Reason why the job is kept from starting by somebody's word; None while nobody holds it."""
        if self.held and not self.operator_hold and self.reason and self.reason.code is Code.PAUSED_AS_IDLE:
            return self.reason
        if self.held and self.is_replica and not self.operator_hold:
            return Reason(code=Code.SCALED_DOWN)
        return Reason(code=Code.HELD_BY_OPERATOR if self.operator_hold else Code.ON_HOLD) if self.held else None

    @property
    def kept_until(self) -> str:
        """Change of a budget or a service's minimum before which the job may not be evicted; "" for none."""
        if self.in_minimum:
            return f"{self.service_name} is guaranteed fewer replicas"
        return f"its disruption budgets change: {self.adopted.budget}" if self.adopted and self.adopted.budget else ""

    @property
    def gang(self) -> Gang:
        """Roles of the job, placed all or nothing."""
        return gang_of(self.roles)

    @property
    def pods(self) -> int:
        """Pods of the gang: the replicas of all roles, without surplus pods."""
        return self.gang.pods

    @property
    def pods_asked(self) -> int:
        """Pods that count against its tenant's limit: at its largest, and none of an array, whose tasks have them."""
        return 0 if self.array is not None else sum(role.replicas + role.more for role in self.roles)

    @property
    def kept_out(self) -> bool:
        """Tells whether the job is kept out of its queue's order, however long it waits."""
        return bool(self.tests) or self.is_kept_from_starting

    @property
    def is_kept_from_starting(self) -> bool:
        """Whether the job starts nowhere, even where nothing else would have the room."""
        return self.held or self.away or self.detached or self.array is not None or bool(self.after)

    @property
    def run_id(self) -> str:
        """The current or last run; attempt 0 means that there was none."""
        return f"{self.job_id}-{self.attempt}"


@fast_init
@dataclass(frozen=True, slots=True)
class EndedJob:
    """
    A job after its end, remembered so that its key stays known until `forget_ts`.

    `earlier_ms` and `gpu_milli_ms` are the job's, the latter of all its runs. `nodes` are those of the run that ended
    with the job, in rank order.
    """

    job_id: str
    tenant: str
    queue: str
    name: str
    key: str
    spec_hash: str
    phase: Phase
    attempt: int
    pods: int
    amount: Amount
    submitted_ts: int
    started_ts: int
    ended_ts: int
    forget_ts: int
    trace: str = ""
    reason: Reason | None = None
    exit_code: int | None = None
    priority_class: str = later("")
    evictions: int = later(0)
    array: TaskArray | None = later(None)
    task_of: str = later("")
    task: int = later(0)
    number: int = later(0)
    array_number: int = later(0)
    user: str = later("")
    earlier_ms: int = later(0)
    gpu_milli_ms: int = later(0)
    time_limit_seconds: int = later(0)
    nodes: tuple[str, ...] = later(())
    changes: SpecChanges | None = later(None)
    passed: tuple[Passed, ...] = later(())
    cost_micros: int = later(0)
    cost_rest: int = later(0)
    gpu_use: MeasuredUse | None = later(None)
    project: str = later("")
    session: Session | None = later(None)
    spec_at: tuple[int, ...] = later(())
    resized: tuple[RoleAmounts, ...] = later(())

    def not_shown(self, now_ms: int) -> Reason:
        """Answer about a job that the views have dropped: how and when it ended, and where more is."""
        numbers = {"ended_ts": self.ended_ts, "ended_seconds_ago": max(0, now_ms - self.ended_ts) // 1000}
        more = "its records are in the ledger: an operator reads them with `tessera ledger inspect --export FILE`"
        return Reason(code=Code.NO_LONGER_SHOWN, field="job_id", numbers=numbers, detail=f"{self.phase.value}; {more}")


@fast_init
@dataclass(frozen=True, slots=True)
class SurplusPod:
    """
    One pod by which an elastic run is larger than its gang; it lives and goes by itself.

    `uid` is "" until it is permitted; `deadline` is 0 once it is. What it holds comes back when it is absent.
    """

    placement: Placement
    deadline: int
    uid: str = ""
    leaving: bool = False


@fast_init
@dataclass(frozen=True, slots=True)
class Run:
    """
    One attempt, from its allocation until its devices are released; it holds its placements all that time.

    `started_ts` is 0 until it runs; `saved_ts` is up to when its work is saved, 0 for not at all; `idle_ts` is when it
    was warned for idleness, 0 for not. `extra` are pods beyond the gang, in rank order, and `amount` counts them;
    `resized_ts` is when it last grew or shrank, `next_rank` the next that was never used, `failures` how often it had
    to go on without pods that failed. `kept_ts` is when a disruption budget last kept it from being evicted.
    `released_ranks` are pods, of the gang or beyond it, that have ended before the run and hold nothing any more.
    `saved_marks` are its last checkpoints (`domain.checkpoints`); `hurried`: it is stopped without its notice.
    `held_back` is why it goes on although it seems lost. `delay` is why it has not started, in the kubelet's words, and
    `slow_nodes` are the nodes on which its pods do not start. `start_ms` is the time that it was given to start; 0: not
    known. `counted_ts` is up to when its job's `gpu_milli_ms` counts what it holds: when it last grew or shrank; 0:
    from its allocation on nothing is counted yet. `unneeded`: it is to stop for a job that needs its room no more.
    `kept_lent_ts` is when a disruption budget first kept it from giving back what was lent, and `called_in` that it is
    to stop in spite of that. `gpu_use` is what was measured of its GPUs so far; None: nothing. `weighed_milli` is what
    its GPUs count for in fair share by price; None: what they are. `near_bytes` of its data sets were on its nodes when
    it was allocated, `far_bytes` were not. `shift_ranks` are pods that leave for `gains` of other roles, which the run
    gets once all of them are released; `sizes` bound the growth of roles, `shifts` are its last requests, `restarts`
    copies of its groups that started again. `unused_until` is about when its session stops, as warned of; 0: never.
    `late` pods of the gang, the last in rank order, come once the others run: their UIDs are "" until then. `resize` is
    under way. `rule` is the number of the job's retry rule by which it stops; 0: none. `stalled` is how it was last
    seen to make no progress, if it goes on all the same.
    """

    run_id: str
    job_id: str
    attempt: int
    tenant: str
    queue: str
    roles: tuple[RoleNeed, ...]
    amount: Amount
    placements: tuple[Placement, ...]
    allocated_ts: int
    deadline: int
    uids: tuple[str, ...] = ()
    bound: bool = False
    started: bool = False
    over: bool = False
    revoked: Reason | None = None
    then: str = ""
    flavor: str = ""
    started_ts: int = 0
    saved_ts: int = 0
    idle_ts: int = 0
    stopped_ts: int = 0
    extra: tuple[SurplusPod, ...] = ()
    resized_ts: int = 0
    next_rank: int = 0
    failures: int = 0
    kept_ts: int = later(0)
    released_ranks: tuple[int, ...] = later(())
    saved_marks: tuple[str, ...] = later(())
    hurried: bool = later(False)
    user: str = later("")
    held_back: Reason | None = later(None)
    delay: Reason | None = later(None)
    slow_nodes: tuple[str, ...] = later(())
    start_ms: int = later(0)
    counted_ts: int = later(0)
    unneeded: bool = later(False)
    kept_lent_ts: int = later(0)
    called_in: bool = later(False)
    gpu_use: MeasuredUse | None = later(None)
    weighed_milli: int | None = later(None)
    project: str = later("")
    near_bytes: int = later(0)
    far_bytes: int = later(0)
    shift_ranks: tuple[int, ...] = later(())
    gains: tuple[tuple[str, int], ...] = later(())
    sizes: tuple[tuple[str, int], ...] = later(())
    shifts: tuple[str, ...] = later(())
    unused_until: int = later(0)
    restarts: tuple[RestartingCopy, ...] = later(())
    late: int = later(0)
    resize: PodResize | None = later(None)
    rule: int = later(0)
    stalled: Reason | None = later(None)

    @property
    def gang(self) -> Gang:
        """The roles of its pods."""
        return gang_of(self.roles)

    @property
    def used_milli(self) -> int:
        """Thousandths of a GPU that it counts for in fair share over history."""
        return self.amount.gpu_milli if self.weighed_milli is None else self.weighed_milli

    @property
    def uncounted_ts(self) -> int:
        """Since when what it holds is not counted in its job's `gpu_milli_ms`."""
        return self.counted_ts or self.allocated_ts

    @property
    def permitted(self) -> tuple[str, ...]:
        """The UIDs of its pods that may be bound: the gang's, then those that it grew by."""
        uids = (*self.uids, *(extra.uid for extra in self.extra)) if self.extra else self.uids
        return tuple(filter(None, uids)) if self.extra or self.late else uids

    @property
    def all_placements(self) -> tuple[Placement, ...]:
        """Placements of all its pods, ended ones included: the gang, then surplus pods."""
        return (*self.placements, *(extra.placement for extra in self.extra)) if self.extra else self.placements

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes of all its pods, ended ones included, in rank order."""
        return tuple(dict.fromkeys(place.node for place in self.all_placements))

    @property
    def places(self) -> tuple[Placement, ...]:
        """Placements that the run holds: the gang, then surplus pods, without released pods."""
        return self._held(self.all_placements)

    @property
    def gang_places(self) -> tuple[Placement, ...]:
        """Placements that its gang holds."""
        return self._held(self.placements)

    def most_of(self, role: RoleNeed) -> int:
        """Number of pods to which a role of it grows by itself."""
        return min(role.replicas + role.more, dict(self.sizes).get(role.name, role.replicas + role.more))

    @property
    def surplus(self) -> tuple[SurplusPod, ...]:
        """The pods by which it is larger than its gang: neither ended nor on their way out."""
        return tuple(e for e in self.extra if not e.leaving and e.placement.rank not in self.released_ranks)

    def surplus_with(self, ranks: Iterable[int]) -> set[int]:
        """Ranks of its surplus pods among these, and of those that are in a copy of a group with them."""
        staying = {extra.placement.rank for extra in self.surplus}
        return staying & self.gang.whole_copies(staying.intersection(ranks))

    @property
    def releasable(self) -> set[int]:
        """The ranks that are released one by one when their pods have ended; of a run that never started, none."""
        if not self.uids or not (self.started or self.stopping):
            return set()
        together = {role.name for role in self.roles if role.together}
        gang = {place.rank for place in self.gang_places if place.role not in together and self.uids[place.rank]}
        return gang | {e.placement.rank for e in self.surplus if e.uid and e.placement.role not in together}

    def _held(self, placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
        released = set(self.released_ranks)
        return tuple(place for place in placements if place.rank not in released) if released else placements

    @property
    def stopping(self) -> bool:
        """Whether the run ended or was revoked; its devices are released once it is absent."""
        return self.over or self.revoked is not None


@fast_init
@dataclass(frozen=True, slots=True)
class Use:
    """
    Resources that a queue's runs hold, or that a tenant's jobs ask for.

    `pods` are those of a tenant's jobs, elastic ones at their largest, while its limits name them; else 0. `services`
    and `sessions`, these by the names of its users, are counted while its limits name them, too.
    """

    name: str
    jobs: int = 0
    amount: Amount = NOTHING
    pods: int = later(0)
    sessions: tuple[tuple[str, int], ...] = later(())
    services: int = later(0)

    def sessions_of(self, user: str | None) -> int:
        """Number of live sessions of the tenant's user; None: of all its users."""
        return sum(number for name, number in self.sessions if user in (None, name))


RESTART: Literal["restart"] = "restart"
"""The cause of an earmark that keeps a gang's own place: it may name a part of the gang's pods."""


@fast_init
@dataclass(frozen=True, slots=True)
class RemovedQueue:
    """
    A queue that the configuration does not have any more, while runs of it hold something: its pool, and the queues
    that it was below, the lowest first.
    """

    name: str
    pool: str
    above: tuple[str, ...] = ()


@fast_init
@dataclass(frozen=True, slots=True)
class Earmark:
    """
    Devices kept for one job. The one type for preemption, the blocked head, reclaim and reservation.

    Runs that are being stopped (`victims`) may still hold some of them: then a node's free part is negative meanwhile.
    """

    owner: str
    cause: str
    deadline: int
    roles: tuple[RoleNeed, ...]
    placements: tuple[Placement, ...]
    flavor: str = ""
    victims: tuple[str, ...] = ()

    @property
    def gang(self) -> Gang:
        """The roles that the devices are kept for."""
        return gang_of(self.roles)


@fast_init
@dataclass(frozen=True, slots=True)
class PublishedSlots:
    """The last published free slots of a pool: how many pods of 1, 2, 4 … whole GPUs its nodes would take."""

    pool: str
    free: tuple[int, ...]


@fast_init
@dataclass(frozen=True, slots=True)
class PoolStops:
    """Runs of a pool that were stopped lately because their nodes seemed lost: when, node, job and weight of each."""

    pool: str
    stops: tuple[tuple[int, str, str, int], ...]


@fast_init
@dataclass(frozen=True, slots=True)
class ClosedNamespace:
    """
    A tenant's namespace that refuses pods: the last refusal and its job, how many there were in a row, and since and
    until when (ledger milliseconds) no other job of the tenant is tried. `probe` is the run that is tried now.
    """

    tenant: str
    reason: Reason
    job_id: str
    refusals: int
    since: int
    until: int = 0
    probe: str = ""


@fast_init
@dataclass(frozen=True, slots=True)
class RefusedWork:
    """Users' work in Kubernetes that is refused as it is; `group` finds its pods."""

    work_id: str
    tenant: str
    group: str
    owner: str
    queue: str
    reasons: tuple[Reason, ...]
    since_ts: int

    @property
    def job_id(self) -> str:
        """Id under which views and answers show the work; no job has it."""
        return self.work_id

    @property
    def name(self) -> str:
        """Name of the owner, without its kind."""
        return self.owner.rpartition("/")[2]


@fast_init
@dataclass(frozen=True, slots=True)
class Drain:
    """A node on which nothing new starts, because an operator said so, or as `by` says."""

    node: str
    since_ts: int
    why: str = ""
    by: str = later("")


@fast_init
@dataclass(frozen=True, slots=True)
class NodeBackoff:
    """
    A node on which pods did not start or last: nothing new starts on it until `until_ts`, the `times`-th time in a row.

    `failed` are jobs and arrays whose programs failed there soon after they had started, since one lasted.
    """

    node: str
    until_ts: int
    times: int
    since_ts: int
    reason: Reason
    failed: tuple[str, ...] = ()


@fast_init
@dataclass(frozen=True, slots=True)
class QueueOrder:
    """The newest order of a pool that was taken in: who is next, as of `basis_n`."""

    pool: str
    basis_n: int
    ts: int
    jobs: tuple[str, ...]

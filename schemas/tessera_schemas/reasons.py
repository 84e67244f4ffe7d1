"""
Every "no" of Tessera: one enum, the same in ledger, event, log, metric and command line.

A reason is a code, numbers that a program can use, and the field or object it is about. The sentence for people is
made from them (`Reason.sentence`), so that nothing is said in two ways.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from tessera_schemas.base import INT_MAX, Lenient, Strict, Text
from tessera_schemas.text.units import format_number
from tessera_schemas.work import no_room


class Code(StrEnum):
    """Why not. The first part refuses for good; the second part makes a job wait; the third ends a run."""

    # refused at once
    NOT_JSON = "NotJson"
    TOO_LARGE = "TooLarge"
    DUPLICATE_KEY = "DuplicateKey"
    INVALID_FIELD = "InvalidField"
    UNKNOWN_FIELD = "UnknownField"
    MISSING_FIELD = "MissingField"
    FORBIDDEN_FIELD = "ForbiddenField"
    UNKNOWN_VERSION = "UnknownVersion"
    NOT_SUPPORTED_YET = "NotSupportedYet"
    TENANT_MISMATCH = "TenantMismatch"
    NOT_CONFIGURED = "NotConfigured"
    NO_SUCH_TENANT = "NoSuchTenant"
    NO_SUCH_QUEUE = "NoSuchQueue"
    QUEUE_NOT_ALLOWED = "QueueNotAllowed"
    NO_SUCH_TEMPLATE = "NoSuchTemplate"
    NO_SUCH_PRIORITY_CLASS = "NoSuchPriorityClass"
    PRIORITY_NOT_ALLOWED = "PriorityNotAllowed"
    NO_SUCH_TOPOLOGY_LEVEL = "NoSuchTopologyLevel"
    NOT_GRANTED = "NotGranted"
    EXCEEDS_JOB_LIMIT = "ExceedsJobLimit"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    INADMISSIBLE = "Inadmissible"
    IDEMPOTENCY_CONFLICT = "IdempotencyConflict"
    LIMIT_EXCEEDED = "LimitExceeded"
    GANG_DISAGREES = "GangDisagrees"
    TENANT_BUDGET_EXCEEDED = "TenantBudgetExceeded"
    LEDGER_FULL = "LedgerFull"
    CONFIG_CONFLICT = "ConfigConflict"
    STILL_IN_USE = "StillInUse"
    MEETS_NOTHING = "MeetsNothing"
    NO_SUCH_JOB = "NoSuchJob"
    NO_SUCH_RESERVATION = "NoSuchReservation"
    NOT_FREE_THEN = "NotFreeThen"
    NO_SUCH_NODE = "NoSuchNode"
    ALREADY_ENDED = "AlreadyEnded"
    NOT_RUNNING = "NotRunning"
    NO_LOGS = "NoLogs"
    # refused at the gateway, before it is a command
    NO_LONGER_SHOWN = "NoLongerShown"
    NOT_ELASTIC = "NotElastic"
    OUTSIDE_ROLE_BOUNDS = "OutsideRoleBounds"
    ROLE_COUNT_STALE = "RoleCountStale"
    SHIFT_UNDER_WAY = "ShiftUnderWay"
    RESIZE_UNDER_WAY = "ResizeUnderWay"
    RESIZE_DOES_NOT_FIT = "ResizeDoesNotFit"
    RESIZE_REFUSED = "ResizeRefused"
    ROLLED_OVER = "RolledOver"
    UNAUTHORIZED = "Unauthorized"
    FORBIDDEN = "Forbidden"
    RATE_LIMITED = "RateLimited"
    BACKLOG_FULL = "BacklogFull"
    NO_SUCH_PATH = "NoSuchPath"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    UNAVAILABLE = "Unavailable"
    INTERNAL = "Internal"
    # why a stream of events does not go on
    EVENTS_GONE = "EventsGone"
    SLOW_READER = "SlowReader"
    SHUTTING_DOWN = "ShuttingDown"
    # waiting
    WAITING_FOR_TURN = "WaitingForTurn"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    NO_NODES = "NoNodes"
    NO_FIT = "NoFit"
    BACKOFF = "Backoff"
    ON_HOLD = "OnHold"
    HELD_BY_OPERATOR = "HeldByOperator"
    QUEUE_STOPPED = "QueueStopped"
    BUDGET_SPENT = "BudgetSpent"
    BEHIND_QUEUE_HEAD = "BehindQueueHead"
    WAITING_FOR_PREEMPTED = "WaitingForPreemptedWorkloads"
    RESERVED = "Reserved"
    WAITING_FOR_DATA = "WaitingForData"
    GANG_INCOMPLETE = "GangIncomplete"
    OWNER_NOT_FOUND = "OwnerNotFound"
    BLOCKED_BY_DISRUPTION_BUDGET = "BlockedByDisruptionBudget"
    BEHIND_RESERVATION = "BehindReservation"
    NODES_BOOKED = "NodesBooked"
    WAITING_FOR_WINDOW = "WaitingForWindow"
    VOLUME_NOT_READY = "VolumeNotReady"
    CLAIM_NOT_READY = "ClaimNotReady"
    BEGIN_TIME = "BeginTime"
    DEPENDENCY_NOT_MET = "DependencyNotMet"
    TARGET_NOT_RUNNING = "TargetNotRunning"
    ARRAY_TASKS = "ArrayTasks"
    ARRAY_LIMIT = "ArrayLimit"
    HELD_AFTER_REQUEUES = "HeldAfterRequeues"
    ARRAY_KEEPS_FAILING = "ArrayKeepsFailing"
    WAITING_FOR_NODE = "WaitingForNode"
    STOPS_HELD_BACK = "StopsHeldBack"
    DOES_NOT_STOP = "DoesNotStop"
    STOP_NOT_NEEDED = "StopNotNeeded"
    NO_SUITABLE_NODE_NOW = "NoSuitableNodeNow"
    NAMESPACE_REFUSES = "NamespaceRefuses"
    # why a plan is not carried out
    VICTIM_GONE = "VictimGone"
    PLAN_DOES_NOT_FIT = "PlanDoesNotFit"
    EVICTION_BUDGET_SPENT = "EvictionBudgetSpent"
    KEPT_BY_MINIMUM = "KeptByMinimum"
    NOT_WAITING = "NotWaiting"
    NOT_ALLOWED_BY_PRESET = "NotAllowedByPreset"
    NO_NET_GAIN = "NoNetGain"
    MOVE_OFFERED = "MoveOffered"
    MOVE_VETOED = "MoveVetoed"
    MOVE_NOT_NEEDED = "MoveNotNeeded"
    NO_MOVE_OFFERED = "NoMoveOffered"
    OUTSIDE_MOVE_WINDOW = "OutsideMoveWindow"
    MOVE_BUDGET_SPENT = "MoveBudgetSpent"
    # why learnt prices are not used
    PRICES_OUTDATED = "PricesOutdated"
    PRICES_DO_NOT_FIT = "PricesDoNotFit"
    # why a run or job ended
    CANCELLED = "Cancelled"
    REQUEUE_ASKED = "RequeueAsked"
    SERVICE_REPLICAS = "ServiceReplicas"
    SCALED_DOWN = "ScaledDown"
    NEW_REVISION = "NewRevision"
    ROLLOUT_STOPPED = "RolloutStopped"
    REPLICA_ENDED = "ReplicaEnded"
    TARGET_ENDED = "TargetEnded"
    NODE_NOT_SUSPECTED = "NodeNotSuspected"
    CANCELLED_BY_SCRIPT = "CancelledByScript"
    REQUEUED_BY_SCRIPT = "RequeuedByScript"
    PAUSED_AS_IDLE = "PausedAsIdle"
    ENDED_AS_IDLE = "EndedAsIdle"
    BIND_REFUSED = "BindRefused"
    START_TIMEOUT = "StartTimeout"
    POD_FAILED = "PodFailed"
    POD_REFUSED_BY_NODE = "PodRefusedByNode"
    POD_DELETED = "PodDeleted"
    POD_EVICTED = "PodEvicted"
    IMAGE_NOT_PULLED = "ImageNotPulled"
    IMAGE_NOT_FOUND = "ImageNotFound"
    STARTS_STALL = "StartsStall"
    CLAIM_CONFLICT = "ClaimConflict"
    DEVICE_NOT_READY = "DeviceNotReady"
    TIME_LIMIT = "TimeLimit"
    OWNER_FAILED = "OwnerFailed"
    ATTEMPTS_EXHAUSTED = "AttemptsExhausted"
    RETRY_TIME_EXHAUSTED = "RetryTimeExhausted"
    PREEMPTED = "Preempted"
    RECLAIMED = "Reclaimed"
    DEFRAGMENTED = "Defragmented"
    NODE_LOST = "NodeLost"
    NODE_DRAINED = "NodeDrained"
    NODE_SICK = "NodeSick"
    NODE_SHRUNK = "NodeShrunk"
    NODE_RESTARTED = "NodeRestarted"
    NODE_SHUT_DOWN = "NodeShutDown"
    NODE_PRESSURE = "NodePressure"
    QUEUE_DRAINED = "QueueDrained"
    IDLE = "Idle"
    HUNG = "Hung"
    STRAGGLES = "Straggles"
    DEPENDENCY_NEVER_SATISFIED = "DependencyNeverSatisfied"
    DEADLINE_MISSED = "DeadlineMissed"
    RESERVATION_BEGINS = "ReservationBegins"
    RESERVATION_OVER = "ReservationOver"
    TASKS_FAILED = "TasksFailed"
    SHRUNK = "Shrunk"
    ROLES_SHIFTED = "RolesShifted"
    # why a node takes nothing new
    NOT_WHOLE_GPUS = "NotWholeGpus"
    DEVICE_CONFLICT = "DeviceConflict"
    DEVICE_UNKNOWN = "DeviceUnknown"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    DEVICES_CHANGED = "DevicesChanged"
    GPUS_BEING_CUT = "GpusBeingCut"
    NODE_BACKED_OFF = "NodeBackedOff"


SENTENCES: dict[Code, str] = {
    Code.NOT_JSON: "the body is not valid JSON",
    Code.TOO_LARGE: "the body is too large",
    Code.DUPLICATE_KEY: "a key appears twice",
    Code.INVALID_FIELD: "the value is not allowed",
    Code.UNKNOWN_FIELD: "there is no such field",
    Code.MISSING_FIELD: "the field is required",
    Code.FORBIDDEN_FIELD: "the field would give the job rights on its node; it is not accepted",
    Code.UNKNOWN_VERSION: "this service does not know the version",
    Code.NOT_SUPPORTED_YET: "nothing honours this field yet, so it is refused instead of ignored",
    Code.TENANT_MISMATCH: "the payload names another tenant than its sender",
    Code.NOT_CONFIGURED: "no configuration has been applied yet; an operator runs `tessera apply`",
    Code.NO_SUCH_TENANT: "there is no such tenant",
    Code.NO_SUCH_QUEUE: "there is no such queue",
    Code.QUEUE_NOT_ALLOWED: "the queue does not take jobs of this tenant",
    Code.NO_SUCH_TEMPLATE: "there is no such template",
    Code.NO_SUCH_PRIORITY_CLASS: "there is no such priority class",
    Code.PRIORITY_NOT_ALLOWED: "the priority class is not granted to this tenant",
    Code.NO_SUCH_TOPOLOGY_LEVEL: "there is no such topology level; name a configured one, or a label key with a domain",
    Code.NOT_GRANTED: "the tenant is not granted this; an operator grants it in the tenant's `pod_grants`",
    Code.EXCEEDS_JOB_LIMIT: "the job exceeds what its tenant or queue permits one job",
    Code.EXCEEDS_MAX_QUOTA: "the job is larger than its queue's whole quota",
    Code.INADMISSIBLE: "no node could ever hold it",
    Code.IDEMPOTENCY_CONFLICT: "the key was used before for a different job; choose another key",
    Code.LIMIT_EXCEEDED: "the tenant is at its limit",
    Code.GANG_DISAGREES: "the pods of one gang contradict each other",
    Code.TENANT_BUDGET_EXCEEDED: "the tenant submits faster than its configuration permits; try again later",
    Code.LEDGER_FULL: "the ledger is nearly full and takes no new work; an operator has to enlarge it",
    Code.CONFIG_CONFLICT: "the configuration has changed meanwhile; read it again",
    Code.STILL_IN_USE: "live jobs use this name",
    Code.MEETS_NOTHING: "nothing in the cluster matches",
    Code.NO_SUCH_JOB: "there is no such job",
    Code.NO_SUCH_RESERVATION: "no reservation of this name is open to it",
    Code.NOT_FREE_THEN: "the nodes are not free then",
    Code.NO_SUCH_NODE: "there is no such node",
    Code.ALREADY_ENDED: "the job has ended already",
    Code.NO_LONGER_SHOWN: "the job has ended, and lists keep only the jobs that ended last",
    Code.NOT_ELASTIC: "the role is not elastic: its number of pods does not change while the job runs",
    Code.OUTSIDE_ROLE_BOUNDS: "the role would have fewer pods than its minimum, or more than its maximum",
    Code.ROLE_COUNT_STALE: "the role has another number of pods than the request says",
    Code.SHIFT_UNDER_WAY: "pods of the job move between its roles already; ask again once they have",
    Code.RESIZE_UNDER_WAY: "pods of another role are being resized; ask again once their nodes have taken it",
    Code.RESIZE_DOES_NOT_FIT: "a node of it lacks room for the new size; a resize in place moves and preempts nothing",
    Code.RESIZE_REFUSED: "Kubernetes or a node refused the new size; the pods go back to the one before",
    Code.ROLLED_OVER: "a roll-over took the record out of the ledger; the operator's backup has it",
    Code.NOT_RUNNING: "the job, or the attempt named, is not running",
    Code.NO_LOGS: "there is no log to show",
    Code.UNAUTHORIZED: "no valid token; send one as `Authorization: Bearer TOKEN`",
    Code.FORBIDDEN: "this request is not allowed",
    Code.RATE_LIMITED: "too many requests; try again later",
    Code.BACKLOG_FULL: "commands come faster than they are read; try again later",
    Code.NO_SUCH_PATH: "there is nothing at this path",
    Code.METHOD_NOT_ALLOWED: "the path does not take this method",
    Code.UNAVAILABLE: "a part that the request needs is away; try again later",
    Code.INTERNAL: "an internal error; the service's log has the details",
    Code.EVENTS_GONE: "events after the one named are not kept any more",
    Code.SLOW_READER: "events came faster than they were read; connect again to go on",
    Code.SHUTTING_DOWN: "the server stops; connect again to go on",
    Code.WAITING_FOR_TURN: "other jobs are before it",
    Code.WAITING_FOR_QUOTA: "its queue's quota is used up",
    Code.NO_NODES: "no node is ready in the queue's pool",
    Code.NO_FIT: "no node has room for it now",
    Code.BACKOFF: "it waits before its next attempt",
    Code.ON_HOLD: "it is held; `tessera release` lets it go",
    Code.HELD_BY_OPERATOR: "an operator holds it; only an operator's `tessera release` lets it go",
    Code.QUEUE_STOPPED: "its queue is stopped by an operator",
    Code.BUDGET_SPENT: "the budget of this month is spent; it goes on in the next one, or once an operator grants more",
    Code.BEHIND_QUEUE_HEAD: "the first job of its queue does not fit yet, and the queue lets no job pass",
    Code.WAITING_FOR_PREEMPTED: "room is made for it; the runs there are being stopped",
    Code.RESERVED: "no node has room for it now; room is kept for it from when runs there are expected to end",
    Code.WAITING_FOR_DATA: "it waits for a node that has its data sets, for a part of the time that reading takes",
    Code.GANG_INCOMPLETE: "not all of its pods are there yet",
    Code.OWNER_NOT_FOUND: "the object that gives the size of the gang does not exist",
    Code.BLOCKED_BY_DISRUPTION_BUDGET: "a disruption budget keeps a pod of it from being evicted; it is tried again",
    Code.BEHIND_RESERVATION: "it would delay the start of a job before it, for which room is kept",
    Code.NODES_BOOKED: "nodes that it needs are reserved before it would have ended",
    Code.WAITING_FOR_WINDOW: "it runs in the windows of its reservation, and there is none that holds it now",
    Code.VOLUME_NOT_READY: "a volume that it needs is not there for it",
    Code.CLAIM_NOT_READY: "a claim on devices that it names is not there for it",
    Code.BEGIN_TIME: "it was submitted to begin later",
    Code.DEPENDENCY_NOT_MET: "it waits for other jobs",
    Code.TARGET_NOT_RUNNING: "the job that it is attached to does not run",
    Code.ARRAY_TASKS: "its tasks wait, run and end each by itself; ask for one of them",
    Code.ARRAY_LIMIT: "as many tasks of its array run at once as its limit allows",
    Code.HELD_AFTER_REQUEUES: "it could not be started too often in a row; `tessera release` starts it again",
    Code.ARRAY_KEEPS_FAILING: "its tasks fail one after the other; `tessera release` goes on with the others",
    Code.WAITING_FOR_NODE: "it is being stopped, and waits until the node is back or is said to be off",
    Code.STOPS_HELD_BACK: "too many runs would be stopped at once; it goes on until an operator says otherwise",
    Code.DOES_NOT_STOP: "a run that was told to stop has not stopped within its notice and grace",
    Code.STOP_NOT_NEEDED: "nobody needs its room any more",
    Code.NO_SUITABLE_NODE_NOW: "no node suits it as the nodes are now, but nodes have suited it before",
    Code.NAMESPACE_REFUSES: "Kubernetes refuses the pods of its namespace; one job after the other is tried",
    Code.VICTIM_GONE: "a run that it would evict does not run any more",
    Code.PLAN_DOES_NOT_FIT: "it would not fit even without the runs to be evicted",
    Code.EVICTION_BUDGET_SPENT: "a run in the way is not preemptible, started just now, or was evicted too often",
    Code.KEPT_BY_MINIMUM: "a run in the way is one of the replicas that its service is guaranteed",
    Code.NOT_WAITING: "the job does not wait any more",
    Code.NOT_ALLOWED_BY_PRESET: "the preemption preset does not allow it",
    Code.NO_NET_GAIN: "the runs that would move lose more than the waiting job gains",
    Code.MOVE_OFFERED: "runs in the way are asked to move; their answers are waited for",
    Code.MOVE_VETOED: "a run in the way was asked to move, and stays",
    Code.MOVE_NOT_NEEDED: "the move would not help the job that it was for any more",
    Code.NO_MOVE_OFFERED: "nobody has asked the job to move",
    Code.OUTSIDE_MOVE_WINDOW: "runs move only in the hours that the policy names",
    Code.MOVE_BUDGET_SPENT: "runs of one tenant move no more this week than the policy allows",
    Code.PRICES_OUTDATED: "the mix of jobs or its nodes have changed, or the mix was priced already",
    Code.PRICES_DO_NOT_FIT: "the prices are not one for each known kind of pod, within bounds",
    Code.CANCELLED: "it was cancelled",
    Code.SERVICE_REPLICAS: "it is a service, whose replicas run as jobs of their own",
    Code.SCALED_DOWN: "its service wants fewer replicas",
    Code.NEW_REVISION: "its service replaces it by a replica of another revision",
    Code.ROLLOUT_STOPPED: "replicas of the new revision failed one after the other, so that no more are started",
    Code.REPLICA_ENDED: "the replica of a service has ended, and is started again",
    Code.REQUEUE_ASKED: "its owner or an operator put it back in line",
    Code.TARGET_ENDED: "the job that it is attached to has ended",
    Code.NODE_NOT_SUSPECTED: "the node that it was to test is not suspected any more",
    Code.CANCELLED_BY_SCRIPT: "its own script cancelled it",
    Code.REQUEUED_BY_SCRIPT: "its own script put it back in line",
    Code.PAUSED_AS_IDLE: "nobody used it, so that it is paused; `tessera resume` lets it wait in line again",
    Code.ENDED_AS_IDLE: "nobody used it, so that it was ended",
    Code.BIND_REFUSED: "Kubernetes refused a pod",
    Code.START_TIMEOUT: "it did not start in time",
    Code.POD_FAILED: "a pod failed",
    Code.POD_REFUSED_BY_NODE: "a node refused a pod",
    Code.POD_DELETED: "a pod was deleted from outside Tessera",
    Code.POD_EVICTED: "a pod was evicted from outside Tessera",
    Code.IMAGE_NOT_PULLED: "the image of a container could not be pulled",
    Code.IMAGE_NOT_FOUND: "the image of a container does not exist",
    Code.STARTS_STALL: "pods do not start on several nodes at once",
    Code.CLAIM_CONFLICT: "a claim of a pod cannot have the devices that were chosen for it",
    Code.DEVICE_NOT_READY: "a device of a claim could not be made ready",
    Code.TIME_LIMIT: "it reached its time limit",
    Code.OWNER_FAILED: "the object in Kubernetes that it belongs to has failed",
    Code.ATTEMPTS_EXHAUSTED: "it has no attempts left",
    Code.RETRY_TIME_EXHAUSTED: "the time in which it may be tried again is over",
    Code.PREEMPTED: "a job of a higher priority class of its queue took its place",
    Code.RECLAIMED: "the queue that had lent the quota needs it back",
    Code.DEFRAGMENTED: "it moves to make room for a job that needs the room in one piece",
    Code.NODE_LOST: "a node of it is lost",
    Code.NODE_DRAINED: "an operator drains a node of it",
    Code.NODE_SICK: "a node of it is sick",
    Code.NODE_SHRUNK: "a node of it has less than its runs hold",
    Code.NODE_RESTARTED: "a node of it restarted",
    Code.NODE_SHUT_DOWN: "a node of it was shut down",
    Code.NODE_PRESSURE: "a node of it ran short of memory or disk, and its kubelet ended a pod",
    Code.QUEUE_DRAINED: "an operator stopped and drained its queue",
    Code.IDLE: "it held GPUs and used none",
    Code.HUNG: "its pods have reported no progress for too long",
    Code.STRAGGLES: "pods of it make less progress than its others",
    Code.RESERVATION_BEGINS: "a reservation of nodes of it begins",
    Code.RESERVATION_OVER: "the window of its reservation ends",
    Code.DEADLINE_MISSED: "it did not start early enough to end by its deadline",
    Code.DEPENDENCY_NEVER_SATISFIED: "a condition that the job waited for can no longer come true",
    Code.TASKS_FAILED: "tasks of the array failed or were cancelled",
    Code.ROLES_SHIFTED: "its own request moves pods from one role to another",
    Code.SHRUNK: "pods beyond its gang made room for a job that waited",
    Code.NOT_WHOLE_GPUS: "devices offered as whole GPUs are not; the node's device profile has to name their kind",
    Code.DEVICE_CONFLICT: "statements about the node's devices contradict each other",
    Code.DEVICE_UNKNOWN: "the node does not say which GPUs it has",
    Code.DEVICE_UNHEALTHY: "GPUs of the node are not well",
    Code.DEVICES_CHANGED: "its devices changed while runs hold some of them; it takes nothing new until they have left",
    Code.GPUS_BEING_CUT: "NVIDIA's mig-manager cuts its GPUs anew; until it has done so it takes nothing new",
    Code.NODE_BACKED_OFF: "pods did not start or last on it; for a while it takes no others",
}


CODES = frozenset(code.value for code in Code)


def code_words(code: str) -> str:
    """Sentence of a code in general, for people; also of codes that this version does not know."""
    return SENTENCES[Code(code)] if code in CODES else "a reason that this version does not know"


WHEN: dict[str, frozenset[str]] = {
    Code.RESERVED: frozenset({"from_ts", "seconds"}),
    Code.BEHIND_RESERVATION: frozenset({"from_ts", "expected_end_ts"}),
}
"""
Numbers that say when a job was expected to start at its last look, by code. No sentence has them: when it starts is
said by what runs do now, and in one place alone, its expected start.
"""
RETRY_NUMBER = "retry_after_seconds"
TEMPORARY = frozenset({Code.TENANT_BUDGET_EXCEEDED, Code.LEDGER_FULL})
"""What is refused for these may be sent again as it is, after so many seconds by the reason's `RETRY_NUMBER`."""


class PublicReason(Lenient):
    """A reason as readers of events and views see it: a code that they do not know yet is still a code."""

    code: str
    field: Annotated[str, StringConstraints(max_length=300)] = ""
    numbers: dict[str, Annotated[int, Field(ge=-INT_MAX, le=INT_MAX)]] = Field(default_factory=dict)
    detail: Text = ""

    def sentence(self) -> str:
        """The reason as one line for people, behind the word by which programs and pages know it."""
        about = f"{self.field}: " if self.field else ""
        lacks_room = self.code in (Code.NO_FIT, Code.INADMISSIBLE)
        said = no_room.said_by(self.numbers) if self.code == Code.NO_FIT else WHEN.get(self.code, frozenset())
        if self.code == Code.INADMISSIBLE and self.detail:
            said = no_room.said_of_never(self.numbers)
        left = sorted((name, value) for name, value in self.numbers.items() if name not in said)
        numbers = ", ".join(format_number(name, value, self.field) for name, value in left)
        extra = "; ".join(part for part in (self.detail, numbers) if part)
        known = "; ".join(filter(None, (code_words(self.code), *self._room()))) if lacks_room else code_words(self.code)
        return f"{self.code}: {about}{known}" + (f" ({extra})" if extra else "")

    def brief(self) -> str:
        """The reason in so few words that lists have room for it."""
        more = f", {self.detail.partition(' (')[0]}" if self.code == Code.BACKOFF and self.detail else ""
        return self._room()[0] or code_words(self.code) + more

    def _room(self) -> tuple[str, str]:
        """Words of a lack of room: the need, and the nodes; else empty."""
        if self.code == Code.INADMISSIBLE:
            return "", no_room.node_words(self.numbers)
        if self.code != Code.NO_FIT:
            return "", ""
        return no_room.need_words(self.numbers), no_room.node_words(self.numbers)


class Reason(PublicReason, Strict):
    """One "no" where it is made: code, what it is about, numbers, and a detail that only its source knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    code: Code


def is_temporary(reasons: Iterable[PublicReason]) -> bool:
    """Whether the same may be sent again later: an earlier try that was refused so says nothing about this one."""
    return any(reason.code in TEMPORARY for reason in reasons)

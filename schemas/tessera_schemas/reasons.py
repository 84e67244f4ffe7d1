"""
Every "no" of Tessera: one enum, the same in ledger, event, log, metric and command line.

A reason is a code, numbers that a program can use, and the field or object it is about. The sentence for people is
made from them (`Reason.sentence`), so that nothing is said in two ways.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from tessera_schemas.base import INT_MAX, Lenient, Strict, Text


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
    NO_SUCH_PRIORITY_CLASS = "NoSuchPriorityClass"
    PRIORITY_NOT_ALLOWED = "PriorityNotAllowed"
    EXCEEDS_JOB_LIMIT = "ExceedsJobLimit"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    INADMISSIBLE = "Inadmissible"
    IDEMPOTENCY_CONFLICT = "IdempotencyConflict"
    LIMIT_EXCEEDED = "LimitExceeded"
    LEDGER_FULL = "LedgerFull"
    CONFIG_CONFLICT = "ConfigConflict"
    NO_SUCH_JOB = "NoSuchJob"
    ALREADY_ENDED = "AlreadyEnded"
    # waiting
    WAITING_FOR_TURN = "WaitingForTurn"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    NO_NODES = "NoNodes"
    NO_FIT = "NoFit"
    BACKOFF = "Backoff"
    # why a run or job ended
    CANCELLED = "Cancelled"
    BIND_REFUSED = "BindRefused"
    START_TIMEOUT = "StartTimeout"
    POD_FAILED = "PodFailed"
    POD_REFUSED_BY_NODE = "PodRefusedByNode"
    POD_DELETED = "PodDeleted"
    TIME_LIMIT = "TimeLimit"
    ATTEMPTS_EXHAUSTED = "AttemptsExhausted"


SENTENCES: dict[Code, str] = {
    Code.NOT_JSON: "the body is not valid JSON",
    Code.TOO_LARGE: "the body is too large",
    Code.DUPLICATE_KEY: "a key appears twice",
    Code.INVALID_FIELD: "the value is not allowed",
    Code.UNKNOWN_FIELD: "there is no such field",
    Code.MISSING_FIELD: "the field is required",
    Code.FORBIDDEN_FIELD: "the field would give the job rights on its node; it is never accepted",
    Code.UNKNOWN_VERSION: "this version is not known here",
    Code.NOT_SUPPORTED_YET: "nothing honours this field yet, so it is refused instead of ignored",
    Code.TENANT_MISMATCH: "the tenant in the payload is not the tenant that sent it",
    Code.NOT_CONFIGURED: "no configuration has been applied yet; an operator runs `tessera apply`",
    Code.NO_SUCH_TENANT: "there is no such tenant",
    Code.NO_SUCH_QUEUE: "there is no such queue",
    Code.QUEUE_NOT_ALLOWED: "the queue does not take jobs of this tenant",
    Code.NO_SUCH_PRIORITY_CLASS: "there is no such priority class",
    Code.PRIORITY_NOT_ALLOWED: "the priority class is not granted to this tenant",
    Code.EXCEEDS_JOB_LIMIT: "the job is larger than the tenant's limit for one job",
    Code.EXCEEDS_MAX_QUOTA: "the job is larger than its queue's whole quota",
    Code.INADMISSIBLE: "no node could ever hold it",
    Code.IDEMPOTENCY_CONFLICT: "the key was used before for a different job",
    Code.LIMIT_EXCEEDED: "the tenant is at its limit",
    Code.LEDGER_FULL: "the ledger is full; an operator must act",
    Code.CONFIG_CONFLICT: "the configuration has changed since; read it again",
    Code.NO_SUCH_JOB: "there is no such job",
    Code.ALREADY_ENDED: "the job has ended already",
    Code.WAITING_FOR_TURN: "other jobs are before it",
    Code.WAITING_FOR_QUOTA: "its queue's quota is used up",
    Code.NO_NODES: "no node is ready in the queue's pool",
    Code.NO_FIT: "no node has room for it now",
    Code.BACKOFF: "it waits before its next attempt",
    Code.CANCELLED: "it was cancelled",
    Code.BIND_REFUSED: "Kubernetes refused a pod",
    Code.START_TIMEOUT: "it did not start in time",
    Code.POD_FAILED: "a pod failed",
    Code.POD_REFUSED_BY_NODE: "a node refused a pod",
    Code.POD_DELETED: "a pod was deleted by somebody else",
    Code.TIME_LIMIT: "it reached its time limit",
    Code.ATTEMPTS_EXHAUSTED: "it has no attempts left",
}


CODES = frozenset(code.value for code in Code)


class PublicReason(Lenient):
    """A reason as readers of events and views see it: a code that they do not know yet is still a code."""

    code: str
    field: Annotated[str, StringConstraints(max_length=300)] = ""
    numbers: dict[str, Annotated[int, Field(ge=-INT_MAX, le=INT_MAX)]] = Field(default_factory=dict)
    detail: Text = ""

    def sentence(self) -> str:
        """The reason as one line for people."""
        about = f"{self.field}: " if self.field else ""
        numbers = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in sorted(self.numbers.items()))
        extra = "; ".join(part for part in (self.detail, numbers) if part)
        known = SENTENCES.get(Code(self.code), "") if self.code in CODES else "a reason that this version does not know"
        return f"{self.code}: {about}{known}" + (f" ({extra})" if extra else "")


class Reason(PublicReason, Strict):
    """One "no" where it is made: code, what it is about, numbers, and a detail that only its source knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    code: Code

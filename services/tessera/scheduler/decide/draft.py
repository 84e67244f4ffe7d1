"""A draft of one message: the inputs it takes in, and the records made so far with the state they lead to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tessera.domain.folding.fold import apply_record
from tessera.domain.state import State
from tessera_schemas.facts import AnyFact
from tessera_schemas.ledger import AnyRecord, EarmarkEnded, TakenFact, Waiting
from tessera_schemas.reasons import Reason
from tessera_schemas.shard.ledger_form import NUMBERS_FROM
from tessera_schemas.shard.orders import Order
from tessera_schemas.subjects import MESSAGE_BYTES_MAX

ROOM_BYTES = MESSAGE_BYTES_MAX - 4 * 1024  # the envelope takes the rest
SCHEDULER = "scheduler"
"""Who puts a job on hold that was not asked to be."""
RECORD_BYTES = 8 * 1024  # no record but an allocation, an earmark or a permit is larger


@dataclass(frozen=True, slots=True)
class Inputs:
    """The first part of a ledger message: everything a decision may depend on besides the state."""

    n: int
    ts: int
    epoch: int
    facts_upto: int
    holder: str = ""
    state_hash: str = ""
    facts: tuple[TakenFact, ...] = ()
    orders: tuple[Order, ...] = ()
    facts_wait: bool = False
    starts_since: int = 0


@dataclass(slots=True)
class Draft:
    """The records made so far, the state as they leave it, and the bytes left for more."""

    state: State
    facts: tuple[TakenFact, ...]
    bytes_left: int = ROOM_BYTES
    records: list[AnyRecord] = field(default_factory=list)
    stored: dict[str, list[bytes]] = field(default_factory=lambda: {"records": []})
    """The bytes of each part, by the lists of a message in their order."""
    new_arrays: dict[str, str] = field(default_factory=dict)
    """Arrays that the message takes in, by the beginning of their tasks' ids."""

    def add(self, record: AnyRecord, stored: bytes = b"") -> None:
        """Adds a record: applies it to the state and takes its bytes, made here if need be, from the room left."""
        # Applied before it is counted as made: a record that the fold does not accept raises here, and never gets into
        # a message (ADR 0009).
        apply_record(self.state, record, self.facts)
        self.records.append(record)
        stored = stored or record.to_bytes()
        self.stored["records"].append(stored)
        self.bytes_left -= len(stored) + 1

    @property
    def next_number(self) -> int:
        """The number of the job that is taken in next; 0 in a ledger that knows none yet."""
        return self.state.last_number + 1 if self.state.format >= NUMBERS_FROM else 0

    @property
    def full(self) -> bool:
        """Whether work that can wait is left to the next message, so that this one stays below its bound."""
        return self.bytes_left < RECORD_BYTES


Judge = Callable[[Draft, int, Any], None]
JudgeT = TypeVar("JudgeT", bound=Judge)
JUDGE: dict[type[AnyFact], Judge] = {}
"""What follows from a fact: each function registers itself by the fact's class."""


def judges(fact: type[AnyFact]) -> Callable[[JudgeT], JudgeT]:
    """Register the function below as the one that judges this kind of fact, the `index`-th of its message."""

    def register(judge: JudgeT) -> JudgeT:
        JUDGE[fact] = judge
        return judge

    return register


def record_waiting(draft: Draft, job_id: str, reason: Reason) -> None:
    """Why a queued job does not start, when that is another reason than before."""
    job = draft.state.jobs.get(job_id)
    # By code alone: the numbers of a reason change with nearly every message, and a record for each would fill the
    # ledger while nothing moves.
    if job is not None and (job.reason is None or job.reason.code is not reason.code):
        draft.add(Waiting(kind="waiting", job_id=job_id, reason=reason))


def give_up_earmark(draft: Draft, owner: str) -> None:
    """End the job's earmark; the room is free for all again."""
    if draft.state.earmarks.get(owner) is not None:
        draft.add(EarmarkEnded(kind="earmark_ended", owner=owner, why="owner_gone"))

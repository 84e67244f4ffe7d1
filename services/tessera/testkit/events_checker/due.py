"""Public events that each record of a ledger must have led to; shares no code with projection."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tessera_schemas.base import DIGEST_CHARACTERS
from tessera_schemas.documents.registry import kind_of
from tessera_schemas.facts import JobAdmitted, JobRefused, UpdateRequested
from tessera_schemas.ledger import (
    LEDGER_MESSAGE,
    RECORDS,
    BudgetReached,
    JobMoved,
    JobUpdated,
    LeftChanged,
    NodeDrained,
    TaskQueued,
)
from tessera_schemas.reasons import Code
from tessera_schemas.shard.records import ResizeRequested, RolesRequested
from tessera_schemas.subjects import OPERATOR

PREFIX, VERSION = "io.tessera.job.", ".v1"
NO_QUEUE = "none"
ENDS = ("succeeded", "failed", "cancelled")
NAMES = {kind_of(record): record.event.type.split(".")[-2] for record in RECORDS if record.event is not None}
"""By record, or by how a job finished: the name of its event."""
NAMES |= {end: end for end in ENDS} | {"budget_reached": "budget"}
NODE_WORDS = {
    "health_noted": "health-changed",
    "node_drained": "drained",
    "fence_asked": "fence-asked",
    "fence_ended": "fence-ended",
}
"""By record about a node: the last word of its event's type."""

RESERVATION_WORDS = {
    "booked": "made",
    "booking_refused": "refused",
    "rebooked": "changed",
    "booking_short": "unserved",
    "booking_ended": "ended",
}


@dataclass(frozen=True, slots=True)
class Due:
    """One event: its type, whose it is, and the values of all of its fields that the ledger knows."""

    type: str
    tenant: str
    queue: str
    event_data: dict[str, Any]


def due_events(ledger: Iterable[bytes]) -> dict[str, Due]:
    """Due events by cursor `n.i`, in order, up to the first unreadable message, which the invariant checker reports."""
    due: dict[str, Due] = {}
    jobs = _Jobs()
    for stored in ledger:
        try:
            message = LEDGER_MESSAGE.validate_json(stored)
        except ValidationError:
            break
        more: list[Due] = []
        for index, record in enumerate(message.records):
            name = NAMES.get(getattr(record, "phase", record.kind))
            # Operators' drains of before format 6 name no pool, and were told to nobody.
            if record.kind in RESERVATION_WORDS:
                due[f"{message.n}.{index}"], *others = _reservation_dues(record)
                more += others
            elif name is not None and not (isinstance(record, NodeDrained) and not record.pool):
                due[f"{message.n}.{index}"] = jobs.due(name, record, [taken.fact for taken in message.facts])
        due |= {f"{message.n}.{index}": other for index, other in enumerate(more, len(message.records))}
        jobs.numbered |= any(getattr(record, "number", 0) for record in message.records)
    return due


def _reservation_dues(record: Any) -> Iterator[Due]:
    """One for each tenant that the reservation is for, and says its own part of `who`; else for operators."""
    fields, type_ = record.model_dump(mode="json"), f"io.tessera.reservation.{RESERVATION_WORDS[record.kind]}{VERSION}"
    tenants = sorted({who.split("/")[0] for who in fields.get("who", ())})
    for tenant in tenants:
        own = [who for who in fields["who"] if who.split("/")[0] == tenant]
        yield Due(type_, tenant, NO_QUEUE, {**fields, "who": own})
    if not tenants:
        yield Due(type_, OPERATOR, record.pool or NO_QUEUE, fields)


def _about_no_job(record: Any, event_data: dict[str, Any]) -> Due:
    if record.kind in NODE_WORDS:
        word = "undrained" if event_data.get("undo") else NODE_WORDS[record.kind]
        return Due(f"io.tessera.node.{word}{VERSION}", OPERATOR, record.pool or NO_QUEUE, event_data)
    if isinstance(record, LeftChanged):
        return Due(f"io.tessera.cluster.fragmentation{VERSION}", OPERATOR, record.pool, event_data)
    word, whose = "spent" if record.percent == 100 else "warned", record.tenant or OPERATOR
    queue = record.budget[6:] if record.budget.startswith("queue/") else NO_QUEUE
    return Due(f"io.tessera.budget.{word}{VERSION}", whose, queue, event_data)


class _Jobs:
    """Job data that events repeat: the job as admitted, and its current attempt."""

    def __init__(self) -> None:
        self.admitted: dict[str, JobAdmitted] = {}
        self.attempts: dict[str, int] = {}
        self.numbered = False  # events of a ledger that numbers no jobs yet say less of submits

    def due(self, name: str, record: Any, facts: list[Any]) -> Due:
        event_data = record.model_dump(mode="json")
        if record.kind in NODE_WORDS or isinstance(record, LeftChanged | BudgetReached):
            return _about_no_job(record, event_data)
        type_ = f"{PREFIX}{'unheld' if name == 'held' and event_data['undo'] else name}{VERSION}"
        job_id = event_data.get("job_id") or event_data.get("owner") or event_data.get("run_id", "").partition("-")[0]
        fact = facts[record.fact] if 0 <= getattr(record, "fact", -1) < len(facts) else None
        if isinstance(fact, UpdateRequested | RolesRequested | ResizeRequested):
            return Due(type_, fact.tenant or OPERATOR, NO_QUEUE, {"reasons": event_data["reasons"]})
        if isinstance(fact, JobRefused):
            reasons = {"reasons": event_data["reasons"]} if event_data["reasons"] else {}
            return Due(type_, fact.tenant, NO_QUEUE, fact.model_dump(mode="json") | reasons)
        if isinstance(fact, JobAdmitted):
            return Due(type_, fact.tenant, fact.spec.queue, event_data | self._submitted(name, fact, record))
        if isinstance(record, TaskQueued) and (array := self.admitted.get(record.array)) is not None:
            self.admitted[job_id], self.attempts[job_id] = array, 0
            event_data |= {"name": array.spec.name, "queue": array.spec.queue, "key": array.key}
            return Due(type_, array.tenant, array.spec.queue, event_data)
        if isinstance(record, JobMoved | JobUpdated) and (changed := self.admitted.get(job_id)) is not None:
            event_data |= self._changed(job_id, changed, record)
        if name == "allocated":
            self.attempts[job_id] = record.attempt
        job = self.admitted.get(job_id)
        if job is None:
            return Due(type_, "", NO_QUEUE, event_data)
        cause = self.admitted.get(event_data.get("by", ""))
        if cause is not None and cause.tenant != job.tenant:
            event_data["by"] = ""
        event_data["runs_stopping"] = len(event_data.get("victims", ()))
        event_data |= {
            "job_id": job_id,
            "name": job.spec.name,
            "queue": job.spec.queue,
            "attempt": self.attempts[job_id],
        }
        return Due(type_, job.tenant, job.spec.queue, event_data)

    def _changed(self, job_id: str, job: JobAdmitted, record: JobMoved | JobUpdated) -> dict[str, Any]:
        """Fields that are told of a change of a job, which later events repeat; of a task `job` is its array."""
        given: dict[str, object]
        told: dict[str, Any]
        if isinstance(record, JobMoved):
            given, told = {"queue": record.queue}, {"from_queue": job.spec.queue}
        else:
            given = record.changes.given
            told = record.changes.model_dump(mode="json", exclude_none=True)
            told["from_name"] = job.spec.name if "name" in given else ""
        self.admitted[job_id] = job.model_copy(update={"spec": job.spec.model_copy(update=given)})
        return told

    def _submitted(self, name: str, fact: JobAdmitted, record: Any) -> dict[str, Any]:
        """Fields that are told of a submit; one under a key in use is not told as the job that has the key."""
        told: dict[str, Any] = {
            "job_id": fact.job_id,
            "name": fact.spec.name,
            "queue": fact.spec.queue,
            "key": fact.key,
        }
        if name != "refused":
            self.admitted[fact.job_id], self.attempts[fact.job_id] = fact, 0
            told["digest"] = fact.digest()[:DIGEST_CHARACTERS] if record.number else ""
            return {**told, "notes": list(fact.notes)}
        if not self.numbered:
            return {**told, "key": ""}
        told["digest"] = fact.digest()[:DIGEST_CHARACTERS]
        if fact.job_id in self.admitted and any(why.code == Code.IDEMPOTENCY_CONFLICT for why in record.reasons):
            told |= {"job_id": "", "conflicts_with": fact.job_id}
        return told

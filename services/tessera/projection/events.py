"""
Public events: a pure function of one ledger message and the state before it.

Each record that is of interest outside becomes exactly one CloudEvent; of a reservation, one for each tenant that it is
for. Its id is the cursor `n.i`, i being the index of the record in its message, so that an event derived again is the
same event, byte for byte.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple, Self

import orjson
from pydantic import TypeAdapter

from tessera.domain.devices.costs import cost_of
from tessera.domain.entities import Job
from tessera.domain.errors import Contradiction
from tessera.domain.state import State
from tessera.domain.storing.canonical import spec_hash
from tessera.domain.storing.fast import replace
from tessera_schemas import events as public
from tessera_schemas import subjects
from tessera_schemas.base import DIGEST_CHARACTERS, Strict
from tessera_schemas.documents.registry import dataschema
from tessera_schemas.facts import JobAdmitted, JobRefused, RunAbsent, RunEnded, RunUsed, UpdateRequested
from tessera_schemas.ledger import (
    JOB_OF,
    Allocated,
    AnyRecord,
    Booked,
    BookingEnded,
    BookingRefused,
    BudgetReached,
    EarmarkSet,
    FenceAsked,
    FenceEnded,
    Finished,
    HealthNoted,
    Held,
    JobMoved,
    JobQueued,
    JobTurnedAway,
    JobUpdated,
    LedgerMessage,
    LeftChanged,
    NodeDrained,
    Released,
    Requeued,
    Revoked,
    TaskQueued,
    UseNoted,
)
from tessera_schemas.shard.bookings import BookingShort, Rebooked
from tessera_schemas.shard.records import ResizeRequested, RolesRequested, SessionWarned
from tessera_schemas.work.arrays import task_count
from tessera_schemas.work.budgets import SPENT, month_end, month_text
from tessera_schemas.work.placement import Placement

NOBODY = "none"  # the queue's place in the subject of a refusal whose queue nobody knows
SEQUENCE_DIGITS = 16  # of the largest ledger n
PLACEMENTS: TypeAdapter[tuple[Placement, ...]] = TypeAdapter(tuple[Placement, ...])
JsonData = dict[str, Any]
AnyNodeRecord = HealthNoted | NodeDrained | FenceAsked | FenceEnded
NODE_EVENTS: dict[type[AnyRecord], type[public.NodeEvent]] = {
    HealthNoted: public.NodeHealthChangedV1,
    NodeDrained: public.NodeDrainedV1,
    FenceAsked: public.NodeFenceAskedV1,
    FenceEnded: public.NodeFenceEndedV1,
}

RESERVATIONS = frozenset({Booked, Rebooked, BookingShort, BookingRefused, BookingEnded})
"""Records of reservations, which are for tenants and no job."""


class Cursor(NamedTuple):
    """Source of an event: the `i`-th of ledger message `n`. Written `n.i`; orders as the ledger does."""

    n: int
    i: int

    def __str__(self) -> str:
        return f"{self.n}.{self.i}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError; the empty text is the place before every event."""
        if not text:
            return cls(0, 0)
        n, _, i = text.partition(".")
        return cls(int(n), int(i))


START = Cursor(0, 0)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One event as the stream keeps it."""

    subject: str
    cursor: Cursor
    data: bytes
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """Fields of a job that its events carry."""

    job_id: str
    tenant: str
    queue: str
    name: str = ""
    trace: str = ""
    attempt: int = 0


class MessageJobs:
    """The jobs of one message: as the state before it has them, or as the message itself took them in."""

    def __init__(self, state: State, message: LedgerMessage) -> None:
        self._state, self.message = state, message
        self._here: dict[str, Subject] = {}
        self._steps: dict[tuple[str, str], JsonData] | None = None

    def steps_of(self, run_id: str, kind: str = "run_ended") -> JsonData:
        """Field with the steps of a run of which a fact of this kind tells here; empty where none does."""
        if self._steps is None:
            ends = (taken.fact for taken in self.message.facts if isinstance(taken.fact, RunEnded | RunAbsent))
            told = {(end.kind, end.run_id): end.steps for end in ends if end.steps is not None}
            self._steps = {end: {"steps": _json(steps)} for end, steps in told.items()}
        return self._steps.get((kind, run_id), {})

    @property
    def numbered(self) -> bool:
        """Whether the ledger numbers its jobs by now: events of before are derived as they were stored."""
        return self._state.last_number > 0

    def cost_of(self, job_id: str) -> JsonData:
        """Fields with what a job costs up to this message; none without prices, and of one that the message took in."""
        money, job = self._state.tree.money, self._state.jobs.get(job_id)
        if money is None or job is None:
            return {}
        return {"cost_micros": cost_of(self._state, job, self.message.ts)[0], "currency": money.currency}

    def session_of(self, job_id: str) -> JsonData:
        """Fields with the user of a session, and what happens to it once it is idle for too long."""
        job = self._state.jobs.get(job_id)
        return {} if job is None or job.session is None else _given(user=job.user, action=job.session.on_idle)

    def use_of(self, run_id: str) -> JsonData:
        """Field with what was measured of a run's GPUs up to this message; empty for nothing."""
        run = self._state.runs.get(run_id)
        use = None if run is None else run.gpu_use
        for record in self._uses_noted:
            if record.run_id == run_id:
                fact = self.message.facts[record.fact].fact
                use = fact.use.with_most_of(use) if isinstance(fact, RunUsed) else use
        return {} if use is None else {"gpu_use": _json(use)}

    @cached_property
    def _uses_noted(self) -> list[UseNoted]:
        return [record for record in self.message.records if type(record) is UseNoted]

    def add(self, subject: Subject) -> Subject:
        """Notes a job that the message itself takes in, and returns the subject."""
        self._here[subject.job_id] = subject
        return subject

    def found(self, job_id: str) -> Subject | None:
        """Subject of a job that is live, remembered, or new in this message; else None."""
        here = self._here.get(job_id)
        if here is not None:
            return here
        job = self._state.jobs.get(job_id) or self._state.ended.get(job_id)
        return Subject(job.job_id, job.tenant, job.queue, job.name, job.trace, job.attempt) if job is not None else None

    def job(self, job_id: str) -> Subject:
        """Subject of a job; raises Contradiction for a job that nobody knows."""
        job = self.found(job_id)
        if job is None:
            raise Contradiction(f"record of {self.message.n} names job {job_id}, which nobody knows")
        return job

    def array(self, job_id: str) -> Job:
        """The array of a task; raises Contradiction unless a message before has taken it in."""
        job = self._state.jobs.get(job_id)
        if job is None:
            raise Contradiction(f"record of {self.message.n} names array {job_id}, which nobody knows")
        return job

    def run(self, run_id: str) -> Subject:
        """The job at the attempt of this run; a job is remembered for as long as a run of it is held."""
        job_id, _, attempt = run_id.rpartition("-")
        return replace(self.job(job_id), attempt=int(attempt))


EventParts = tuple[type[public.PublicEvent], Subject, JsonData]


def events_of(shard: str, message: LedgerMessage, state: State) -> tuple[StoredEvent, ...]:
    """
    The events of `message`; `state` is the one it was decided from, before it is folded.

    Raises Contradiction or IndexError for a record that the fold would refuse too.
    """
    if not any(map(_is_told, message.records)):
        return ()
    return tuple(_events(shard, message, MessageJobs(state, message)))


def last_cursor(message: LedgerMessage) -> Cursor | None:
    """The cursor of the newest event of `message`; None when it has none."""
    return max(cursors_of(message), default=None)


def cursors_of(message: LedgerMessage) -> Iterator[Cursor]:
    """The cursors of all events of `message`, in order."""
    return (Cursor(message.n, i) for i, _, _ in _list_told(message))


def _list_told(message: LedgerMessage) -> Iterator[tuple[int, AnyRecord, str]]:
    """
    The events of a message: the index by which each is known, its record, and of a reservation the tenant told.

    A reservation may be for several tenants. The first is told at its record's own index, and the others behind those
    of all records, so that events of every other kind keep the index that they have.
    """
    others: list[tuple[AnyRecord, str]] = []
    for i, record in enumerate(message.records):
        if not _is_told(record):
            continue
        first, *more = _tenants_of(record) if type(record) in RESERVATIONS else [""]
        others += ((record, tenant) for tenant in more)
        yield i, record, first
    yield from ((i, *other) for i, other in enumerate(others, len(message.records)))


def _tenants_of(record: AnyRecord) -> list[str]:
    """Tenants that a reservation is for, ascending; of maintenance, and of a refusal, the operator."""
    return sorted({who.partition("/")[0] for who in getattr(record, "who", ())}) or [subjects.OPERATOR]


def _is_told(record: AnyRecord) -> bool:
    """Whether the record has an event, by itself alone: a drain without a pool is from before there was one."""
    if type(record) in RESERVATIONS:
        return True
    return type(record) in DESCRIBE and (type(record) is not NodeDrained or bool(record.pool))


def _events(shard: str, message: LedgerMessage, message_jobs: MessageJobs) -> Iterator[StoredEvent]:
    source, time, sequence = f"/tessera/{shard}", rfc3339(message.ts), f"{message.n:0{SEQUENCE_DIGITS}}"
    for i, record, tenant in _list_told(message):
        event, job, data = (
            _describe_reservation(record, tenant) if tenant else DESCRIBE[type(record)](message_jobs, record)
        )
        envelope: JsonData = {
            "specversion": "1.0",
            "id": f"{message.n}.{i}",
            "source": source,
            "type": event.type,
            "subject": job.job_id or NOBODY,
            "time": time,
            "dataschema": DATASCHEMA[event],
            "tenant": job.tenant,
            "sequence": sequence,
            "causationid": message.tx,
        }
        if job.trace:
            envelope["traceparent"] = job.trace
        envelope["data"] = data
        subject = subjects.event(shard, job.tenant, job.queue, SHORT_TYPE[event])
        yield StoredEvent(subject, Cursor(message.n, i), orjson.dumps(envelope), job.job_id)


def rfc3339(ts: int) -> str:
    """Ledger milliseconds as UTC with three decimals."""
    seconds, ms = divmod(ts, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03}Z"


# What each record tells. Defaults are left out of the data, as everywhere in the contract.


def _job_data(job: Subject, **more: Any) -> JsonData:
    return {"job_id": job.job_id, **({"name": job.name} if job.name else {}), "queue": job.queue, **more}


def _run_data(job: Subject, **more: Any) -> JsonData:
    return _job_data(job, attempt=job.attempt, **more)


def _json(model: Strict) -> orjson.Fragment:
    return orjson.Fragment(model.to_bytes())


def _queued(message_jobs: MessageJobs, record: JobQueued) -> EventParts:
    fact = message_jobs.message.facts[record.fact].fact
    if not isinstance(fact, JobAdmitted):
        raise Contradiction(f"record of {message_jobs.message.n}: fact {record.fact} admits no job")
    spec = fact.spec
    job = message_jobs.add(Subject(fact.job_id, fact.tenant, spec.queue, spec.name, fact.trace))
    size: JsonData = {"gpu_milli": spec.gpu_milli(), "pods": spec.pods()}
    size |= {} if spec.array is None or spec.service is not None else {"tasks": task_count(spec.array.tasks)}
    size["number"] = record.number
    # An event of a job without a number was stored before there were digests, and stays what it was.
    size["digest"] = _digest(fact) if record.number else ""
    size["notes"] = fact.notes
    return public.JobAdmittedV1, job, _job_data(job, key=fact.key, **_given(**size))


def _digest(fact: JobAdmitted) -> str:
    return spec_hash(fact)[:DIGEST_CHARACTERS]


def _task_queued(message_jobs: MessageJobs, record: TaskQueued) -> EventParts:
    """Event of a task as of any job that was taken in, with the key under which its array was submitted."""
    array = message_jobs.array(record.array)
    now = message_jobs.job(record.array)  # this message may have moved or renamed the array
    job = message_jobs.add(Subject(record.job_id, array.tenant, now.queue, now.name, array.trace))
    size = {"gpu_milli": array.gang.amount.gpu_milli, "pods": array.gang.pods}
    more = {"array": array.job_id, **_given(task=record.task, number=record.number)}
    return public.JobAdmittedV1, job, _job_data(job, key=array.key, **{k: v for k, v in size.items() if v}, **more)


def _turned_away(message_jobs: MessageJobs, record: JobTurnedAway) -> EventParts:
    """Event of a refusal; one for a key that another job has is not told as that job's."""
    fact = message_jobs.message.facts[record.fact].fact
    reasons, more = record.reasons, JsonData()
    if isinstance(fact, JobAdmitted):
        job = Subject(fact.job_id, fact.tenant, fact.spec.queue, fact.spec.name, fact.trace)
        if message_jobs.numbered:
            more = {"key": fact.key, "digest": _digest(fact)}
            if message_jobs.found(fact.job_id) is not None:
                job = replace(job, job_id="")
                more["conflicts_with"] = fact.job_id
    elif isinstance(fact, UpdateRequested | RolesRequested | ResizeRequested):
        # The job is there and goes on, or is another tenant's: it is not named.
        job = Subject("", fact.tenant or subjects.OPERATOR, NOBODY)
    elif not isinstance(fact, JobRefused):
        raise Contradiction(f"record of {message_jobs.message.n}: fact {record.fact} is neither submit nor update")
    else:
        job = Subject(fact.job_id, fact.tenant, NOBODY, fact.name, fact.trace)
        reasons, more = reasons or fact.reasons, _given(repeats=fact.repeats)
    data = {"reasons": [_json(reason) for reason in reasons], **more}
    return public.JobRefusedV1, job, _given(job_id=job.job_id, name=job.name) | data


def _allocated(message_jobs: MessageJobs, record: Allocated) -> EventParts:
    job = message_jobs.add(replace(message_jobs.job(record.job_id), attempt=record.attempt))
    return public.JobAllocatedV1, job, _run_data(job, placements=_places(record.placements))


def _places(placements: tuple[Placement, ...]) -> orjson.Fragment:
    return orjson.Fragment(PLACEMENTS.dump_json(placements, exclude_defaults=True))


def _given(**fields: Any) -> JsonData:
    """Fields that have a value."""
    return {name: value for name, value in fields.items() if value}


def _visible(message_jobs: MessageJobs, job: Subject, by: str) -> str:
    """Cause of an event as the job's tenant may know it: a job of another tenant is not named."""
    cause = message_jobs.found(by)
    return by if cause is None or cause.tenant == job.tenant else ""


def _held(message_jobs: MessageJobs, record: Held) -> EventParts:
    job = message_jobs.job(record.job_id)
    event: type[public.PublicEvent] = public.JobUnheldV1 if record.undo else public.JobHeldV1
    return event, job, _job_data(job, **_given(by=record.by))


def _moved(message_jobs: MessageJobs, record: JobMoved) -> EventParts:
    """Event of a job in its new queue, on whose subject it and later ones stand."""
    before = message_jobs.job(record.job_id)
    job = message_jobs.add(replace(before, queue=record.queue))
    return public.JobMovedV1, job, _job_data(job, from_queue=before.queue, **_given(by=record.by))


def _updated(message_jobs: MessageJobs, record: JobUpdated) -> EventParts:
    """Event of a job under the name that it and later ones have."""
    before, changes = message_jobs.job(record.job_id), record.changes
    job = before if changes.name is None else message_jobs.add(replace(before, name=changes.name))
    given: JsonData = changes.model_dump(mode="json", exclude_none=True, exclude={"name"})
    former = before.name if job is not before else ""
    return public.JobUpdatedV1, job, _job_data(job, **given, **_given(from_name=former, by=record.by))


def _earmark_set(message_jobs: MessageJobs, record: EarmarkSet) -> EventParts:
    """Event of an earmark, with the number of runs that stop for it; their names may be another tenant's."""
    job = message_jobs.job(record.owner)
    more = _given(runs_stopping=len(record.victims), preset=record.preset)
    data = _job_data(job, cause=record.cause, deadline=record.deadline, placements=_places(record.placements), **more)
    return public.JobEarmarkedV1, job, data


def _finished(message_jobs: MessageJobs, record: Finished) -> EventParts:
    job = message_jobs.job(record.job_id)
    data = _run_data(job) | message_jobs.cost_of(record.job_id)
    if record.phase == "succeeded":
        return public.JobSucceededV1, job, data | message_jobs.steps_of(f"{job.job_id}-{job.attempt}")
    if record.reason is not None:
        data["reason"] = _json(record.reason)
    if record.phase == "cancelled":
        return public.JobCancelledV1, job, data
    if record.exit_code is not None:
        data["exit_code"] = record.exit_code
    return public.JobFailedV1, job, data


def _left_changed(message_jobs: MessageJobs, record: LeftChanged) -> EventParts:
    """Event for operators: numbers of a pool, without anybody's names."""
    event = public.ClusterFragmentationV1.model_validate(record.model_dump(exclude={"kind", "free"}))
    return public.ClusterFragmentationV1, Subject("", subjects.OPERATOR, record.pool), event.to_data()


def _budget_reached(message_jobs: MessageJobs, record: BudgetReached) -> EventParts:
    """Event for whose the budget is; of a queue for operators, unless one tenant has it alone."""
    ts, is_spent = message_jobs.message.ts, record.percent == SPENT
    kind, _, name = record.budget.partition("/")
    queue = name if kind == "queue" else ""
    about = Subject("", record.tenant or subjects.OPERATOR, queue or NOBODY)
    data = {**record.model_dump(exclude={"kind", "tenant"}), "month": month_text(ts)}
    if is_spent:
        return public.BudgetSpentV1, about, {**data, "until_ts": month_end(ts)}
    return public.BudgetWarnedV1, about, data


def _node_changed(message_jobs: MessageJobs, record: AnyNodeRecord) -> EventParts:
    """Event of a node for operators, under its pool; all that it says are fields of its record."""
    is_open = isinstance(record, NodeDrained) and record.undo
    event = public.NodeUndrainedV1 if is_open else NODE_EVENTS[type(record)]
    said = event.model_validate(record.model_dump(mode="json", include=set(event.model_fields)))
    return event, Subject("", subjects.OPERATOR, record.pool or NOBODY), said.to_data()


def _describe_reservation(record: AnyRecord, tenant: str) -> EventParts:
    """Event of a reservation for one of the tenants that it is for, which is told of no other."""
    event = record.event or public.ReservationEvent
    fields = record.model_dump(mode="json", include=set(event.model_fields))
    own = [who for who in fields.get("who", ()) if who.partition("/")[0] == tenant]
    # A pool is no queue of the tenant's: only operators read by pools.
    queue = fields["pool"] if tenant == subjects.OPERATOR else ""
    return event, Subject("", tenant, queue or NOBODY), event.model_validate({**fields, "who": own}).to_data()


def _by_fields(
    record_type: type[AnyRecord], event: type[public.PublicEvent]
) -> Callable[[MessageJobs, Any], EventParts]:
    """Tell an event of which each field is one of the record's; what equals its default is left out."""
    about, of_run = JOB_OF[record_type], "run_id" in record_type.model_fields
    head = _run_data if issubclass(event, public.RunEvent) else _job_data
    shared = [name for name in event.model_fields if name in record_type.model_fields and name != "job_id"]
    fields = [(name, event.model_fields[name].get_default()) for name in shared]

    def make_event(message_jobs: MessageJobs, record: Any) -> EventParts:
        job = message_jobs.run(record.run_id) if of_run else message_jobs.job(about(record))
        given: JsonData = {}
        for name, default in fields:
            value = getattr(record, name)
            value = _visible(message_jobs, job, value) if name == "by" else value
            if value != default:
                given[name] = WRITTEN[name](value) if name in WRITTEN else value
        return event, job, head(job, **given)

    return make_event


WRITTEN: dict[str, Callable[[Any], Any]] = {"reason": _json, "placements": _places}
"""Values that are models, as they stand in events."""


def _with_steps(
    record_type: type[Revoked | Released], event: type[public.PublicEvent], fact: str
) -> Callable[[MessageJobs, Any], EventParts]:
    """Tell an event by its fields, with the steps of the run where a fact of this kind tells of them."""
    by_fields = _by_fields(record_type, event)

    def make_event(message_jobs: MessageJobs, record: Any) -> EventParts:
        event_type, job, data = by_fields(message_jobs, record)
        return event_type, job, data | message_jobs.steps_of(record.run_id, fact)

    return make_event


_released_with_steps = _with_steps(Released, public.JobReleasedV1, "run_absent")


def _released(message_jobs: MessageJobs, record: Released) -> EventParts:
    """Event of a release; that of the whole run has what was measured of its GPUs."""
    event, job, data = _released_with_steps(message_jobs, record)
    return event, job, data if record.ranks else data | message_jobs.use_of(record.run_id)


_requeued_by_fields = _by_fields(Requeued, public.JobRequeuedV1)


def _requeued(message_jobs: MessageJobs, record: Requeued) -> EventParts:
    """Event of a job that is queued again, with what its runs have cost."""
    event, job, data = _requeued_by_fields(message_jobs, record)
    return event, job, data | message_jobs.cost_of(record.job_id)


_session_warned_by_fields = _by_fields(SessionWarned, public.JobSessionWarnedV1)


def _session_warned(message_jobs: MessageJobs, record: SessionWarned) -> EventParts:
    """Event of a session that stops soon, with its user, whom a chat can tell, and what happens then."""
    event, subject, data = _session_warned_by_fields(message_jobs, record)
    return event, subject, data | message_jobs.session_of(subject.job_id)


DESCRIBE: dict[type[AnyRecord], Callable[[MessageJobs, Any], EventParts]] = {
    **{kind: _by_fields(kind, event) for kind in JOB_OF if (event := kind.event) is not None},
    JobQueued: _queued,
    TaskQueued: _task_queued,
    JobTurnedAway: _turned_away,
    Allocated: _allocated,
    Held: _held,
    JobMoved: _moved,
    JobUpdated: _updated,
    EarmarkSet: _earmark_set,
    Finished: _finished,
    Revoked: _with_steps(Revoked, public.JobEvictingV1, "run_ended"),
    Released: _released,
    Requeued: _requeued,
    LeftChanged: _left_changed,
    BudgetReached: _budget_reached,
    SessionWarned: _session_warned,
    **dict.fromkeys(NODE_EVENTS, _node_changed),
}
"""By record: its event's fields, or what a function here makes of it. Every other is of no interest outside."""

DATASCHEMA = {event: dataschema(event) for event in public.EVENT_TYPES}
SHORT_TYPE = {event: public.short_type(event.type) for event in public.EVENT_TYPES}

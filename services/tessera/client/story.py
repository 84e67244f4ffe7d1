"""A job's story: what the ledger says about it, in order, one line per record."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tessera_schemas import ledger as records
from tessera_schemas.facts import JobAdmitted, JobRefused
from tessera_schemas.ledger import AnyRecord, LedgerMessage
from tessera_schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class Line:
    n: int
    ts: int
    text: str

    def said(self) -> str:
        """With its time of day in UTC."""
        return f"{_time(self.ts)}  {self.n:>6}  {self.text}"


def story(message: LedgerMessage, job_id: str) -> Iterator[Line]:
    """What `message` says about the job."""
    for record in message.records:
        if _about(record, message) == job_id:
            text = TELL.get(type(record), _plain)(record, message)
            yield Line(message.n, message.ts, text)


def _about(record: AnyRecord, message: LedgerMessage) -> str:
    """The job that a record is about, "" for one about something else."""
    if isinstance(record, records.JobTurnedAway):
        fact = message.facts[record.fact].fact
        return fact.job_id if isinstance(fact, JobAdmitted | JobRefused) else ""
    if isinstance(record, records.EarmarkSet | records.EarmarkEnded):
        return record.owner
    job_id: str = getattr(record, "job_id", "")
    run_id: str = getattr(record, "run_id", "")
    return job_id or run_id.rpartition("-")[0]


def _time(ts: int) -> str:
    return datetime.fromtimestamp(ts / 1000, UTC).strftime("%m-%d %H:%M:%S")


def _reasons(reasons: tuple[Reason, ...]) -> str:
    return "; ".join(reason.sentence() for reason in reasons)


def _turned_away(record: records.JobTurnedAway, message: LedgerMessage) -> str:
    fact = message.facts[record.fact].fact
    return f"turned away: {_reasons(record.reasons or (fact.reasons if isinstance(fact, JobRefused) else ()))}"


def _queued(record: records.JobQueued, message: LedgerMessage) -> str:
    fact = message.facts[record.fact].fact
    return f"queued in {fact.spec.queue}, key {fact.key}" if isinstance(fact, JobAdmitted) else "queued"


def _allocated(record: records.Allocated, message: LedgerMessage) -> str:
    nodes = sorted({placement.node for placement in record.placements})
    where = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    pods = len(record.placements)
    return f"allocated, {pods} {'pod' if pods == 1 else 'pods'} on {where} (attempt {record.attempt})"


def _finished(record: records.Finished, message: LedgerMessage) -> str:
    return record.phase + (f": {record.reason.sentence()}" if record.reason is not None else "")


def _requeued(record: records.Requeued, message: LedgerMessage) -> str:
    return f"queued again, not before {_time(record.not_before)}"


def _plain(record: Any, message: LedgerMessage) -> str:
    return str(record.kind).replace("_", " ")


TELL: dict[type[Any], Callable[[Any, LedgerMessage], str]] = {
    records.JobTurnedAway: _turned_away,
    records.JobQueued: _queued,
    records.Waiting: lambda record, _: f"waits: {record.reason.sentence()}",
    records.Allocated: _allocated,
    records.Permitted: lambda record, _: "pods exist and may be bound",
    records.Bound: lambda record, _: "bound",
    records.Started: lambda record, _: "running",
    records.Revoked: lambda record, _: f"is being stopped, then {record.then}: {record.reason.sentence()}",
    records.Released: lambda record, _: "nothing of it is left; its devices are free",
    records.Requeued: _requeued,
    records.Finished: _finished,
    records.EarmarkSet: lambda record, _: f"devices are kept for it ({record.cause})",
    records.EarmarkEnded: lambda record, _: f"no devices are kept for it any more ({record.why})",
}

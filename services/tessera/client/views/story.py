"""A job's story: what the ledger says about it, in order, one line per record."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.client.views.rendering import local_time
from tessera_schemas import ledger as records
from tessera_schemas.facts import JobAdmitted, JobRefused, UpdateRequested
from tessera_schemas.ledger import AnyRecord, LedgerMessage
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.units import format_age

JOB_ID = re.compile(r"\b([a-z2-7]{20})(?:-[0-9]{1,6})?\b")


@dataclass(frozen=True, slots=True)
class StoryLine:
    n: int
    ts: int
    text: str

    def line(self) -> str:
        """The line with its date and time in the local zone."""
        return f"{_time(self.ts)}  {self.n:>6}  {self.text}"


def story(message: LedgerMessage, job_id: str, all_names: bool = True) -> Iterator[StoryLine]:
    """The story of the job in `message`; without `all_names` no other job or run is named."""
    for record in message.records:
        if _about(record, message) == job_id:
            text = DESCRIBE.get(type(record), _plain)(record, message)
            if all_names and isinstance(record, records.Revoked | records.Shrunk) and is_job_id(record.by):
                text += f" (for job {record.by})"
            yield StoryLine(message.n, message.ts, text if all_names else _without_names(text, job_id))


def _without_names(text: str, job_id: str) -> str:
    """A tenant may read it: what looks like the id of another job or run is taken out."""
    return JOB_ID.sub(lambda found: found[0] if found[1] == job_id else "another job", text)


def is_job_id(text: str) -> bool:
    """Tells whether the text is formed like a job's id, whether or not there is such a job."""
    return JOB_ID.fullmatch(text) is not None


def _about(record: AnyRecord, message: LedgerMessage) -> str:
    """The job that a record is about, "" for one about something else."""
    if isinstance(record, records.JobTurnedAway):
        fact = message.facts[record.fact].fact
        conflicts = any(reason.code == Code.IDEMPOTENCY_CONFLICT for reason in record.reasons)
        return fact.job_id if isinstance(fact, JobAdmitted | JobRefused | UpdateRequested) and not conflicts else ""
    job_of = records.JOB_OF.get(type(record))
    return job_of(record) if job_of is not None else ""


def _time(ts: int) -> str:
    return local_time(ts).strftime("%m-%d %H:%M:%S")


def _reasons(reasons: tuple[Reason, ...]) -> str:
    return "; ".join(reason.sentence() for reason in reasons)


def _turned_away(record: records.JobTurnedAway, message: LedgerMessage) -> str:
    fact = message.facts[record.fact].fact
    if isinstance(fact, UpdateRequested):
        return f"an update was refused: {_reasons(record.reasons)}"
    return f"turned away: {_reasons(record.reasons or (fact.reasons if isinstance(fact, JobRefused) else ()))}"


def _queued(record: records.JobQueued, message: LedgerMessage) -> str:
    fact = message.facts[record.fact].fact
    if not isinstance(fact, JobAdmitted):
        return "queued"
    return "; ".join((f"queued in {fact.spec.queue}, key {fact.key}", *fact.notes))


def _allocated(record: records.Allocated, message: LedgerMessage) -> str:
    nodes = sorted({placement.node for placement in record.placements})
    where = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    return f"allocated, {_pods(len(record.placements))} on {where} (attempt {record.attempt})"


def _finished(record: records.Finished, message: LedgerMessage) -> str:
    return record.phase + (f": {record.reason.sentence()}" if record.reason is not None else "")


def _survives(preemptible: bool | None) -> str:
    """A change of an adopted job: whether its owner can bear another eviction."""
    if preemptible is None:
        return ""
    return "; it may be preempted" if preemptible else "; it may not be preempted any more"


def _requeued(record: records.Requeued, message: LedgerMessage) -> str:
    later = record.not_before > message.ts
    return "queued again" + (f", not before {_time(record.not_before)}" if later else "")


def _delayed(record: records.Delayed, message: LedgerMessage) -> str:
    until = f"it has until {_time(record.deadline)}"
    if record.reason is None:
        return f"its nodes work on its pods: {until}"
    return f"has not started: {record.reason.sentence()}; {until}"


def _warned(record: records.Warned, message: LedgerMessage) -> str:
    if not record.idle_seconds:
        return "its GPUs are in use again: the warning is taken back"
    return f"warned: it holds GPUs and has used none for {format_age(1000 * record.idle_seconds)}"


def _kept(record: records.EarmarkSet, message: LedgerMessage) -> str:
    runs = len(record.victims)
    first = f", once {runs} {'run has' if runs == 1 else 'runs have'} stopped" if runs else ""
    preset = f", preset {record.preset}" if record.preset else ""
    return f"devices are kept for it ({record.cause}{preset}){first}"


def _updated(record: records.JobUpdated, message: LedgerMessage) -> str:
    """The values that the job got, in words."""
    changes, said = record.changes, list[str]()
    if changes.time_limit_seconds is not None:
        limit = changes.time_limit_seconds
        said.append(f"time limit {format_age(1000 * limit)}" if limit else "no time limit")
    if changes.after is not None:
        said.append("waits for " + (", ".join(each.text() for each in changes.after) or "no other job"))
    if changes.begin_ts is not None:
        later = changes.begin_ts > message.ts
        said.append(f"not before {_time(changes.begin_ts)}" if later else "as soon as it may")
    if changes.name is not None:
        said.append(f"called {changes.name}")
    return f"updated by {record.by}: {'; '.join(said)}"


def _pods(count: int) -> str:
    return f"{count} {'pod' if count == 1 else 'pods'}"


def _plain(record: Any, message: LedgerMessage) -> str:
    """The line that the record declares, else the words of its kind."""
    if not record.story:
        return str(record.kind).replace("_", " ")
    values = {name: getattr(record, name) for name in type(record).model_fields}
    if isinstance(values.get("reason"), Reason):
        values["reason"] = record.reason.sentence()
    pods = _pods(len(values.get("placements") or values.get("ranks") or ()))
    return str(record.story.format(pods=pods, **values))


def _released(ranks: Sequence[int]) -> str:
    """The first ranks are named: there may be thousands."""
    named = ", ".join(map(str, ranks[:8])) + (" and more" if len(ranks) > 8 else "")
    verb = "has" if len(ranks) == 1 else "have"
    return f"{_pods(len(ranks))} {verb} ended before the run; the devices of rank {named} are free"


PERMITTED = "pods exist and may be bound"
RELEASED = "nothing of it is left; its devices are free"

# What a line with its fields in braces cannot say; the other records declare theirs.
DESCRIBE: dict[type[Any], Callable[[Any, LedgerMessage], str]] = {
    records.JobTurnedAway: _turned_away,
    records.JobQueued: _queued,
    records.Allocated: _allocated,
    records.Permitted: lambda record, _: "more pods exist and may be bound" if record.ranks else PERMITTED,
    records.Released: lambda record, _: _released(record.ranks) if record.ranks else RELEASED,
    records.Delayed: _delayed,
    records.Warned: _warned,
    records.Saved: lambda record, _: "its work is saved" + (f" in {record.path}" if record.path else ""),
    records.Held: lambda record, _: f"{'let go' if record.undo else 'held'} by {record.by}",
    records.BackInLine: lambda record, _: "its pods are there again" + _survives(record.preemptible),
    records.Requeued: _requeued,
    records.JobUpdated: _updated,
    records.Finished: _finished,
    records.EarmarkSet: _kept,
}

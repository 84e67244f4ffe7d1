"""A job's story: what the ledger says about it, in order, one line per record."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.client.views.event_story import is_job_id, new_values, pods_on
from tessera.client.views.rendering import local_time
from tessera_schemas import ledger as records
from tessera_schemas.facts import JobAdmitted, JobRefused, RunUsed, UpdateRequested
from tessera_schemas.ledger import AnyRecord, LedgerMessage
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import (
    ResizeBegun,
    ResizeEnded,
    ResizeRequested,
    RolesRequested,
    RungTaken,
    SessionWarned,
    Stalled,
)
from tessera_schemas.text.units import format_age, format_size

OF_A_JOB = JobAdmitted | JobRefused | UpdateRequested | RolesRequested | ResizeRequested
"""Facts that are turned away."""


@dataclass(frozen=True, slots=True)
class StoryLine:
    n: int
    ts: int
    text: str

    def line(self) -> str:
        """The line with its date and time in the local zone."""
        return f"{_time(self.ts)}  {self.n:>6}  {self.text}"


def story(message: LedgerMessage, job_id: str) -> Iterator[StoryLine]:
    """The story of the job in `message`, as operators read it: it names other jobs."""
    for record in message.records:
        if _about(record, message) == job_id:
            text = DESCRIBE.get(type(record), _plain)(record, message)
            if isinstance(record, records.Revoked | records.Shrunk) and is_job_id(record.by):
                text += f" (for job {record.by})"
            yield StoryLine(message.n, message.ts, text)


def _about(record: AnyRecord, message: LedgerMessage) -> str:
    """The job that a record is about, "" for one about something else."""
    if isinstance(record, records.JobTurnedAway):
        fact = message.facts[record.fact].fact
        conflicts = any(reason.code == Code.IDEMPOTENCY_CONFLICT for reason in record.reasons)
        return fact.job_id if isinstance(fact, OF_A_JOB) and not conflicts else ""
    job_of = records.JOB_OF.get(type(record))
    return job_of(record) if job_of is not None else ""


def _time(ts: int) -> str:
    return local_time(ts).strftime("%m-%d %H:%M:%S")


def _reasons(reasons: tuple[Reason, ...]) -> str:
    return "; ".join(reason.sentence() for reason in reasons)


def _turned_away(record: records.JobTurnedAway, message: LedgerMessage) -> str:
    fact = message.facts[record.fact].fact
    if isinstance(fact, RolesRequested):
        return f"a shift between its roles was refused: {_reasons(record.reasons)}"
    if isinstance(fact, ResizeRequested):
        return f"a resize of its pods was refused: {_reasons(record.reasons)}"
    if isinstance(fact, UpdateRequested):
        return f"an update was refused: {_reasons(record.reasons)}"
    return f"turned away: {_reasons(record.reasons or (fact.reasons if isinstance(fact, JobRefused) else ()))}"


def _queued(record: records.JobQueued, message: LedgerMessage) -> str:
    fact = message.facts[record.fact].fact
    if not isinstance(fact, JobAdmitted):
        return "queued"
    return "; ".join((f"queued in {fact.spec.queue}, key {fact.key}", *fact.notes))


def _allocated(record: records.Allocated, message: LedgerMessage) -> str:
    return f"allocated, {pods_on([placement.node for placement in record.placements])} (attempt {record.attempt})"


def _finished(record: records.Finished, message: LedgerMessage) -> str:
    return record.phase + (f": {record.reason.sentence()}" if record.reason is not None else "")


def _survives(preemptible: bool | None, budget: str | None) -> str:
    """A change of an adopted job: whether its owner can bear another eviction, and whether its budget lets it go."""
    owner = {None: "", True: "; it may be preempted", False: "; it may not be preempted any more"}[preemptible]
    return owner + {None: "", "": "; its budgets let pods go"}.get(budget, f"; {budget} lets none of its pods go")


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


def _session_warned(record: SessionWarned, message: LedgerMessage) -> str:
    if not record.stops_ts:
        return "the session is in use again: the warning is taken back"
    return f"nobody uses the session: warned, it stops about {_time(record.stops_ts)}"


def _stalled(record: Stalled, message: LedgerMessage) -> str:
    if record.reason is None:
        return "its pods make progress again: the warning is taken back"
    why = "; it goes on, since too many runs would be stopped at once" if record.held_back else ""
    return f"warned: {record.reason.sentence()}{why}"


def _rung(record: RungTaken, message: LedgerMessage) -> str:
    if record.rung == "in_place":
        return f"starts again where it was: failure {record.count} of those that it may have there"
    nodes = ", ".join(record.nodes[:NODES_NAMED])
    if record.rung == "domain":
        return f"starts again elsewhere: failed on {record.count} nodes of {record.domain}, avoids all of it"
    return f"starts again elsewhere: avoids {nodes}"


def _used(record: records.UseNoted, message: LedgerMessage) -> str:
    fact = message.facts[record.fact].fact
    use = fact.use.text(fact.use.measured_gpu_milli_ms) if isinstance(fact, RunUsed) else ""
    return f"its GPUs were measured: {use}"


def _kept(record: records.EarmarkSet, message: LedgerMessage) -> str:
    runs = len(record.victims)
    first = f", once {runs} {'run has' if runs == 1 else 'runs have'} stopped" if runs else ""
    preset = f", preset {record.preset}" if record.preset else ""
    return f"devices are kept for it ({record.cause}{preset}){first}"


def _updated(record: records.JobUpdated, message: LedgerMessage) -> str:
    changes = record.changes
    after = None if changes.after is None else [each.text() for each in changes.after]
    said = new_values(changes.time_limit_seconds, after, changes.begin_ts, changes.name, message.ts)
    return f"updated by {record.by}: {said}"


def _rolls(record: records.ServiceRollout, message: LedgerMessage) -> str:
    if record.state == "begun":
        return f"begins to replace its replicas by those of revision {record.revision}, as {record.by} asked"
    if record.reason is not None:
        return f"stops the rollout of revision {record.revision}: {record.reason.sentence()}"
    return f"has revision {record.revision} in every replica"


def _resizing(record: ResizeBegun, message: LedgerMessage) -> str:
    return f"each pod of {record.role} is to have {_size(record)} in place, as {record.by} asked"


def _resized(record: ResizeEnded, message: LedgerMessage) -> str:
    if record.reason is None:
        return f"each pod of {record.role} has {_size(record)}"
    return f"each pod of {record.role} goes back to {_size(record)}: {record.reason.sentence()}"


def _size(record: ResizeBegun | ResizeEnded) -> str:
    return format_size(record.cpu_milli, record.memory_bytes)


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


NODES_NAMED = 4
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
    records.UseNoted: _used,
    records.Warned: _warned,
    SessionWarned: _session_warned,
    Stalled: _stalled,
    RungTaken: _rung,
    records.ServiceRollout: _rolls,
    records.Saved: lambda record, _: "its work is saved" + (f" in {record.path}" if record.path else ""),
    records.Held: lambda record, _: f"{'let go' if record.undo else 'held'} by {record.by}",
    records.BackInLine: lambda record, _: "its pods are there again" + _survives(record.preemptible, record.budget),
    records.Requeued: _requeued,
    records.JobUpdated: _updated,
    ResizeBegun: _resizing,
    ResizeEnded: _resized,
    records.Finished: _finished,
    records.EarmarkSet: _kept,
}

"""A job's story as its public events tell it: what each event says beside its name."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.client.connect.api import reason_of
from tessera.client.views.rendering import local_time
from tessera_schemas import events
from tessera_schemas.events import CloudEvent
from tessera_schemas.text.units import format_age, format_size
from tessera_schemas.work.arrays import Dependency
from tessera_schemas.work.run_steps import PublicRunSteps

JOB_ID = re.compile(r"\b([a-z2-7]{20})(?:-[0-9]{1,6})?\b")
Data = Mapping[str, Any]


def told_by(event: CloudEvent) -> str:
    """Words of an event beside its name: its reason or notes, then who or what it is about; "" for none."""
    describe = DESCRIBE.get(event.type)
    return "; ".join(filter(None, (reason_of(event), describe(event.data) if describe else "")))


def is_job_id(text: str) -> bool:
    """Tells whether the text is formed like a job's id, whether or not there is such a job."""
    return JOB_ID.fullmatch(text) is not None


def pods_on(nodes: Sequence[str]) -> str:
    """Number of pods, one for each of `nodes`, and the first nodes by name."""
    names = sorted(set(nodes))
    where = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{len(nodes)} {'pod' if len(nodes) == 1 else 'pods'} on {where}"


def new_values(
    time_limit_seconds: int | None, after: Sequence[str] | None, begin_ts: int | None, name: str | None, ts: int
) -> str:
    """Values that an update gave a job, in words; None was not changed. `ts` is when, in milliseconds."""
    said = list[str]()
    if time_limit_seconds is not None:
        said.append(f"time limit {format_age(1000 * time_limit_seconds)}" if time_limit_seconds else "no time limit")
    if after is not None:
        said.append("waits for " + (", ".join(after) or "no other job"))
    if begin_ts is not None:
        said.append(f"not before {_time(begin_ts)}" if begin_ts > ts else "as soon as it may")
    if name is not None:
        said.append(f"called {name}")
    return "; ".join(said)


def _time(ts: int) -> str:
    return local_time(ts).strftime("%m-%d %H:%M:%S")


def _updated(data: Data) -> str:
    after = data.get("after")
    waits = None if after is None else [Dependency.model_validate(each).text() for each in after]
    name = data.get("name") if data.get("from_name") else None
    begin_ts = data.get("begin_ts")
    return f"by {data.get('by')}: {new_values(data.get('time_limit_seconds'), waits, begin_ts, name, 0)}"


def _for_job(data: Data) -> str:
    return f"for job {data['by']}" if is_job_id(str(data.get("by", ""))) else ""


def _by(data: Data) -> str:
    return f"by {data['by']}" if data.get("by") else ""


def _placed(data: Data) -> str:
    nodes = [str(placement["node"]) for placement in data.get("placements", ())]
    return pods_on(nodes) + (f" (attempt {data['attempt']})" if data.get("attempt") else "")


def _requeued(data: Data) -> str:
    return f"not before {_time(int(data['not_before']))}" if data.get("not_before") else ""


def _steps(data: Data) -> str:
    """Number of the run's steps, and the first that failed; "" where none are known."""
    told = PublicRunSteps.model_validate(data.get("steps") or {})
    if told.unread:
        return f"its steps cannot be read: {told.unread}"
    failed = [f"step {step.number} ({step.name}) ended with {step.exit_code}" for step in told.steps if step.exit_code]
    more = [f"{len(failed) - 1} more failed"] if len(failed) > 1 else []
    steps = [f"{told.count} {'step' if told.count == 1 else 'steps'}"] if told.count else []
    return ", ".join([*steps, *failed[:1], *more])


def _evicting(data: Data) -> str:
    return "; ".join(filter(None, (_for_job(data), _steps(data))))


def _session_warned(data: Data) -> str:
    user = f" of {data['user']}" if data.get("user") else ""
    if not (stops := data.get("stops_ts")):
        return f"the session{user} is in use again"
    return f"nobody uses the session{user}: {data.get('action')} about {local_time(stops):%m-%d %H:%M:%S}"


def _group_restarted(data: Data) -> str:
    which = f"copy {data.get('copy_number', 0)} of group {data.get('group')}"
    return f"{which}, {data.get('count')} in a row; the others go on"


def _size(data: Data) -> str:
    return f"{format_size(data.get('cpu_milli', 0), data.get('memory_bytes', 0))} for each pod of {data.get('role')}"


DESCRIBE: dict[str, Callable[[Data], str]] = {
    events.JobAdmittedV1.type: lambda data: f"queue {data.get('queue')}, key {data.get('key')}",
    events.JobAllocatedV1.type: _placed,
    events.JobGrownV1.type: _placed,
    events.JobEvictingV1.type: _evicting,
    events.JobReleasedV1.type: _steps,
    events.JobSucceededV1.type: _steps,
    events.JobShrunkV1.type: _for_job,
    events.JobRequeuedV1.type: _requeued,
    events.JobHeldV1.type: _by,
    events.JobUnheldV1.type: _by,
    events.JobMovedV1.type: lambda data: f"from {data.get('from_queue')} to {data.get('queue')} {_by(data)}".rstrip(),
    events.JobReprioritizedV1.type: lambda data: f"class {data.get('priority_class')}",
    events.JobUpdatedV1.type: _updated,
    events.JobResizingV1.type: lambda data: f"{_size(data)} {_by(data)}".rstrip(),
    events.JobResizedV1.type: _size,
    events.JobSessionWarnedV1.type: _session_warned,
    events.JobGroupRestartedV1.type: _group_restarted,
    events.JobRolloutV1.type: lambda data: f"revision {data.get('revision')}: {data.get('state')}",
    events.JobSavedV1.type: lambda data: str(data.get("path", "")),
    events.JobEarmarkedV1.type: lambda data: f"devices are kept for it ({data.get('cause')})",
    events.JobUnearmarkedV1.type: lambda data: str(data.get("why", "")),
}

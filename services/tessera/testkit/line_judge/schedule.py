"""A schedule as a subscriber sees it: jobs as they were asked for, and their runs as the public events tell them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from tessera_schemas.events import CloudEvent, short_type

FOR_EVER_MS = 10**15
EventFields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class WholeGpus:
    """A node of whole GPUs of one model."""

    name: str
    gpus: int
    model: str = ""


@dataclass(frozen=True, slots=True)
class AskedJob:
    """
    A job of equal pods in one queue, as its user asked for it; `at_ms` is when it joined the line.

    `value` is that of its priority class; `limit_ms` its time limit. No `models`: any.
    """

    name: str
    at_ms: int
    pods: int
    gpus: int
    limit_ms: int
    value: int = 0
    models: frozenset[str] = frozenset()

    @property
    def place(self) -> tuple[int, int, str]:
        """Key of the documented order within one queue of one tenant: class, then age."""
        return -self.value, self.at_ms, self.name

    @property
    def gpus_of_all(self) -> int:
        return self.pods * self.gpus


@dataclass(slots=True)
class SeenRun:
    """
    Attempt of a job that held the GPUs of `nodes`, one entry per pod, from `began_ms` until `ended_ms`.

    `stopped_ms`: when it was told to stop for another job, `by`; None: it ended by itself, as was told at `over_ms`.
    `back_ms`: from when on its job may start again.
    """

    job: str
    began_ms: int
    nodes: tuple[str, ...]
    ended_ms: int = FOR_EVER_MS
    stopped_ms: int | None = None
    by: str = ""
    why: str = ""
    back_ms: int = 0
    over_ms: int = FOR_EVER_MS


@dataclass(frozen=True, slots=True)
class SeenEarmark:
    """Room of `nodes` that was kept for a job while victims stopped."""

    job: str
    nodes: tuple[str, ...]
    began_ms: int
    ended_ms: int = FOR_EVER_MS


@dataclass(slots=True)
class Schedule:
    """Nodes, jobs by name, and runs in the order of their starts."""

    nodes: tuple[WholeGpus, ...]
    jobs: dict[str, AskedJob]
    runs: list[SeenRun] = field(default_factory=list)
    earmarks: list[SeenEarmark] = field(default_factory=list)
    min_runtime_ms: int = 0


def read_schedule(
    nodes: Iterable[WholeGpus],
    asked: Mapping[str, AskedJob],
    stored: Iterable[bytes],
    begin_ms: int = 0,
    min_runtime_ms: int = 0,
) -> Schedule:
    """
    The schedule that public events tell of the jobs asked for, by job id; their `at_ms` is that of `job.admitted`.

    Args:
        nodes, asked: what the cluster has, unchanged; jobs by id. Events of other jobs are ignored.
        stored: the events stream from its beginning.
        begin_ms: when the schedule's time is 0, since the Unix epoch.
        min_runtime_ms: the policy's age below which no run is preempted.
    """
    reader = _Reader(Schedule(tuple(nodes), {}, min_runtime_ms=min_runtime_ms), asked, begin_ms)
    for data in stored:
        reader.take(CloudEvent.from_bytes(data))
    reader.made.earmarks += reader.marks.values()
    return reader.made


class _Reader:
    """Takes events in their order; `marks` are the earmarks that stand."""

    def __init__(self, made: Schedule, asked: Mapping[str, AskedJob], begin_ms: int) -> None:
        self.made, self._asked, self._begin_ms = made, asked, begin_ms
        self.marks: dict[str, SeenEarmark] = {}
        self._live: dict[str, SeenRun] = {}
        self._read = {
            "job.admitted.v1": self._admitted,
            "job.allocated.v1": self._allocated,
            "job.evicting.v1": self._evicting,
            "job.spared.v1": self._spared,
            "job.succeeded.v1": self._over,
            "job.failed.v1": self._over,
            "job.released.v1": self._released,
            "job.requeued.v1": self._requeued,
            "job.earmarked.v1": self._earmarked,
            "job.unearmarked.v1": self._unearmarked,
        }

    def take(self, event: CloudEvent) -> None:
        read = self._read.get(short_type(event.type))
        job = self._asked.get(str(event.data.get("job_id", "")))
        if read is not None and job is not None:
            at_ms = round(datetime.fromisoformat(event.time).timestamp() * 1000) - self._begin_ms
            read(job, at_ms, event.data)

    def _admitted(self, job: AskedJob, at_ms: int, said: EventFields) -> None:
        self.made.jobs[job.name] = replace(job, at_ms=at_ms)

    def _allocated(self, job: AskedJob, at_ms: int, said: EventFields) -> None:
        self._live[job.name] = SeenRun(job.name, at_ms, _nodes_of(said))
        self.made.runs.append(self._live[job.name])

    def _evicting(self, job: AskedJob, at_ms: int, said: EventFields) -> None:
        run, reason, by = self._live[job.name], said["reason"], str(said.get("by", ""))
        run.stopped_ms, run.why = at_ms, str(reason["code"]) if isinstance(reason, dict) else ""
        run.by = self._asked[by].name if by in self._asked else ""

    def _spared(self, job: AskedJob, at_ms: int, said: EventFields) -> None:
        self._live[job.name].stopped_ms = None

    def _over(self, job: AskedJob, at_ms: int, said: EventFields) -> None:
        if job.name in self._live:
            self._live[job.name].over_ms = at_ms

    def _released(self, job: AskedJob, at_ms: int, said: EventFields) -> None:
        if not said.get("ranks"):
            self._live.pop(job.name).ended_ms = at_ms

    def _requeued(self, job: AskedJob, at_ms: int, said: EventFields) -> None:
        last = next(run for run in reversed(self.made.runs) if run.job == job.name)
        last.back_ms = max(at_ms, int(str(said.get("not_before", 0))) - self._begin_ms)

    def _earmarked(self, job: AskedJob, at_ms: int, said: EventFields) -> None:
        self.marks[job.name] = SeenEarmark(job.name, _nodes_of(said), at_ms)

    def _unearmarked(self, job: AskedJob, at_ms: int, said: EventFields) -> None:
        self.made.earmarks.append(replace(self.marks.pop(job.name), ended_ms=at_ms))


def _nodes_of(said: EventFields) -> tuple[str, ...]:
    placements = said["placements"]
    return tuple(str(placement["node"]) for placement in placements) if isinstance(placements, list) else ()

"""The policies of the queueing replay: each is told of arrivals and ends, and says who starts."""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tessera.domain.table import Table
from tessera.engine.queueing.backfill import Candidate, backfill
from tessera.engine.queueing.durations import JobKind, Sketch, learn
from tessera.engine.queueing.expected_order import ExpectedOrderPolicy, Lanes, WaitingJob, runtime
from tessera.engine.queueing.node_timeline import RoomAhead
from tessera.lab.traces.philly import TraceJob

FOR_EVER = 2**60


class QueueingPolicy(Protocol):
    """A policy at work. Times are milliseconds, jobs are named by their line."""

    def arrived(self, job: TraceJob) -> None: ...

    def ended(self, job: TraceJob, now_ms: int) -> None: ...

    def started(self, now_ms: int) -> Sequence[int]:
        """The lines of the jobs that start now; they hold their GPUs from here on."""


Rank = Callable[[TraceJob], tuple[int, ...]]


class InOrder:
    """Best fit in a fixed order: strict, or passing over what does not fit."""

    def __init__(self, sizes: Sequence[int], rank: Rank, skip: bool) -> None:
        self._room = RoomAhead(sizes, by_end=False)
        self._rank, self._skip = rank, skip
        self._lanes: dict[int, list[tuple[tuple[int, ...], int, TraceJob]]] = {}  # by GPUs when skipping, else one

    def arrived(self, job: TraceJob) -> None:
        lane = self._lanes.setdefault(job.gpus if self._skip else 0, [])
        insort(lane, (self._rank(job), job.line, job))

    def ended(self, job: TraceJob, now_ms: int) -> None:
        self._room.release(str(job.line))

    def started(self, now_ms: int) -> Sequence[int]:
        """Equal needs get equal answers while room shrinks: a lane is done with its first refusal."""
        self._room.begin(now_ms, lambda job, now: FOR_EVER)
        begun, lanes = [], {key: lane for key, lane in self._lanes.items() if lane}
        while lanes:
            at = min(lanes, key=lambda key: lanes[key][0][:2])
            job = lanes[at][0][2]
            if not self._room.start(Candidate(str(job.line), job.gpus, FOR_EVER)):
                del lanes[at]
                continue
            begun.append(job.line)
            lanes[at].pop(0)
            if not lanes[at]:
                del lanes[at]
        return begun


class Learning:
    """The engine's order, earmarks and backfill, with runtimes learnt from `history` and from what ends."""

    def __init__(self, sizes: Sequence[int], history: Sequence[TraceJob], policy: ExpectedOrderPolicy) -> None:
        self._policy = policy
        self._rows: Table[Sketch] = Table()
        for job in sorted(history, key=lambda job: (job.submit_s + job.duration_s, job.line)):
            learn(self._rows, kind_of(job), job.duration_s * 1000, (job.submit_s + job.duration_s) * 1000)
        self._lanes = Lanes(policy, self._rows)
        self._room = RoomAhead(sizes)
        self._jobs: dict[str, WaitingJob] = {}
        self._started: dict[str, int] = {}

    def arrived(self, job: TraceJob) -> None:
        waiting = WaitingJob(f"{job.line:08d}", kind_of(job), job.submit_s * 1000)
        self._jobs[waiting.job_id] = waiting
        self._lanes.add(waiting)

    def ended(self, job: TraceJob, now_ms: int) -> None:
        waiting = self._jobs.pop(f"{job.line:08d}")
        self._room.release(waiting.job_id)
        self._lanes.learn(waiting.kind, now_ms - self._started.pop(waiting.job_id), now_ms)

    def started(self, now_ms: int) -> Sequence[int]:
        self._room.begin(now_ms, self._revised)
        if not self._lanes or not self._room.free:
            return ()
        closed: set[tuple[int, int]] = set()
        done = backfill(self._lanes.in_order(now_ms, closed), self._room, self._policy.depth, closed)
        for job_id in done.started:
            self._lanes.remove(self._jobs[job_id])
            self._started[job_id] = now_ms
        return [int(job_id) for job_id in done.started]

    def _revised(self, job_id: str, now_ms: int) -> int:
        began = self._started[job_id]
        return began + runtime(self._rows, self._jobs[job_id].kind, 0, self._policy, now_ms - began)


def kind_of(job: TraceJob) -> JobKind:
    """The trace names neither user nor job: the virtual cluster is tenant and queue."""
    return JobKind(job.vc, job.vc, "", job.gpus)


def by_arrival(job: TraceJob) -> tuple[int, ...]:
    """The published figures stand on this order: of jobs submitted in the same second the shorter goes first."""
    return job.submit_s, job.duration_s, job.gpus


def by_duration(job: TraceJob) -> tuple[int, ...]:
    return job.duration_s, job.submit_s


Maker = Callable[[Sequence[int], Sequence[TraceJob]], QueueingPolicy]
"""Takes the sizes of the nodes and what ended before the replay begins."""

AS_CONFIGURED = ExpectedOrderPolicy(patience_ms=0, depth=1)
"""By age, since everybody is due at once, with room for one: what a shard does by `backfill: reserve`."""

POLICIES: Mapping[str, Maker] = {
    "fifo": lambda sizes, _: InOrder(sizes, by_arrival, skip=False),
    "skip": lambda sizes, _: InOrder(sizes, by_arrival, skip=True),
    "sjf-oracle": lambda sizes, _: InOrder(sizes, by_duration, skip=False),
    "expected": lambda sizes, history: Learning(sizes, history, ExpectedOrderPolicy()),
    "reserve": lambda sizes, history: Learning(sizes, history, AS_CONFIGURED),
}

"""
The order that makes the mean wait small without starving anybody, as a pure function of what was learnt.

Least expected GPU time first: a job that is expected to hold few GPUs for a short time lets many others wait little.
A job that has waited `patience_ms` is due: the due ones come before all others, the oldest first, and backfill keeps
room for them. From `closing_ms` on nobody overtakes it at all. The order of due jobs never changes, since all have the
same patience. Integer milliseconds; the last key is the job's id.

Two days of patience are the best of those tried on September of the Philly jobs, repeated and shifted; there it made no
difference for how many due jobs room is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from tessera.domain.table import Table
from tessera.engine.queueing.backfill import Candidate
from tessera.engine.queueing.durations import JobKind, Sketch, learn, quantile
from tessera.engine.queueing.orders.expected import expected_gpu_time

DAY = 86_400_000


@dataclass(frozen=True, slots=True)
class ExpectedOrderPolicy:
    """
    Times for which a job may be passed over (`patience_ms`, then `closing_ms`), and the number of reservations.

    `permille`: the quantile of the learnt runtimes by which a job counts as ended, for backfill.
    """

    patience_ms: int = 2 * DAY
    closing_ms: int = 14 * DAY
    depth: int = 16
    permille: int = 900


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job in line. `limit_ms` is its time limit, 0 for none."""

    job_id: str
    kind: JobKind
    submitted_ms: int
    limit_ms: int = 0


Key = tuple[int, int, int, str]


def turn(job: WaitingJob, gpu_ms: int, now_ms: int, policy: ExpectedOrderPolicy) -> Key:
    """Sort key of the job at `now_ms`, when it is expected to take `gpu_ms` of GPU time."""
    due = now_ms - job.submitted_ms >= policy.patience_ms
    return (0, 0, job.submitted_ms, job.job_id) if due else (1, gpu_ms, job.submitted_ms, job.job_id)


class Lanes:
    """
    A waiting line whose order follows from time and learning, without sorting it each time.

    It means: all waiting jobs sorted by `turn`. Jobs of a lane are of one kind and time limit, so they are expected to
    take the same and stand by age; the order is the merge of the lanes, of which only the first jobs are compared.
    """

    def __init__(self, policy: ExpectedOrderPolicy, rows: Table[Sketch]) -> None:
        self._policy = policy
        self._rows = rows
        self._lanes: dict[tuple[JobKind, int], dict[tuple[int, str], WaitingJob]] = {}
        self._known: dict[tuple[JobKind, int], tuple[int, int]] = {}  # what the rows say, until they learn

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def add(self, job: WaitingJob) -> None:
        """Contract: a lane's jobs are added by (submitted_ms, job_id) ascending."""
        self._lanes.setdefault((job.kind, job.limit_ms), {})[job.submitted_ms, job.job_id] = job

    def remove(self, job: WaitingJob) -> None:
        """Takes a job out of its lane; raises KeyError if the job is not in line."""
        lane = self._lanes[job.kind, job.limit_ms]
        del lane[job.submitted_ms, job.job_id]
        if not lane:
            del self._lanes[job.kind, job.limit_ms]

    def learn(self, kind: JobKind, runtime_ms: int, ts: int) -> None:
        """A run has ended: count it. Whatever shares a row with it may be judged anew."""
        learn(self._rows, kind, runtime_ms, ts)
        self._known = {lane: known for lane, known in self._known.items() if lane[0].gpus != kind.gpus}

    def in_order(self, now_ms: int, closed: set[tuple[int, int]]) -> Iterator[Candidate]:
        """All candidates in order; of the kinds in `closed` only those that are due."""
        heads = []
        for lane in self._lanes:
            jobs, known = list(self._lanes[lane].values()), self._judged(lane)
            heads.append((turn(jobs[0], known[0], now_ms, self._policy), 0, jobs, known))
        heapify(heads)
        while heads:
            key, at, jobs, (gpu_ms, runtime_ms) = heads[0]
            job, until_ms, due = jobs[at], now_ms + runtime_ms, key[0] == 0
            if not due and (job.kind.gpus, until_ms) in closed:
                heappop(heads)
                continue
            closes = now_ms - job.submitted_ms >= self._policy.closing_ms
            yield Candidate(job.job_id, job.kind.gpus, until_ms, due, closes)
            at += 1
            if at < len(jobs):
                heapreplace(heads, (turn(jobs[at], gpu_ms, now_ms, self._policy), at, jobs, (gpu_ms, runtime_ms)))
            else:
                heappop(heads)

    def _judged(self, lane: tuple[JobKind, int]) -> tuple[int, int]:
        """The GPU time that a job of the lane is expected to take, and the runtime by which it counts as ended."""
        known = self._known.get(lane)
        if known is None:
            kind, limit_ms = lane
            gpu_ms = expected_gpu_time(self._rows, kind, limit_ms)
            known = self._known[lane] = gpu_ms, runtime(self._rows, kind, limit_ms, self._policy)
        return known


def runtime(rows: Table[Sketch], kind: JobKind, limit_ms: int, policy: ExpectedOrderPolicy, elapsed_ms: int = 0) -> int:
    """As long as a job will have run when it ends, by its time limit, else as learnt; above `elapsed_ms`."""
    return max(limit_ms, elapsed_ms + 1) if limit_ms else quantile(rows, kind, policy.permille, elapsed_ms)

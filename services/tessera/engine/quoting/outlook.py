"""
An outlook: a pool with what is known of lengths and arrivals, as all its futures begin.

In: the pool as it is now, sketches, run lengths and arrivals, which rest as long as futures are drawn of it. Equal jobs
are one line each. Pure; times are ledger milliseconds.
"""

from tessera.domain.queues import UNLIMITED
from tessera.domain.runtimes import Sketch
from tessera.domain.table import Table
from tessera.engine.ahead.durations import FORECAST_PERMILLE, expected, quantile
from tessera.engine.quoting.arrivals import PastArrivals
from tessera.engine.quoting.lengths import LearntLengths
from tessera.engine.quoting.pool_now import ANYWHERE, JobShape, PoolNow, RunNow, Terms, WaitingNow, WindowNow
from tessera_schemas.base import INT_MAX


class EqualJobs:
    """Equal jobs of an outlook: those that wait are `jobs`, by age, as (submitted, number among the waiting)."""

    __slots__ = (
        *("booking", "elsewhere", "expected_ms", "forecast_ms", "gpus", "jobs", "number", "parts", "path", "pieces"),
        *("shape", "stay_ms"),
    )

    def __init__(
        self, number: int, shape: JobShape, terms: Terms, parts: tuple[int, ...], path: tuple[int, ...]
    ) -> None:
        self.number, self.shape, self.parts, self.path = number, shape, parts, path
        self.booking, self.elsewhere, self.stay_ms = terms
        self.pieces = [each for each, many in shape.pieces for _ in range(many)]
        self.gpus = shape.gpus
        self.jobs: list[tuple[int, int, int]] = []
        self.expected_ms = self.forecast_ms = 0


class Windows:
    """Windows of a pool, as all its futures begin with them."""

    def __init__(self, now: PoolNow) -> None:
        self.on_node: dict[int, list[WindowNow]] = {}
        for window in now.windows:
            for node in window.nodes:
                self.on_node.setdefault(node, []).append(window)
        self.open = {each.booking: each for each in now.windows if each.start_ts <= now.ts}
        # An end stands before a beginning of the same time, so that nodes go from one booking to the next.
        bounds = [(each.end_ts, False, at) for at, each in enumerate(now.windows)]
        bounds += [(each.start_ts, True, at) for at, each in enumerate(now.windows) if each.start_ts > now.ts]
        self.bounds = [(ts, begins, now.windows[at]) for ts, begins, at in sorted(bounds)]
        self.shut_from = {node: min(each.start_ts for each in found) for node, found in self.on_node.items()}


class Outlook:
    """A pool with what is known of lengths and arrivals; serves any number of futures while these rest."""

    def __init__(self, now: PoolNow, sketches: Table[Sketch], lengths: LearntLengths, arrivals: PastArrivals) -> None:
        self.now, self.arrivals, self.lengths, self._sketches = now, arrivals, lengths, sketches
        self.chances = lengths.chances()
        models = sorted({node.model for node in now.nodes})
        self.part_of = [models.index(node.model) for node in now.nodes]
        self._models, self.largest = models, max((node.gpus for node in now.nodes), default=0)
        self.gpus = sum(node.gpus for node in now.nodes)
        self.queues = list(now.queues.values())
        self._queue_numbers = {name: at for at, name in enumerate(now.queues)}
        self.lines: list[EqualJobs] = []
        self._alike: dict[tuple[JobShape, Terms], EqualJobs] = {}
        self.later: list[tuple[int, int, int]] = []
        for at, job in enumerate(now.waiting):
            self._queue(at, job)
        self.runs = list[tuple[int, tuple[tuple[int, int], ...], int, RunNow]]()
        for run in now.runs:
            line = self.line_of(run.shape, Terms(run.booking, elsewhere=False) if run.booking else ANYWHERE)
            self.runs.append((line.number, run.places, self._forecast_end(run, line), run))
        self.windows = Windows(now)
        self._find_shared()
        self.bounded = any(queue.most < UNLIMITED // 1000 for queue in self.queues)

    def join(self, job: WaitingNow) -> None:
        """Put one job more in line. To make an outlook anew for each takes as long as two futures."""
        self._queue(len(self.now.waiting), job)
        self.now = self.now._replace(waiting=(*self.now.waiting, job))
        # Whether shares decide was found out without it: it may be the first of another tenant, user or queue.
        self._find_shared()

    def leave(self) -> None:
        """Take the job out of line again that joined last."""
        *others, job = self.now.waiting
        at, line = len(others), self.line_of(job.shape, job.terms)
        self.now, self.later = self.now._replace(waiting=tuple(others)), [each for each in self.later if each[1] != at]
        line.jobs = [each for each in line.jobs if each[1] != at]

    def _queue(self, at: int, job: WaitingNow) -> None:
        line = self.line_of(job.shape, job.terms)
        # Who may not start yet comes into its line later, and counts by the age that it has.
        if job.not_before > self.now.ts:
            self.later.append((job.not_before, at, line.number))
        else:
            line.jobs.append((job.submitted_ts, at, job.deadline_ts or INT_MAX))

    def _find_shared(self) -> None:
        # Shares cost a key of many parts for each look at a job; where one branch has all jobs they say nothing.
        shapes = (line.shape for line in self.lines)
        self.shared = len({(shape.path, shape.kind.tenant, shape.user) for shape in shapes}) > 1

    def line_of(self, shape: JobShape, terms: Terms = ANYWHERE) -> EqualJobs:
        """The line of such jobs, made when the first of them is met."""
        line = self._alike.get((shape, terms))
        if line is None:
            named = [at for at, model in enumerate(self._models) if not shape.models or model in shape.models]
            path = tuple(self._queue_numbers[name] for name in shape.path if name in self._queue_numbers)
            line = self._alike[shape, terms] = EqualJobs(len(self.lines), shape, terms, tuple(named), path)
            # What decides is asked for what decides by it: the order's mean and the forecast's end.
            mean = expected(self._sketches, shape.kind)
            line.expected_ms = max(1, min(mean, shape.limit_ms) if shape.limit_ms else mean)
            line.forecast_ms = shape.limit_ms or quantile(self._sketches, shape.kind, FORECAST_PERMILLE)
            self.lines.append(line)
        return line

    def _forecast_end(self, run: RunNow, line: EqualJobs) -> int:
        length, now = line.forecast_ms, self.now.ts
        # As the engine's own forecast has it: who outlives its estimate is expected to run as long again.
        while run.started_ts + length <= now:
            length *= 2
        return run.started_ts + length

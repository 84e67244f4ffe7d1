"""
Quotes of starts under a policy: jobs are told when they will start, by the code that users would ask, and scored.

A job is quoted at its submit, once the engine has decided at that instant and has not started it; of these a share is
taken by a hash of the job's line, since a quote costs more than a decision. Each is given after what had been seen by
then, and corrected by the scores that were known by then. Beside it stand two naive predictors: the GPU time that is
ahead of the job over the GPUs, with or without what runs have left, and the median wait of the last jobs of its class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from tessera.domain.state import State
from tessera.engine.quoting import LEVELS, quote
from tessera.engine.quoting.arrivals import PastArrivals
from tessera.engine.quoting.lengths import LearntLengths
from tessera.engine.quoting.naive import LastWaits, naive_waits
from tessera.engine.quoting.outlook import Outlook
from tessera.engine.quoting.pool_now import JobShape, class_of, pool_now, shape_of
from tessera.engine.quoting.scores import QuoteBook
from tessera_lab.queue.configured import TENANT
from tessera_lab.queue.live import SHARD, LiveEngine
from tessera_lab.traces.philly import TraceJob
from tessera_schemas.base import job_id

POOL = "default"
HASH = 2_654_435_761
NAIVE = "work ahead", "work ahead and running", "last jobs of the class"
INTERVALS = {"80 %": (100, 900), "95 %": (25, 975)}
BOUNDS = 500, 800, 950


@dataclass(frozen=True, slots=True)
class QuotedJob:
    """A quote of the trace's job on `line`: waits in milliseconds as drawn and as told, and by the naive predictors."""

    line: int
    ts: int
    gpus: int
    drawn: tuple[int, ...]
    told: tuple[int, ...]
    naive: tuple[int, ...]
    wait_ms: int | None = None


class QuotingEngine:
    """The engine at work, and quotes of a share of the jobs that wait; `every`: one in so many, by a hash."""

    def __init__(self, policy: str, sizes: Sequence[int], history: Sequence[TraceJob], every: int, seed: int) -> None:
        self._engine, self._every, self._seed = LiveEngine(policy, sizes, history), every, seed
        self._lengths, self._arrivals, self.book = LearntLengths(), PastArrivals(), QuoteBook()
        self._shapes: dict[int, JobShape] = {}
        self._ids: dict[int, str] = {}
        self._came: list[TraceJob] = []
        self._submitted: dict[int, int] = {}
        self._last = LastWaits()
        self.quoted: dict[int, QuotedJob] = {}
        self.waited = 0
        self._learn(history)

    @property
    def state(self) -> State:
        """The engine's state, as it stands."""
        return self._engine.state

    def arrived(self, job: TraceJob) -> None:
        """A job was submitted; it is quoted once the engine has decided."""
        self._engine.arrived(job)
        self._came.append(job)

    def ended(self, job: TraceJob, now_ms: int) -> None:
        """A run has ended, from which lengths are learnt."""
        self._lengths.end(str(job.line), now_ms)
        del self._shapes[job.line]
        self._engine.ended(job, now_ms)

    def started(self, now_ms: int) -> Sequence[int]:
        """Lets the engine start whom it will, scores their quotes, and quotes who came and still waits."""
        begun, state = self._engine.started(now_ms), self._engine.state
        for job in self._came:
            self._ids[job.line] = name = job_id(SHARD, TENANT, str(job.line))
            found = state.jobs.get(name)
            assert found is not None
            shape = shape_of(state.tree, found)
            assert shape is not None
            self._shapes[job.line], self._submitted[job.line] = shape, now_ms
            self._arrivals.note(now_ms, shape)
        self._lengths.advance(now_ms)
        for line in begun:
            self._lengths.start(str(line), self._shapes[line].kind, now_ms)
            self._score(line, now_ms)
        waiting = [job for job in self._came if job.line in self._submitted]
        self.waited += len(waiting)
        chosen = [job.line for job in waiting if (job.line * HASH >> 8) % self._every == 0]
        if chosen:
            self._quote(chosen, now_ms)
        self._came.clear()
        return begun

    def stopped(self) -> Sequence[int]:
        """Lines of jobs that were relocated; under the policies that are quoted there are none."""
        return self._engine.stopped()

    def _learn(self, history: Sequence[TraceJob]) -> None:
        """Learn beforehand: lengths of the jobs that had ended, as if none had waited, and when they came."""
        ends = [(job.submit_s + job.duration_s, 0, job) for job in history]
        times = sorted(
            [*ends, *((job.submit_s, 1, job) for job in history)], key=lambda each: (*each[:2], each[2].line)
        )
        for at_s, comes, job in times:
            if comes:
                self._lengths.start(str(job.line), self._engine.kind_of(job), at_s * 1000)
                self._arrivals.note(at_s * 1000, self._engine.shape_of(job))
            else:
                self._lengths.end(str(job.line), at_s * 1000)

    def _score(self, line: int, now_ms: int) -> None:
        wait = now_ms - self._submitted.pop(line)
        self.book.started(self._ids.pop(line), now_ms)
        self._last.note(class_of(POOL, self._shapes[line]), wait)
        if line in self.quoted:
            found = self.quoted[line]
            self.quoted[line] = QuotedJob(**{**asdict(found), "wait_ms": wait})

    def _quote(self, lines: Sequence[int], now_ms: int) -> None:
        state = self._engine.state
        now = pool_now(state, POOL)
        outlook = Outlook(now, state.runtimes, self._lengths, self._arrivals)
        names, ahead = {self._ids[line]: line for line in lines}, naive_waits(now, state.runtimes)
        # Seeded by where in time it is and by the seed that was asked for: another seed is another luck of the draw.
        for drawn in quote(outlook, now_ms * (self._seed + 1), tuple(names)):
            line = names[drawn.job_id]
            job_class = class_of(POOL, self._shapes[line])
            naive = *ahead[drawn.job_id], self._last.median_of(job_class)
            told = self.book.give(drawn, job_class)
            gpus = self._shapes[line].gpus
            self.quoted[line] = QuotedJob(line, now_ms, gpus, drawn.waits_ms, told.waits_ms, naive)


@dataclass(frozen=True, slots=True)
class QuoteScore:
    """One predictor over all quotes: the share that held, and the median absolute error in seconds."""

    predictor: str
    held: Mapping[str, float]
    median_error_s: float


def scores(quoted: Sequence[QuotedJob]) -> list[QuoteScore]:
    """Quotes as told and as drawn, and the naive predictors; of jobs that have started."""
    known = [(one, one.wait_ms) for one in quoted if one.wait_ms is not None]
    ways = {"quotes": [one.told for one, _ in known], "as drawn": [one.drawn for one, _ in known]}
    waits = [wait for _, wait in known]
    found = [
        QuoteScore(name, _held(told, waits), _error([each[LEVELS.index(500)] for each in told], waits))
        for name, told in ways.items()
    ]
    for at, name in enumerate(NAIVE):
        found.append(QuoteScore(name, {}, _error([one.naive[at] for one, _ in known], waits)))
    return found


def _held(told: Sequence[tuple[int, ...]], waits: Sequence[int]) -> dict[str, float]:
    pairs, many = list(zip(told, waits, strict=True)), max(1, len(waits))
    held = {
        f"by {level / 10:g} %": sum(wait <= each[LEVELS.index(level)] for each, wait in pairs) / many
        for level in BOUNDS
    }
    for name, (low, high) in INTERVALS.items():
        at, to = LEVELS.index(low), LEVELS.index(high)
        held[f"in {name}"] = sum(each[at] <= wait <= each[to] for each, wait in pairs) / many
    return {name: round(share, 4) for name, share in held.items()}


def _error(told: Sequence[int], waits: Sequence[int]) -> float:
    return median([abs(each - wait) / 1000 for each, wait in zip(told, waits, strict=True)]) if waits else 0.0

"""A schedule beside what its documents promise: who was delayed, what stood idle, which evictions were too dear."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby, pairwise
from math import ceil

from tessera.testkit.line_judge.easy import easy_starts
from tessera.testkit.line_judge.profile import FreeAhead, meets
from tessera.testkit.line_judge.schedule import FOR_EVER_MS, AskedJob, Schedule, SeenRun

SETTLED_MS = 2_000
"""Longer than a decision takes, and than pods take to start and to be gone: by as much no time is off."""
RESTART_MS = 300_000
"""What a restart costs each GPU, beside what was done since the start."""
CANDIDATES_MAX = 14


@dataclass(slots=True)
class LineVerdict:
    """
    What was found in one schedule. Sentences name jobs and seconds.

    `waits`: of each job its pods, milliseconds until the run that did its work, and those under EASY with true ends.
    """

    waits: list[tuple[int, int, int]] = field(default_factory=list)
    idle_gpu_ms: int = 0
    idle: list[str] = field(default_factory=list)
    delays: list[str] = field(default_factory=list)
    dearer: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    evictions: int = 0


@dataclass(frozen=True, slots=True)
class LineFigures:
    """Sums over schedules; ratios are to EASY with true ends."""

    jobs: int
    mean_wait: float
    gangs: int
    gangs_mean: float
    gangs_p99: float
    idle_gpu_seconds: int
    delaying_starts: int
    evictions: int
    dearer_evictions: int


def sum_up(verdicts: Sequence[LineVerdict]) -> LineFigures:
    """One line for all verdicts together."""
    waits = [wait for verdict in verdicts for wait in verdict.waits]
    gangs = [wait for wait in waits if wait[0] > 1]
    return LineFigures(
        len(waits),
        _ratio(_mean(wait[1] for wait in waits), _mean(wait[2] for wait in waits)),
        len(gangs),
        _ratio(_mean(wait[1] for wait in gangs), _mean(wait[2] for wait in gangs)),
        _ratio(_p99([wait[1] for wait in gangs]), _p99([wait[2] for wait in gangs])),
        sum(verdict.idle_gpu_ms for verdict in verdicts) // 1000,
        sum(len(verdict.delays) for verdict in verdicts),
        sum(verdict.evictions for verdict in verdicts),
        sum(len(verdict.dearer) for verdict in verdicts),
    )


def judge(schedule: Schedule) -> LineVerdict:
    """Judges a schedule whose jobs have all ended."""
    return _Judge(schedule).verdict()


class _Judge:
    """Walks through the moments of one schedule; at each it knows what a subscriber knows, time limits among it."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._found = schedule, LineVerdict()
        self._models = {node.name: node.model for node in schedule.nodes}
        self._in_order = sorted(schedule.jobs.values(), key=lambda job: job.place)
        self._runs = {name: [run for run in schedule.runs if run.job == name] for name in schedule.jobs}

    def verdict(self) -> LineVerdict:
        self._compare_waits()
        for run in self._schedule.runs:
            self._judge_start(run)
        self._judge_idle()
        self._judge_evictions()
        return self._found

    def _compare_waits(self) -> None:
        """Each start's and each end's own time is part of how long a run holds its GPUs, here and under EASY."""
        last = {name: runs[-1] for name, runs in self._runs.items() if runs and runs[-1].ended_ms < FOR_EVER_MS}
        self._found.unfinished = sorted(self._schedule.jobs.keys() - last.keys())
        best = easy_starts(self._schedule, {name: run.ended_ms - run.began_ms for name, run in last.items()})
        for name, run in last.items():
            job = self._schedule.jobs[name]
            self._found.waits.append((job.pods, run.began_ms - job.at_ms, best[name] - job.at_ms))

    # -- what is known at a moment

    def _waiting(self, at_ms: int, but: str = "") -> list[AskedJob]:
        """Jobs in line, in order."""
        return [job for job in self._in_order if job.name != but and self._waits_since(job, at_ms) <= at_ms]

    def _is_settled(self, job: AskedJob, at_ms: int) -> bool:
        """Whether the job has been in line for long enough that it was decided for: no fault is found before."""
        return self._waits_since(job, at_ms) <= at_ms - SETTLED_MS

    def _waits_since(self, job: AskedJob, at_ms: int) -> int:
        """Since when the job could have started; FOR_EVER_MS while it holds GPUs or has ended."""
        since = job.at_ms
        for run in self._runs[job.name]:
            if run.began_ms > at_ms:
                break
            over = run.stopped_ms is not None and run.ended_ms <= at_ms and run is not self._runs[job.name][-1]
            since = max(run.ended_ms, run.back_ms) if over else FOR_EVER_MS
        return since

    def _known_end(self, run: SeenRun, at_ms: int) -> int:
        """By its time limit; by what came where its end was told, or where its start and end took time besides."""
        if (run.over_ms if run.stopped_ms is None else run.stopped_ms) <= at_ms:
            return run.ended_ms
        return max(run.ended_ms if run.stopped_ms is None else 0, run.began_ms + self._schedule.jobs[run.job].limit_ms)

    def _profile(self, at_ms: int, runs: Iterable[SeenRun]) -> FreeAhead:
        made = FreeAhead(self._schedule.nodes, at_ms)
        for run in runs:
            made.take(self._schedule.jobs[run.job].gpus, run.nodes, at_ms, self._known_end(run, at_ms))
        return made

    def _held(self, at_ms: int) -> list[SeenRun]:
        return [run for run in self._schedule.runs if run.began_ms <= at_ms < run.ended_ms]

    # -- I1: who stands first is not delayed

    def _judge_start(self, run: SeenRun) -> None:
        """The first blocked job that could use the run's nodes, and each before it that has room, are not delayed."""
        job, at_ms = self._schedule.jobs[run.job], run.began_ms
        runs = self._schedule.runs
        earlier = runs[: next(at for at, other in enumerate(runs) if other is run)]
        profile = self._profile(at_ms, (other for other in earlier if other.ended_ms > at_ms))
        for before in self._waiting(at_ms, but=job.name):
            if before.place > job.place:
                return
            if not meets(before, run.nodes, self._models):
                continue
            alone, beside = profile.earliest(before, before.limit_ms), profile.copy()
            beside.take(job.gpus, run.nodes, at_ms, self._known_end(run, at_ms))
            delayed = beside.earliest(before, before.limit_ms)
            if alone is None or delayed is None:
                continue
            if delayed[0] - alone[0] > SETTLED_MS and self._is_settled(before, at_ms):
                self._found.delays.append(
                    f"{job.name} ({job.pods} x {job.gpus}) began at {at_ms / 1000:.1f} s and put {before.name} "
                    f"({before.pods} x {before.gpus}) off from {alone[0] / 1000:.1f} to {delayed[0] / 1000:.1f} s"
                )
                return
            if alone[0] > at_ms:
                return
            profile.take(before.gpus, alone[1], at_ms, at_ms + before.limit_ms)

    # -- I2, I4: nothing stands idle that a waiting job may use

    def _judge_idle(self) -> None:
        jobs, runs = self._schedule.jobs.values(), self._schedule.runs
        times = {run.began_ms for run in runs} | {run.ended_ms for run in runs}
        times |= {job.at_ms + SETTLED_MS for job in jobs} | {run.back_ms + SETTLED_MS for run in runs if run.back_ms}
        since = dict[str, int]()
        for at_ms, until_ms in pairwise(sorted(times - {FOR_EVER_MS})):
            could = {job.name: job for job in self._could_start(at_ms)}
            since = {name: since.get(name, at_ms) for name in could}
            for name, job in could.items():
                idle_ms = until_ms - max(at_ms, since[name] + SETTLED_MS)
                if idle_ms > 0:
                    self._found.idle_gpu_ms += idle_ms * job.gpus_of_all
                    self._found.idle.append(
                        f"{name} ({job.pods} x {job.gpus}) could have run from {since[name] / 1000:.1f} s on and "
                        f"waited from {at_ms / 1000:.1f} to {until_ms / 1000:.1f} s"
                    )

    def _could_start(self, at_ms: int) -> Iterator[AskedJob]:
        """Waiting jobs that have room now for as long as they may run, and put off nobody before them."""
        profile = self._profile(at_ms, self._held(at_ms))
        kept = {m.job: m for m in self._schedule.earmarks if m.began_ms <= at_ms < m.ended_ms}
        for mark in kept.values():
            job = self._schedule.jobs[mark.job]
            profile.take(job.gpus, mark.nodes, at_ms, at_ms + job.limit_ms + SETTLED_MS)
        before = list[AskedJob]()
        starts = dict[str, int]()
        entered = profile.copy()
        for job in self._waiting(at_ms):
            if job.name in kept:
                continue
            length_ms = job.limit_ms + SETTLED_MS
            nodes = profile.place(job, at_ms, at_ms + length_ms)
            if nodes is not None and self._is_settled(job, at_ms):
                beside = profile.copy()
                beside.take(job.gpus, nodes, at_ms, at_ms + length_ms)
                later = _starts(beside, before)
                if all(later[name] <= start for name, start in starts.items()):
                    profile.take(job.gpus, nodes, at_ms, at_ms + length_ms)
                    entered = profile.copy()
                    starts = _starts(entered, before)
                    yield job
                    continue
            before.append(job)
            found = entered.earliest(job, job.limit_ms)
            starts[job.name] = FOR_EVER_MS if found is None else found[0]
            if found is not None:
                entered.take(job.gpus, found[1], found[0], found[0] + job.limit_ms)

    # -- evictions

    def _judge_evictions(self) -> None:
        """Of each set of runs that were stopped for a job of a higher class: whether cheaper ones would have done."""
        stopped = sorted(
            (run for run in self._schedule.runs if run.stopped_ms is not None and run.by and run.why == "Preempted"),
            key=lambda run: (run.stopped_ms, run.by),
        )
        for (at_ms, by), victims in groupby(stopped, key=lambda run: (run.stopped_ms or 0, run.by)):
            chosen = list(victims)
            self._found.evictions += len(chosen)
            owner = self._schedule.jobs[by]
            cheaper = self._cheaper(owner, chosen, at_ms)
            if cheaper:
                names, others = (", ".join(sorted(run.job for run in runs)) for runs in (chosen, cheaper))
                self._found.dearer.append(
                    f"{names} stopped for {owner.name} at {at_ms / 1000:.1f} s; {others} would do"
                )

    def _cheaper(self, owner: AskedJob, chosen: Sequence[SeenRun], at_ms: int) -> Sequence[SeenRun] | None:
        held = self._held(at_ms)
        # What other plans stop at this moment, or stopped before, is on its way and keeps its own owner's room.
        able = [
            run
            for run in held
            if (run.stopped_ms is None or run.stopped_ms > at_ms or run in chosen)
            and self._schedule.jobs[run.job].value < owner.value
            and run.began_ms + self._schedule.min_runtime_ms + SETTLED_MS <= at_ms
            and meets(owner, run.nodes, self._models)
        ]
        kept = [m for m in self._schedule.earmarks if m.job != owner.name and m.began_ms <= at_ms < m.ended_ms]
        able = sorted(able, key=lambda run: self._cost(run, at_ms))[:CANDIDATES_MAX]
        cost = sum(self._cost(run, at_ms) for run in chosen)
        for many in range(len(able) + 1):
            for some in combinations(able, many):
                if sum(self._cost(run, at_ms) for run in some) >= cost:
                    continue
                profile = FreeAhead(self._schedule.nodes, at_ms)
                for run in held:
                    if run not in some:
                        profile.take(self._schedule.jobs[run.job].gpus, run.nodes, at_ms, at_ms + 1)
                for mark in kept:
                    profile.take(self._schedule.jobs[mark.job].gpus, mark.nodes, at_ms, at_ms + 1)
                if profile.place(owner, at_ms, at_ms + 1) is not None:
                    return some
        return None

    def _cost(self, run: SeenRun, at_ms: int) -> int:
        """GPU-milliseconds that stopping the run loses."""
        return self._schedule.jobs[run.job].gpus_of_all * (at_ms - run.began_ms + RESTART_MS)


def _starts(profile: FreeAhead, jobs: Sequence[AskedJob]) -> dict[str, int]:
    """Start of each job if all are entered in this order."""
    made, starts = profile.copy(), dict[str, int]()
    for job in jobs:
        found = made.earliest(job, job.limit_ms)
        starts[job.name] = FOR_EVER_MS if found is None else found[0]
        if found is not None:
            made.take(job.gpus, found[1], found[0], found[0] + job.limit_ms)
    return starts


def _mean(values: Iterable[int]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _p99(values: Sequence[int]) -> float:
    """The smallest value that at least 99 of a hundred do not exceed."""
    return float(sorted(values)[ceil(len(values) * 0.99) - 1]) if values else 0.0


def _ratio(ours: float, best: float) -> float:
    """Both with a second more, so that a wait of nothing is no infinity."""
    return (ours + 1000) / (best + 1000)

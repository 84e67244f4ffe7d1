"""What backfill promises, on drawn lines and rooms, in virtual time with a plain loop."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.table import Table
from tessera.engine.queueing.backfill import Pass, backfill
from tessera.engine.queueing.durations import JobKind, Sketch
from tessera.engine.queueing.expected_order import ExpectedOrderPolicy, Lanes, WaitingJob, turn
from tessera.engine.queueing.node_timeline import RoomAhead

SIZES = st.sampled_from([(8,), (4, 4), (2, 3, 4), (16,), (4, 4, 4)])


@dataclass(frozen=True)
class Job:
    number: int
    submit: int
    gpus: int
    limit: int
    runs: int

    @property
    def name(self) -> str:
        return f"j{self.number:03d}"


@st.composite
def jobs(draw: st.DrawFn, largest: int, learnt: bool) -> list[Job]:
    """Jobs by submit time; with `learnt` they have no time limit, else they end by it."""
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 60), st.integers(1, largest), st.integers(1, 40), st.integers(1, 40)),
            min_size=1,
            max_size=25,
        )
    )
    made, now = [], 0
    for number, (gap, gpus, limit, runs) in enumerate(rows):
        now += gap // 10
        made.append(Job(number, now, gpus, 0 if learnt else limit, runs if learnt else min(runs, limit)))
    return made


@dataclass
class Told:
    """What happened: when each job started, and each pass with its time."""

    started: dict[str, int]
    passes: list[tuple[int, Pass]]


def play(work: Sequence[Job], sizes: tuple[int, ...], policy: ExpectedOrderPolicy, shuffled: bool = False) -> Told:
    rows: Table[Sketch] = Table()
    lanes, room = Lanes(policy, rows), RoomAhead(sizes)
    by_name = {job.name: job for job in work}
    waiting: dict[str, WaitingJob] = {}
    ends: dict[str, int] = {}
    told = Told({}, [])
    to_come = list(work)
    now = 0
    while to_come or waiting:
        now = min([*ends.values(), *(job.submit for job in to_come[:1])])
        for name in sorted((n for n, end in ends.items() if end == now), reverse=shuffled):
            room.release(name)
            del ends[name]
            lanes.learn(kind(by_name[name]), by_name[name].runs, now)
        arriving = [job for job in to_come if job.submit == now]
        to_come = to_come[len(arriving) :]
        for job in sorted(arriving, key=lambda job: kind(job), reverse=True) if shuffled else arriving:
            waiting[job.name] = WaitingJob(job.name, kind(job), job.submit, job.limit)
            lanes.add(waiting[job.name])
        room.begin(now, lambda name, at: at + 1)
        closed: set[tuple[int, int]] = set()
        done = backfill(lanes.in_order(now, closed), room, policy.depth, closed)
        told.passes.append((now, done))
        for name in done.started:
            lanes.remove(waiting.pop(name))
            told.started[name] = now
            ends[name] = now + by_name[name].runs
        assert all(0 <= bay.free <= bay.size for bay in room.bays)
        assert bool(ends) or not waiting, "an empty room starts somebody"
    return told


def kind(job: Job) -> JobKind:
    return JobKind("t", "q", f"n{job.number % 3}", job.gpus)


def whole(sizes: tuple[int, ...]) -> int:
    return sum(sizes)


@st.composite
def cases(draw: st.DrawFn, learnt: bool) -> tuple[list[Job], tuple[int, ...], ExpectedOrderPolicy]:
    sizes = draw(SIZES)
    patience = draw(st.integers(0, 30))
    policy = ExpectedOrderPolicy(patience, patience + draw(st.integers(0, 50)), draw(st.integers(1, 4)))
    return draw(jobs(whole(sizes), learnt)), sizes, policy


@settings(max_examples=300)
@given(cases(learnt=False))
def test_under_true_limits_the_first_earmark_is_never_put_off_and_is_kept(
    case: tuple[list[Job], tuple[int, ...], ExpectedOrderPolicy],
) -> None:
    told = play(*case)
    promised: dict[str, int] = {}
    for now, done in told.passes:
        if done.earmarked:
            first, at = done.earmarked[0]
            assert at <= promised.get(first, at), f"{first} at {now}"
            promised[first] = at
    for name, at in promised.items():
        assert told.started[name] <= at


@settings(max_examples=300)
@given(st.booleans().flatmap(lambda learnt: cases(learnt)))
def test_nobody_waits_longer_than_the_bound_whatever_was_learnt(
    case: tuple[list[Job], tuple[int, ...], ExpectedOrderPolicy],
) -> None:
    work, _, policy = case
    told = play(*case)
    longest = max(job.runs for job in work)
    for job in work:
        older = sum(1 for other in work if (other.submit, other.name) < (job.submit, job.name))
        assert told.started[job.name] - job.submit <= policy.closing_ms + (older + 1) * longest


@given(cases(learnt=True))
def test_the_order_in_which_arrivals_and_ends_of_one_instant_are_told_changes_no_start(
    case: tuple[list[Job], tuple[int, ...], ExpectedOrderPolicy],
) -> None:
    work, sizes, policy = case
    alike = [Job(job.number, job.submit, job.gpus, 0, job.runs) for job in work]
    distinct = [job for job in alike if sum(1 for o in alike if (o.submit, o.gpus) == (job.submit, job.gpus)) == 1]
    if distinct:
        assert play(distinct, sizes, policy).passes == play(distinct, sizes, policy, shuffled=True).passes


@given(cases(learnt=False), st.integers(0, 100))
def test_the_lanes_give_the_order_that_sorting_everybody_by_turn_gives(
    case: tuple[list[Job], tuple[int, ...], ExpectedOrderPolicy], now: int
) -> None:
    work, _, policy = case
    lanes = Lanes(policy, Table())
    everybody = [WaitingJob(job.name, kind(job), job.submit, job.limit) for job in work if job.submit <= now]
    for one in everybody:
        lanes.add(one)
    plain = sorted(everybody, key=lambda one: turn(one, one.kind.gpus * one.limit_ms, now, policy))
    assert [candidate.job_id for candidate in lanes.in_order(now, set())] == [one.job_id for one in plain]

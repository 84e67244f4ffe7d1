"""What reservations promise, on drawn jobs, made by the real committer's decision in virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.client.ledger.replay import inputs_of, verify
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.engine.placement.capacity import nodes_for
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.queueing.reservations import Forecast, find_opening
from tessera.kernel.ledger.shard import Entry
from tessera.scheduler.decide import decide
from tessera_schemas.config import Policy
from tessera_schemas.facts import AnyFact, JobAdmitted, PodsMade, RunAbsent, RunEnded, RunStarted
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.reasons import Code
from tests.builders import admitted, config_body, job_spec, node_seen, role
from tests.ledgers import Committed

RESERVE = Policy(backfill="reserve", backfill_closing_seconds=31_536_000)
SECOND = 1000


@dataclass(frozen=True)
class Asked:
    """A job: when it comes, its gang, its time limit and how long it really runs, in seconds; CPUs of each pod."""

    at: int
    pods: int
    gpus: int
    limit: int
    runs: int
    cpu: int = 1


@st.composite
def work(draw: st.DrawFn, largest: int = 8) -> list[Asked]:
    gangs = st.sampled_from([(1, 1), (1, 2), (1, 3), (1, largest), (2, largest), (2, 2), (3, 1)])
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 9), gangs, st.integers(1, 30), st.integers(1, 30), st.sampled_from([1, 1, 9, 20])),
            min_size=2,
            max_size=14,
        )
    )
    made, now = [], 0
    for gap, (pods, gpus), limit, runs, cpu in rows:
        now += gap
        made.append(Asked(now, pods, gpus, limit, min(runs, limit), cpu))
    return made


@dataclass
class World:
    """A committer whose jobs start as soon as they are allocated and end when they said."""

    policy: Policy
    sizes: tuple[int, ...] = (8, 8)
    limits: bool = True
    ledger: Committed = field(init=False)
    ends: dict[str, int] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    told: list[tuple[str, int]] = field(default_factory=list)
    """After each message: the first job in line that finds no room, and from when on it could start."""

    def __post_init__(self) -> None:
        nodes = [node_seen(f"node-{i}", gpus=gpus) for i, gpus in enumerate(self.sizes)]
        self.ledger = Committed().begin(*nodes, body=config_body(policy=self.policy))
        self.zero = self.ledger.ts

    def play(self, jobs: Sequence[Asked], seconds: int = 10_000) -> "World":
        coming = list(enumerate(jobs))
        while (coming or self.ends) and self.now < seconds:
            times = [*([coming[0][1].at] if coming else []), *self.ends.values()]
            now = max(self.now, min(times))
            facts = [fact for run, end in sorted(self.ends.items()) if end <= now for fact in self._ended(run)]
            while coming and coming[0][1].at <= now:
                facts.append(self._submit(*coming.pop(0)))
            self._commit(*facts, ms=(now - self.now) * SECOND)
            self._commit(orders=(self.ledger.line(),), ms=0)
        return self

    @property
    def now(self) -> int:
        return (self.ledger.ts - self.zero) // SECOND

    def _submit(self, number: int, asked: Asked) -> JobAdmitted:
        limit = asked.limit if self.limits else None
        gang = role(replicas=asked.pods, gpus=asked.gpus, cpu_milli=asked.cpu * 1000)
        spec = job_spec(gang, name=f"j{number}", time_limit_seconds=limit)
        fact = admitted(f"k{number}", spec)
        self.asked[fact.job_id] = asked
        return fact

    def _ended(self, run: str) -> tuple[AnyFact, ...]:
        del self.ends[run]
        return RunEnded(kind="run_ended", run_id=run), RunAbsent(kind="run_absent", run_id=run)

    def _commit(self, *facts: AnyFact, **more: Any) -> None:
        message = self.ledger.commit(*facts, **more)
        for record in message.records:
            if record.kind == "allocated":
                run, pods = f"{record.job_id}-1", len(record.placements)
                self.started[record.job_id] = self.now
                self.ends[run] = self.now + self.asked[record.job_id].runs
                made = PodsMade(kind="pods_made", run_id=run, uids=tuple(f"{run}-{i}" for i in range(pods)))
                self._commit(made, RunStarted(kind="run_started", run_id=run), ms=0)
        blocked = first_blocked(self.ledger.state)
        if blocked is not None:
            self.told.append((blocked.job_id, (could_start(self.ledger.state, blocked) - self.zero) // SECOND))


def first_blocked(state: State) -> Job | None:
    line = state.lines.get("default")
    for job in state.jobs.found(line.jobs if line else ()):
        if job.phase == "queued" and job.reason is not None and job.reason.code in (Code.NO_FIT, Code.RESERVED):
            return job
    return None


def could_start(state: State, job: Job) -> int:
    nodes = {node.name: node for node in nodes_for(state, "default", "")}
    opening = find_opening(job.roles, nodes, Forecast(state).ends_on(nodes), FeasibleNodes(nodes))
    assert opening is not None
    return opening.at


@settings(max_examples=60)
@given(work(), st.integers(1, 3))
def test_under_true_limits_the_reserved_start_is_never_put_off_and_the_job_starts_by_it(
    jobs: list[Asked], depth: int
) -> None:
    """The first blocked job's; for the others that room is kept for it may come earlier or later as jobs start."""
    world = World(RESERVE.model_copy(update={"backfill_depth": depth})).play(jobs)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for job, at in world.told:
        assert at <= last.get(job, at)
        last[job] = at
        first.setdefault(job, at)
    assert len(world.started) == len(jobs)
    for job, at in first.items():
        assert world.started[job] <= at


@settings(max_examples=30)
@given(work(), st.sampled_from([(8, 8), (8, 4, 4, 8)]), st.booleans(), st.integers(1, 3))
def test_every_job_ends_the_ledger_replays_and_equal_inputs_give_equal_bytes(
    jobs: list[Asked], sizes: tuple[int, ...], limits: bool, depth: int
) -> None:
    policy = RESERVE.model_copy(update={"backfill_depth": depth})
    one, other = World(policy, sizes, limits).play(jobs), World(policy, sizes, limits).play(jobs)
    assert len(one.started) == len(jobs)
    assert one.ledger.stored == other.ledger.stored
    report = verify(one.ledger.stored)
    assert report.ok, report.findings


@settings(max_examples=20)
@given(work(), st.integers(1, 3))
def test_a_committer_restored_from_a_snapshot_decides_the_same(jobs: list[Asked], depth: int) -> None:
    """Tables of a restored state are filled in another order than those of one that folded the ledger."""
    world = World(RESERVE.model_copy(update={"backfill_depth": depth}), limits=False).play(jobs)
    folded = Committed()
    for stored in world.ledger.stored:
        message = LEDGER_MESSAGE.validate_json(stored)
        lines = list(dump(folded.state))
        restored = load(iter([lines[0], *reversed(lines[1:])]))
        assert tuple(decide(restored, inputs_of(message)).records) == message.records
        folded.shard.fold(Entry(message, stored))


@settings(max_examples=30)
@given(work())
def test_records_equal_those_without_backfill_until_a_job_has_waited_for_a_reservation(
    jobs: list[Asked],
) -> None:
    patient = Policy(backfill="reserve", backfill_patience_seconds=31_536_000)
    one, other = World(patient).play(jobs), World(Policy()).play(jobs)
    assert records(one) == records(other)


def records(world: World) -> list[bytes]:
    found = [LEDGER_MESSAGE.validate_json(stored).records for stored in world.ledger.stored]
    return [record.to_bytes() for message in found for record in message]


def stream(limit: int = 10) -> list[Asked]:
    """More than eight GPUs' worth of small jobs, and soon after the first ones a gang of a whole node."""
    small = [Asked(at, 1, 1, limit, limit) for at in range(200)]
    return sorted([*small, Asked(5, 1, 8, 50, 50)], key=lambda asked: asked.at)


def gang_starts(world: World, gpus: int = 8) -> int | None:
    return next((world.started.get(job) for job, asked in world.asked.items() if asked.gpus == gpus), None)


def test_only_a_reservation_starts_a_whole_node_gang_in_an_endless_stream_of_small_jobs() -> None:
    assert gang_starts(World(Policy(), (8,)).play(stream(), seconds=200)) is None
    assert gang_starts(World(RESERVE, (8,)).play(stream(), seconds=200)) == 15


def test_the_same_without_time_limits_once_it_is_known_how_long_such_jobs_run() -> None:
    start = gang_starts(World(RESERVE, (8,), limits=False).play(stream(), seconds=200))
    assert start is not None
    assert start <= 30


def test_while_room_is_kept_short_jobs_use_it() -> None:
    jobs = [Asked(0, 1, 4, 100, 100), Asked(1, 1, 8, 50, 50), Asked(2, 1, 4, 98, 98), Asked(3, 1, 4, 98, 98)]
    world = World(RESERVE, (8,)).play(jobs)
    assert list(world.started.values()) == [0, 2, 100, 150]


def test_even_where_runs_take_longer_than_such_runs_ever_did_nobody_is_passed_for_ever() -> None:
    """Nine in ten runs are short, so that each of the long ones, of which one always runs, is taken for short."""
    short = [Asked(at, 1, 4, 1, 1) for at in range(0, 400, 2)]
    long = [Asked(at, 1, 4, 1, 40) for at in range(31, 400, 30)]
    jobs = sorted([*short, *long, Asked(35, 1, 12, 10, 10)], key=lambda asked: asked.at)
    closing = Policy(backfill="reserve", backfill_closing_seconds=60)
    never, bounded = (World(policy, (12,), limits=False).play(jobs, 400) for policy in (RESERVE, closing))
    assert gang_starts(never, 12) is None
    assert gang_starts(bounded, 12) == 91 + 40

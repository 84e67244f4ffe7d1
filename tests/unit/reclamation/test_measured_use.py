"""How much the GPUs of runs worked: what counts and what is unmeasured, what is said and when, and by two replicas."""

from typing import Any

import pytest

from tessera.domain.devices.resources import Node
from tessera.domain.entities import Run
from tessera.domain.storing.fast import replace
from tessera.domain.table import Table
from tessera.kernel.errors import Transient
from tessera.reclamation.idle_runs.decide import GpuSample, GpuUsage
from tessera.reclamation.idle_runs.measured_use import HOUR_MS, MINUTE_MS, UseMeters
from tessera_schemas.cluster.labels import pod_name
from tessera_schemas.facts import RunUsed
from tessera_schemas.work.measured_use import MeasuredUse
from tessera_schemas.work.placement import Placement
from tests.builders import job_spec, placement, role
from tests.unit.binder.binder_builders import RUN, node, run
from tests.unit.binder.cluster_world import World, train

GIB = 1024 * 1024 * 1024
TWO_GPUS = job_spec(role(gpus=2))
PLACES = (placement(0, devices=(0, 1)),)


def held(*places: Placement, **more: Any) -> Run:
    return run(TWO_GPUS, started=True, places=places or PLACES, **more)


def nodes(memory_gib: int = 80) -> Table[Node]:
    table: Table[Node] = Table()
    table.put("node-a", node(gpu_memory_bytes=memory_gib * GIB))
    return table


def seen(*percents: int, memory: tuple[int, ...] = (), rank: int = 0, shared: bool = False) -> GpuUsage:
    mib = memory or (None,) * len(percents)
    samples = zip(percents, mib, strict=True)
    found = tuple(GpuSample(f"uuid {at}", percent, used, shared) for at, (percent, used) in enumerate(samples))
    return {("lab", pod_name(RUN, rank)): found}


class Looks:
    """Looks at one run every half minute, from the first on which there is nothing before to count."""

    def __init__(self, one: Run | None = None, meters: UseMeters | None = None) -> None:
        self.run, self.now = one or held(), 1_000_000
        self.meters = meters or UseMeters(busy_percent=3, gap_ms=120_000)

    def at(self, usage: GpuUsage, after_ms: int = 30_000, busy_percent: int = 0) -> "Looks":
        self.now += after_ms
        self.meters.look(self.run, usage, nodes(), self.now, busy_percent)
        return self

    def use(self) -> MeasuredUse | None:
        fact = self.meters.last(self.run)
        return None if fact is None else fact.use


def test_time_is_weighed_by_the_percentage_of_each_gpu_from_the_second_look_on() -> None:
    use = Looks().at(seen(90, 90)).at(seen(50, 0)).at(seen(100, 1)).use()
    assert use == MeasuredUse(
        measured_gpu_milli_ms=2 * 2 * 1000 * 30_000, worked_gpu_milli_ms=1000 * 30_000 * 151 // 100, gpus=2, busy_gpus=2
    )


def test_a_gpu_is_busy_from_the_threshold_on_and_counted_once() -> None:
    assert Looks().at(seen(3, 2)).at(seen(90, 2)).use().busy_gpus == 1  # type: ignore[union-attr]
    assert Looks().at(seen(0, 2)).at(seen(2, 0)).use().busy_gpus == 0  # type: ignore[union-attr]
    in_turns = Looks().at(seen(90, 0)).at(seen(0, 90)).use()
    assert in_turns is not None
    assert in_turns.busy_gpus == 2
    own = Looks().at(seen(49, 50), busy_percent=50).at(seen(0, 0), busy_percent=50).use()
    assert own is not None
    assert own.busy_gpus == 1


def test_memory_is_the_most_on_one_gpu_and_said_only_beside_what_the_model_has() -> None:
    use = Looks().at(seen(9, 9, memory=(5_000, 11_000))).at(seen(9, 9, memory=(2_000, 3_000))).use()
    assert use is not None
    assert (use.memory_mib, use.gpu_memory_mib) == (11_000, 81_920)
    without = Looks().at(seen(9, 9)).at(seen(9, 9)).use()
    assert without is not None
    assert (without.memory_mib, without.gpu_memory_mib) == (0, 0)


UNMEASURED = [
    ("fewer samples than GPUs, as of a query by pod", held(), seen(0)),
    ("more samples than GPUs", held(), seen(0, 0, 0)),
    ("GPUs that others use too", held(), seen(0, 0, shared=True)),
    ("a share of a GPU", held(placement(0, devices=(0,), gpu_milli=500)), seen(0)),
    ("an instance of MIG", held(Placement(0, "worker", "node-a", (0,), 1000, (0, 8))), seen(0)),
    ("no sample", held(), {}),
]


@pytest.mark.parametrize(("one", "usage"), [case[1:] for case in UNMEASURED], ids=[case[0] for case in UNMEASURED])
def test_what_is_nobodys_percentage_is_unmeasured_and_never_idle(one: Run, usage: GpuUsage) -> None:
    assert Looks(one).at(usage).at(usage).use() is None


def test_of_a_gang_the_pods_count_that_are_measured() -> None:
    two = held(placement(0, devices=(0, 1)), placement(1, devices=(2, 3)))
    use = Looks(two).at(seen(50, 50)).at(seen(50, 50)).use()
    assert use is not None
    assert (use.measured_gpu_milli_ms, use.gpus) == (2 * 1000 * 30_000, 2)


@pytest.mark.parametrize(("gap_ms", "measured"), [(120_000, 2 * 1000 * 120_000), (120_001, None)])
def test_a_gap_between_looks_counts_up_to_the_bound(gap_ms: int, measured: int | None) -> None:
    use = Looks().at(seen(50, 50)).at(seen(50, 50), after_ms=gap_ms).use()
    assert (None if use is None else use.measured_gpu_milli_ms) == measured


# -- what is said, and when


def take_in(looks: Looks, fact: RunUsed) -> None:
    """As the committer does."""
    if looks.run.gpu_use is None or fact.use.measured_gpu_milli_ms > looks.run.gpu_use.measured_gpu_milli_ms:
        looks.run = replace(looks.run, gpu_use=fact.use)


def test_it_is_said_after_a_minute_then_whenever_it_doubled_and_then_each_hour() -> None:
    looks, said = Looks().at(seen(50, 50)), list[int]()
    for minute in range(1, 241):
        looks.at(seen(50, 50)).at(seen(50, 50))
        if (fact := looks.meters.due(looks.run)) is not None:
            said.append(minute)
            take_in(looks, fact)
    assert said == [1, 2, 4, 8, 16, 32, 64, 124, 184]


def test_what_was_said_is_not_said_again_while_it_is_on_its_way() -> None:
    looks = Looks().at(seen(50, 50)).at(seen(50, 50)).at(seen(50, 50))
    assert looks.meters.due(looks.run) is not None
    assert looks.meters.due(looks.run) is None
    assert looks.meters.last(looks.run) is None
    assert looks.at(seen(50, 50)).meters.due(looks.run) is None
    assert looks.meters.last(looks.run) is not None


def test_after_a_restart_the_sum_goes_on_from_what_the_ledger_knows() -> None:
    known = MeasuredUse(measured_gpu_milli_ms=HOUR_MS, worked_gpu_milli_ms=HOUR_MS, gpus=2, busy_gpus=2, memory_mib=9)
    use = Looks(held(gpu_use=known)).at(seen(0, 0)).at(seen(0, 0)).use()
    assert use is not None
    assert use.measured_gpu_milli_ms == HOUR_MS + 2 * 1000 * 30_000
    assert (use.worked_gpu_milli_ms, use.busy_gpus, use.memory_mib) == (HOUR_MS, 2, 9)


def test_of_two_replicas_that_take_turns_none_counts_a_time_twice() -> None:
    one, other = Looks(), Looks()
    other.now += 15_000  # its looks lie between those of the first
    start = one.now + 30_000
    for half_minute in range(480):
        for replica in (one, other):
            replica.at(seen(50, 50))
            speaks = one if half_minute // 40 % 2 == 0 else other
            if replica is speaks and (fact := replica.meters.due(replica.run)) is not None:
                take_in(one, fact)
                take_in(other, fact)
        assert one.run.gpu_use is None or one.run.gpu_use.measured_gpu_milli_ms <= 2 * 1000 * (other.now - start)
    known = one.run.gpu_use
    assert known is not None
    assert known.measured_gpu_milli_ms > 2 * 1000 * 120 * MINUTE_MS
    assert known.worked_gpu_milli_ms * 2 == known.measured_gpu_milli_ms


# -- through binder, committer and reclamation


class Told:
    """A source that says of every pod what a test tells it: percents of its GPUs."""

    def __init__(self, *percents: int) -> None:
        self.percents, self.away = percents, False
        self.world: World | None = None

    async def usage(self) -> GpuUsage:
        if self.away or self.world is None:
            raise Transient("away")
        samples = tuple(GpuSample(f"uuid {at}", percent) for at, percent in enumerate(self.percents))
        runs = self.world.state.runs.values()
        return {("lab", pod_name(one.run_id, place.rank)): samples for one in runs for place in one.places}


def world(told: Told) -> World:
    told.world = World(utilisation=told, utilisation_seconds=30)
    return told.world


async def test_a_run_is_told_of_at_growing_intervals_and_at_its_end() -> None:
    told = Told(80, 0)
    async with world(told) as w:
        job = await w.submit(spec=train(gpus=2, seconds=1000))
        await w.run(700, turn=5)
        use = w.current(job).gpu_use
        assert (use.gpus, use.busy_gpus) == (2, 1)  # type: ignore[union-attr]
        assert len(w.said("run_used")) == w.kinds().count("use_noted") == 4
        await w.run(400, turn=5)
        ended: Any = w.state.ended.get(job)
        assert ended.phase == "succeeded"
        last = w.said("run_used")[-1].use
        assert ended.gpu_use == last
        assert 960_000 <= last.measured_gpu_milli_ms // 2000 <= 1_000_000
        assert last.worked_gpu_milli_ms == last.measured_gpu_milli_ms * 4 // 10
        assert ended.gpu_milli_ms >= last.measured_gpu_milli_ms


async def test_a_repeat_of_what_was_said_changes_nothing() -> None:
    told = Told(80, 0)
    async with world(told) as w:
        job = await w.submit(spec=train(gpus=2, seconds=100_000))
        await w.run(300, turn=5)
        said = w.said("run_used")
        before = w.kinds().count("use_noted")
        await w.commit(*said)
        assert w.kinds().count("use_noted") == before
        assert w.current(job).gpu_use == said[-1].use


async def test_while_the_source_is_away_nothing_is_measured() -> None:
    told = Told(80, 0)
    async with world(told) as w:
        told.away = True
        job = await w.submit(spec=train(gpus=2, seconds=100_000))
        await w.run(300, turn=50)
        assert w.said("run_used") == []
        assert w.current(job).gpu_use is None

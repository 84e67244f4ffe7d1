"""Runs that hold GPUs and use none: warned about, then stopped, as the policy says; what is not measured is in use."""

from typing import Any

import pytest

from tessera.reclamation.idle_runs.decide import Activity
from tessera_schemas.cluster.labels import pod_name
from tessera_schemas.config import Policy
from tessera_schemas.job import JobIdle
from tessera_schemas.reasons import Code
from tests.builders import job_spec, role
from tests.unit.binder.binder_builders import RUN, run
from tests.unit.binder.cluster_world import World, train
from tests.unit.reclamation.told_use import Told, of

WARN, RECLAIM = 300, 600
NO_GPU = job_spec(role(gpus=0))
TWO = job_spec(role(replicas=2))


def world(what: Any, told: Told) -> World:
    policy = Policy(idle=what, idle_warn_seconds=WARN, idle_reclaim_seconds=RECLAIM)
    return World(policy=policy, utilisation=told, utilisation_seconds=30)


async def idle_run(world: World, told: Told, **spec: Any) -> str:
    job = await world.submit(spec=train(seconds=100_000, **spec))
    told.percent[world.current(job).run_id] = 0
    return job


async def test_an_idle_run_is_warned_about_and_then_requeued() -> None:
    told = Told()
    async with world("requeue", told) as w:
        job = await idle_run(w, told)
        await w.run(WARN, turn=5)
        assert not w.current(job).idle_ts
        await w.run(60, turn=5)
        assert w.current(job).idle_ts
        await w.run(RECLAIM - 90, turn=5)
        assert w.job(job).attempt == 1
        await w.run(120, turn=5)
        revoked = [record for record in w.records if record.kind == "revoked"]
        assert [record.reason.code for record in revoked] == [Code.IDLE]
        assert w.job(job).attempt == 2


@pytest.mark.parametrize(("what", "phase"), [("warn", "running"), ("fail", "failed")])
async def test_what_becomes_of_an_idle_run_is_the_policys(what: str, phase: str) -> None:
    told = Told()
    async with world(what, told) as w:
        job = await idle_run(w, told)
        await w.run(WARN + RECLAIM + 200, turn=5)
        assert (w.job(job).phase, w.job(job).attempt) == (phase, 1)
        assert w.kinds().count("warned") == 1


async def test_a_policy_that_is_off_hears_nothing() -> None:
    told = Told()
    async with world("off", told) as w:
        await idle_run(w, told)
        await w.run(WARN + RECLAIM + 200, turn=5)
        assert w.said("run_idle") == []


async def test_a_run_that_is_used_again_after_its_warning_is_left_alone_until_it_is_idle_anew() -> None:
    told = Told()
    async with world("requeue", told) as w:
        job = await idle_run(w, told)
        run_id = w.current(job).run_id
        await w.run(WARN + 100, turn=5)
        told.percent[run_id] = 80
        await w.run(60, turn=5)
        assert not w.current(job).idle_ts
        told.percent[run_id] = 0
        await w.run(WARN - 30, turn=5)
        assert not w.current(job).idle_ts
        await w.run(90, turn=5)
        assert w.current(job).idle_ts
        assert w.kinds().count("warned") == 3


async def test_while_the_measurement_is_away_nobody_becomes_idle() -> None:
    told = Told()
    async with world("fail", told) as w:
        job = await idle_run(w, told)
        await w.run(200, turn=5)
        told.away = True
        await w.run(1000, turn=50)
        told.away = False
        await w.run(WARN - 30, turn=5)
        assert not w.current(job).idle_ts
        await w.run(90, turn=5)
        assert w.current(job).idle_ts


async def test_a_job_that_may_be_idle_is_left_alone_and_one_with_its_own_threshold_is_not() -> None:
    told = Told()
    async with world("requeue", told) as w:
        session = await idle_run(w, told, idle=JobIdle(allow_idle=True))
        slow = await w.submit("k2", train(seconds=100_000, idle=JobIdle(busy_percent=50)))
        told.percent[w.current(slow).run_id] = 30
        await w.run(WARN + RECLAIM + 300, turn=5)
        assert (w.job(session).attempt, w.current(session).idle_ts) == (1, 0)
        assert w.job(slow).attempt == 2


def held(world: World) -> tuple[float | None, float | None]:
    """GPUs held and idle, and held and unmeasured, of the tenant and queue that all jobs here are of; None: not told"""
    labels = {"pool": "default", "tenant": "lab", "queue": "research"}
    registry = world.metrics["reclamation"].registry
    idle, unmeasured = (f"tessera_held_{what}_gpus" for what in ("idle", "unmeasured"))
    return registry.get_sample_value(idle, labels), registry.get_sample_value(unmeasured, labels)


async def test_metrics_say_how_many_gpus_are_held_and_idle_now_whatever_the_policy() -> None:
    told = Told()
    async with world("off", told) as w:
        assert held(w) == (None, None)
        idle = await idle_run(w, told)
        works = await w.submit("k2", train(seconds=100_000))
        told.percent[w.current(works).run_id] = 80
        await w.run(40, turn=5)
        gpus = w.current(idle).amount.gpu_milli / 1000
        assert (gpus > 0, held(w)) == (True, (gpus, 0))
        told.percent[w.current(idle).run_id] = 80
        await w.run(40, turn=5)
        assert held(w) == (0, 0)


async def test_metrics_count_apart_what_is_not_measured_and_say_nothing_while_the_source_is_away() -> None:
    told = Told()
    async with world("off", told) as w:
        job = await w.submit(spec=train(seconds=100_000))
        gpus = w.current(job).amount.gpu_milli / 1000
        await w.run(40, turn=5)
        assert (gpus > 0, held(w)) == (True, (0, gpus))
        told.away = True
        await w.run(40, turn=5)
        assert held(w) == (None, None)


# -- the count itself

LOOKS = [
    ("idle from the first look on", [0, 0, 0], [1, 30, 60]),
    ("in use", [50, 50], [0, 0]),
    ("at the bound it is in use", [5, 4], [0, 1]),
    ("used in between", [0, 90, 0, 0], [1, 0, 1, 30]),
    ("not measured in between, for a moment", [0, None, 0], [1, None, 60]),
    ("not measured in between, for long", [0, *[None] * 5, 0], [1, *[None] * 5, 1]),
    ("never measured", [None, None], [None, None]),
]


@pytest.mark.parametrize(("looks", "seconds"), [c[1:] for c in LOOKS], ids=[c[0] for c in LOOKS])
def test_idleness_is_counted_in_looks(looks: list[int | None], seconds: list[int | None]) -> None:
    activity, one = Activity(busy_percent=5, gap_seconds=120), run(started=True)
    said = []
    for at, percent in enumerate(looks):
        usage = {} if percent is None else {("lab", pod_name(RUN, 0)): percent}
        said.append(activity.look(one, of(usage), 1000 + 30 * at))
    assert said == seconds


def look(spec: Any, usage: dict[tuple[str, str], int]) -> int | None:
    return Activity(5, 120).look(run(spec, started=True), of(usage), 1000)


def test_one_busy_gpu_makes_the_whole_gang_busy() -> None:
    assert look(TWO, {("lab", pod_name(RUN, 0)): 0, ("lab", pod_name(RUN, 1)): 99}) == 0


def test_a_gang_of_which_one_pod_is_not_measured_is_not_known_to_be_idle() -> None:
    assert look(TWO, {("lab", pod_name(RUN, 0)): 0}) is None


def test_a_run_without_gpus_is_never_idle() -> None:
    no_devices = run(NO_GPU, started=True)
    bare = type(no_devices)
    places = tuple(type(p)(p.rank, p.role, p.node) for p in no_devices.placements)
    values = {name: getattr(no_devices, name) for name in bare.__slots__} | {"placements": places}
    assert Activity(5, 120).look(bare(**values), of({("lab", pod_name(RUN, 0)): 0}), 1000) is None


def test_a_pod_of_the_same_name_in_another_namespace_says_nothing() -> None:
    assert look(None, {("other", pod_name(RUN, 0)): 0}) is None


def test_a_source_that_tells_no_namespace_is_believed() -> None:
    assert look(None, {("", pod_name(RUN, 0)): 0}) == 1

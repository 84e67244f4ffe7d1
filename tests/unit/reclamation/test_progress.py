"""Runs whose pods report steps: one that stands still, or has slow pods, is warned of or starts again, as it says."""

from typing import Any

import pytest

from tessera.reclamation.progress.decide import StallWatch
from tessera_schemas.cluster.labels import PROGRESS_ANNOTATION
from tessera_schemas.config import Policy
from tessera_schemas.job import JobProgress
from tessera_schemas.reasons import Code
from tests.unit.binder.cluster_world import World, train
from tests.unit.reclamation.told_use import Told

HANG = 60
NODES = tuple(f"node-{letter}" for letter in "abcdefgh")


def world(**policy: Any) -> World:
    return World(nodes=NODES, policy=Policy(node_lost_seconds=30, **policy))


async def start(world: World, key: str = "k1", pods: int = 1, **rule: Any) -> str:
    progress = JobProgress.model_validate({"hang_seconds": HANG, **rule})
    spec = train(seconds=100_000, progress=progress)
    plain = spec.roles[0].model_copy(update={"replicas": pods})
    return await world.submit(key, spec.model_copy(update={"roles": (plain,)}))


def write(world: World, job: str, *steps: int | str) -> None:
    """As the programs do, each on its own pod."""
    for rank, step in enumerate(steps):
        notes = {PROGRESS_ANNOTATION: str(step)}
        world.core.patch("pods", "lab", f"{world.current(job).run_id}-{rank}", {"metadata": {"annotations": notes}})


async def work(world: World, job: str, seconds: int, *rates: int, begin: int = 0) -> None:
    """Programs do so many steps each in ten seconds."""
    for turn in range(seconds // 10):
        write(world, job, *(begin + rate * (turn + 1) for rate in rates))
        await world.run(10, turn=5)


def stalls(world: World) -> list[Code | None]:
    return [record.reason and record.reason.code for record in world.records if record.kind == "stalled"]


async def test_a_run_that_stands_still_is_warned_of_once_and_no_more_when_it_goes_on() -> None:
    async with world() as w:
        job = await start(w)
        await work(w, job, 60, 5)
        await w.run(HANG - 20, turn=5)
        assert stalls(w) == []
        await w.run(40 + 3 * HANG, turn=5)
        assert stalls(w) == [Code.HUNG]
        assert (w.current(job).stalled.numbers["step"], w.job(job).attempt) == (30, 1)
        assert len(w.said("run_stalled")) == 1, "the ledger does not grow with a hang"
        await work(w, job, 30, 5, begin=30)
        assert stalls(w) == [Code.HUNG, None]
        assert w.current(job).stalled is None


async def test_progress_however_slow_is_no_hang_and_is_said_to_nobody() -> None:
    async with world() as w:
        job = await start(w)
        await work(w, job, 5 * HANG, 1)
        assert w.said("run_stalled") == []
        assert "stalled" not in w.kinds()


@pytest.mark.parametrize("reports", [(), ("begun",), ("-3",), ("1" * 16,)])
async def test_a_run_that_has_reported_nothing_is_not_judged(reports: tuple[str, ...]) -> None:
    async with world() as w:
        job = await start(w, then="restart")
        write(w, job, *reports)
        await w.run(5 * HANG, turn=5)
        assert (stalls(w), w.job(job).attempt) == ([], 1)


@pytest.mark.parametrize(("then", "avoided"), [("restart", False), ("elsewhere", True)])
async def test_a_hang_starts_the_run_again_where_it_was_or_elsewhere_and_spends_no_attempt(
    then: str, avoided: bool
) -> None:
    async with world() as w:
        job = await start(w, then=then)
        (node,) = w.nodes_of(job)
        write(w, job, 7)
        await w.run(HANG + 60, turn=5)
        revoked = [record for record in w.records if record.kind == "revoked"]
        assert [(record.reason.code, record.then) for record in revoked] == [(Code.HUNG, "requeue")]
        assert (w.job(job).attempt, w.job(job).strikes, w.job(job).troubles) == (2, 0, 1)
        assert w.job(job).avoid == ((node,) if avoided else ())
        assert (node in w.nodes_of(job)) is not avoided
        await w.run(3 * HANG, turn=5)
        assert w.job(job).attempt == 2, "the next run has reported nothing yet"


async def test_only_the_nodes_of_pods_that_are_behind_are_avoided() -> None:
    async with world() as w:
        job = await start(w, pods=4, then="elsewhere")
        places = {place.rank: place.node for place in w.current(job).placements}
        write(w, job, 9, 9, 8, 9)
        await w.run(HANG + 30, turn=5)
        assert w.job(job).avoid == (places[2],)


async def test_a_gap_in_which_nobody_looked_begins_the_time_anew() -> None:
    async with world() as w:
        job = await start(w, then="restart")
        write(w, job, 7)
        await w.run(HANG - 10, turn=5)
        async with w.cut_off("reclamation", "ledger"):
            await w.run(60, turn=5)
        await w.run(HANG - 20, turn=5)
        assert w.job(job).attempt == 1
        await w.run(60, turn=5)
        assert w.job(job).attempt == 2


async def test_a_pod_that_is_half_as_fast_as_the_median_is_a_straggler() -> None:
    async with world() as w:
        job = await start(w, pods=4, straggler_percent=40, straggler_seconds=60)
        places = {place.rank: place.node for place in w.current(job).placements}
        await work(w, job, 150, 10, 10, 5, 10)
        (warned,) = [record for record in w.records if record.kind == "stalled"]
        assert warned.nodes == (places[2],)
        assert warned.reason.code is Code.STRAGGLES
        assert f"pod 2 on {places[2]}" in warned.reason.sentence()
        await work(w, job, 150, 10, 10, 10, 10, begin=1000)
        assert stalls(w) == [Code.STRAGGLES, None]


async def test_a_straggler_may_move_its_run_off_the_node() -> None:
    async with world() as w:
        job = await start(w, pods=4, straggler_percent=40, straggler_seconds=60, straggler_then="elsewhere")
        slow = {place.rank: place.node for place in w.current(job).placements}[1]
        await work(w, job, 70, 10, 2, 10, 10)
        await w.run(40, turn=5)
        assert w.job(job).attempt == 2
        assert slow not in w.nodes_of(job)


@pytest.mark.parametrize(
    ("percent", "unused_seconds", "step", "hangs"),
    [
        pytest.param(0, 60, 7, True, id="it stands still and uses nothing"),
        pytest.param(90, 60, 7, False, id="a collective that waits keeps its GPUs busy"),
        pytest.param(None, 60, 7, False, id="nobody measures its GPUs"),
        pytest.param(0, None, 7, False, id="its job does not ask for it"),
        pytest.param(0, 60, None, False, id="it has reported nothing"),
    ],
)
async def test_gpus_that_are_not_used_shorten_the_wait_for_a_step(
    percent: int | None, unused_seconds: int | None, step: int | None, hangs: bool
) -> None:
    told = Told()
    async with World(utilisation=told, utilisation_seconds=10) as w:
        job = await start(w, hang_seconds=3600, unused_seconds=unused_seconds, then="restart")
        if percent is not None:
            told.percent[w.current(job).run_id] = percent
        if step is not None:
            write(w, job, step)
        await w.run(50, turn=5)
        assert w.job(job).attempt == 1
        await w.run(60, turn=5)
        assert w.job(job).attempt == 1 + hangs
        if hangs:
            (revoked,) = [record for record in w.records if record.kind == "revoked"]
            assert revoked.reason.code is Code.HUNG
            assert 60 <= revoked.reason.numbers["unused_seconds"] <= revoked.reason.numbers["seconds"]


async def test_steps_that_come_count_more_than_gpus_that_are_not_used() -> None:
    told = Told()
    async with World(utilisation=told, utilisation_seconds=10) as w:
        job = await start(w, hang_seconds=3600, unused_seconds=60, then="restart")
        told.percent[w.current(job).run_id] = 0
        await work(w, job, 300, 1)
        assert w.job(job).attempt == 1


RULE = JobProgress(hang_seconds=60, straggler_percent=50, straggler_seconds=60)


@pytest.mark.parametrize(
    ("done", "behind"),
    [
        ((10, 10, 5), {2: 5}),
        ((10, 10, 6), {}),
        ((3, 3, 0), {}),
        ((10, 0), {}),
        ((10, 10, 0, 0), {}),
    ],
    ids=["half", "a little more", "too few steps", "two pods", "half of the pods"],
)
def test_stragglers_are_those_far_behind_the_median_of_three_pods_or_more(
    done: tuple[int, ...], behind: dict[int, int]
) -> None:
    seen = StallWatch()
    first = dict.fromkeys(range(len(done)), 100)
    for now, steps in ((0.0, first), (60.0, {rank: 100 + count for rank, count in enumerate(done)})):
        seen.look(steps, RULE, now, 0.0)
    assert seen.behind == behind


def test_a_window_that_was_not_watched_compares_nothing() -> None:
    seen = StallWatch()
    seen.look({0: 0, 1: 0, 2: 0}, RULE, 0.0, 0.0)
    seen.look({0: 10, 1: 10, 2: 0}, RULE, 60.0, 30.0)
    assert seen.behind == {}
    seen.look({0: 20, 1: 20, 2: 0}, RULE, 120.0, 30.0)
    assert seen.behind == {2: 0}

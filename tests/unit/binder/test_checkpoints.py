"""What a program says of its checkpoints reaches the ledger once, and its next attempt."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.binder.decide.steps import is_path
from tessera_schemas.cluster.labels import CHECKPOINT_ANNOTATION, CHECKPOINT_AT_ANNOTATION
from tessera_schemas.facts import CheckpointReported, DrainRequested
from tests.unit.binder.cluster_world import World, train


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as world:
        yield world


def paths(world: World) -> list[str]:
    return [fact.path for fact in world.said("checkpoint_saved")]


def write(world: World, job: str, path: str, rank: int = 0, **more: str) -> None:
    """As the program, or whoever looks after it, does."""
    notes = {CHECKPOINT_ANNOTATION: path} | ({CHECKPOINT_AT_ANNOTATION: more["at"]} if more else {})
    world.core.patch("pods", "lab", f"{world.current(job).run_id}-{rank}", {"metadata": {"annotations": notes}})


def env(world: World) -> dict[str, str]:
    (pod,) = world.pods()
    return {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}


async def drained(world: World, job: str) -> None:
    (node,) = world.nodes_of(job)
    await world.commit(DrainRequested(kind="drain_requested", node=node, evict=True))
    await world.run(5)


async def test_each_path_is_new_once(world: World) -> None:
    job = await world.submit()
    for path in ("s3://bucket/1", "s3://bucket/2", "s3://bucket/1"):
        write(world, job, path)
        await world.run(15)
    assert paths(world) == ["s3://bucket/1", "s3://bucket/2"]
    assert world.job(job).saved_path == "s3://bucket/2"


async def test_who_saves_in_two_places_in_turn_writes_a_time_beside_them(world: World) -> None:
    job = await world.submit()
    for number, path in enumerate(("/a", "/b", "/a")):
        write(world, job, path, at=str(number))
        await world.run(15)
    assert paths(world) == ["/a", "/b", "/a"]
    assert world.job(job).saved_path == "/a"


# -- several pods report the same checkpoints, each when it comes to it


@pytest.fixture
async def pair(world: World) -> str:
    """A job of two pods with a notice of a minute."""
    return await world.submit(spec=train(replicas=2, notice=60))


def since_stop(world: World, job: str) -> int:
    """How far `saved_ts` lies behind the stop; below 0: nothing was saved since."""
    run = world.current(job)
    return run.saved_ts - run.stopped_ts


async def stop(world: World, job: str, seconds: float = 3) -> None:
    (node,) = world.nodes_of(job)
    await world.commit(DrainRequested(kind="drain_requested", node=node, evict=True))
    await world.run(seconds)


async def test_an_old_path_that_another_pod_reports_late_ends_no_notice(world: World, pair: str) -> None:
    for path in ("/100", "/200"):
        write(world, pair, path)
        await world.run(5)
    await stop(world, pair)
    write(world, pair, "/100", rank=1)
    await world.run(5)
    assert (world.job(pair).phase, world.job(pair).saved_path) == ("evicting", "/200")
    assert since_stop(world, pair) < 0
    write(world, pair, "/300", rank=1)
    await world.run(10)
    assert (world.job(pair).attempt, world.job(pair).saved_path) == (2, "/300")


async def test_what_waited_to_be_said_when_the_run_was_stopped_ends_no_notice(world: World, pair: str) -> None:
    write(world, pair, "/shard-0/100")
    await world.run(0.5)
    write(world, pair, "/shard-1/100", rank=1)
    await world.run(0.5)
    await stop(world, pair, seconds=10)
    assert world.job(pair).phase == "evicting"
    assert since_stop(world, pair) < 0


async def test_each_pod_may_write_a_time_of_its_own_beside_one_checkpoint(world: World, pair: str) -> None:
    write(world, pair, "/ckpt", at="10:00:00")
    await world.run(5)
    write(world, pair, "/ckpt", rank=1, at="10:00:01")
    await world.run(5)
    assert paths(world) == ["/ckpt"]
    await stop(world, pair)
    write(world, pair, "/ckpt", rank=1, at="10:10:01")
    await world.run(5)
    assert world.job(pair).phase == "evicting"
    write(world, pair, "/ckpt", at="10:20:00")
    await world.run(10)
    assert world.job(pair).attempt == 2


async def test_a_binder_that_starts_anew_knows_which_checkpoints_are_old(world: World, pair: str) -> None:
    for path in ("/100", "/200"):
        write(world, pair, path)
        await world.run(5)
    write(world, pair, "/100", rank=1)
    await world.stop("binder")
    world.start_binder()
    await world.run(30)
    assert world.job(pair).saved_path == "/200"
    assert paths(world) == ["/100", "/200"]


async def test_an_order_that_reports_an_old_checkpoint_ends_no_notice(world: World, pair: str) -> None:
    def reported(path: str, at: str = "") -> CheckpointReported:
        return CheckpointReported(kind="checkpoint_reported", job_id=pair, tenant="lab", path=path, at=at)

    await world.commit(reported("/100"))
    await world.commit(reported("/200"))
    await world.run(1)
    await stop(world, pair)
    await world.commit(reported("/200"))
    await world.commit(reported("/100"))
    await world.run(5)
    assert (world.job(pair).phase, world.job(pair).saved_path) == ("evicting", "/200")
    await world.commit(reported("/200", at="step 900"))
    await world.run(10)
    assert world.job(pair).attempt == 2


async def test_the_same_place_is_said_again_when_the_time_beside_it_changes(world: World) -> None:
    job = await world.submit()
    write(world, job, "/ckpt", at="10:00")
    await world.run(5)
    first = world.current(job).saved_ts
    write(world, job, "/ckpt", at="10:10")
    await world.run(5)
    assert paths(world) == ["/ckpt", "/ckpt"]
    assert world.current(job).saved_ts > first


async def test_a_binder_that_starts_anew_does_not_make_an_old_checkpoint_young(world: World) -> None:
    job = await world.submit()
    write(world, job, "/ckpt", at="10:00")
    await world.run(5)
    await world.stop("binder")
    world.start_binder()
    await world.run(60)
    assert paths(world) == ["/ckpt"]
    write(world, job, "/ckpt", at="10:10")
    await world.run(5)
    assert paths(world) == ["/ckpt", "/ckpt"]


async def test_a_checkpoint_made_while_no_binder_was_there_is_said_by_the_next(world: World) -> None:
    job = await world.submit()
    await world.stop("binder")
    write(world, job, "/ckpt/7")
    await world.run(10)
    world.start_binder()
    await world.run(3)
    assert paths(world) == ["/ckpt/7"]


async def test_a_program_that_writes_all_the_time_does_not_flood_the_ledger(world: World) -> None:
    job = await world.submit()
    for number in range(80):
        write(world, job, f"/ckpt/{number}")
        await world.run(0.25)
    await world.run(5)
    assert len(paths(world)) <= 20 / 2 + 2
    assert paths(world)[-1] == "/ckpt/79"


BAD: list[Any] = ["", "x" * 1025, "a\nb", "nul\0"]


@pytest.mark.parametrize("path", BAD)
async def test_what_cannot_be_handed_on_is_no_checkpoint_and_harms_nobody(world: World, path: str) -> None:
    job = await world.submit()
    write(world, job, path)
    await world.run(5)
    assert not is_path(path)
    assert paths(world) == []
    assert world.job(job).phase == "running"


async def test_the_next_attempt_is_told_its_number_and_where_the_work_is(world: World) -> None:
    job = await world.submit()
    assert env(world)["TESSERA_ATTEMPT"] == "1"
    assert "TESSERA_CHECKPOINT_PATH" not in env(world)
    write(world, job, "s3://bucket/42")
    await world.run(3)
    await drained(world, job)
    assert env(world)["TESSERA_ATTEMPT"] == "2"
    assert env(world)["TESSERA_CHECKPOINT_PATH"] == "s3://bucket/42"


async def test_a_program_that_saves_its_work_does_only_the_rest_of_it_after_an_eviction(world: World) -> None:
    began = world.clock.now
    job = await world.submit(spec=train(seconds=100, saves_every=10, notice=30))
    await world.run(70)
    await drained(world, job)
    assert world.job(job).phase == "running"
    while world.job(job).phase == "running":
        await world.run(1)
    assert world.job(job).phase == "succeeded"
    assert world.clock.now - began < 120  # a hundred seconds of work, once


async def test_a_program_that_saves_nothing_begins_anew(world: World) -> None:
    began = world.clock.now
    job = await world.submit(spec=train(seconds=100))
    await world.run(70)
    await drained(world, job)
    while world.job(job).phase == "running":
        await world.run(1)
    assert world.clock.now - began > 170

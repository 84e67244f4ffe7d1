"""Reclamation's own absence stops nothing: what it has not looked at it does not know."""

from collections.abc import AsyncIterator

import pytest

from tessera_schemas.config import Policy
from tessera_schemas.reasons import Code
from tests.unit.binder.cluster_world import World, train

LOST_SECONDS = 20


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(policy=Policy(node_lost_seconds=LOST_SECONDS)) as world:
        yield world


def lost(world: World) -> list[Code]:
    return [fact.reason.code for fact in world.said("run_lost")]


async def test_a_pause_beside_a_node_that_was_silent_for_a_moment_calls_it_not_lost(world: World) -> None:
    job = await world.submit(spec=train(gpus=1))
    (node,) = world.nodes_of(job)
    world.core.set_reachable(node, False)
    await world.run(6)
    world.clock.pause(40)
    world.core.set_reachable(node, True)
    await world.run(40)
    assert lost(world) == []
    assert world.job(job).attempt == 1


async def test_a_pause_beside_a_node_that_stays_silent_begins_its_count_anew(world: World) -> None:
    job = await world.submit(spec=train(gpus=1))
    (node,) = world.nodes_of(job)
    world.core.set_reachable(node, False)
    await world.run(6)
    world.clock.pause(40)
    await world.run(LOST_SECONDS - 2)
    assert lost(world) == []
    await world.run(6)
    assert lost(world) == [Code.NODE_LOST]


@pytest.mark.parametrize("road", ["cluster", "ledger"])
async def test_a_road_that_is_cut_off_for_longer_than_a_node_may_be_silent_calls_nobody_lost(
    world: World, road: str
) -> None:
    job = await world.submit(spec=train(gpus=1))
    (node,) = world.nodes_of(job)
    world.core.set_reachable(node, False)
    await world.run(6)
    async with world.cut_off("reclamation", road):
        world.core.set_reachable(node, True)
        await world.run(40)
    await world.run(40)
    assert lost(world) == []
    assert world.job(job).attempt == 1


async def test_a_node_that_is_back_at_the_api_server_and_not_in_the_copy_is_not_lost(world: World) -> None:
    """The watch hangs: nothing comes, and nothing fails."""
    job = await world.submit(spec=train(gpus=1))
    (node,) = world.nodes_of(job)
    world.core.set_reachable(node, False)
    await world.run(6)
    async with world.hanging_watches("reclamation"):
        world.core.set_reachable(node, True)
        await world.run(60)
        assert lost(world) == []


async def test_a_clock_that_is_ahead_ends_no_run_before_its_time(world: World) -> None:
    job = await world.submit(spec=train(gpus=1).model_copy(update={"time_limit_seconds": 300}))
    world.clock_of["reclamation"].ahead_ms = 600_000
    await world.run(60)
    assert lost(world) == []
    assert world.job(job).phase == "running"


async def test_a_run_whose_pods_have_ended_is_not_overdue_while_no_binder_says_so() -> None:
    async with World(overtime_seconds=0) as world:
        job = await world.submit(spec=train(gpus=1, seconds=8).model_copy(update={"time_limit_seconds": 20}))
        await world.stop("binder")
        await world.run(60)
        assert [pod["status"]["phase"] for pod in world.pods()] == ["Succeeded"]
        assert lost(world) == []
        world.start_binder()
        await world.run(10)
        assert world.job(job).phase == "succeeded"
        assert world.job(job).attempt == 1


async def test_a_pause_beside_a_node_without_an_object_for_a_moment_ends_nothing(world: World) -> None:
    job = await world.submit(spec=train(gpus=1))
    (node,) = world.nodes_of(job)
    before = world.core.get("nodes", "", node).object
    world.core.remove_node(node)
    await world.run(4)
    world.clock.pause(40)
    world.core.create("nodes", "", before)
    await world.run(40)
    assert lost(world) == []
    assert [pod["status"]["phase"] for pod in world.pods()] == ["Running"]
    assert world.job(job).attempt == 1

"""Runs whose node is lost: stopped and started elsewhere, and nothing given back while it might still run."""

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tessera_schemas.config import Policy
from tessera_schemas.job import Toleration
from tessera_schemas.labels import OUT_OF_SERVICE_TAINT
from tessera_schemas.reasons import Code
from tests.unit.binder.cluster_world import World, train

GANG = train(replicas=2, gpus=4)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as world:
        yield world


def lost(world: World) -> list[tuple[Code, tuple[str, ...]]]:
    return [(fact.reason.code, fact.nodes) for fact in world.said("run_lost")]


async def test_a_gang_restarts_elsewhere_when_its_node_is_gone_for_good(world: World) -> None:
    job = await world.submit(spec=GANG)
    (node,) = world.nodes_of(job)
    world.core.remove_node(node)
    await world.run(9)
    assert lost(world) == []  # it may be back in a moment
    await world.run(15)
    assert lost(world) == [(Code.NODE_LOST, (node,))]
    assert world.job(job).phase == "running"
    assert world.job(job).attempt == 2
    assert world.job(job).avoid == (node,)
    assert world.job(job).strikes == 0
    assert node not in world.nodes_of(job)
    assert len(world.pods()) == 2  # nothing is left of the first attempt


async def test_a_node_that_is_back_in_a_moment_was_never_gone(world: World) -> None:
    job = await world.submit(spec=GANG)
    (node,) = world.nodes_of(job)
    before = world.core.get("nodes", "", node).object
    world.core.remove_node(node)
    await world.run(5)
    world.core.create("nodes", "", before)
    await world.run(30)
    assert lost(world) == []
    assert world.job(job).attempt == 1


async def test_a_run_on_a_silent_node_is_stopped_and_keeps_its_devices_until_the_node_is_fenced(world: World) -> None:
    job = await world.submit(spec=GANG)
    (node,) = world.nodes_of(job)
    world.core.set_reachable(node, False)
    await world.run(29)
    assert lost(world) == []
    await world.run(600, turn=5)
    assert lost(world) == [(Code.NODE_LOST, (node,))]
    assert world.job(job).phase == "evicting"
    assert sum(world.state.nodes.get(node).gpu_free) == 0
    world.core.set_out_of_service(node, True)
    await world.run(20)
    assert world.job(job).phase == "running"
    assert node not in world.nodes_of(job)


async def test_a_run_on_a_silent_node_starts_elsewhere_once_the_node_is_back_and_has_ended_it(world: World) -> None:
    job = await world.submit(spec=GANG)
    (node,) = world.nodes_of(job)
    world.core.set_reachable(node, False)
    await world.run(40)
    world.core.set_reachable(node, True)
    await world.run(20)
    assert world.job(job).phase == "running"
    assert node not in world.nodes_of(job)


async def test_an_outage_is_over_once_all_nodes_answer_again(world: World) -> None:
    await world.submit(spec=GANG)
    nodes = [version.object["metadata"]["name"] for version in world.core.list("nodes")[0]]
    with capture_logs() as logs:
        for node in nodes:
            world.core.set_reachable(node, False)
        await world.run(60)
        for node in nodes:
            world.core.set_reachable(node, True)
        await world.run(20)
    told = [entry["event"] for entry in logs if entry["event"].startswith("outage")]
    assert told == ["outage", "outage_over"]
    assert lost(world) == []


async def test_a_node_that_answers_again_in_time_loses_nothing(world: World) -> None:
    job = await world.submit(spec=GANG)
    (node,) = world.nodes_of(job)
    for _ in range(3):
        world.core.set_reachable(node, False)
        await world.run(20)
        world.core.set_reachable(node, True)
        await world.run(5)
    assert lost(world) == []
    assert world.job(job).attempt == 1


async def test_a_gang_restarts_elsewhere_when_its_node_stays_cordoned(world: World) -> None:
    job = await world.submit(spec=GANG)
    (node,) = world.nodes_of(job)
    world.core.set_cordoned(node, True)
    await world.run(20)
    assert lost(world) == []  # somebody may only have a look at it
    await world.run(60)
    assert lost(world) == [(Code.NODE_DRAINED, (node,))]
    assert world.job(job).phase == "running"
    assert world.job(job).attempt == 2
    assert world.job(job).avoid == (node,)
    assert world.job(job).strikes == 0
    assert node not in world.nodes_of(job)


async def test_a_run_that_may_not_be_interrupted_goes_on_where_it_is(world: World) -> None:
    job = await world.submit(spec=train(replicas=2, gpus=4, preemptible=False))
    (node,) = world.nodes_of(job)
    world.core.set_cordoned(node, True)
    await world.run(300)
    assert lost(world) == []
    assert world.job(job).phase == "running"


async def test_a_policy_may_let_runs_go_on_where_it_is_cordoned() -> None:
    async with World(policy=Policy(cordoned="keep")) as world:
        job = await world.submit(spec=GANG)
        (node,) = world.nodes_of(job)
        world.core.set_cordoned(node, True)
        await world.run(300)
        assert not world.state.nodes.get(node).ready
        assert lost(world) == []
        assert world.job(job).phase == "running"


async def test_a_node_that_answers_is_not_fenced_by_a_taint(world: World) -> None:
    (plain,) = GANG.roles
    stays = plain.model_copy(update={"tolerations": (Toleration(key=OUT_OF_SERVICE_TAINT),)})  # else it is evicted
    job = await world.submit(spec=GANG.model_copy(update={"roles": (stays,)}))
    (node,) = world.nodes_of(job)
    world.core.set_out_of_service(node, True)
    await world.run(60)
    assert lost(world) == []
    assert world.job(job).attempt == 1


async def test_while_most_nodes_are_silent_nobody_is_lost() -> None:
    async with World() as world:
        job = await world.submit(spec=train(replicas=2, gpus=8))
        for node in world.nodes_of(job):
            world.core.set_reachable(node, False)
        await world.run(300)
        assert lost(world) == []
        world.core.set_reachable("node-a", True)
        await world.run(60)
        assert lost(world) == [(Code.NODE_LOST, ("node-b",))]


async def test_of_a_node_that_shrank_only_the_run_on_the_lost_gpu_restarts(world: World) -> None:
    jobs = [await world.submit(f"k{n}", train(gpus=2)) for n in range(4)]
    held = {job: max(d for p in world.current(job).placements for d in p.devices) for job in jobs}
    (node,) = {name for job in jobs for name in world.nodes_of(job)}
    world.core.set_gpus(node, 7)
    await world.run(29)
    assert lost(world) == []
    await world.run(15)
    assert lost(world) == [(Code.NODE_SHRUNK, (node,))]
    assert [world.job(job).attempt for job in jobs] == [2 if held[job] == 7 else 1 for job in jobs]
    assert all(world.job(job).phase == "running" for job in jobs)


async def test_a_device_plugin_that_is_restarted_costs_nobody_a_run(world: World) -> None:
    job = await world.submit(spec=GANG)
    (node,) = world.nodes_of(job)
    world.core.set_gpus(node, 0)
    await world.run(20)
    world.core.set_gpus(node, 8)
    await world.run(60)
    assert lost(world) == []
    assert world.job(job).attempt == 1


async def test_a_run_that_its_kubelet_does_not_end_in_time_is_stopped_and_has_failed() -> None:
    async with World(overtime_seconds=60) as world:
        job = await world.submit(spec=train(seconds=3600, time_limit_seconds=100))
        (node,) = world.nodes_of(job)
        world.core._store.kubelets.set_reachable(
            node, False, world.clock.now_ms()
        )  # it says it is well, and does nothing
        await world.run(150)
        assert lost(world) == []
        await world.run(30)
        assert lost(world) == [(Code.TIME_LIMIT, ())]
        world.core._store.kubelets.set_reachable(node, True, world.clock.now_ms())
        await world.run(10)
        ended = world.job(job)
        assert (ended.phase, ended.reason and ended.reason.code) == ("failed", Code.TIME_LIMIT)


async def test_a_loss_is_said_once_however_long_nobody_takes_it_in(world: World) -> None:
    await world.submit(spec=GANG)
    world.core.remove_node("node-a")
    await world.clock.run(300)  # and no committer to hear it
    await world.turn()
    assert len(lost(world)) == 1


async def test_a_policy_of_no_patience_gives_a_silent_node_up_at_once() -> None:
    async with World(policy=Policy(node_lost_seconds=0)) as world:
        job = await world.submit(spec=GANG)
        (node,) = world.nodes_of(job)
        world.core.set_reachable(node, False)
        await world.run(3)
        assert world.job(job).phase == "evicting"

"""Runs whose node is lost: stopped and started elsewhere, and nothing given back while it might still run."""

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tessera.engine.explain.explanation import explain
from tessera_schemas.cluster.labels import OUT_OF_SERVICE_TAINT
from tessera_schemas.config import Policy
from tessera_schemas.facts import CancelRequested, DrainRequested, UpdateRequested
from tessera_schemas.job import JobSpec, Toleration
from tessera_schemas.ledger import EarmarkSet
from tessera_schemas.reasons import Code
from tessera_schemas.work.spec_changes import SpecChanges
from tests.builders import admitted
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


MOVES = Policy(node_lost_seconds=30, cordoned_seconds=100)
"""`restart` is the model's own default, as in configurations that say nothing."""


def with_checkpoints() -> JobSpec:
    return train(replicas=2, gpus=4, saves_every=20)


async def test_a_run_moves_off_a_cordoned_node_to_a_place_elsewhere_if_it_loses_less_than_the_cordon_lasts() -> None:
    async with World(policy=MOVES) as world:
        job = await world.submit(spec=with_checkpoints())
        (node,) = world.nodes_of(job)
        world.core.set_cordoned(node, True)
        await world.run(95)
        assert lost(world) == []  # somebody may only have a look at it
        await world.run(60)
        assert lost(world)[0] == (Code.NODE_DRAINED, (node,))
        assert (world.job(job).phase, world.job(job).attempt, world.job(job).strikes) == ("running", 2, 0)
        assert world.job(job).avoid == ()  # the node did nothing wrong
        assert node not in world.nodes_of(job)
        stopped = next(at for at, record in enumerate(world.records) if record.kind == "revoked")
        mark = world.records[stopped + 1]
        assert isinstance(mark, EarmarkSet)
        assert (mark.owner, mark.cause) == (job, "cordon")


async def test_a_run_whose_work_is_worth_more_than_the_cordon_has_lasted_goes_on() -> None:
    async with World(policy=MOVES) as world:
        job = await world.submit(spec=GANG)  # it saves nothing
        await world.run(30)
        (node,) = world.nodes_of(job)
        world.core.set_cordoned(node, True)
        await world.run(400, turn=1)
        assert lost(world)
        assert (world.job(job).phase, world.job(job).attempt) == ("running", 1)


async def test_a_run_goes_on_where_it_is_cordoned_until_there_is_room_elsewhere() -> None:
    async with World(policy=MOVES) as world:
        job = await world.submit(spec=with_checkpoints())
        other = await world.submit("other", train(gpus=8, seconds=250))
        (node,) = world.nodes_of(job)
        world.core.set_cordoned(node, True)
        await world.run(200, turn=1)
        assert (world.job(job).phase, world.job(job).attempt) == ("running", 1)
        await world.run(150, turn=1)
        assert world.job(other).phase == "succeeded"
        assert (world.job(job).phase, world.job(job).attempt) == ("running", 2)
        assert node not in world.nodes_of(job)


async def test_when_all_nodes_are_cordoned_nothing_that_runs_is_stopped() -> None:
    async with World(nodes=("node-a", "node-b", "node-c"), policy=MOVES) as world:
        jobs = [await world.submit(f"k{n}", train(gpus=8, saves_every=20)) for n in range(2)]
        for node in ("node-a", "node-b", "node-c"):
            world.core.set_cordoned(node, True)
        await world.run(400, turn=1)
        assert [world.job(job).attempt for job in jobs] == [1, 1]
        assert all(world.job(job).phase == "running" for job in jobs)


async def test_a_run_that_may_not_be_interrupted_goes_on_where_it_is_cordoned() -> None:
    async with World(policy=MOVES) as world:
        job = await world.submit(spec=train(replicas=2, gpus=4, saves_every=20, preemptible=False))
        (node,) = world.nodes_of(job)
        world.core.set_cordoned(node, True)
        await world.run(300, turn=1)
        assert lost(world) == []
        assert world.job(job).phase == "running"


async def test_a_policy_lets_runs_go_on_where_it_is_cordoned() -> None:
    async with World(policy=Policy(cordoned="keep", cordoned_seconds=0)) as world:
        job = await world.submit(spec=with_checkpoints())
        (node,) = world.nodes_of(job)
        world.core.set_cordoned(node, True)
        await world.run(300, turn=1)
        there = world.state.nodes.get(node)
        assert (there.ready, there.cordoned) == (False, True)
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


async def test_one_gpu_fewer_stops_nobody_while_what_is_held_is_still_there(world: World) -> None:
    jobs = [await world.submit(f"k{n}", train(gpus=2)) for n in range(4)]
    (node,) = {name for job in jobs for name in world.nodes_of(job)}
    low, *others = sorted(jobs, key=lambda job: world.current(job).placements[0].devices)
    await world.commit(CancelRequested(kind="cancel_requested", job_id=low, now=True))
    await world.run(10)
    world.core.set_unhealthy(node, 1)
    await world.run(200, turn=1)
    assert lost(world) == []  # also not whoever has slot 7 in our books
    assert [world.job(job).attempt for job in others] == [1, 1, 1]
    new = await world.submit("new", train(gpus=1))
    assert world.nodes_of(new) == {node}  # 6 of 7 are held: one is left
    assert world.state.nodes.get(node).gpu_free.count(1000) == 0


async def test_above_the_sum_only_the_run_whose_pod_says_that_its_device_is_broken_restarts(world: World) -> None:
    jobs = [await world.submit(f"k{n}", train(gpus=2)) for n in range(4)]
    (node,) = {name for job in jobs for name in world.nodes_of(job)}
    world.core.set_unhealthy(node, 1)
    await world.run(200, turn=1)
    assert lost(world) == []  # nobody knows whose it was
    hurt = jobs[1]
    (pod,) = world.pods(world.job(hurt).run_id)
    world.core.set_device_health(pod["metadata"]["namespace"], pod["metadata"]["name"])
    await world.run(20)
    assert lost(world) == [(Code.NODE_SHRUNK, (node,))]
    assert [world.job(job).attempt for job in jobs] == [1, 2, 1, 1]
    assert all(world.job(job).phase == "running" for job in jobs)
    assert world.nodes_of(hurt) != {node}


async def test_device_plugins_that_are_away_stop_nobody_and_nothing_new_is_placed_there() -> None:
    async with World() as world:
        jobs = [await world.submit(f"k{n}", train(gpus=6)) for n in range(2)]
        for node in ("node-a", "node-b"):
            world.core.set_device_plugins(node, False)
        await world.run(300, turn=1)
        waiting = admitted("later", train(gpus=1))
        await world.commit(waiting)
        await world.run(10)
        assert lost(world) == []
        assert [world.job(job).attempt for job in jobs] == [1, 1]
        assert world.job(waiting.job_id).phase == "queued"
        assert world.measured("tessera_nodes_short") == 2
        for node in ("node-a", "node-b"):
            world.core.set_device_plugins(node, True)
        await world.run(10)
        assert world.job(waiting.job_id).phase == "running"
        assert world.measured("tessera_nodes_short") == 0


async def test_a_label_of_the_nodes_gpus_that_is_away_stops_nobody(world: World) -> None:
    job = await world.submit(spec=GANG)
    (node,) = world.nodes_of(job)
    world.core.set_gpus(node, 0)
    await world.run(200, turn=1)
    world.core.set_gpus(node, 8)
    await world.run(60)
    assert lost(world) == []
    assert (world.job(job).phase, world.job(job).attempt) == ("running", 1)


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


async def test_a_limit_that_was_lowered_counts_before_the_kubelet_hears_of_it() -> None:
    async with World(overtime_seconds=60) as world:
        job = await world.submit(spec=train(seconds=3600, time_limit_seconds=1000))
        await world.stop("binder")
        changes = SpecChanges(time_limit_seconds=100)
        await world.commit(UpdateRequested(kind="update_requested", job_id=job, changes=changes))
        await world.run(150)
        assert lost(world) == []
        await world.run(30)
        assert lost(world) == [(Code.TIME_LIMIT, ())]


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


# -- the brake


SIX = tuple(f"node-{name}" for name in "abcdef")
"""Four of eight GPUs each, so that a quarter of what is held is one of them and a half."""


async def six_nodes(world: World) -> list[str]:
    return [await world.submit(f"k{n}", train(gpus=8)) for n in range(6)]


def phases(world: World, jobs: list[str]) -> list[str]:
    return sorted(world.job(job).phase for job in jobs)


async def test_more_nodes_that_seem_lost_at_once_stop_no_more_than_a_part_of_the_pool_until_the_time_has_passed() -> (
    None
):
    async with World(nodes=SIX, policy=Policy(node_lost_seconds=30, mass_stop_seconds=300)) as world:
        jobs = await six_nodes(world)
        for node in SIX[:3]:
            world.core.set_reachable(node, False)
        await world.run(60)
        assert phases(world, jobs).count("evicting") == 1  # one is 16 % of the six, two are a third
        held = [run for run in world.state.runs.values() if run.held_back is not None]
        assert [run.held_back.code for run in held] == [Code.STOPS_HELD_BACK] * 2
        assert {run.held_back.field for run in held} < {f"nodes.{node}" for node in SIX[:3]}
        assert world.measured("tessera_stops_held_back") == 2
        await world.run(240, turn=1)
        assert phases(world, jobs).count("evicting") == 1
        await world.run(120, turn=1)
        assert phases(world, jobs).count("evicting") == 2


async def test_an_operators_word_is_not_held_back() -> None:
    async with World(nodes=SIX, policy=Policy(node_lost_seconds=30)) as world:
        jobs = await six_nodes(world)
        for node in SIX[:4]:
            world.core.set_reachable(node, False)
            world.core.set_out_of_service(node, True)
        await world.run(30)
        assert sum(world.job(job).attempt == 1 and world.job(job).phase == "running" for job in jobs) == 2
        assert world.measured("tessera_stops_held_back") == 0


async def test_a_drain_that_evicts_is_the_word_that_stops_what_is_held_back() -> None:
    async with World(nodes=SIX, policy=Policy(node_lost_seconds=30)) as world:
        jobs = await six_nodes(world)
        for node in SIX[:3]:
            world.core.set_reachable(node, False)
        await world.run(60)
        for node in SIX[:3]:
            await world.commit(DrainRequested(kind="drain_requested", node=node, evict=True))
        assert phases(world, jobs).count("evicting") == 3


async def test_a_run_that_was_held_back_is_none_any_more_once_its_node_is_well() -> None:
    async with World(nodes=SIX, policy=Policy(node_lost_seconds=30)) as world:
        jobs = await six_nodes(world)
        for node in SIX[:3]:
            world.core.set_reachable(node, False)
        await world.run(60)
        for node in SIX[:3]:
            world.core.set_reachable(node, True)
        await world.run(20)
        assert all(run.held_back is None for run in world.state.runs.values())
        assert sorted(world.job(job).attempt for job in jobs) == [1, 1, 1, 1, 1, 2]


async def test_all_runs_of_one_node_may_be_stopped_however_few_nodes_there_are(world: World) -> None:
    jobs = [await world.submit(f"k{n}", train(gpus=2)) for n in range(4)]
    (node,) = {name for job in jobs for name in world.nodes_of(job)}
    world.core.remove_node(node)
    await world.run(40)
    assert [(world.job(job).phase, world.job(job).attempt) for job in jobs] == [("running", 2)] * 4


async def test_how_many_stopped_runs_wait_for_a_silent_node_is_measured_and_told(world: World) -> None:
    job = await world.submit(spec=GANG)
    (node,) = world.nodes_of(job)
    world.core.set_reachable(node, False)
    await world.run(100)
    assert world.measured("tessera_runs_waiting_for_node") == 1
    told = explain(world.state, job, world.clock.now_ms())
    assert told is not None
    assert told.reason is not None
    assert (told.reason.code, told.reason.field) == (Code.WAITING_FOR_NODE, f"nodes.{node}")
    assert 90 <= told.reason.numbers["seconds"] <= 105
    assert f"kubectl taint nodes {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in told.sentence()
    assert [other.code for other in told.others] == [Code.NODE_LOST]
    world.core.set_out_of_service(node, True)
    await world.run(20)
    assert world.measured("tessera_runs_waiting_for_node") == 0


async def test_stops_of_jobs_that_have_ended_hold_nobody_back() -> None:
    async with World(nodes=SIX, policy=Policy(node_lost_seconds=30)) as world:
        first = await world.submit("first", GANG)
        (node,) = world.nodes_of(first)
        world.core.remove_node(node)
        await world.run(40)
        assert world.job(first).attempt == 2
        await world.commit(CancelRequested(kind="cancel_requested", job_id=first, now=True))
        await world.run(10)
        second = await world.submit("second", GANG)
        (other,) = world.nodes_of(second)
        world.core.remove_node(other)
        await world.run(40)
        assert (other != node, world.job(second).phase, world.job(second).attempt) == (True, "running", 2)


async def test_a_job_that_loses_its_node_again_and_again_is_no_mass_stop() -> None:
    async with World(nodes=SIX, policy=Policy(node_lost_seconds=30)) as world:
        job = await world.submit(spec=GANG)
        for attempt in (2, 3, 4):
            (node,) = world.nodes_of(job)
            world.core.remove_node(node)
            await world.run(40)
            assert (world.job(job).phase, world.job(job).attempt) == ("running", attempt)

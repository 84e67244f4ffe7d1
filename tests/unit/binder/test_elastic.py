"""Pods by which an elastic run grew come and go by themselves; its gang goes on whatever becomes of them."""

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.engine.preemption.plans import Plan, plan, proposal
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import EVICT_AT_ANNOTATION, PERMIT_ANNOTATION, RANK_LABEL
from tessera_schemas.config import Policy
from tessera_schemas.facts import CancelRequested, DrainRequested
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.reasons import Code
from tests.builders import admitted
from tests.unit.binder.cluster_world import World, train

AT_ONCE = Policy(grow_after_seconds=0, node_lost_seconds=30)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(policy=AT_ONCE) as world:
        yield world


def elastic(least: int = 1, most: int = 3, gpus: int = 2, **more: Any) -> JobSpec:
    spec = train(replicas=least, gpus=gpus, **more)
    role = Role.model_validate(spec.roles[0].model_dump() | {"max_replicas": most})
    return spec.model_copy(update={"roles": (role,)})


async def grown(world: World, **more: Any) -> str:
    """A job that runs as large as it may; its id."""
    job = await world.submit(spec=elastic(**more))
    await world.run(4)
    return job


def ranks(world: World, phase: str = "Running") -> list[int]:
    return sorted(rank_of(pod) for pod in world.pods() if pod["status"]["phase"] == phase)


def rank_of(pod: Json) -> int:
    return int(pod["metadata"]["labels"][RANK_LABEL])


def pod(world: World, rank: int) -> Json:
    (found,) = [pod for pod in world.pods() if rank_of(pod) == rank]
    return found


def env(one: Json) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in one["spec"]["containers"][0]["env"]}


def why_smaller(world: World) -> list[tuple[Code, tuple[int, ...]]]:
    return [(r.reason.code, r.ranks) for r in world.records if r.kind == "shrunk"]


def judged(world: World) -> list[str]:
    """What checkers that share no code with the committer have against the ledger."""
    report = check(world.books.stored)
    check_rules(report, world.books.stored)
    return [violation.text for violation in report.violations]


async def make_room(world: World, key: str = "k2", gpus: int = 8) -> str:
    """A job waits, and whoever searches plans finds one for it."""
    fact = admitted(key, train(gpus=gpus, seconds=20))
    await world.commit(fact)
    await world.run(1)
    found = plan(world.state, world.job(fact.job_id), world.books.ts, "preemption")
    assert isinstance(found, Plan), found
    await world.commit(proposal(world.state, found, world.books.ts))
    return fact.job_id


async def test_what_it_grew_by_is_made_under_its_rank_and_bound_under_a_permit_of_its_own(world: World) -> None:
    job = await grown(world)
    assert ranks(world) == [0, 1, 2]
    run = world.current(job)
    for extra in run.extra:
        made = pod(world, extra.placement.rank)
        assert made["metadata"]["name"] == f"{run.run_id}-{extra.placement.rank}"
        assert made["metadata"]["annotations"][PERMIT_ANNOTATION] == extra.uid == made["metadata"]["uid"]
        assert made["spec"]["nodeName"] == extra.placement.node


async def test_each_pod_is_told_the_size_at_its_start_and_how_small_and_large_it_may_become(world: World) -> None:
    await grown(world, least=1, most=3)
    told = [env(pod(world, rank)) for rank in range(3)]
    assert [one["TESSERA_RANK"] for one in told] == ["0", "1", "2"]
    assert [one["TESSERA_WORLD_SIZE"] for one in told] == ["1", "3", "3"]
    assert {(one["TESSERA_MIN_REPLICAS"], one["TESSERA_MAX_REPLICAS"]) for one in told} == {("1", "3")}


async def test_a_job_of_fixed_size_is_told_nothing_of_sizes(world: World) -> None:
    await world.submit(spec=train(replicas=2))
    assert "TESSERA_MAX_REPLICAS" not in env(pod(world, 0))


async def test_it_gives_way_to_a_job_that_waits_and_grows_back_under_new_ranks() -> None:
    async with World(nodes=("node-a",), policy=AT_ONCE) as world:
        job = await grown(world, most=4)
        waiting = await make_room(world, gpus=4)
        await world.run(5)
        assert world.job(waiting).phase == "running"
        assert why_smaller(world) == [(Code.SHRUNK, (2, 3))]
        assert world.job(job).attempt == 1
        await world.run(40)
        assert world.job(waiting).phase == "succeeded"
        assert [extra.placement.rank for extra in world.current(job).extra] == [1, 4, 5]
        assert ranks(world) == [0, 1, 4, 5]
        assert verify(world.books.stored).findings == []
        assert judged(world) == []


async def test_a_pod_that_is_to_leave_gets_the_notice_that_its_job_declared() -> None:
    async with World(nodes=("node-a",), policy=AT_ONCE) as world:
        await grown(world, most=4, notice=20)
        waiting = await make_room(world, gpus=2)
        await world.run(15)
        assert EVICT_AT_ANNOTATION in pod(world, 3)["metadata"]["annotations"]
        assert EVICT_AT_ANNOTATION not in pod(world, 0)["metadata"]["annotations"]
        assert ranks(world) == [0, 1, 2, 3]
        await world.run(12)
        assert world.job(waiting).phase == "running"


async def test_one_that_is_deleted_does_not_end_the_run_and_another_comes_in_its_place(world: World) -> None:
    job = await grown(world, most=2)
    for rank in (1, 2, 3):
        world.core.delete("pods", "lab", f"{world.current(job).run_id}-{rank}")
        await world.run(30)
    assert why_smaller(world) == [(Code.POD_DELETED, (1,)), (Code.POD_DELETED, (2,)), (Code.POD_DELETED, (3,))]
    assert [r.kind for r in world.records if r.kind in ("grown", "shrunk")] == ["grown", "shrunk"] * 3 + ["grown"]
    assert (world.job(job).phase, world.job(job).attempt, world.current(job).failures) == ("running", 1, 3)


async def test_each_failure_doubles_the_time_until_it_grows_again(world: World) -> None:
    job = await grown(world, most=2)
    began: list[float] = []
    for _ in range(140):
        await world.run(0.5)
        if 0 in ranks(world) and len(ranks(world)) == 2:
            began.append(world.clock.monotonic())
            world.core.vanish("lab", f"{world.current(job).run_id}-{ranks(world)[1]}")
    between = [round(later - earlier) for earlier, later in pairwise(began)]
    assert len(between) == 5
    assert all(2**n <= seconds <= 2**n + 2 for n, seconds in enumerate(between, start=1)), between


async def test_one_that_vanishes_is_lost_and_the_run_goes_on(world: World) -> None:
    job = await grown(world, most=2)
    world.core.vanish("lab", f"{world.current(job).run_id}-1")
    await world.run(2)
    assert why_smaller(world) == [(Code.POD_DELETED, (1,))]
    assert world.job(job).phase == "running"


async def test_one_that_the_api_server_refuses_is_lost_and_the_run_goes_on(world: World) -> None:
    job = await world.submit(spec=elastic(most=2))
    world.core.faults.answer("create", 422)
    await world.run(30)
    assert world.job(job).phase == "running"
    assert [code for code, _ in why_smaller(world)] in ([], [Code.BIND_REFUSED])
    assert ranks(world)[0] == 0


async def test_when_its_gang_breaks_all_of_it_goes_and_the_next_attempt_starts_as_the_gang(world: World) -> None:
    job = await grown(world)
    world.core.delete("pods", "lab", f"{world.current(job).run_id}-0")
    await world.run(3)
    assert world.job(job).attempt == 2
    first = [one for one in world.pods() if one["metadata"]["name"].startswith(f"{job}-1-")]
    assert first == []
    assert [place.rank for place in world.current(job).placements] == [0]


async def test_a_cancel_stops_all_of_it_and_gives_everything_back(world: World) -> None:
    job = await grown(world)
    await world.commit(CancelRequested(kind="cancel_requested", job_id=job))
    await world.run(5)
    assert world.job(job).phase == "cancelled"
    assert world.pods() == []
    assert all(sum(node.gpu_free) == 8000 for node in world.state.nodes.values())


async def test_it_succeeds_when_its_gang_and_what_it_grew_by_have_succeeded(world: World) -> None:
    job = await world.submit(spec=elastic(seconds=20))
    while 0 in ranks(world):
        await world.run(0.25)
    assert ranks(world) == [1, 2]  # they began later, and are let to finish
    assert world.job(job).phase == "running"
    await world.run(8)
    assert world.job(job).phase == "succeeded"
    assert world.state.runs.get(f"{job}-1") is None


async def test_a_pod_that_had_not_begun_when_the_work_was_done_is_cleared_away(world: World) -> None:
    job = await world.submit(spec=elastic(seconds=8))
    world.core.faults.answer("bind", 503, 100)
    await world.run(9)
    world.core.faults.clear()
    await world.run(25)
    assert world.job(job).phase == "succeeded"
    assert world.pods() == []
    assert all(sum(node.gpu_free) == 8000 for node in world.state.nodes.values())


@pytest.mark.parametrize("after", [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0])
async def test_a_binder_that_dies_at_any_moment_of_growth_is_followed_by_one_that_goes_on(
    world: World, after: float
) -> None:
    fact = admitted("k1", elastic())
    await world.commit(fact)
    await world.run(2 + after)
    await world.stop("binder")
    await world.run(5)
    world.start_binder()
    await world.run(8)
    assert ranks(world) == [0, 1, 2]
    assert world.job(fact.job_id).attempt == 1


@pytest.mark.parametrize("after", [0.0, 0.25, 0.5, 0.75, 1.0])
async def test_a_binder_that_dies_while_a_run_shrinks_is_followed_by_one_that_goes_on(after: float) -> None:
    async with World(nodes=("node-a",), policy=AT_ONCE) as world:
        await grown(world, most=4)
        waiting = await make_room(world, gpus=4)
        await world.run(after)
        await world.stop("binder")
        await world.run(3)
        world.start_binder()
        await world.run(8)
        assert world.job(waiting).phase == "running"
        assert why_smaller(world) == [(Code.SHRUNK, (2, 3))]


async def test_a_pod_made_too_late_for_its_rank_is_cleared_away_and_never_bound(world: World) -> None:
    job = await grown(world, most=2)
    run = world.current(job)
    late = world.core.get("pods", "lab", f"{run.run_id}-1").object
    world.core.vanish("lab", f"{run.run_id}-1")
    await world.run(20)
    assert 1 not in {extra.placement.rank for extra in world.current(job).extra}
    unbound = {key: value for key, value in late["spec"].items() if key != "nodeName"}
    meta = {key: late["metadata"][key] for key in ("name", "namespace", "labels", "annotations", "finalizers")}
    world.core.create("pods", "lab", {**late, "metadata": meta, "spec": unbound, "status": {}})
    await world.run(3)
    assert 1 not in [rank_of(one) for one in world.pods()]


# -- nodes


async def spread_over_two(world: World) -> tuple[str, str]:
    """A run whose gang fills one node and which grew onto the other; its id and that node."""
    job = await grown(world, gpus=8, most=2)
    (extra,) = world.current(job).extra
    assert extra.placement.node not in world.nodes_of(job)
    return job, extra.placement.node


async def test_a_lost_node_of_what_it_grew_by_does_not_restart_the_gang(world: World) -> None:
    job, node = await spread_over_two(world)
    world.core.remove_node(node)
    await world.run(26)
    assert why_smaller(world) == [(Code.NODE_LOST, (1,))]
    assert (world.job(job).phase, world.job(job).attempt, world.job(job).avoid) == ("running", 1, ())
    assert world.current(job).failures == 0
    assert world.current(job).amount.gpu_milli == 8000


async def test_devices_on_a_silent_node_stay_held_until_it_is_fenced_while_the_gang_goes_on(world: World) -> None:
    job, node = await spread_over_two(world)
    world.core.set_reachable(node, False)
    await world.run(120, turn=1)
    assert why_smaller(world) == [(Code.NODE_LOST, (1,))]
    assert sum(world.state.nodes.get(node).gpu_free) == 0
    world.core.set_out_of_service(node, True)
    await world.run(15)
    assert sum(world.state.nodes.get(node).gpu_free) == 8000
    assert world.job(job).attempt == 1


async def test_a_node_that_lost_devices_of_what_it_grew_by_does_not_restart_the_gang(world: World) -> None:
    job, node = await spread_over_two(world)
    world.core.set_gpus(node, 4)
    (broken,) = [pod["metadata"] for pod in world.pods() if pod["metadata"]["labels"][RANK_LABEL] == "1"]
    world.core.set_device_health(broken["namespace"], broken["name"])
    await world.run(50)
    assert why_smaller(world) == [(Code.NODE_SHRUNK, (1,))]
    assert (world.job(job).attempt, world.current(job).extra) == (1, ())


async def test_the_node_of_its_gang_is_the_run_whatever_else_is_lost_with_it(world: World) -> None:
    job, node = await spread_over_two(world)
    (first,) = world.nodes_of(job)
    world.core.remove_node(first)
    await world.run(30)
    assert world.job(job).attempt == 2
    assert world.nodes_of(job) == {node}


async def test_a_drained_node_of_what_it_grew_by_does_not_restart_the_gang(world: World) -> None:
    job, node = await spread_over_two(world)
    await world.commit(DrainRequested(kind="drain_requested", node=node, evict=True))
    await world.run(10)
    assert why_smaller(world) == [(Code.NODE_DRAINED, (1,))]
    assert (world.job(job).attempt, world.current(job).extra) == (1, ())
    assert sum(world.state.nodes.get(node).gpu_free) == 8000

"""Nodes of several shards on one cluster: each shard says its own, and a node changes hands only when it is empty."""

from collections.abc import AsyncIterator

import pytest

from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas.cluster.labels import RUN_LABEL, SHARD_LABEL
from tessera_schemas.facts import CancelRequested
from tests.builders import admitted
from tests.unit.binder.cluster_world import World, train

OTHER = "b"
LOOKS_AGAIN = 12  # the binder's resync, and a moment


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as world:
        yield world


def give(world: World, node: str, shard: str | None) -> None:
    world.core.patch("nodes", "", node, {"metadata": {"labels": {SHARD_LABEL: shard}}})


def add_node(world: World, name: str, shard: str) -> None:
    row = NodeRow(name=name, cpu="64", memory="512Gi", gpus=8, labels={SHARD_LABEL: shard})
    world.core.create("nodes", "", node_object(row, name))


def run_for_another_shard(world: World, node: str) -> None:
    body = {"schedulerName": "tessera", "containers": [{"name": "main", "image": "train:1"}]}
    meta = {"name": "foreign", "labels": {RUN_LABEL: "foreign-1", SHARD_LABEL: OTHER}}
    meta["annotations"] = {"tessera.io/simulate-seconds": "40"}
    made = world.core.create("pods", "lab", {"metadata": meta, "spec": body})
    world.core.bind("lab", "foreign", {"metadata": {"uid": made.uid}, "target": {"name": node}})


def known(world: World) -> dict[str, bool]:
    return {node.name: node.ready for node in world.state.nodes.values()}


async def test_nodes_without_a_label_or_with_mains_are_mains_and_no_others_are_mentioned(
    world: World,
) -> None:
    add_node(world, "node-c", "main")
    add_node(world, "node-d", OTHER)
    await world.run(LOOKS_AGAIN)
    assert known(world) == {"node-a": True, "node-b": True, "node-c": True}
    assert "node-d" not in {fact.name for fact in world.said("node_seen")}


async def test_an_empty_node_that_is_given_away_is_gone_and_back_when_it_is_given_back(world: World) -> None:
    give(world, "node-b", OTHER)
    await world.run(1)
    assert known(world) == {"node-a": True}
    give(world, "node-b", None)
    await world.run(1)
    assert known(world) == {"node-a": True, "node-b": True}


async def test_a_node_given_away_under_a_run_takes_no_work_and_leaves_with_the_run(
    world: World,
) -> None:
    job = await world.submit(spec=train(gpus=4))
    (node,) = world.nodes_of(job)
    give(world, node, OTHER)
    await world.run(60)
    assert known(world)[node] is False
    assert (world.job(job).phase, world.job(job).attempt) == ("running", 1)
    late = await world.submit("late", train(gpus=4))
    assert world.nodes_of(late) == {"node-a", "node-b"} - {node}
    await world.commit(CancelRequested(kind="cancel_requested", job_id=job, why="test"))
    await world.run(LOOKS_AGAIN)
    assert node not in known(world)
    assert world.pods(f"{job}-1") == []


async def test_a_node_is_taken_only_when_no_unfinished_pod_of_another_shard_is_bound_to_it(world: World) -> None:
    add_node(world, "node-c", OTHER)
    run_for_another_shard(world, "node-c")
    await world.run(2)
    give(world, "node-c", "main")
    await world.run(LOOKS_AGAIN)
    assert "node-c" not in known(world)
    await world.run(40 + LOOKS_AGAIN)
    assert known(world)["node-c"] is True


async def test_what_was_placed_but_not_bound_when_its_node_was_given_away_starts_elsewhere(world: World) -> None:
    await world.stop("binder")
    fact = admitted("k1", train())
    await world.commit(fact)
    await world.run(1)
    (node,) = world.nodes_of(fact.job_id)
    give(world, node, OTHER)
    world.start_binder()
    await world.run(LOOKS_AGAIN)
    assert (world.job(fact.job_id).phase, world.job(fact.job_id).attempt) == ("running", 2)
    assert world.nodes_of(fact.job_id) == {"node-a", "node-b"} - {node}
    assert not [pod for pod in world.pods() if pod["spec"].get("nodeName") == node]

"""NodeResourceTopology objects become zones of nodes where kubelets keep pods within one; the rest is named."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tessera.binder.decide.nodes import node_seen
from tessera.binder.devices.decide.numa_zones import read_zones
from tessera.domain.devices.resources import Node
from tessera.domain.devices.slots import is_as_seen
from tessera_schemas.base import Json
from tests.unit.binder.api_nodes import api_node
from tests.unit.binder.cluster_world import World

ROUND = 12
GPU, NIC = "nvidia.com/gpu", "rdma/hca"
FOUR = {"cpu": "32", GPU: "4", NIC: 4}


def zone(name: str, kind: str = "Node", **amounts: Any) -> Json:
    """A zone in which the amounts can be allocated, and nothing is available: that is not read."""
    named = amounts.pop("amounts", amounts)
    listed = [{"name": key, "capacity": said, "allocatable": said, "available": 0} for key, said in named.items()]
    costs = [{"name": name, "value": 10}]
    return {"name": name, "type": kind, "costs": costs, "resources": listed}


def topology(*zones: Json, policy: str = "single-numa-node", **more: Any) -> Json:
    attributes = [{"name": "topologyManagerScope", "value": "pod"}, {"name": "topologyManagerPolicy", "value": policy}]
    return {"zones": list(zones), "attributes": attributes, **more}


TWO = (zone("node-0", amounts=FOUR), zone("node-1", amounts=FOUR))
BOTH = ({"cpu": 32_000, GPU: 4, NIC: 4},) * 2


@pytest.mark.parametrize(
    ("found", "zones"),
    [
        pytest.param(topology(*TWO), BOTH, id="a kubelet that keeps pods within a zone"),
        pytest.param(topology(*TWO, policy="restricted"), (), id="another policy"),
        pytest.param(topology(*TWO, policy="none"), (), id="no policy"),
        pytest.param({"zones": list(TWO)}, (), id="nothing about a policy"),
        pytest.param(topology(TWO[0], policy="none"), BOTH[:1], id="one zone has every pod, whatever the policy"),
        pytest.param({"zones": list(TWO), "topologyPolicies": ["SingleNUMANodePodLevel"]}, BOTH, id="the older list"),
        pytest.param(
            topology(*TWO, policy="none", topologyPolicies=["SingleNUMANodePodLevel"]), (), id="attributes come first"
        ),
        pytest.param(topology(*TWO, zone("socket-0", "Socket", amounts=FOUR)), BOTH, id="zones of other types"),
        pytest.param(
            topology(zone("node-10", amounts={GPU: 1}), zone("node-2", amounts={GPU: 2})),
            ({GPU: 2}, {GPU: 1}),
            id="in the order of kubelets, by number",
        ),
        pytest.param(
            topology(
                zone("node-0", amounts={"cpu": "1500m", GPU: 4, "memory": "64Gi", "hugepages-2Mi": "1Gi"}),
                zone("node-1", amounts={"cpu": 0, NIC: "2"}),
            ),
            ({"cpu": 1500, GPU: 4}, {NIC: 2}),
            id="amounts by the piece, and only where there are some",
        ),
    ],
)
def test_zones_are_those_of_numa_nodes_that_a_kubelet_keeps_pods_within(found: Json, zones: tuple[Any, ...]) -> None:
    assert read_zones(found).zones == zones
    assert read_zones(found).ignored == ()


@pytest.mark.parametrize(
    ("found", "zones", "word"),
    [
        pytest.param(topology(*TWO, policy="new"), (), "policy 'new' is not known", id="a policy of tomorrow"),
        pytest.param(topology(zone("s", "Socket", amounts=FOUR)), (), "no zone is of the type Node", id="no NUMA node"),
        pytest.param(topology(TWO[0], TWO[0]), (), "2 zones have 1 names", id="a name twice"),
        pytest.param(
            topology(*(zone(f"node-{at}", amounts=FOUR) for at in range(65))), (), "65 zones", id="very many zones"
        ),
        pytest.param(
            topology(zone("node-0", amounts={f"a/{at}": 1 for at in range(65)})), (), "more than 64", id="many names"
        ),
        pytest.param(
            topology(zone("node-0", amounts={GPU: 4, NIC: "x"}), zone("node-1", amounts={GPU: 4, NIC: 4})),
            ({GPU: 4}, {GPU: 4}),
            f"{NIC}: its allocatable amount is not a quantity",
            id="an amount that is none counts in no zone",
        ),
        pytest.param(
            topology(zone("node-0", amounts={GPU: -1}), TWO[1]),
            ({}, {"cpu": 32_000, NIC: 4}),
            f"{GPU}: its allocatable",
            id="below nothing",
        ),
        pytest.param(
            topology(zone("node-0", amounts={"a/" + "b" * 100: 1, GPU: 4})), ({GPU: 4},), "too long", id="a long name"
        ),
        pytest.param(topology({**TWO[0], "resources": TWO[0]["resources"] * 2}), (), "twice", id="a resource twice"),
    ],
)
def test_what_cannot_be_read_is_named_and_counts_in_no_zone(found: Json, zones: Any, word: str) -> None:
    seen = read_zones(found)
    assert seen.zones == zones
    assert word in "; ".join(seen.ignored)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"zones": 3, "attributes": {"name": "topologyManagerPolicy"}, "topologyPolicies": "SingleNUMANodePodLevel"},
        topology({"type": "Node", "name": ["node-0"], "resources": [None, 3, {"name": 7}]}),  # type: ignore[list-item]
        topology(zone("node-0", amounts={GPU: None, NIC: [4], "cpu": {"a": 1}, "a/b": True, "c/d": 10**40})),
    ],
)
def test_no_object_is_too_odd_to_be_read(found: Json) -> None:
    assert not any(read_zones(found).zones)


def test_the_fact_of_a_node_says_its_zones() -> None:
    fact = node_seen(api_node(), zones=read_zones(topology(*TWO)).zones)
    assert fact.zones == BOTH
    assert not is_as_seen(None, fact)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as world:
        yield world


def node(world: World, name: str = "node-a") -> Node:
    found = world.state.nodes.get(name)
    assert found is not None
    return found


def publish(world: World, found: Json, name: str = "node-a") -> None:
    world.core.create("noderesourcetopologies", "", {"metadata": {"name": name}, **found})


def change(world: World, found: Json, name: str = "node-a") -> None:
    world.core.patch("noderesourcetopologies", "", name, found)


async def test_nodes_have_the_zones_of_their_objects_until_these_change_or_go(world: World) -> None:
    publish(world, topology(*TWO))
    await world.run(ROUND)
    assert [dict(each) for each in node(world).zones] == list(BOTH)
    assert node(world, "node-b").zones == ()
    change(world, topology(*TWO, policy="best-effort"))
    await world.run(ROUND)
    assert node(world).zones == ()
    change(world, topology(*TWO))
    await world.run(ROUND)
    assert node(world).zones
    world.core.delete("noderesourcetopologies", "", "node-a")
    await world.run(ROUND)
    assert node(world).zones == ()


async def test_pods_that_come_and_go_in_zones_are_no_news_of_the_node(world: World) -> None:
    publish(world, topology(*TWO))
    await world.run(ROUND)
    before = len(world.facts)
    taken = [{**each, "resources": [{**one, "available": 3} for one in each["resources"]]} for each in TWO]
    change(world, topology(*taken))
    await world.run(ROUND)
    assert [fact for fact in world.facts[before:] if fact.kind == "node_seen"] == []


async def test_zones_outlive_a_binder_that_starts_anew_and_what_is_ignored_is_logged_once(world: World) -> None:
    with capture_logs() as logs:
        publish(world, topology(zone("node-0", amounts={GPU: 4, NIC: "x"}), TWO[1]))
        await world.run(ROUND)
        change(world, {"metadata": {"labels": {"seen": "again"}}})
        await world.run(ROUND)
    told = [entry for entry in logs if entry["event"] == "numa_zones_ignored"]
    assert [(entry["node"], entry["reasons"]) for entry in told] == [
        ("node-a", [f"{NIC}: its allocatable amount is not a quantity"])
    ]
    before = len(world.facts)
    await world.stop("binder")
    world.start_binder()
    await world.run(ROUND)
    assert all(fact.zones for fact in world.facts[before:] if fact.kind == "node_seen" and fact.name == "node-a")
    assert node(world).zones

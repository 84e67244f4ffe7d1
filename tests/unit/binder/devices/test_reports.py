"""What drivers publish becomes facts, and nodes of the ledger offer it; a cluster without the API is as before."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.binder.decide.nodes import node_seen
from tessera.binder.devices.decide.gpus import PublishedGpus
from tessera.domain.devices.resources import Node
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_facts import DevicesSelected, LayoutSeen
from tessera_schemas.cluster.labels import DEVICE_PROFILE_ANNOTATION as PROFILE
from tessera_schemas.reasons import Code
from tests.builders import GIB
from tests.unit.binder.api_nodes import api_node
from tests.unit.binder.cluster_world import World
from tests.unit.binder.devices.published import gpu, slice_object

ROUND = 12
EXAMPLE = "gpu.example.com"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as world:
        yield world


def publish(world: World, node: str = "node-a", devices: list[Json] | None = None, name: str = "", **more: Any) -> str:
    """A slice of the example's driver; `devices` are two GPUs."""
    found = slice_object(devices if devices is not None else [gpu(0, node), gpu(1, node)], node, driver=EXAMPLE, **more)
    world.core.create("resourceslices", "", {"metadata": {"name": name or f"{node}-1"}, "spec": found["spec"]})
    return name or f"{node}-1"


def add_class(world: World, name: str, *expressions: str) -> None:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    world.core.create("deviceclasses", "", {"metadata": {"name": name}, "spec": {"selectors": selectors}})


def node(world: World, name: str = "node-a") -> Node:
    found = world.state.nodes.get(name)
    assert found is not None
    return found


async def test_equal_nodes_offer_one_layout_that_the_ledger_has_before_them(world: World) -> None:
    publish(world, "node-a")
    publish(world, "node-b")
    await world.run(ROUND)
    layouts = [fact for fact in world.facts if isinstance(fact, LayoutSeen)]
    assert {each.layout.digest() for each in layouts} == {node(world).offer.digest}
    assert node(world, "node-b").offer == node(world).offer
    assert [each.name for each in node(world).offer.devices] == ["gpu-0", "gpu-1"]
    first = next(at for at, fact in enumerate(world.facts) if fact.kind == "node_seen" and fact.offer.layout)
    assert "layout_seen" in [fact.kind for fact in world.facts[:first]]


def test_gpus_of_a_driver_are_the_nodes_where_no_plugin_hands_out_any():
    published = PublishedGpus(2, "H100", 80 * GIB)
    bare = node_seen(api_node(room={"nvidia.com/gpu": "0"}), published=published)
    assert (bare.device_profile, bare.gpus, bare.gpu_model, bare.gpu_memory_bytes) == ("dra", 2, "H100", 80 * GIB)
    assert bare.trouble is None
    named = node_seen(
        api_node(room={"nvidia.com/gpu": "0"}, metadata={"labels": {PROFILE: "hami"}}), published=published
    )
    assert named.trouble is not None
    assert "profile hami" in named.trouble.detail
    cut = node_seen(api_node(room={"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "3"}), published=published)
    assert cut.trouble is not None
    assert cut.trouble.code is Code.DEVICE_CONFLICT
    assert node_seen(api_node()).device_profile == "whole"


async def test_gpus_that_a_driver_and_a_plugin_hand_out_are_a_conflict(world: World) -> None:
    publish(world)
    await world.run(ROUND)
    assert "8 of nvidia.com/gpu" in node(world).trouble.detail
    assert not node(world).ready


async def test_what_classes_select_is_a_fact_and_a_changed_class_selects_anew(world: World) -> None:
    add_class(world, "all", f'device.driver == "{EXAMPLE}"')
    add_class(world, "none", 'device.driver == "other"')
    add_class(world, "wrong", f'device.attributes["{EXAMPLE}"].none == 1')
    publish(world)
    await world.run(ROUND)
    offer = node(world).offer
    assert offer.selected("all", ()).devices == 0b11
    assert offer.selected("none", ()).devices == 0
    assert "none" in offer.selected("wrong", ()).error
    said = len([fact for fact in world.facts if isinstance(fact, DevicesSelected)])
    await world.run(3 * ROUND)
    assert len([fact for fact in world.facts if isinstance(fact, DevicesSelected)]) == said
    world.core.delete("deviceclasses", "", "all")
    add_class(world, "all", f'device.attributes["{EXAMPLE}"].type == "mig"')
    await world.run(ROUND)
    assert node(world).offer.selected("all", ()).devices == 0
    world.core.delete("deviceclasses", "", "all")
    await world.run(ROUND)
    assert "no DeviceClass" in node(world).offer.selected("all", ()).error


async def test_of_several_classes_for_one_resource_the_newest_answers(world: World) -> None:
    async def answers_with(*names: str) -> str:
        for name in names:
            spec = {"extendedResourceName": "example.com/gpu", "selectors": []}
            world.core.create("deviceclasses", "", {"metadata": {"name": name}, "spec": spec})
        await world.run(ROUND)
        return node(world).offer.class_for("example.com/gpu")

    publish(world)
    assert await answers_with("b-old") == "b-old"
    assert await answers_with("d-as-new", "c-new") == "c-new"
    for name in ("c-new", "d-as-new"):
        world.core.delete("deviceclasses", "", name)
    assert await answers_with() == "b-old"
    assert await answers_with("a-new") == "a-new"


async def test_a_pool_that_is_not_complete_is_missing_until_it_is(world: World) -> None:
    publish(world, generation=2, count=2)
    await world.run(ROUND)
    assert node(world).offer is None
    assert node(world).missing == (f"{EXAMPLE}/node-a",)
    publish(world, devices=[gpu(2)], name="second", generation=2, count=2)
    await world.run(ROUND)
    assert [each.name for each in node(world).offer.devices] == ["gpu-0", "gpu-1", "gpu-2"]
    assert node(world).missing == ()


async def test_a_driver_that_goes_takes_its_devices_with_it(world: World) -> None:
    name = publish(world)
    await world.run(ROUND)
    assert node(world).offer is not None
    world.core.delete("resourceslices", "", name)
    await world.run(ROUND)
    assert node(world).offer is None


async def test_what_claims_of_others_have_is_taken_until_they_go(world: World) -> None:
    publish(world)
    result = {"request": "a", "driver": EXAMPLE, "pool": "node-a", "device": "gpu-1"}
    status = {"allocation": {"devices": {"results": [result]}}}
    world.core.create("resourceclaims", "theirs", {"metadata": {"name": "c"}, "spec": {}, "status": status})
    await world.run(ROUND)
    assert node(world).drawn_by_others == ((f"{EXAMPLE}/node-a/gpu-1", ()),)
    world.core.delete("resourceclaims", "theirs", "c")
    await world.run(ROUND)
    assert node(world).drawn_by_others == ()


async def test_a_binder_that_starts_leaves_what_the_ledger_has_until_its_watches_have_shown_it(world: World) -> None:
    publish(world)
    await world.run(ROUND)
    said = len(world.facts)
    await world.stop("binder")
    world.start_binder()
    await world.run(ROUND)
    later = [fact for fact in world.facts[said:] if fact.kind == "node_seen" and fact.name == "node-a"]
    assert all(fact.offer.layout for fact in later)

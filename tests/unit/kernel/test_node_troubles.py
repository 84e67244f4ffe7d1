"""Which nodes are in trouble, and which of them can run nothing any more."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.kubernetes.node_troubles import NodeTroubles, TroubleKind, kind_of
from tessera.kernel.tasks.freshness import Freshness
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.in_memory import MemoryCluster
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tests.virtual_time import VirtualClock

OUT = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}


def a_node(ready: str = "True", *taints: dict[str, str], **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    return {"spec": {"taints": list(taints), **spec}, "status": {"conditions": conditions}}


KINDS = [
    ("well", a_node(), None),
    ("cordoned", a_node(unschedulable=True), TroubleKind.CORDONED),
    ("cordoned, and silent", a_node("Unknown", unschedulable=True), TroubleKind.NOT_READY),
    ("its kubelet says it is not", a_node("False"), TroubleKind.NOT_READY),
    ("its kubelet is silent", a_node("Unknown"), TroubleKind.NOT_READY),
    ("it never said anything", a_node(""), TroubleKind.NOT_READY),
    ("said to be off, and silent", a_node("Unknown", OUT), TroubleKind.OUT_OF_SERVICE),
    ("said to be off, and answers", a_node("True", OUT), None),
    ("without any object", None, TroubleKind.GONE),
]


@pytest.mark.parametrize(("node", "kind"), [case[1:] for case in KINDS], ids=[case[0] for case in KINDS])
def test_a_node_is_judged_by_what_its_kubelet_says_last(node: dict[str, Any] | None, kind: TroubleKind | None) -> None:
    assert kind_of(node) is kind


@dataclass
class World:
    clock: VirtualClock
    core: SimCluster
    informer: Informer
    troubles: NodeTroubles
    fresh: Freshness


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = VirtualClock()
    core = SimCluster(clock)
    for name in ("a", "b", "c"):
        core.create("nodes", "", node_object(NodeRow(name=name, cpu="8", memory="8Gi"), name))
    informer = Informer(MemoryCluster(core, clock, "test"), "nodes", clock)
    fresh = Freshness(clock)
    world = World(clock, core, informer, NodeTroubles(informer, clock, gone_seconds=10, freshness=fresh), fresh)

    async def read() -> None:
        while True:
            await informer.next()

    async def look() -> None:
        while True:
            fresh.looked()
            await clock.sleep(1)

    assert world.troubles.of("nowhere") is None  # nothing is known before the first list
    reader, looks = asyncio.create_task(read()), asyncio.create_task(look())
    await clock.run(1)
    yield world
    reader.cancel()
    looks.cancel()
    await asyncio.gather(reader, looks, return_exceptions=True)
    await informer.close()


async def test_seconds_are_counted_from_when_it_was_first_seen_so(world: World) -> None:
    world.core.set_reachable("a", False)
    await world.clock.run(1)
    assert (seen := world.troubles.of("a")) is not None
    assert (seen.kind, seen.seconds) == (TroubleKind.NOT_READY, 0)
    await world.clock.run(7)
    assert (seen := world.troubles.of("a")) is not None
    assert seen.seconds == 7
    world.core.set_reachable("a", True)
    await world.clock.run(1)
    assert world.troubles.of("a") is None


async def test_another_kind_of_trouble_is_counted_anew(world: World) -> None:
    world.core.set_reachable("a", False)
    await world.clock.run(1)
    world.troubles.of("a")
    await world.clock.run(60)
    world.core.remove_node("a")
    await world.clock.run(1)
    assert (seen := world.troubles.of("a")) is not None
    assert (seen.kind, seen.seconds) == (TroubleKind.GONE, 0)


async def test_a_node_is_fenced_when_it_is_said_to_be_off_or_gone_for_a_while(world: World) -> None:
    world.core.set_reachable("a", False)
    world.core.remove_node("b")
    await world.clock.run(1)
    assert [world.troubles.fenced(name) for name in "abc"] == [False, False, False]
    await world.clock.run(10)
    assert [world.troubles.fenced(name) for name in "abc"] == [False, True, False]
    world.core.set_out_of_service("a", True)
    await world.clock.run(1)
    assert world.troubles.fenced("a")


async def test_a_trouble_that_nobody_asked_about_for_long_is_counted_anew(world: World) -> None:
    """It was gone once, came back, and is gone for a moment now."""
    world.core.remove_node("a")
    await world.clock.run(1)
    assert not world.troubles.fenced("a")
    await world.clock.run(3600)
    assert not world.troubles.fenced("a")


async def test_a_silence_of_many_is_told_in_percent(world: World) -> None:
    world.core.set_reachable("a", False)
    world.core.set_reachable("b", False)
    await world.clock.run(1)
    assert world.troubles.percent_not_ready() == 66
    world.core.set_out_of_service("b", True)
    await world.clock.run(1)
    assert world.troubles.percent_not_ready() == 33

"""The lock of a node of HAMi's: one pod at a time, whoever else wants it and whatever was seen last."""

import asyncio
from datetime import UTC, datetime
from typing import cast

import pytest

from tessera.binder.decide import hami
from tessera.binder.nodes.hami_lock import WAITING_MAX, HamiLock
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Informer
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.in_memory import MemoryCluster
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas.base import Json
from tests.virtual_time import VirtualClock


class Seen:
    """What one of them saw last."""

    node: Json

    def named(self, name: str) -> Json | None:
        return self.node if name == "node-a" else None


class World:
    """A node, and two binders that look at it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.core = SimCluster(self.clock)
        self.core.create("nodes", "", node_object(NodeRow(name="node-a", cpu="8", memory="8Gi", gpus=2), "node-a"))
        cluster = MemoryCluster(self.core, self.clock, "binder")
        self.views = [Seen(), Seen()]
        self.locks = [HamiLock(cast(Informer, view), cluster, self.clock) for view in self.views]
        self.look(0, 1)

    def look(self, *who: int) -> None:
        for at in who:
            self.views[at].node = self.core.get("nodes", "", "node-a").object

    async def take(self, who: int, pod: str, node: str = "node-a") -> None:
        taking = asyncio.create_task(self.locks[who].take(node, "lab", pod))
        await self.clock.run(12)
        await taking

    def lock(self) -> str:
        meta = self.core.get("nodes", "", "node-a").meta
        return str((meta.get("annotations") or {}).get(hami.LOCK_ANNOTATION, ""))

    def pod(self, name: str) -> None:
        self.core.create("pods", "lab", {"metadata": {"name": name}, "spec": {"containers": [{"name": "main"}]}})


@pytest.fixture
def world() -> World:
    return World()


async def test_of_two_that_saw_it_free_one_gets_the_lock(world: World) -> None:
    world.pod("first")
    await world.take(0, "first")
    with pytest.raises(Transient, match="changes"):
        await world.take(1, "second")
    assert world.lock().endswith(",lab,first")
    world.look(1)
    with pytest.raises(Transient, match="busy with pod lab/first"):
        await world.take(1, "second")


async def test_who_has_the_lock_already_has_it_again(world: World) -> None:
    await world.take(0, "first")
    before = world.lock()
    world.look(0, 1)
    await world.take(1, "first")
    assert world.lock() == before


async def test_a_lock_whose_pod_is_gone_for_a_while_is_taken_over(world: World) -> None:
    await world.take(0, "first")
    world.look(1)
    await world.clock.run(20)
    await world.take(1, "second")
    assert world.lock().endswith(",lab,second")


async def test_a_node_that_is_not_to_be_seen_is_waited_for(world: World) -> None:
    with pytest.raises(Transient, match="not to be seen"):
        await world.take(0, "first", "node-b")


async def test_the_time_in_the_lock_is_the_wall_clocks(world: World) -> None:
    await world.take(0, "first")
    said = datetime.fromisoformat(world.lock().partition(",")[0])
    assert 0 <= (datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC) - said).total_seconds() <= 13


async def test_who_waits_gets_the_lock_as_soon_as_the_plugin_gives_it_back(world: World) -> None:
    world.pod("first")
    await world.take(0, "first")
    world.look(1)
    waits = asyncio.create_task(world.locks[1].take("node-a", "lab", "second"))
    await world.clock.run(1)
    assert world.lock().endswith(",lab,first")
    world.core.patch("nodes", "", "node-a", {"metadata": {"annotations": {hami.LOCK_ANNOTATION: None}}})
    world.look(1)
    await world.clock.run(1)
    await waits
    assert world.lock().endswith(",lab,second")


async def test_only_so_many_wait_at_the_same_time_and_the_others_come_back_later(world: World) -> None:
    world.pod("first")
    await world.take(0, "first")
    world.look(1)
    waits = [asyncio.create_task(world.locks[1].take("node-a", "lab", f"p{n}")) for n in range(WAITING_MAX + 3)]
    await world.clock.run(0.2)
    assert [task.done() for task in waits] == [False] * WAITING_MAX + [True] * 3
    await world.clock.run(5)
    results = await asyncio.gather(*waits, return_exceptions=True)
    assert all(isinstance(result, Transient) for result in results)

"""The label that asks the mig-manager: set for changes of the ledger alone, and again after a binder that died."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tessera.binder.nodes.mig_manager import MigManager
from tessera.domain.entities import MigChange
from tessera.domain.state import State
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.ports import ApiError
from tessera.kernel.process.leases import PARTITIONS, Members
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.in_memory import MemoryCluster
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL
from tests.virtual_time import VirtualClock

CHANGE = MigChange("node-a", "job", "all-1g.10gb", "all-3g.40gb", 2, 1)


class World:
    """A node whose mig-manager has answered once, a state, and binders that look at both."""

    def __init__(self) -> None:
        self.clock, self.state = VirtualClock(), State()
        self.core = SimCluster(self.clock)
        self.core.create("nodes", "", node_object(NodeRow(name="node-a", cpu="8", memory="8Gi", gpus=2), "node-a"))
        self.set(**{MIG_CONFIG_LABEL: "all-3g.40gb", MIG_CONFIG_STATE_LABEL: "failed"})

    def named(self, name: str) -> Json | None:
        return self.core.get("nodes", "", name).object

    def set(self, **labels: str) -> None:
        self.core.patch("nodes", "", "node-a", {"metadata": {"labels": labels}})

    def labels(self) -> tuple[str | None, str | None]:
        there = self.core.get("nodes", "", "node-a").meta["labels"]
        return there.get(MIG_CONFIG_LABEL), there.get(MIG_CONFIG_STATE_LABEL)

    async def binder(self, cluster: Any = None, partitions: int = PARTITIONS, seconds: float = 3) -> MigManager:
        members = cast(Members, SimpleNamespace(partitions=lambda: frozenset(range(partitions))))
        cluster = cluster or MemoryCluster(self.core, self.clock, "binder")
        manager = MigManager(cast(Informer, self), cluster, self.state, members, self.clock)
        asking = asyncio.create_task(manager.ask())
        await self.clock.run(seconds)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return manager


async def test_the_label_is_set_for_a_change_and_the_former_answer_goes_with_it() -> None:
    world = World()
    await world.binder()
    assert world.labels() == ("all-3g.40gb", "failed"), "nobody asked for a change"
    world.state.mig_changes.put("node-a", CHANGE)
    await world.binder(partitions=0)
    assert world.labels() == ("all-3g.40gb", "failed"), "another binder has the node"
    await world.binder()
    assert world.labels() == ("all-1g.10gb", None)


async def test_an_answer_stays_and_a_label_that_somebody_else_set_is_set_again() -> None:
    world = World()
    world.state.mig_changes.put("node-a", CHANGE)
    world.set(**{MIG_CONFIG_LABEL: "all-1g.10gb", MIG_CONFIG_STATE_LABEL: "pending"})
    await world.binder()
    assert world.labels() == ("all-1g.10gb", "pending")
    world.set(**{MIG_CONFIG_LABEL: "by-hand"})
    await world.binder()
    assert world.labels() == ("all-1g.10gb", None)


async def test_a_binder_that_may_not_change_nodes_says_so() -> None:
    class Forbidden:
        async def label_node(self, *_: Any) -> None:
            raise ApiError(403, "Forbidden", "nodes is forbidden")

    world = World()
    world.state.mig_changes.put("node-a", CHANGE)
    assert "node-a is to be cut" in ((await world.binder(Forbidden())).problem() or "")

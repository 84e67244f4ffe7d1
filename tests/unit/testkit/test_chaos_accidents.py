"""Each accident of the campaign does its harm to a simulated cluster, says so, and leaves the nodes as they were."""

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import orjson
import pytest

from tessera.kernel.ports import ApiError
from tessera_local.cluster.api.admin import apply_fault
from tests.chaos.accidents import Accidents
from tests.e2e.live import TENANTS
from tests.unit.local.cluster_world import World, annotations, spec

SEEDS = range(6)


class Ordered:
    """The orders over HTTP, without HTTP; the first `lost` of them fail."""

    def __init__(self, world: World, lost: int = 0) -> None:
        self._world, self._lost = world, lost
        self.orders: Counter[str] = Counter()

    async def order(self, fault: str, **fields: Any) -> None:
        self._lose()
        apply_fault(self._world.core, orjson.dumps({"fault": fault, **fields}))
        self.orders[fault] += 1

    async def items(self, kind: str) -> list[dict[str, Any]]:
        self._lose()
        return [one.object for one in self._world.core.list(kind)[0]]

    def _lose(self) -> None:
        self._lost -= 1
        if self._lost >= 0:
            raise ApiError(0, "Lost", "the answer was lost")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Two nodes, and a pod of a tenant on each; time passes when the accidents wait."""
    world = World()
    for name in ("n1", "n2"):
        world.node(name)
        pod(world, f"on-{name}", name)
    world.wait(100)

    async def sleep(seconds: float) -> None:
        world.wait(int(seconds * 1000))

    monkeypatch.setattr("asyncio.sleep", sleep)
    return world


def pod(world: World, name: str, node: str) -> None:
    meta = {"name": name, "annotations": annotations({"simulate_seconds": "3600"})}
    world.core.create("pods", TENANTS[0], {"metadata": meta, "spec": spec()})
    world.core.bind(TENANTS[0], name, {"target": {"name": node}})


def nodes(world: World) -> list[Any]:
    """What the nodes offer and forbid, but for their boot IDs and the times of conditions."""
    return [
        (
            one.object["spec"].get("taints", []),
            one.object["spec"].get("unschedulable", False),
            one.object["status"]["allocatable"],
            {c["type"]: c["status"] for c in one.object["status"]["conditions"] if c["type"] == "Ready"},
        )
        for one in world.core.list("nodes")[0]
    ]


KINDS = [one.__name__ for one in Accidents(Ordered(World()), Random(0)).kinds]


@pytest.mark.parametrize("name", KINDS)
async def test_each_accident_is_ordered_told_and_over(world: World, name: str) -> None:
    before = nodes(world)
    for seed in SEEDS:
        ordered = Ordered(world)
        said = await getattr(Accidents(ordered, Random(seed)), name)()
        assert said
        assert ordered.orders or said.startswith("no pod"), "something is done"
        assert nodes(world) == before
    pod(world, "later", "n1")
    world.wait(100)
    assert world.core.get("pods", TENANTS[0], "later").phase == "Running"


@pytest.mark.parametrize("name", KINDS)
async def test_what_an_accident_left_that_was_cut_short_is_healed(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = nodes(world)
    ordered = Ordered(world)
    accidents = Accidents(ordered, Random(3))

    async def ends(_: float) -> None:
        raise TimeoutError

    monkeypatch.setattr("asyncio.sleep", ends)
    with suppress(TimeoutError):
        await getattr(accidents, name)()
    await accidents.heal()
    assert nodes(world) == before


async def test_orders_that_are_lost_are_sent_again(world: World) -> None:
    ordered = Ordered(world, lost=5)
    await Accidents(ordered, Random(1)).refuse_pods()
    assert ordered.orders == {"node_refusing": 2}

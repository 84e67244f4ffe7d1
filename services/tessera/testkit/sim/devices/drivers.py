"""
A driver of network cards that publishes its devices (DRA), and what goes wrong with it: it restarts, publishes in
parts, lies, loses a card, taints one, or somebody else's claim takes one first.

Each card is there whole and as its two ports, which use the counters of one set: who has a port keeps others from the
whole card. Links of a fabric reach all nodes, or for a while one of them.

Accidents draw from chance of their own, so that the other faults of a seed stay as they are.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from random import Random

from tessera.domain.state import State
from tessera.kernel.ports import ApiError, Clock
from tessera.testkit.sim.coverage import Coverage
from tessera.testkit.sim.workload import NICS
from tessera_local.cluster.core import SimCluster
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import DELETE_PROTECTION

CARDS = 2
DECISIONS_AWAITED = 300
STRANGERS = "theirs"
FABRIC, LINKS = "fabric", 2
RESERVED = {"resource": "pods", "name": "theirs", "uid": "uid-of-theirs"}


def published(sick: str = "", tainted: str = "", lies: bool = False) -> Json:
    """
    The part of a slice about devices: without the `sick` one, with a taint on the `tainted` one.

    A driver that `lies` has less of a counter than nothing.
    """
    devices: list[Json] = []
    for card in range(CARDS):
        counters = {"ports": {"value": "-1" if lies else "2"}}
        for name, ports in ((f"card-{card}", 2), (f"nic-{2 * card}", 1), (f"nic-{2 * card + 1}", 1)):
            uses = [{"counterSet": f"card-{card}", "counters": {"ports": {"value": str(ports)}}}]
            device = {"name": name, "attributes": {"fast": {"bool": card == 0}}, "consumesCounters": uses}
            taints = [{"key": "link", "value": "down", "effect": "NoSchedule"}] if name == tainted else []
            devices += [device | ({"taints": taints} if taints else {})] if name != sick else []
    sets = [{"name": f"card-{card}", "counters": counters} for card in range(CARDS)]
    return {"devices": devices, "sharedCounters": sets}


async def happen(
    kinds: Mapping[str, Callable[[str], Awaitable[None]]],
    nodes: Sequence[str],
    random: Random,
    clock: Clock,
    coverage: Coverage,
    seconds: float,
) -> None:
    """Let two to five accidents happen to some of the nodes, one after the other at random times."""
    loop = asyncio.get_running_loop()
    for at in sorted(random.uniform(0.5, seconds) for _ in range(random.randrange(2, 6))):
        await clock.sleep(max(0.0, at - loop.time()))
        name, node = random.choice(list(kinds)), random.choice(nodes)
        coverage.fault(name)
        await kinds[name](node)


class Drivers:
    """The driver of some nodes, and two to five accidents of it in a run."""

    def __init__(
        self,
        cluster: SimCluster,
        clock: Clock,
        random: Random,
        nodes: Sequence[str],
        coverage: Coverage,
        state: Callable[[], State],
    ) -> None:
        """`state` is what the ledger makes of the shard now."""
        self._cluster, self._clock, self._random, self._nodes, self._coverage = cluster, clock, random, nodes, coverage
        self._state = state
        self._generations = dict.fromkeys((*nodes, FABRIC), 0)
        self._strangers = 0
        self._kinds = {
            "driver restarted": self._restart,
            "slices in parts": self._publish_in_parts,
            "driver lied": self._lie,
            "device lost": self._lose_device,
            "device tainted": self._taint_device,
            "device taken by others": self._take_device,
            "network moved": self._move_network,
        }

    def begin(self) -> None:
        """The class of the devices, and on each node what there is of them."""
        wanted: Json = {"selectors": [{"cel": {"expression": f'device.driver == "{NICS}"'}}]}
        self._cluster.create("deviceclasses", "", {"metadata": {"name": NICS}, "spec": wanted})
        for node in self._nodes:
            self._publish(node)
        self._publish_network(None)

    async def run(self, seconds: float) -> None:
        """Two to five accidents until `seconds` of the loop's time, or until it is cancelled."""
        await happen(self._kinds, self._nodes, self._random, self._clock, self._coverage, seconds)

    def end(self) -> None:
        """Every device is there again, and nobody else's claim."""
        with self._cluster.faults.paused():
            for node in self._nodes:
                self._publish(node)
            self._publish_network(None)
            for number in range(self._strangers):
                self._free(f"theirs-{number}")

    async def _last(self, shortest: float, longest: float) -> None:
        await self._clock.sleep(self._random.uniform(shortest, longest))

    def _publish(self, node: str, slices: int = 1, **wrong: str | bool) -> None:
        """A new generation of the node's pool takes the place of the one before, in its first slice."""
        self._generations[node] += 1
        self._withdraw(node)
        self._put(node, 0, slices, published(**wrong))  # type: ignore[arg-type]

    def _publish_network(self, node: str | None) -> None:
        """A new generation of the links, which all nodes reach, or this one alone."""
        self._generations[FABRIC] += 1
        self._withdraw(FABRIC)
        named = {"key": "metadata.name", "operator": "In", "values": [node]}
        selector: Json = {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [named]}]}}
        where = selector if node else {"allNodes": True}
        devices = [{"name": f"link-{at}", "attributes": {"fast": {"bool": True}}} for at in range(LINKS)]
        self._put(FABRIC, 0, 1, {"devices": devices, "nodeName": None, **where})

    def _put(self, pool: str, number: int, slices: int, devices: Json) -> None:
        generation = self._generations[pool]
        named = {"name": pool, "generation": generation, "resourceSliceCount": slices}
        spec = {"driver": NICS, "nodeName": pool, "pool": named, **devices}
        with self._cluster.faults.paused():
            name = f"{pool}-nics-{generation}-{number}"
            self._cluster.create("resourceslices", "", {"metadata": {"name": name}, "spec": spec})

    def _withdraw(self, pool: str) -> None:
        with self._cluster.faults.paused():
            for one in self._cluster.list("resourceslices")[0]:
                if one.object["spec"]["pool"]["name"] == pool:
                    self._cluster.delete("resourceslices", "", one.meta["name"])

    # -- accidents

    async def _restart(self, node: str) -> None:
        self._withdraw(node)
        await self._last(0.2, 3.0)
        self._publish(node)

    async def _publish_in_parts(self, node: str) -> None:
        self._publish(node, slices=2)
        await self._last(0.2, 3.0)
        more = [{"name": "nic-more", "attributes": {"fast": {"bool": False}}}]
        self._put(node, 1, 2, {"devices": more})

    async def _lie(self, node: str) -> None:
        self._publish(node, lies=True)
        await self._last(0.5, 3.0)
        self._publish(node)

    async def _lose_device(self, node: str) -> None:
        self._publish(node, sick=self._any_device())
        await self._last(0.5, 4.0)
        self._publish(node)

    async def _taint_device(self, node: str) -> None:
        self._publish(node, tainted=self._any_device())
        await self._last(0.5, 4.0)
        self._publish(node)

    async def _move_network(self, node: str) -> None:
        self._publish_network(node)
        await self._last(0.5, 4.0)
        self._publish_network(None)

    async def _take_device(self, node: str) -> None:
        """Another scheduler allocates what is free by the claims of now: what a decision has, if there is any."""
        for _ in range(DECISIONS_AWAITED):
            free = self._free_devices(node)
            if drawn := sorted(free & self._drawn_devices(node)):
                break
            await self._clock.sleep(0.01)
        if free:
            name, self._strangers = f"theirs-{self._strangers}", self._strangers + 1
            self._allocate(name, node, self._random.choice(drawn or sorted(free)))
            await self._last(0.5, 4.0)
            with self._cluster.faults.paused():
                self._free(name)

    def _free_devices(self, node: str) -> set[str]:
        """Names of devices of which no claim has a counter."""
        with self._cluster.faults.paused():
            claims = [one.object for one in self._cluster.list("resourceclaims")[0]]
        results = [each for claim in claims for each in _results(claim)]
        held = {each["device"] for each in results if each["pool"] == node and each["driver"] == NICS}
        return {each["name"] for each in published()["devices"] if not held & _overlapping(each["name"])}

    def _drawn_devices(self, node: str) -> set[str]:
        """Names of devices that the ledger gave to runs."""
        placements = [placement for run in self._state().runs.values() for placement in run.placements]
        return {each.device for placement in placements for each in placement.drawn if each.pool == node}

    def _allocate(self, name: str, node: str, device: str) -> None:
        request = {"name": "one", "exactly": {"deviceClassName": NICS, "allocationMode": "ExactCount", "count": 1}}
        result = {"request": "one", "driver": NICS, "pool": node, "device": device}
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [RESERVED]}
        meta = {"name": name, "finalizers": [DELETE_PROTECTION]}
        with self._cluster.faults.paused():
            claim = {"metadata": meta, "spec": {"devices": {"requests": [request]}}}
            self._cluster.create("resourceclaims", STRANGERS, claim)
            self._cluster.patch("resourceclaims", STRANGERS, name, {"status": status}, "status")

    def _free(self, name: str) -> None:
        with suppress(ApiError):  # it is gone already
            self._cluster.patch("resourceclaims", STRANGERS, name, {"metadata": {"finalizers": None}})
            self._cluster.delete("resourceclaims", STRANGERS, name)

    def _any_device(self) -> str:
        return str(self._random.choice(published()["devices"])["name"])


def _results(claim: Json) -> list[Json]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def _overlapping(device: str) -> set[str]:
    """Devices that use a counter with this one beyond what there is of it."""
    kind, _, number = device.partition("-")
    card = int(number) if kind == "card" else int(number) // 2
    ports = {f"nic-{2 * card}", f"nic-{2 * card + 1}"}
    return {device, *ports} if kind == "card" else {device, f"card-{card}"}

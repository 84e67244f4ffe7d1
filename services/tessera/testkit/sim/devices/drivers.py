"""
Drivers that publish their devices (DRA), of network cards and of GPUs, and what goes wrong with them: one restarts,
publishes in parts, lies, loses a device, taints one, or somebody else's claim takes one first.

Each card is there whole and as its two parts, which use the counters of one set: who has a part keeps others from the
whole card. Links of a fabric reach all nodes, or for a while one of them.

Accidents draw from chance of their own, so that the other faults of a seed stay as they are.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from tessera.domain.state import State
from tessera.kernel.ports import ApiError, Clock
from tessera.testkit.sim.coverage import Coverage
from tessera.testkit.sim.devices.asked import NICS
from tessera.testkit.sim.devices.parks import GPUS, MIG, PUBLISHED_GPUS
from tessera_local.cluster.core import SimCluster
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_layouts import DEVICES_MAX
from tessera_schemas.cluster.labels import DELETE_PROTECTION, GPU_RESOURCE
from tessera_schemas.work.placement import DrawnDevice

DECISIONS_AWAITED = 300
STRANGERS = "theirs"
FABRIC, LINKS = "fabric", 2
LONGEST_POOL, FLOOD = "p" * 253, "flood"
CARDS_BESIDE = 100
"""Number of the first card of a pool beside the node's own: no card of that."""
RESERVED = {"resource": "pods", "name": "theirs", "uid": "uid-of-theirs"}


@dataclass(frozen=True, slots=True)
class DriverClass:
    """A DeviceClass of a driver, by an expression; `resource` is what it answers when pods count."""

    name: str
    selects: str
    resource: str = ""


@dataclass(frozen=True, slots=True)
class CardDriver:
    """A driver of so many cards on each node, the name of their parts, and its classes."""

    name: str
    part: str
    cards: int
    classes: tuple[DriverClass, ...]

    def published(self, sick: str = "", tainted: str = "", lies: bool = False) -> Json:
        """
        The part of a slice about devices: without the `sick` one, with a taint on the `tainted` one.

        A driver that `lies` has less of a counter than nothing.
        """
        devices: list[Json] = []
        for card in range(self.cards):
            names = ((f"card-{card}", 2), (f"{self.part}-{2 * card}", 1), (f"{self.part}-{2 * card + 1}", 1))
            for name, ports in names:
                uses = [{"counterSet": f"card-{card}", "counters": {"ports": {"value": str(ports)}}}]
                device = {"name": name, **self.described(card, ports == 1), "consumesCounters": uses}
                taints = [{"key": "link", "value": "down", "effect": "NoSchedule"}] if name == tainted else []
                devices += [device | ({"taints": taints} if taints else {})] if name != sick else []
        counters = {"ports": {"value": "-1" if lies else "2"}}
        sets = [{"name": f"card-{card}", "counters": counters} for card in range(self.cards)]
        return {"devices": devices, "sharedCounters": sets}

    def described(self, card: int, is_part: bool = False) -> Json:
        """Attributes of a card or a part of it, and capacities of a GPU."""
        if self.name == NICS:
            return {"attributes": {"fast": {"bool": card == 0}}}
        of_card = {"parentUUID" if is_part else "uuid": {"string": f"GPU-{card}"}, "productName": {"string": "H100"}}
        kind, memory = ("mig", "40Gi") if is_part else ("gpu", "80Gi")
        return {"attributes": {"type": {"string": kind}, **of_card}, "capacity": {"memory": {"value": memory}}}


NIC_DRIVER = CardDriver(NICS, "nic", 2, (DriverClass(NICS, f'device.driver == "{NICS}"'),))
GPU_DRIVER = CardDriver(
    GPUS,
    "mig",
    PUBLISHED_GPUS,
    (
        DriverClass(GPUS, f'device.driver == "{GPUS}" && device.attributes["{GPUS}"].type == "gpu"', GPU_RESOURCE),
        DriverClass(MIG, f'device.driver == "{GPUS}" && device.attributes["{GPUS}"].type == "mig"'),
    ),
)


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
    """A driver on some nodes, and two to five accidents of it in a run; without nodes it does nothing."""

    def __init__(
        self,
        cluster: SimCluster,
        clock: Clock,
        random: Random,
        nodes: Sequence[str],
        coverage: Coverage,
        state: Callable[[], State],
        driver: CardDriver = NIC_DRIVER,
    ) -> None:
        """`state` is what the ledger makes of the shard now."""
        self._driver = driver
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
        }
        self._kinds |= (
            {"network moved": self._move_network}
            if driver is NIC_DRIVER
            else {
                "decision undercut": self._undercut,
                "longest names": self._name_at_length,
                "too many devices": self._flood,
            }
        )

    def begin(self) -> None:
        """The classes of the devices, and on each node what there is of them."""
        for each in self._driver.classes if self._nodes else ():
            wanted: Json = {"selectors": [{"cel": {"expression": each.selects}}]}
            wanted |= {"extendedResourceName": each.resource} if each.resource else {}
            self._cluster.create("deviceclasses", "", {"metadata": {"name": each.name}, "spec": wanted})
        self._publish_all()

    def _publish_all(self) -> None:
        for node in self._nodes:
            self._publish(node)
        if self._driver is NIC_DRIVER:
            self._publish_network(None)

    async def run(self, seconds: float) -> None:
        """Two to five accidents until `seconds` of the loop's time, or until it is cancelled."""
        if self._nodes:
            await happen(self._kinds, self._nodes, self._random, self._clock, self._coverage, seconds)

    def end(self) -> None:
        """Every device is there again, and nobody else's claim."""
        with self._cluster.faults.paused():
            for pool in (LONGEST_POOL, FLOOD):
                self._withdraw(pool)
            self._publish_all()
            for number in range(self._strangers):
                self._free(self._stranger(number))

    async def _last(self, shortest: float, longest: float) -> None:
        await self._clock.sleep(self._random.uniform(shortest, longest))

    def _publish(self, node: str, slices: int = 1, **wrong: str | bool) -> None:
        """A new generation of the node's pool takes the place of the one before, in its first slice."""
        self._generations[node] += 1
        self._withdraw(node)
        self._put(node, 0, slices, self._driver.published(**wrong))  # type: ignore[arg-type]

    def _publish_beside(self, node: str, pool: str, devices: Sequence[str]) -> None:
        """A second pool of the node, with GPUs that are there whole."""
        self._generations[pool] = self._generations.get(pool, 0) + 1
        described = [{"name": name, **self._driver.described(CARDS_BESIDE + at)} for at, name in enumerate(devices)]
        self._put(pool, 0, 1, {"devices": described, "nodeName": node}, name=f"{node}-beside-{len(devices)}")

    def _publish_network(self, node: str | None) -> None:
        """A new generation of the links, which all nodes reach, or this one alone."""
        self._generations[FABRIC] += 1
        self._withdraw(FABRIC)
        named = {"key": "metadata.name", "operator": "In", "values": [node]}
        selector: Json = {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [named]}]}}
        where = selector if node else {"allNodes": True}
        devices = [{"name": f"link-{at}", "attributes": {"fast": {"bool": True}}} for at in range(LINKS)]
        self._put(FABRIC, 0, 1, {"devices": devices, "nodeName": None, **where})

    def _put(self, pool: str, number: int, slices: int, devices: Json, name: str = "") -> None:
        generation = self._generations[pool]
        named = {"name": pool, "generation": generation, "resourceSliceCount": slices}
        spec = {"driver": self._driver.name, "nodeName": pool, "pool": named, **devices}
        with self._cluster.faults.paused():
            meta = {"name": name or f"{pool}-{self._driver.part}s-{generation}-{number}"}
            self._cluster.create("resourceslices", "", {"metadata": meta, "spec": spec})

    def _withdraw(self, pool: str) -> None:
        with self._cluster.faults.paused():
            for one in self._cluster.list("resourceslices")[0]:
                spec = one.object["spec"]
                if (spec["driver"], spec["pool"]["name"]) == (self._driver.name, pool):
                    self._cluster.delete("resourceslices", "", one.meta["name"])

    # -- accidents

    async def _restart(self, node: str) -> None:
        self._withdraw(node)
        await self._last(0.2, 3.0)
        self._publish(node)

    async def _publish_in_parts(self, node: str) -> None:
        self._publish(node, slices=2)
        await self._last(0.2, 3.0)
        more = [{"name": f"{self._driver.part}-more", **self._driver.described(1, is_part=True)}]
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

    async def _name_at_length(self, node: str) -> None:
        """A GPU more, of which every name is as long as Kubernetes allows."""
        self._publish_beside(node, LONGEST_POOL, ["d" * 63])
        await self._last(1.0, 6.0)
        self._withdraw(LONGEST_POOL)

    async def _flood(self, node: str) -> None:
        """More devices than a node may have: for that time it has none, and runs go on."""
        self._publish_beside(node, FLOOD, [f"gpu-{at}" for at in range(DEVICES_MAX)])
        await self._last(0.5, 3.0)
        self._withdraw(FLOOD)

    async def _undercut(self, node: str) -> None:
        """The pool's next generation lacks what a decision has that no pod is bound for yet."""
        for _ in range(DECISIONS_AWAITED):
            runs = [run for run in self._state().runs.values() if not run.started_ts]
            drawn = (each for run in runs for place in run.placements for each in place.drawn)
            if lost := sorted(each.device for each in drawn if self._is_of(each, node)):
                self._publish(node, sick=self._random.choice(lost))
                break
            await self._clock.sleep(0.01)
        await self._last(0.5, 4.0)
        self._publish(node)

    async def _take_device(self, node: str) -> None:
        """Another scheduler allocates what is free by the claims of now: what a decision has, if there is any."""
        for _ in range(DECISIONS_AWAITED):
            free = self._free_devices(node)
            if drawn := sorted(free & self._drawn_devices(node)):
                break
            await self._clock.sleep(0.01)
        if free:
            name, self._strangers = self._stranger(self._strangers), self._strangers + 1
            self._allocate(name, node, self._random.choice(drawn or sorted(free)))
            await self._last(0.5, 4.0)
            with self._cluster.faults.paused():
                self._free(name)

    def _stranger(self, number: int) -> str:
        return f"theirs-{number}" if self._driver is NIC_DRIVER else f"their-{self._driver.part}-{number}"

    def _free_devices(self, node: str) -> set[str]:
        """Names of devices of which no claim has a counter."""
        with self._cluster.faults.paused():
            claims = [one.object for one in self._cluster.list("resourceclaims")[0]]
        results = [each for claim in claims for each in _results(claim)]
        held = {each["device"] for each in results if each["pool"] == node and each["driver"] == self._driver.name}
        every = [str(each["name"]) for each in self._driver.published()["devices"]]
        return {name for name in every if not held & self._overlapping(name)}

    def _drawn_devices(self, node: str) -> set[str]:
        """Names of devices that the ledger gave to runs."""
        placements = [placement for run in self._state().runs.values() for placement in run.placements]
        return {each.device for placement in placements for each in placement.drawn if self._is_of(each, node)}

    def _allocate(self, name: str, node: str, device: str) -> None:
        asked = {"deviceClassName": self._driver.classes[0].name, "allocationMode": "ExactCount", "count": 1}
        request = {"name": "one", "exactly": asked}
        result = {"request": "one", "driver": self._driver.name, "pool": node, "device": device}
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
        return str(self._random.choice(self._driver.published()["devices"])["name"])

    def _is_of(self, drawn: DrawnDevice, node: str) -> bool:
        return (drawn.driver, drawn.pool) == (self._driver.name, node)

    def _overlapping(self, device: str) -> set[str]:
        """Devices that use a counter with this one beyond what there is of it."""
        kind, _, number = device.partition("-")
        card = int(number) if kind == "card" else int(number) // 2
        parts = {f"{self._driver.part}-{2 * card}", f"{self._driver.part}-{2 * card + 1}"}
        return {device, *parts} if kind == "card" else {device, f"card-{card}"}


def _results(claim: Json) -> list[Json]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())

"""
Accidents of machines, of what pods need around them, and of people with rights on pods: what stops or keeps from
starting programs that are well.

They come beside the faults of `chaos`, each for a bounded time, and `end` heals what is left of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import get_args

from tessera.kernel.ports import ApiError, Clock
from tessera.testkit.sim.coverage import Coverage
from tessera.testkit.sim.workload import TENANTS
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.machines.accidents import NO_SANDBOX
from tessera_local.cluster.machines.nodes import NodeRow
from tessera_local.cluster.machines.pod_statuses import Left
from tessera_local.cluster.objects.shelf import Version
from tessera_schemas.cluster.labels import ENDED_PHASES

MAINTENANCE = "maintenance"
UNPREPARED = (
    (NO_SANDBOX, "FailedCreatePodSandBox"),
    ('MountVolume.SetUp failed for volume "data" : mount failed: exit status 32', "FailedMount"),
    ('MountVolume.SetUp failed for volume "settings" : configmap "train" not found', "FailedMount"),
)
LEFT: tuple[Left, ...] = get_args(Left)
Accident = Callable[[], Awaitable[None]]


class Accidents:
    """Three to six of them in a run, of the names in `kinds`."""

    def __init__(
        self, cluster: SimCluster, clock: Clock, random: Random, nodes: Sequence[NodeRow], coverage: Coverage
    ) -> None:
        self._cluster, self._clock, self._random, self._coverage = cluster, clock, random, coverage
        self._nodes = [row.name for row in nodes]
        self.kinds: dict[str, Accident] = {
            "pod evicted": self._evict_pod,
            "node tainted": self._taint_node,
            "node shut down": self._shut_down_node,
            "node rebooted": self._reboot_node,
            "node under pressure": self._press_node,
            "node refuses pods": self._refuse_pods,
            "device plugin away": self._take_plugins_away,
            "gpu unhealthy": self._make_gpu_unhealthy,
            "node prepares nothing": self._prepare_nothing,
            "node starts nothing": self._start_nothing,
            "image not pulled": self._lose_images,
            "creates forbidden": self._forbid_creates,
            "node stops nothing": self._stop_nothing,
        }

    async def run(self, seconds: float) -> None:
        """One after the other at random times, until `seconds` of the loop's time or cancelled."""
        loop, random = asyncio.get_running_loop(), self._random
        for at in sorted(random.uniform(1.0, seconds) for _ in range(random.randrange(3, 7))):
            await self._clock.sleep(max(0.0, at - loop.time()))
            name = random.choice(list(self.kinds))
            with suppress(ApiError):  # the node that it is about was removed
                await self.kinds[name]()

    def end(self) -> None:
        """Heal every node that is there, and every registry."""
        for node in self._nodes:
            self._cluster.heal(node)
            self._cluster.set_taint(node, MAINTENANCE, "NoExecute", on=False)
        for node in ("", *self._nodes):
            self._cluster.set_images_out(node=node, why="")

    async def _last(self, shortest: float, longest: float) -> None:
        await self._clock.sleep(self._random.uniform(shortest, longest))

    def _node(self, name: str) -> str:
        """A node to have the accident of that name, one with pods if there is one; the accident counts."""
        busy = sorted({pod.node for pod in self._pods()} & {*self._nodes})
        self._coverage.fault(name)
        return self._random.choice(busy if busy and self._random.random() < 0.8 else self._nodes)

    def _pods(self, node: str = "") -> list[Version]:
        """The pods that are bound and have not ended, on this node or ("") on any."""
        with self._cluster.faults.paused():
            pods, _ = self._cluster.list("pods")
        bound = [pod for pod in pods if pod.node and pod.phase not in ENDED_PHASES and not pod.deleting]
        return [pod for pod in bound if node in ("", pod.node)]

    # -- people and other controllers

    async def _evict_pod(self) -> None:
        if pods := self._pods():
            meta = self._random.choice(pods).meta
            with self._cluster.faults.paused():
                self._cluster.evict(meta["namespace"], meta["name"])
            self._coverage.fault("pod evicted")

    async def _taint_node(self) -> None:
        node = self._node("node tainted")
        self._cluster.set_taint(node, MAINTENANCE, "NoExecute")
        await self._last(0.5, 3.0)
        self._cluster.set_taint(node, MAINTENANCE, "NoExecute", on=False)

    async def _forbid_creates(self) -> None:
        namespace = self._random.choice(TENANTS)
        self._coverage.fault("creates forbidden")
        self._cluster.faults.forbid_creates(namespace)
        await self._last(0.5, 4.0)
        self._cluster.faults.forbid_creates(namespace, on=False)

    # -- machines

    async def _shut_down_node(self) -> None:
        node = self._node("node shut down")
        self._cluster.begin_shutdown(node)
        await self._last(0.5, 3.0)
        self._cluster.begin_reboot(node)
        await self._last(0.3, 3.0)
        self._cluster.set_reachable(node, True)

    async def _reboot_node(self) -> None:
        node = self._node("node rebooted")
        self._cluster.begin_reboot(node, self._random.choice(LEFT))
        await self._last(0.3, 3.0)
        self._cluster.set_reachable(node, True)

    async def _press_node(self) -> None:
        node = self._node("node under pressure")
        self._cluster.set_pressure(node, True)
        if pods := self._pods(node):
            meta = self._random.choice(pods).meta
            self._cluster.evict_for_pressure(meta["namespace"], meta["name"])
        await self._last(0.5, 4.0)
        self._cluster.set_pressure(node, False)

    # -- devices

    async def _take_plugins_away(self) -> None:
        node = self._node("device plugin away")
        self._cluster.set_device_plugins(node, False)
        await self._last(0.5, 4.0)
        self._cluster.set_device_plugins(node, True)

    async def _make_gpu_unhealthy(self) -> None:
        node = self._node("gpu unhealthy")
        self._cluster.set_unhealthy(node, 1)
        await self._last(0.5, 4.0)
        self._cluster.set_unhealthy(node, 0)

    # -- starts and ends

    async def _refuse_pods(self) -> None:
        node = self._node("node refuses pods")
        self._cluster.set_refusing(node)
        await self._last(0.5, 4.0)
        self._cluster.set_refusing(node, "")

    async def _prepare_nothing(self) -> None:
        node = self._node("node prepares nothing")
        why, reason = self._random.choice(UNPREPARED)
        self._cluster.set_preparing_nothing(node, why, reason)
        await self._last(3.0, 18.0)  # binders ask after seconds, and a start may take fifteen
        self._cluster.set_preparing_nothing(node, "")

    async def _start_nothing(self) -> None:
        node = self._node("node starts nothing")
        self._cluster.set_starting_nothing(node, True)
        await self._last(0.5, 6.0)
        self._cluster.set_starting_nothing(node, False)

    async def _lose_images(self) -> None:
        """Registries are out for all nodes, or for one."""
        node = self._node("image not pulled") if self._random.random() < 0.5 else ""
        if not node:
            self._coverage.fault("image not pulled")
        self._cluster.set_images_out(node=node)
        await self._last(0.5, 5.0)
        self._cluster.set_images_out(node=node, why="")

    async def _stop_nothing(self) -> None:
        node = self._node("node stops nothing")
        self._cluster.set_stuck(node, True)
        await self._last(0.5, 5.0)
        self._cluster.set_stuck(node, False)

"""Power of simulated machines: a webhook turns them off, and they come back after a while."""

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError, Clock
from tessera.reclamation.fencing.webhook import PowerAnswer
from tessera.testkit.sim.coverage import Coverage
from tessera_local.cluster.core import SimCluster


class SimulatedPower:
    """
    Webhook that turns machines of a cluster off, once for each key, and has people turn them on again after a while.

    It may be away, take its time, or fail; what it says of a machine is so. Its chance is that of each call, by key:
    draws of its own would change the worlds of all seeds.
    """

    def __init__(self, cluster: SimCluster, clock: Clock, coverage: Coverage) -> None:
        self._cluster, self._clock, self._coverage = cluster, clock, coverage
        self._calls = Counter[str]()
        self._done: dict[str, asyncio.Task[None]] = {}

    async def turn_off(self, url: str, key: str, body: dict[str, Any]) -> PowerAnswer:
        """Answer of the webhook. Raises Transient."""
        self._calls[key] += 1
        random = Random(f"{key} {self._calls[key]}")
        if random.random() < 0.2:
            raise Transient("HTTP 503")
        if key not in self._done and random.random() < 0.2:
            return PowerAnswer("failed", "no power controller")
        if key not in self._done:
            self._coverage.fault("node turned off" if body["why"].startswith("silent") else "sick node turned off")
            self._cluster.power_off(body["node"])
            self._done[key] = asyncio.create_task(self._stay_off(body["node"], random))
        return PowerAnswer("asked" if self._done[key].done() else "off")

    async def _stay_off(self, node: str, random: Random) -> None:
        """The API server shows it silent after a moment, if it is not before."""
        with suppress(ApiError):  # its object was taken away
            await self._clock.sleep(random.uniform(0.0, 2.0))
            self._cluster.set_reachable(node, False)
            await self._clock.sleep(random.uniform(6.0, 14.0))
            self._cluster.set_reachable(node, True)

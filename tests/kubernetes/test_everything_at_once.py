"""
Faults in any company, drawn from a seed, while jobs go through a real API server: when they stop, every job has ended
well and everything is explained. `TESSERA_CHAOS_SEED` draws others, `TESSERA_CHAOS_SECONDS` takes longer.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
import pytest_asyncio

from tessera.kernel.ports import ApiError
from tessera_schemas.config import Policy
from tessera_schemas.shard.services import SEPARATE
from tests.e2e.live import TENANTS, configuration
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on, load
from tests.kubernetes.proxy import Proxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEED = int(os.environ.get("TESSERA_CHAOS_SEED", "1"))
SECONDS = float(os.environ.get("TESSERA_CHAOS_SECONDS", "15"))
NODES = 6
SHARE = 0.1
SETTINGS = {service: {"TESSERA_NODE_GONE_SECONDS": "2"} for service in ("binder", "reclamation")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(own_plane: ControlPlane) -> AsyncIterator[Proxy]:
    own_plane.add_nodes(NODES, "gpu")
    async with Proxy(own_plane, SEED).running() as proxy:
        yield proxy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    own_plane: ControlPlane, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubernetesLive]:
    urls = {"binder": proxy.url, "reclamation": proxy.url}
    body = configuration(policy=Policy(node_lost_seconds=3600))  # silence alone loses no node here
    async with live_on(
        own_plane, tmp_path_factory.mktemp("platform"), body, urls=urls, settings=SETTINGS, layout=SEPARATE
    ) as live:
        yield live


class Faults:
    """Each does its harm and mends it, or leaves to Tessera what Tessera must mend."""

    def __init__(self, live: KubernetesLive, proxy: Proxy, chance: random.Random) -> None:
        self._live, self._proxy, self._chance = live, proxy, chance
        self._api = live.plane.api()
        self.kinds: tuple[Callable[[], Awaitable[None]], ...] = (
            self.kill_the_binder,
            self.kill_reclamation,
            self.restart_the_api_server,
            self.cut_watches,
            self.delete_a_pod,
            self.force_a_pod_away,
            self.cordon_a_node,
            self.replace_a_node,
            self.take_gpus_off_a_node,
            self.hang_a_call,
        )

    async def kill_the_binder(self) -> None:
        await self._live.kill("binder")

    async def kill_reclamation(self) -> None:
        await self._live.kill("reclamation")

    async def restart_the_api_server(self) -> None:
        self._live.plane.restart_api_server()

    async def cut_watches(self) -> None:
        self._proxy.cut_watches()
        await asyncio.sleep(self._chance.uniform(0.5, 3))
        self._proxy.mend_watches()

    async def delete_a_pod(self) -> None:
        if path := self._a_pod():
            self._api.delete(path)

    async def force_a_pod_away(self) -> None:
        if path := self._a_pod():
            self._api.patch(path, {"metadata": {"finalizers": None}})
            self._api.delete(path, gracePeriodSeconds=0)

    async def cordon_a_node(self) -> None:
        path = self._a_node()
        self._api.patch(path, {"spec": {"unschedulable": True}})
        await asyncio.sleep(self._chance.uniform(0.2, 2))
        self._api.patch(path, {"spec": {"unschedulable": None}})

    async def replace_a_node(self) -> None:
        """Another one of the same name, as after a repair."""
        path = self._a_node()
        node = self._api.get(path)
        self._api.delete(path)
        await asyncio.sleep(self._chance.uniform(0.1, 4))
        meta = {"name": node["metadata"]["name"], "labels": node["metadata"]["labels"]}
        status = {key: node["status"][key] for key in ("capacity", "allocatable")}
        self._api.create({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})

    async def take_gpus_off_a_node(self) -> None:
        path = f"{self._a_node()}/status"
        self._api.patch(path, {"status": {"allocatable": {"nvidia.com/gpu": "3"}}})
        await asyncio.sleep(self._chance.uniform(0.2, 2))
        self._api.patch(path, {"status": {"allocatable": {"nvidia.com/gpu": "8"}}})

    async def hang_a_call(self) -> None:
        self._proxy.hang(self._chance.choice(["create", "bind", "delete", "patch"]))

    def _a_node(self) -> str:
        return f"/api/v1/nodes/gpu-{self._chance.randrange(NODES)}"

    def _a_pod(self) -> str:
        tenant = self._chance.choice(TENANTS)
        found = self._api.items(f"/api/v1/namespaces/{tenant}/pods")
        if not found:
            return ""
        name = self._chance.choice(sorted(pod["metadata"]["name"] for pod in found))
        return f"/api/v1/namespaces/{tenant}/pods/{name}"


async def test_whatever_fails_together_every_job_ends_well(live: KubernetesLive, proxy: Proxy) -> None:
    chance = random.Random(SEED)
    faults = Faults(live, proxy, chance)
    proxy.share = SHARE
    async with load(live, at_least=20, every_seconds=0.3):
        clock = asyncio.get_running_loop()
        end = clock.time() + SECONDS
        while clock.time() < end:
            kind = chance.choice(faults.kinds)
            print(f"{clock.time():.1f} {kind.__name__}")
            with suppress(ApiError):  # what was chosen is gone by now, say
                await kind()
            await asyncio.sleep(chance.uniform(0.1, 1))
    proxy.calm_down()
    live.plane.wait_for_nodes([f"gpu-{n}" for n in range(NODES)])
    for service in ("binder", "reclamation"):
        await live.until_ready(service)
    await assert_all_is_well(live)

"""The worlds of the Cluster port's tests that need no server: the simulated cluster, called and over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from tessera.kernel.clock import SystemClock
from tessera.kernel.kubernetes.api_paths import resource_of
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ports import Cluster
from tessera_local.cluster.api.access import Access, TokenIdentity
from tessera_local.cluster.api.server import ApiServer
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.in_memory import MemoryCluster, drive
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tests.contract.cluster_suite import Setup

READS = frozenset({"list", "watch", "get"})


@asynccontextmanager
async def in_memory() -> AsyncIterator[Setup]:
    clock = SystemClock()
    core = SimCluster(clock)
    driver = asyncio.create_task(drive(core, clock))
    try:
        yield setup(core, MemoryCluster(core, clock, "binder"), MemoryCluster(core, clock, "reclamation", READS))
    finally:
        driver.cancel()
        with suppress(asyncio.CancelledError):
            await driver


@asynccontextmanager
async def over_http() -> AsyncIterator[Setup]:
    clock = SystemClock()
    core = SimCluster(clock)
    access = Access({"w": TokenIdentity("binder", frozenset({"*"})), "r": TokenIdentity("reclamation", READS)})
    server = ApiServer(core, clock, access)
    url = f"http://127.0.0.1:{await server.start()}"
    cluster, reader = HttpCluster(url, "w"), HttpCluster(url, "r")
    try:
        yield setup(core, cluster, reader)
    finally:
        await cluster.close()
        await reader.close()
        await server.stop()


def setup(core: SimCluster, cluster: Cluster, reader: Cluster) -> Setup:
    return Setup(
        cluster,
        reader,
        add_node=partial(add_node, core),
        create=partial(create, core),
        ancient=partial(ancient, core),
        forbid_eviction=partial(forbid_eviction, core),
        lose_answer=core.faults.lose_answers,
    )


async def add_node(core: SimCluster, name: str) -> None:
    core.create("nodes", "", node_object(NodeRow(name=name, cpu="8", memory="8Gi", gpus=2), name))


async def create(core: SimCluster, obj: dict[str, Any]) -> dict[str, Any]:
    namespace = obj["metadata"].get("namespace", "")
    return core.create(resource_of(obj["kind"]), namespace, obj).object


async def ancient(core: SimCluster) -> str:
    version = core.resource_version
    filler: dict[str, Any] = {"metadata": {"name": "filler"}, "spec": {"containers": [{"name": "main"}]}}
    core.create("pods", "default", filler)
    core.expire_history()
    return version


async def forbid_eviction(core: SimCluster, _labels: dict[str, str]) -> None:
    """The simulated cluster knows no budgets; its next eviction is refused as a budget would."""
    core.faults.answer("evict", 429)

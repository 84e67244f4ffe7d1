"""Reading a pod's log through the Cluster port, on the simulated cluster in memory and over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from tessera.kernel.ports import ApiError, Cluster
from tessera_local.cluster.machines.behaviour import RUN_SECONDS
from tests.contract.cluster_suite import Setup, pod
from tests.contract.cluster_worlds import in_memory, over_http

WORLDS = {"memory": in_memory, "http": over_http}


@pytest.fixture(params=list(WORLDS))
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Setup]:
    async with WORLDS[request.param]() as setup:
        await setup.add_node("n1")
        yield setup


async def read(cluster: Cluster, name: str, **asked: Any) -> list[str]:
    """The text of each line, without its time."""
    async with asyncio.timeout(120), aclosing(cluster.read_log("default", name, **asked)) as pieces:
        assert await anext(pieces) == b""
        whole = b"".join([piece async for piece in pieces]).decode()
    assert not whole or whole.endswith("\n")
    return [line.partition(" ")[2] for line in whole.splitlines()]


async def bound(api: Setup, seconds: str) -> str:
    name = api.name()
    made = await api.cluster.create_pod(api.ns, pod(name, annotations={RUN_SECONDS: seconds}))
    await api.cluster.bind_pod(api.ns, name, made["metadata"]["uid"], "n1", {})
    return name


async def started(api: Setup, name: str) -> None:
    async with asyncio.timeout(120):
        while (await api.cluster.get_pod(api.ns, name))["status"]["phase"] == "Pending":
            await asyncio.sleep(0.02)


async def refused(cluster: Cluster, name: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await read(cluster, name)
    return caught.value


async def test_a_followed_log_ends_with_its_pod_and_holds_every_line(api: Setup) -> None:
    name = await bound(api, "1.5")
    await started(api, name)
    followed = await read(api.cluster, name, follow=True)
    assert (followed[0], followed[-1]) == ("simulated program, rank 0: 1.5 s of work", "exit code 0")
    assert await read(api.cluster, name) == followed
    assert await read(api.cluster, name, tail_lines=1) == ["exit code 0"]


async def test_a_log_that_is_not_followed_ends_where_the_program_is(api: Setup) -> None:
    name = await bound(api, "60")
    await started(api, name)
    assert await read(api.cluster, name) == ["simulated program, rank 0: 60 s of work"]


async def test_there_is_no_log_before_the_container_starts_nor_of_a_pod_that_is_not_there(api: Setup) -> None:
    name = api.name()
    await api.cluster.create_pod(api.ns, pod(name))
    assert (await refused(api.cluster, name)).status == 400
    assert (await refused(api.cluster, "nobody")).status == 404


async def test_whoever_may_read_pods_may_not_read_their_logs(api: Setup) -> None:
    name = await bound(api, "60")
    await started(api, name)
    assert (await refused(api.reader, name)).status == 403

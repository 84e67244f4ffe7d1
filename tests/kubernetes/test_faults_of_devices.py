"""Drivers that lie, generations that change under a decision, and an API server that fails before the bind (DRA)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tessera_schemas.shard.services import SEPARATE
from tests.e2e.live import configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.proxy import Hook, Proxy
from tests.kubernetes.users_objects import Json
from tests.published_devices import DRIVER, NIC_DRIVER, claim

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODES = ("dra-0", "dra-1")
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
LONG = 600.0
LONGEST = ".".join(("p" * 63,) * 3 + ("p" * 61,))
SLICE_DEVICES = 128
"""As many devices as a slice may have."""


def published(
    node: str, *devices: str, driver: str = DRIVER, pool: str = "", generation: int = 1, part: str = "", **more: Any
) -> Json:
    """A slice of a pool, which is called as its node unless said otherwise."""
    count = more.pop("count", 1)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}-{generation}{part}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": count},
            "devices": [{"name": name} for name in devices],
            **more,
        },
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(own_plane: ControlPlane) -> AsyncIterator[Proxy]:
    """Two nodes, each with two GPUs of a driver and two NICs of another, in pools of the same name."""
    own_plane.add_nodes(2, "dra", gpus=0, cpu="16")
    api = own_plane.api()
    for driver in (DRIVER, NIC_DRIVER):
        spec = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
        api.create(
            {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": driver}, "spec": spec}
        )
        for node in NODES:
            api.create(published(node, "dev-0", "dev-1", driver=driver))
    async with Proxy(own_plane).running() as proxy:
        yield proxy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    own_plane: ControlPlane, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubernetesLive]:
    urls = {"binder": proxy.url, "reclamation": proxy.url}
    async with live_on(
        own_plane, tmp_path_factory.mktemp("platform"), configuration(), urls=urls, layout=SEPARATE
    ) as live:
        yield live


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def calm(live: KubernetesLive, proxy: Proxy) -> AsyncIterator[None]:
    """Each node offers the devices of both drivers, and nobody is in the way."""
    await eventually(lambda: all(names(live, node) == ["dev-0", "dev-1"] * 2 for node in NODES), "all is offered")
    yield
    proxy.calm_down()


def names(live: KubernetesLive, node: str) -> list[str]:
    found = live.state.nodes.get(node)
    return [] if found is None or found.offer is None else [each.name for each in found.offer.devices]


def missing(live: KubernetesLive, node: str) -> tuple[str, ...]:
    found = live.state.nodes.get(node)
    return () if found is None else found.missing


def allocated(live: KubernetesLive) -> list[tuple[str, str, str]]:
    """Driver, pool and device of each result of a claim."""
    return sorted(
        (each["driver"], each["pool"], each["device"])
        for one in live.plane.api().items(CLAIMS)
        for each in one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    )


def drawn(live: KubernetesLive) -> list[tuple[str, str, str]]:
    places = (place for run in live.state.runs.values() for place in run.placements)
    return sorted((each.driver, each.pool, each.device) for place in places for each in place.drawn)


async def submit(live: KubernetesLive, name: str, *drivers: str, replicas: int = 1, seconds: float = LONG) -> str:
    """A job whose pods claim a device of each of these drivers."""
    spec = job(name, gpus=0, replicas=replicas, seconds=seconds)
    claims = tuple(claim(f"of-{at}", device_class=driver) for at, driver in enumerate(drivers))
    asked = spec.roles[0].resources.model_copy(update={"claims": claims})
    done = await live.submit(
        spec.model_copy(update={"roles": (spec.roles[0].model_copy(update={"resources": asked}),)})
    )
    return str(done.job_id)


async def end(live: KubernetesLive, *jobs: str) -> None:
    for each in jobs:
        await live.clients["lab"].cancel(each)
    await live.until_ended(*jobs)
    await eventually(lambda: live.plane.api().items(CLAIMS) == [], "no claim is left")
    await assert_all_is_well(live)


def at_first(verb: str, part: str, act: Callable[[], Awaitable[None]], times: int = 1) -> Hook:
    """Act before the first calls of a verb whose path has this part."""
    left = times

    async def hook(called: str, path: str) -> None:
        nonlocal left
        if called == verb and part in path and left:
            left -= 1
            await act()

    return hook


async def test_two_drivers_with_one_pool_name_are_told_apart(live: KubernetesLive) -> None:
    both = await submit(live, "both", DRIVER, NIC_DRIVER, replicas=4)
    await live.until_phase(both, "running")
    had = allocated(live)
    assert had == drawn(live)
    assert had == sorted((driver, n, f"dev-{at}") for driver in (DRIVER, NIC_DRIVER) for n in NODES for at in (0, 1))
    await end(live, both)


async def test_a_driver_that_lies_takes_its_own_pool_from_the_offer_and_no_other(live: KubernetesLive) -> None:
    api, node = live.plane.api(), NODES[0]
    sets = [{"name": "card", "counters": {"ports": {"value": "-1"}}}]
    api.create(published(node, pool="below", part="-below", count=2, devices=None, sharedCounters=sets))
    api.create(published(node, "dev-2", pool="below", part="-lies", count=2))
    parts = 9
    for part in range(parts):
        many = [f"many-{part * SLICE_DEVICES + at}" for at in range(SLICE_DEVICES)]
        api.create(published(NODES[1], *many, pool="many", part=f"-{part}", count=parts))
    # Its last slice came after both of the other pool: what is said of that now is said of all of it.
    await eventually(lambda: names(live, NODES[1]) == [], "a node of too many devices offers none")
    assert f"{DRIVER}/many" in missing(live, NODES[1])
    other = await submit(live, "other", DRIVER)
    await live.until_phase(other, "running")
    assert [pool for _, pool, _ in drawn(live)] == [node]
    assert (missing(live, node), names(live, node)) == ((f"{DRIVER}/below",), ["dev-0", "dev-1"] * 2)
    for one in api.items(SLICES):
        if one["spec"]["pool"]["name"] in ("below", "many"):
            api.delete(f"{SLICES}/{one['metadata']['name']}")
    await end(live, other)


async def test_a_device_of_the_longest_names_is_had_by_its_name(live: KubernetesLive) -> None:
    api, device = live.plane.api(), "d" * 63
    api.create(published(NODES[0], device, pool=LONGEST, part="-longest"))
    await eventually(lambda: device in names(live, NODES[0]), "it is offered")
    jobs = [await submit(live, f"five-{at}", DRIVER) for at in range(5)]
    for each in jobs:
        await live.until_phase(each, "running")
    assert (DRIVER, LONGEST, device) in allocated(live)
    assert allocated(live) == drawn(live)
    await end(live, *jobs)
    api.delete(f"{SLICES}/{NODES[0]}-{DRIVER}-1-longest")


async def test_a_generation_that_lacks_what_was_decided_leaves_no_claim_behind(
    live: KubernetesLive, proxy: Proxy
) -> None:
    api = live.plane.api()
    seen: list[tuple[str, str, str]] = []

    async def replace() -> None:
        seen.extend(drawn(live))
        ((_, node, device),) = seen
        api.create(published(node, *({"dev-0", "dev-1"} - {device}), generation=2))
        api.delete(f"{SLICES}/{node}-{DRIVER}-1")
        await eventually(lambda: names(live, node).count(device) == 1, "the NICs alone have that name")

    proxy.before = at_first("create", "/resourceclaims", replace)
    done = await submit(live, "undercut", DRIVER)
    await live.until_phase(done, "running")
    assert allocated(live) == drawn(live)
    await end(live, done)
    ((_, node, _),) = seen
    api.create(published(node, "dev-0", "dev-1", generation=3))
    api.delete(f"{SLICES}/{node}-{DRIVER}-2")


async def test_binds_that_fail_after_the_allocation_give_no_device_twice(live: KubernetesLive, proxy: Proxy) -> None:
    had: list[list[tuple[str, str, str]]] = []

    async def fail() -> None:
        had.append(allocated(live))
        raise web.HTTPServiceUnavailable

    proxy.before = at_first("bind", "/pods", fail, times=6)
    done = await submit(live, "gang", DRIVER, replicas=4)
    await live.until_phase(done, "running")
    assert len(had) == 6
    assert all(len(set(each)) == len(each) > 0 for each in had), "claims had their devices before the first bind"
    assert allocated(live) == drawn(live)
    assert live.state.jobs.get(done).attempt == 1  # type: ignore[union-attr]
    await end(live, done)


async def test_the_api_server_dies_between_allocation_and_bind(live: KubernetesLive, proxy: Proxy) -> None:
    had: list[tuple[str, str, str]] = []

    async def die() -> None:
        had.extend(allocated(live))
        live.plane.restart_api_server()

    proxy.before = at_first("bind", "/pods", die)
    done = await submit(live, "survivor", DRIVER, replicas=4)
    await live.until_phase(done, "running")
    assert had
    assert allocated(live) == drawn(live)
    await end(live, done)

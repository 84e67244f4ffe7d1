"""A torchrun gang on a real API server: its names are there before its pods and gone after them, whoever dies."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tessera_schemas.cluster.labels import RUN_LABEL
from tests.e2e.live import Json, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.proxy import Proxy
from tests.kubernetes.users_objects import at_the

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

LONG = 600.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(own_plane: ControlPlane) -> AsyncIterator[Proxy]:
    async with Proxy(own_plane).running() as proxy:
        yield proxy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    own_plane: ControlPlane, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(4, "gpu")
    urls = {"binder": proxy.url}
    async with live_on(own_plane, tmp_path_factory.mktemp("launchers"), configuration(), urls=urls) as live:
        yield live


async def services(live: KubernetesLive) -> list[Json]:
    cluster = live.cluster()
    try:
        return (await cluster.list("services", RUN_LABEL))[0]
    finally:
        await cluster.close()


async def names(live: KubernetesLive) -> list[str]:
    return [service["metadata"]["name"] for service in await services(live)]


def named_by(live: KubernetesLive, service: str) -> set[str]:
    """The names below the Service that have an address: what the cluster's DNS answers from."""
    asked = f"?labelSelector=kubernetes.io/service-name={service}"
    slices = live.plane.api().call("GET", f"/apis/discovery.k8s.io/v1/namespaces/lab/endpointslices{asked}")["items"]
    found = [endpoint for each in slices for endpoint in each.get("endpoints") or ()]
    return {endpoint["hostname"] for endpoint in found if endpoint["addresses"]}


async def gone(live: KubernetesLive) -> bool:
    return await names(live) == []


async def test_a_gang_is_named_below_a_headless_service_that_goes_with_it(live: KubernetesLive) -> None:
    done = await live.submit(job("torch", gpus=1, replicas=3, seconds=LONG, launcher="torchrun"))
    await live.until_phase(done.job_id, "running")
    (service,) = await services(live)
    assert service["metadata"]["name"] == f"run-{done.job_id}-1"
    assert service["spec"]["clusterIP"] == "None"
    cluster = live.cluster()
    try:
        pods, _ = await cluster.list("pods", f"{RUN_LABEL}={done.job_id}-1")
        assert {pod["spec"]["subdomain"] for pod in pods} == {service["metadata"]["name"]}
        assert all(pod["spec"]["hostname"] == pod["metadata"]["name"] for pod in pods)
        made = [pod["metadata"]["creationTimestamp"] for pod in pods]
        assert service["metadata"]["creationTimestamp"] <= min(made)
        meta = service["metadata"]
        hosts = {pod["spec"]["hostname"] for pod in pods}
        for number, pod in enumerate(pods, start=1):  # these kubelets give none
            ip = f"10.9.0.{number}"
            await cluster.patch_pod_status(
                "lab", pod["metadata"]["name"], {"status": {"podIP": ip, "podIPs": [{"ip": ip}]}}
            )
        await eventually(lambda: named_by(live, meta["name"]) == hosts, "each pod has its name", 15)
        await cluster.delete_service(meta["namespace"], meta["name"], meta["uid"])
    finally:
        await cluster.close()

    async def made_again() -> bool:
        return await names(live) == [service["metadata"]["name"]]

    await eventually(made_again, "the service is made again")
    await live.clients["lab"].cancel(done.job_id)
    await live.until_ended(done.job_id)
    await eventually(lambda: gone(live), "the service is gone")
    await assert_all_is_well(live)


STEPS = {
    "before the service is made": ("before", "create"),
    "after the service is made": ("after", "create"),
    "before the service is deleted": ("before", "delete"),
    "after the service is deleted": ("after", "delete"),
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_binder_killed_around_the_service_leaves_none_behind(
    live: KubernetesLive, proxy: Proxy, step: str
) -> None:
    when, verb = STEPS[step]
    reached = asyncio.Event()
    setattr(proxy, when, at_the(1, verb, "/services", reached, live))
    done = await live.submit(job("torch", gpus=1, replicas=2, seconds=LONG, launcher="torchrun"), answer_seconds=0)
    if verb == "delete":
        await live.until_phase(done.job_id, "running")
        await live.clients["lab"].cancel(done.job_id)
    await asyncio.wait_for(reached.wait(), 30)
    await eventually(lambda: live.platform.pid("binder") is None, "the binder is dead")
    proxy.before = proxy.after = Proxy(live.plane).before
    await live.platform.start("binder")
    if verb == "create":
        await live.until_phase(done.job_id, "running")
        await live.clients["lab"].cancel(done.job_id)
    await live.until_ended(done.job_id)
    await eventually(lambda: gone(live), "the service is gone")
    await assert_all_is_well(live)

"""Gangs on a real API server: names and keys are there before the pods and gone after them, whoever dies."""

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tessera_schemas.cluster.labels import RUN_LABEL
from tessera_schemas.job import JobSpec
from tessera_schemas.shard.services import SEPARATE
from tests.e2e.live import Json, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.proxy import Proxy
from tests.kubernetes.users_objects import at_the

pytestmark = pytest.mark.asyncio(loop_scope="module")

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
    urls, steps = {"binder": proxy.url}, {"TESSERA_STEPS_IMAGE": "tessera-steps:1"}
    settings, folder = {"admission": steps, "binder": steps}, tmp_path_factory.mktemp("launchers")
    async with live_on(own_plane, folder, configuration(), urls=urls, settings=settings, layout=SEPARATE) as live:
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


def keys(live: KubernetesLive) -> list[Json]:
    """Secrets of runs, as the administrator sees them: the binder may not."""
    found: list[Json] = live.plane.api().items("/api/v1/namespaces/lab/secrets")
    return [key for key in found if key["metadata"].get("labels", {}).get(RUN_LABEL)]


async def gone(live: KubernetesLive) -> bool:
    return await names(live) == [] and keys(live) == []


def with_steps() -> JobSpec:
    """Two pods, of which the first runs the command; it could be stored where `restricted` is enforced."""
    spec = job("steps", gpus=1, replicas=2, seconds=LONG, launcher="steps")
    template = spec.roles[0].template.model_copy(update={"command": ("train",), "run_as_user": 1000})
    return spec.model_copy(update={"roles": (spec.roles[0].model_copy(update={"template": template}),)})


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


async def test_a_run_with_steps_has_a_key_that_nobody_but_its_pods_reads_and_that_goes_with_it(
    live: KubernetesLive,
) -> None:
    level = "pod-security.kubernetes.io/enforce"
    live.plane.api().patch("/api/v1/namespaces/lab", {"metadata": {"labels": {level: "restricted"}}})
    done = await live.submit(with_steps())
    await live.until_phase(done.job_id, "running")
    (service,), (key,) = await services(live), keys(live)
    assert key["metadata"]["name"] == service["metadata"]["name"] == f"run-{done.job_id}-1"
    assert len(base64.b64decode(key["data"]["key"])) == 32
    cluster = live.cluster()
    try:
        pods, _ = await cluster.list("pods", f"{RUN_LABEL}={done.job_id}-1")
    finally:
        await cluster.close()
    for pod in pods:
        assert pod["spec"]["initContainers"][0]["image"] == "tessera-steps:1"
        assert pod["spec"]["containers"][0]["command"] == ["/tessera/bin/tessera-steps", "pod", "--", "train"]
        assert key["metadata"]["creationTimestamp"] <= pod["metadata"]["creationTimestamp"]
    await live.clients["lab"].cancel(done.job_id)
    await live.until_ended(done.job_id)
    await eventually(lambda: gone(live), "service and key are gone")
    live.plane.api().patch("/api/v1/namespaces/lab", {"metadata": {"labels": {level: "baseline"}}})
    await assert_all_is_well(live)


STEPS = {
    "before the service is made": ("before", "create", "/services"),
    "after the service is made": ("after", "create", "/services"),
    "before the service is deleted": ("before", "delete", "/services"),
    "after the service is deleted": ("after", "delete", "/services"),
    "before the key is made": ("before", "create", "/secrets"),
    "after the key is made": ("after", "create", "/secrets"),
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_binder_killed_around_the_service_or_its_key_leaves_none_behind(
    live: KubernetesLive, proxy: Proxy, step: str
) -> None:
    when, verb, kind = STEPS[step]
    reached = asyncio.Event()
    setattr(proxy, when, at_the(1, verb, kind, reached, live))
    torch = job("torch", gpus=1, replicas=2, seconds=LONG, launcher="torchrun")
    done = await live.submit(with_steps() if kind == "/secrets" else torch, answer_seconds=0)
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

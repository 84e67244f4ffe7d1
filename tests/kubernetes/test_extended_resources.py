"""GPUs by their number on a cluster of which some nodes have a device plugin and others a driver (DRA)."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.live import configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users
from tests.kubernetes.users_objects import Json, batch_job
from tests.published_devices import DRIVER, claim
from tests.unit.binder.claim_builders import resource_slice

pytestmark = pytest.mark.asyncio(loop_scope="module")

GPU = "nvidia.com/gpu"
DRIVEN, PLUGGED = "dra-0", "plug-0"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    """A node of each kind, with two GPUs."""
    own_plane.add_nodes(1, "dra", gpus=0, cpu="16")
    own_plane.add_nodes(1, "plug", gpus=2, cpu="16")
    api = own_plane.api()
    answering = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}], "extendedResourceName": GPU}
    named = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER}}
    api.create(named | {"spec": answering})
    model = {"attributes": {"model": {"string": "H100"}}}  # the other node's: a gang is on one model
    api.create(resource_slice(DRIVEN, *({"name": f"gpu-{at}"} | model for at in range(2))))
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:

        def answers() -> bool:
            node = live.state.nodes.get(DRIVEN)
            offer = None if node is None else node.offer
            return offer is not None and bool(offer.class_for(GPU)) and offer.selected(DRIVER, ()) is not None

        await eventually(answers, "the ledger knows what the class answers")
        yield live


def claims(users: Users) -> list[Json]:
    return users.api.items(f"/apis/resource.k8s.io/v1/namespaces/{users.namespace}/resourceclaims")


def had(users: Users) -> list[tuple[str, str]]:
    """Device and pod of each result of a claim."""
    return sorted(
        (each["device"], user["name"])
        for one in claims(users)
        for each in one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        for user in one["status"]["reservedFor"]
    )


def bound(users: Users) -> dict[str, Json]:
    """Pods by their nodes."""
    there = users.api.items(f"/api/v1/namespaces/{users.namespace}/pods")
    return {pod["spec"]["nodeName"]: pod for pod in there if "nodeName" in pod["spec"]}


async def test_a_native_gang_has_pods_on_a_node_of_a_plugin_and_on_one_of_a_driver(
    users: Users, live: KubernetesLive
) -> None:
    await live.submit(job("gang", gpus=2, replicas=2, seconds=20))
    await users.until(lambda: len(had(users)) == 2, "the driver's devices are had")
    (run,) = live.state.runs.values()
    places = {place.node: place for place in run.placements}
    assert places[PLUGGED].devices == (0, 1)
    assert [each.device for each in places[DRIVEN].drawn] == ["gpu-0", "gpu-1"]
    await users.until(lambda: bound(users).keys() == {PLUGGED, DRIVEN}, "both pods are bound")
    pods = bound(users)
    assert "extendedResourceClaimStatus" not in pods[PLUGGED]["status"]
    (one,) = claims(users)
    assert pods[DRIVEN]["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == one["metadata"]["name"]
    await eventually(lambda: claims(users) == [] and not list(live.state.runs.values()), "no claim is left")


async def test_users_jobs_by_number_and_jobs_by_claims_lie_side_by_side(users: Users, live: KubernetesLive) -> None:
    users.create(batch_job("old", 3, gpus=1, seconds=20))
    spec = job("new", gpus=0, replicas=1, seconds=20)
    resources = spec.roles[0].resources.model_copy(update={"claims": (claim(),)})
    worker = spec.roles[0].model_copy(update={"resources": resources})

    def running() -> bool:
        pods = users.pods("old")
        return len(pods) == 3 and all(pod["status"].get("phase") == "Running" for pod in pods)

    await users.until(running, "three pods run")
    assert len(had(users)) == sum(pod["spec"]["nodeName"] == DRIVEN for pod in users.pods("old")) > 0
    await live.submit(spec.model_copy(update={"roles": (worker,)}))
    await users.until(lambda: len({device for device, _ in had(users)}) == 2, "both devices are had")
    await users.until(lambda: users.job("old").get("status", {}).get("succeeded") == 3, "the Job succeeds")
    users.delete("job", "old")
    await eventually(lambda: claims(users) == [] and not list(live.state.runs.values()), "no claim is left")
    await assert_all_is_well(live)

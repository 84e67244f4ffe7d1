"""Pods that claim devices which a driver publishes (DRA), on a real API server with its own claim controller."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.client.sending.submitting import claims_of
from tessera_schemas.cluster.device_claims import DeviceClaim
from tests.e2e.lasting import LONG
from tests.e2e.live import configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users, scheduled
from tests.kubernetes.users_objects import Json, batch_job
from tests.published_devices import DRIVER, NIC_DRIVER, PCIE_ROOT, claim

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODES = ("dra-0", "dra-1")
TEMPLATE = "one-gpu"
BIG = f'device.attributes["{DRIVER}"].size == "big"'


def published(node: str, gpus: int = 4, generation: int = 1) -> Json:
    """A slice of a node: GPUs of which the first is big."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{generation}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"gpu-{at}",
                    "attributes": {
                        "uuid": {"string": f"{node}-{at}"},
                        "size": {"string": "small" if at else "big"},
                        PCIE_ROOT: {"string": f"pci0000:{at:02x}"},
                    },
                    "capacity": {"memory": {"value": "80Gi"}},
                }
                for at in range(gpus)
            ],
        },
    }


def published_nics(node: str, nics: int = 4) -> Json:
    """A slice of another driver of the node: a NIC on the PCIe root of each of its GPUs, numbered the other way."""
    roots = {f"nic-{nics - 1 - at}": {"attributes": {PCIE_ROOT: {"string": f"pci0000:{at:02x}"}}} for at in range(nics)}
    slice_ = published(node)
    slice_["metadata"]["name"] = f"{node}-nics"
    slice_["spec"] |= {"driver": NIC_DRIVER, "devices": [{"name": name, **rest} for name, rest in roots.items()]}
    return slice_


def device_class(name: str, expression: str) -> Json:
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def template(name: str, count: int = 1, expression: str = "") -> Json:
    exactly: Json = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count}
    exactly |= {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    spec = {"spec": {"devices": {"requests": [{"name": "devices", "exactly": exactly}]}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": spec,
    }


def claiming_job(name: str, count: int = 1, of: str = TEMPLATE, **more: Any) -> Json:
    """A Job whose pods each have a claim of a template."""
    made = batch_job(name, count, gpus=0, **more)
    spec = made["spec"]["template"]["spec"]
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": of}]
    spec["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(2, "dra", gpus=0, cpu="16")
    api = own_plane.api()
    api.create(device_class(DRIVER, f'device.driver == "{DRIVER}"'))
    api.create(device_class(NIC_DRIVER, f'device.driver == "{NIC_DRIVER}"'))
    for node in NODES:
        api.create(published(node))
        api.create(published_nics(node))
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:
        users = Users(live)
        users.create(template(TEMPLATE))
        users.create(template("big", expression=BIG))
        users.create(template("wrong", expression=f'device.attributes["{DRIVER}"].colour == "red"'))
        yield live


def claims(users: Users) -> list[Json]:
    return users.api.items(f"/apis/resource.k8s.io/v1/namespaces/{users.namespace}/resourceclaims")


def results(claims: list[Json]) -> list[tuple[str, str]]:
    """Pool and device of each that is allocated."""
    return sorted(
        (each["pool"], each["device"])
        for one in claims
        for each in one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    )


async def test_a_job_of_claims_runs_on_the_devices_that_the_ledger_names(users: Users, live: KubernetesLive) -> None:
    users.create(claiming_job("train", 3, seconds=LONG))

    def running() -> bool:
        pods = users.pods("train")
        return len(pods) == 3 and all(pod["status"].get("phase") == "Running" for pod in pods)

    await users.until(running, "three pods run")
    had = results(claims(users))
    assert len(set(had)) == len(had) == 3
    where = {pod["spec"]["nodeName"] for pod in users.pods("train")}
    assert {pool for pool, _ in had} == where
    assert all(one["status"]["reservedFor"] for one in claims(users))
    drawn = sorted((d.pool, d.device) for run in live.state.runs.values() for p in run.placements for d in p.drawn)
    assert drawn == had
    users.finish("train")
    await users.until(lambda: users.job("train").get("status", {}).get("succeeded") == 3, "the Job succeeds")
    users.delete("job", "train")
    await users.until(lambda: claims(users) == [], "no claim is left")


async def test_an_expression_chooses_devices_and_its_error_is_told(users: Users) -> None:
    users.create(claiming_job("big", 2, of="big", seconds=LONG))
    await users.until(lambda: results(claims(users)) == [(node, "gpu-0") for node in NODES], "both big GPUs are had")
    users.create(claiming_job("wrong", 1, of="wrong"))
    await users.until(lambda: users.pods("wrong"), "its pod is made")
    name = users.pods("wrong")[0]["metadata"]["name"]
    await users.until(lambda: "colour" in str(scheduled(users.pod(name) or {})), "its owner is told what is wrong")
    users.delete("job", "wrong")
    users.delete("job", "big")
    await users.until(lambda: claims(users) == [], "no claim is left")


async def test_a_native_job_of_claims_leaves_none(users: Users, live: KubernetesLive) -> None:
    spec = job("native", gpus=0, replicas=2, seconds=LONG)
    worker = spec.roles[0].model_copy(
        update={"resources": spec.roles[0].resources.model_copy(update={"claims": (claim(count=2),)})}
    )
    sent = await live.submit(spec.model_copy(update={"roles": (worker,)}))
    await users.until(lambda: len(results(claims(users))) == 4, "four devices are had")
    users.finish(sent.job_id)
    await eventually(lambda: claims(users) == [], "no claim is left")
    await assert_all_is_well(live)


async def test_four_gpus_and_four_nics_of_two_drivers_are_four_pairs(users: Users, live: KubernetesLive) -> None:
    spec = job("pairs", gpus=0, seconds=LONG)
    pairs = claims_of((f"{DRIVER}+{NIC_DRIVER}:4",), PCIE_ROOT)
    wanted = {"claims": tuple(map(DeviceClaim.model_validate, pairs))}
    worker = spec.roles[0].model_copy(update={"resources": spec.roles[0].resources.model_copy(update=wanted)})
    sent = await live.submit(spec.model_copy(update={"roles": (worker,)}))
    await users.until(lambda: len(results(claims(users))) == 8, "eight devices are had")
    (one,) = claims(users)
    had = {each["request"]: each["device"] for each in one["status"]["allocation"]["devices"]["results"]}
    joined = {(had[f"devices-0-{at}-0"], had[f"devices-0-{at}-1"]) for at in range(4)}
    assert joined == {(f"gpu-{at}", f"nic-{3 - at}") for at in range(4)}
    users.finish(sent.job_id)
    await eventually(lambda: claims(users) == [], "no claim is left")
    await assert_all_is_well(live)


async def test_pods_of_a_job_that_name_one_claim_share_its_devices_on_one_node(
    users: Users, live: KubernetesLive
) -> None:
    spec = template(TEMPLATE, count=2)["spec"]["spec"]
    users.create(template(TEMPLATE) | {"kind": "ResourceClaim", "metadata": {"name": "fabric"}, "spec": spec})
    made = claiming_job("sharing", 3, seconds=LONG)
    made["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "fabric"}]
    users.create(made)

    def running() -> bool:
        pods = users.pods("sharing")
        return len(pods) == 3 and all(pod["status"].get("phase") == "Running" for pod in pods)

    await users.until(running, "three pods run")
    (node,), (one,) = {pod["spec"]["nodeName"] for pod in users.pods("sharing")}, claims(users)
    assert [pool for pool, _ in results([one])] == [node, node]
    assert {user["uid"] for user in one["status"]["reservedFor"]} == {
        pod["metadata"]["uid"] for pod in users.pods("sharing")
    }
    users.finish("sharing")
    await users.until(lambda: users.job("sharing").get("status", {}).get("succeeded") == 3, "the Job succeeds")
    # Kubernetes' controller gives the devices back once the last pod has ended; the claim is the user's.
    await users.until(lambda: results(claims(users)) == [], "the claim has no devices")
    users.delete("job", "sharing")
    users.delete("resourceclaim", "fabric")
    await users.until(lambda: claims(users) == [], "no claim is left")
    await assert_all_is_well(live)


async def test_a_native_gang_that_shares_a_claim_leaves_none(users: Users, live: KubernetesLive) -> None:
    spec = job("gang", gpus=0, replicas=3, seconds=LONG)
    shared = claim(count=2).model_copy(update={"shared": True})
    worker = spec.roles[0].model_copy(
        update={"resources": spec.roles[0].resources.model_copy(update={"claims": (shared,)})}
    )
    sent = await live.submit(spec.model_copy(update={"roles": (worker,)}))
    await users.until(lambda: len(results(claims(users))) == 2, "two devices are had")
    (one,) = claims(users)
    await users.until(lambda: len(claims(users)[0]["status"]["reservedFor"]) == 3, "three pods use the claim")
    assert one["metadata"]["name"].endswith("-shared-gpu")
    users.finish(sent.job_id)
    await eventually(lambda: claims(users) == [], "no claim is left")
    await assert_all_is_well(live)

"""Devices of no single node (network-attached) on a real API server: who reaches and who has them, what is written."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.lasting import LONG
from tests.e2e.live import configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users, scheduled
from tests.kubernetes.users_objects import Json, batch_job
from tests.published_devices import DRIVER, NIC_DRIVER, claim

pytestmark = pytest.mark.asyncio(loop_scope="module")

RACK = "example.com/rack"
IN_RACK = {"matchExpressions": [{"key": RACK, "operator": "In", "values": ["1"]}]}
NODES = ("net-0", "net-1", "net-2")
FAR = NODES[2]
LINK, PAIR, ANYWHERE = "one-link", "gpu-and-link", "anywhere"


def slice_of(name: str, driver: str, devices: list[Json], **where: object) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-{driver}"},
        "spec": {
            "driver": driver,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
            **where,
        },
    }


def device_class(driver: str) -> Json:
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": driver}, "spec": spec}


def template(name: str, *classes: str) -> Json:
    requests = [{"name": f"r{at}", "exactly": {"deviceClassName": of}} for at, of in enumerate(classes)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def claiming_job(name: str, count: int, of: str, seconds: float = 8) -> Json:
    made = batch_job(name, count, gpus=0, seconds=seconds)
    spec = made["spec"]["template"]["spec"]
    spec["resourceClaims"] = [{"name": "devices", "resourceClaimTemplateName": of}]
    spec["containers"][0]["resources"]["claims"] = [{"name": "devices"}]
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(3, "net", gpus=0, cpu="16")
    api = own_plane.api()
    for node in NODES:
        own_plane.api().patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {RACK: "2" if node == FAR else "1"}}})
        api.create(slice_of(node, DRIVER, [{"name": "gpu-0"}], nodeName=node))
    links: list[Json] = [{"name": "link-0"}, {"name": "link-1"}]
    api.create(slice_of("fabric", NIC_DRIVER, links, nodeSelector={"nodeSelectorTerms": [IN_RACK]}))
    boxes = [{"name": "box-0", "allNodes": True}, {"name": "box-1", "nodeName": FAR}]
    api.create(slice_of("boxes", "box.example.com", boxes, perDeviceNodeSelection=True))
    for driver in (DRIVER, NIC_DRIVER, "box.example.com"):
        api.create(device_class(driver))
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:
        users = Users(live)
        users.create(template(LINK, NIC_DRIVER))
        users.create(template(PAIR, DRIVER, NIC_DRIVER))
        users.create(template(ANYWHERE, "box.example.com"))
        yield live


def claims(users: Users) -> list[Json]:
    return users.api.items(f"/apis/resource.k8s.io/v1/namespaces/{users.namespace}/resourceclaims")


def allocations(users: Users) -> list[Json]:
    found = (one.get("status", {}).get("allocation") for one in claims(users))
    return [each for each in found if each]


def devices(users: Users) -> list[str]:
    return sorted(each["device"] for one in allocations(users) for each in one["devices"]["results"])


def names(live: KubernetesLive, node: str) -> list[str]:
    found = live.state.nodes.get(node)
    return [] if found is None or found.offer is None else sorted(each.name for each in found.offer.devices)


async def until_gone(users: Users, *jobs: str) -> None:
    for name in jobs:
        users.delete("job", name)
    await users.until(lambda: claims(users) == [], "no claim is left")


async def test_nodes_offer_what_reaches_them(live: KubernetesLive) -> None:
    near = ["box-0", "gpu-0", "link-0", "link-1"]
    await eventually(lambda: all(names(live, node) == near for node in NODES[:2]), "the rack reaches its links")
    await eventually(lambda: names(live, FAR) == ["box-0", "box-1", "gpu-0"], "the other node does not")


async def test_a_gang_over_two_nodes_has_two_links_and_the_next_job_waits(users: Users, live: KubernetesLive) -> None:
    users.create(claiming_job("pair", 2, PAIR, seconds=600))
    await users.until(lambda: devices(users) == ["gpu-0", "gpu-0", "link-0", "link-1"], "each pod has a pair")
    assert {pod["spec"].get("nodeName") for pod in users.pods("pair")} <= {*NODES[:2], None}
    # A GPU is of its node, and so is the whole claim.
    fields = sorted(
        one["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"][0] for one in allocations(users)
    )
    assert fields == [*NODES[:2]]
    users.create(claiming_job("late", 1, LINK, seconds=600))
    told = f"2 devices of class {NIC_DRIVER}, 2 taken"
    await users.until(
        lambda: any(told in str(scheduled(pod)) for pod in users.pods("late")), "its owner is told that both are taken"
    )
    users.delete("job", "pair")
    await users.until(lambda: len(devices(users)) == 1, "the next job has a link once the gang has gone")
    assert allocations(users)[0]["nodeSelector"] == {"nodeSelectorTerms": [IN_RACK]}
    await until_gone(users, "late")


async def test_a_claim_on_what_every_node_reaches_is_good_everywhere(users: Users, live: KubernetesLive) -> None:
    users.create(claiming_job("boxes", 2, ANYWHERE, seconds=600))
    await users.until(lambda: devices(users) == ["box-0", "box-1"], "both boxes are had")
    selectors = {each["devices"]["results"][0]["device"]: each.get("nodeSelector") for each in allocations(users)}
    assert selectors["box-0"] is None
    (term,) = selectors["box-1"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [FAR]}]}
    await until_gone(users, "boxes")


async def test_a_claim_of_somebody_else_counts_on_every_node(users: Users, live: KubernetesLive) -> None:
    spec = {"devices": {"requests": [{"name": "r0", "exactly": {"deviceClassName": NIC_DRIVER}}]}}
    path = f"/apis/resource.k8s.io/v1/namespaces/{users.namespace}/resourceclaims"
    users.create(
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "theirs"}, "spec": spec}
    )
    result = {"request": "r0", "driver": NIC_DRIVER, "pool": "fabric", "device": "link-0"}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [IN_RACK]}}
    live.plane.api().patch(f"{path}/theirs/status", {"status": {"allocation": allocation}})
    taken = ((f"{NIC_DRIVER}/fabric/link-0", ()),)
    await eventually(
        lambda: all(live.state.nodes.get(node).drawn_by_others == taken for node in NODES[:2]),  # type: ignore[union-attr]
        "both nodes know",
    )
    users.create(claiming_job("one", 1, LINK, seconds=600))
    await users.until(lambda: devices(users) == ["link-0", "link-1"], "ours has the other link")
    live.plane.api().patch(f"{path}/theirs/status", {"status": {"allocation": None}})
    live.plane.api().delete(f"{path}/theirs")
    await until_gone(users, "one")


async def test_labels_of_nodes_decide_who_reaches_the_links(users: Users, live: KubernetesLive) -> None:
    api = live.plane.api()
    api.patch(f"/api/v1/nodes/{FAR}", {"metadata": {"labels": {RACK: "1"}}})
    await eventually(lambda: "link-0" in names(live, FAR), "the node came into the rack")
    for node in NODES[:2]:
        api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {RACK: "2"}}})
    await eventually(lambda: all("link-0" not in names(live, node) for node in NODES[:2]), "the others left it")
    users.create(claiming_job("moved", 2, LINK, seconds=600))
    await users.until(lambda: devices(users) == ["link-0", "link-1"], "both links are had")
    assert {pod["spec"].get("nodeName") for pod in users.pods("moved")} <= {FAR, None}
    await until_gone(users, "moved")


async def test_a_native_job_has_links_and_leaves_none(users: Users, live: KubernetesLive) -> None:
    spec = job("native", gpus=0, replicas=2, seconds=LONG)
    asked = spec.roles[0].resources.model_copy(update={"claims": (claim("link", 1, NIC_DRIVER),)})
    worker = spec.roles[0].model_copy(update={"resources": asked})
    sent = await live.submit(spec.model_copy(update={"roles": (worker,)}))
    await users.until(lambda: devices(users) == ["link-0", "link-1"], "each of its pods has a link")
    users.finish(sent.job_id)
    await eventually(lambda: claims(users) == [], "no claim is left")
    await assert_all_is_well(live)

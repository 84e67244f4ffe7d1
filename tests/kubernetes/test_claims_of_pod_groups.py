"""
Claims of Kubernetes' own PodGroups (`spec.resourceClaims`, alpha) on a real API server: its controller makes the claim
with the group, and all pods of the group that name it share its devices.
"""

from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.lasting import LONG
from tests.e2e.live import configuration, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.commands import WORKLOADS_WITH_CLAIMS
from tests.kubernetes.conftest import running
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users, condition
from tests.kubernetes.users_objects import Json, pod
from tests.published_devices import DRIVER

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODES = ("dra-0", "dra-1")
TEMPLATE = "one-gpu"
SHARED = {"name": "gpu", "resourceClaimTemplateName": TEMPLATE}
DEVICES, SCHEDULING = "resource.k8s.io/v1", "scheduling.k8s.io/v1alpha2"
GROUPS = f"/apis/{SCHEDULING}/namespaces/lab/podgroups"


def an_object(kind: str, name: str, spec: Json, api: str = DEVICES) -> Json:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}


def published(node: str) -> Json:
    """A slice of a node with one GPU."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "gpu-0", "attributes": {"uuid": {"string": node}}}]
    return an_object("ResourceSlice", node, {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices})


def pod_group(name: str, count: int) -> Json:
    """A gang with a claim on a GPU."""
    spec = {"schedulingPolicy": {"gang": {"minCount": count}}, "resourceClaims": [SHARED]}
    return an_object("PodGroup", name, spec, SCHEDULING)


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Two nodes, of which each publishes one GPU."""
    with running(tmp_path_factory.mktemp("kubernetes"), WORKLOADS_WITH_CLAIMS) as plane:
        plane.add_nodes(len(NODES), "dra", gpus=0, cpu="16")
        selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
        plane.api().create(an_object("DeviceClass", DRIVER, {"selectors": selectors}))
        for node in NODES:
            plane.api().create(published(node))
        yield plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(gated: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    async with live_on(gated, tmp_path_factory.mktemp("platform"), configuration()) as live:
        requests = [{"name": "devices", "exactly": {"deviceClassName": DRIVER}}]
        spec = {"spec": {"devices": {"requests": requests}}}
        Users(live).create(an_object("ResourceClaimTemplate", TEMPLATE, spec))
        yield live


def make(users: Users, group: str, *numbers: int, **more: Any) -> None:
    """Members of a group that use its claim."""
    for number in numbers:
        its = {"schedulingGroup": {"podGroupName": group}, "resourceClaims": [SHARED]}
        made = pod(f"{group}-{number}", gpus=0, **its, **more)
        made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        users.create(made)


def nodes(users: Users, group: str, *numbers: int) -> list[str]:
    found = (users.pod(f"{group}-{number}") or {} for number in numbers)
    return [pod["spec"]["nodeName"] for pod in found if pod.get("spec", {}).get("nodeName")]


def claims(users: Users) -> list[Json]:
    return users.api.items(f"/apis/{DEVICES}/namespaces/{users.namespace}/resourceclaims")


def results(claims: list[Json]) -> list[tuple[str, str]]:
    """Pool and device of each that is allocated."""
    had = [one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []) for one in claims]
    return sorted((each["pool"], each["device"]) for each in chain.from_iterable(had))


def its_claim(users: Users, group: str) -> Json:
    (name,) = (
        one["resourceClaimName"] for one in users.api.get(f"{GROUPS}/{group}")["status"]["resourceClaimStatuses"]
    )
    return next(one for one in claims(users) if one["metadata"]["name"] == name)


async def test_two_gangs_have_a_claim_each_which_their_pods_share(users: Users, live: KubernetesLive) -> None:
    for group in ("one", "two"):
        users.create(pod_group(group, 2))
        make(users, group, 0, 1, seconds=LONG)
    await users.until(lambda: all(len(nodes(users, group, 0, 1)) == 2 for group in ("one", "two")), "both gangs run")
    where = [set(nodes(users, group, 0, 1)) for group in ("one", "two")]
    assert sorted(map(len, where)) == [1, 1]
    assert where[0] != where[1]
    had = [results([its_claim(users, group)]) for group in ("one", "two")]
    assert had == [[(node, "gpu-0")] for (node,) in where]
    drawn = {(d.pool, d.device) for run in live.state.runs.values() for p in run.placements for d in p.drawn}
    assert drawn == {had[0][0], had[1][0]}
    users_of = {user["name"] for user in its_claim(users, "one")["status"]["reservedFor"]}
    assert users_of == {"one-0", "one-1"}
    users.finish("one", "two")
    await users.until_succeeded("one-0", "one-1", "two-0", "two-1")
    users.delete_pods("two-0", "two-1")
    users.api.delete(f"{GROUPS}/two")


async def test_what_kubernetes_keeps_for_a_group_is_given_back_with_the_groups_last_pod(users: Users) -> None:
    users.create(pod_group("kept", 2))
    make(users, "kept", 0, seconds=2)
    make(users, "kept", 1, seconds=LONG)
    await users.until_succeeded("kept-0")

    def is_kept() -> bool:
        kinds = [user["resource"] for user in its_claim(users, "kept")["status"].get("reservedFor", ())]
        return sorted(kinds) == ["podgroups", "pods"]

    await users.until(is_kept, "Kubernetes' controller reserves the claim for the group")
    assert len(results([its_claim(users, "kept")])) == 1
    users.delete_pods("kept-1")
    await users.until(lambda: results([its_claim(users, "kept")]) == [], "the claim of the group has no device")
    users.delete_pods("kept-0")
    users.api.delete(f"{GROUPS}/kept")


async def test_a_group_whose_pods_have_ended_keeps_its_claim_and_no_device(users: Users, live: KubernetesLive) -> None:
    await users.until(lambda: results(claims(users)) == [], "no claim has devices, though a group is there")
    users.create(pod_group("third", 2))
    make(users, "third", 0, 1, seconds=LONG)
    users.create(pod_group("fourth", 1))
    make(users, "fourth", 0, seconds=LONG)
    await users.until(lambda: len(nodes(users, "third", 0, 1) + nodes(users, "fourth", 0)) == 3, "both nodes are had")
    # Further pods of the first group share its claim anew, once there is a device.
    make(users, "one", 2, 3, seconds=4)
    await users.until(
        lambda: "NoFit" in str(condition(users.api.get(f"{GROUPS}/one"), "PodGroupScheduled", "False")), "it waits"
    )
    users.delete_pods("fourth-0")
    await users.until_succeeded("one-2", "one-3")
    users.finish("third")
    await users.until_succeeded("third-0", "third-1")
    users.delete_pods("third-0", "third-1", "one-0", "one-1", "one-2", "one-3")
    for group in ("one", "third", "fourth"):
        users.api.delete(f"{GROUPS}/{group}")
    await users.until(lambda: claims(users) == [], "each claim went with its group")
    another = await live.submit(job("another", gpus=0))
    await live.until_ended(another.job_id)
    await assert_all_is_well(live)

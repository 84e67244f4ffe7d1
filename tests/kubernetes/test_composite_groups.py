"""
Groups of groups on the newest API server (1.37, whose CompositePodGroups are alpha): its types take what ours reads,
and a tree of gangs is bound whole, each replica in a rack of its own.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.lasting import LONG
from tests.e2e.live import configuration, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.conftest import running
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.nodes import kwok_node
from tests.kubernetes.users import Users, condition
from tests.kubernetes.users_objects import pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
API, RACK = "scheduling.k8s.io/v1alpha3", "example.com/rack"
GROUPS = f"/apis/{API}/namespaces/lab/compositepodgroups"
GATES = ("GenericWorkload", "TopologyAwareWorkloadScheduling", "CompositePodGroup")


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Two racks of two nodes with four GPUs each."""
    features = ",".join(f"{gate}=true" for gate in GATES)
    served = f"runtime-config={API}=true,scheduling.k8s.io/v1beta1=true"
    with running(
        tmp_path_factory.mktemp("kubernetes"),
        api_server="kube-apiserver-1.37",
        api_flags=(f"feature-gates={features}", served),
    ) as plane:
        for number in range(4):
            plane.api().create(kwok_node(f"gpu-{number}", gpus=4, cpu="16", labels={RACK: f"r{number // 2}"}))
        plane.wait_for_nodes([f"gpu-{number}" for number in range(4)])
        yield plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(newest: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    async with live_on(newest, tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


def composite(name: str, count: int, within: str = "", domain: str = "") -> Json:
    return group(API, "CompositePodGroup", name, {"minGroupCount": count}, within, domain)


def pod_group(name: str, count: int, within: str, domain: str = "") -> Json:
    return group("scheduling.k8s.io/v1beta1", "PodGroup", name, {"minCount": count}, within, domain)


def group(api: str, kind: str, name: str, gang: Json, within: str, domain: str) -> Json:
    """One that came of a template of its own name, without the number that a copy of it has."""
    template = name.rstrip("0123456789-")
    spec: Json = {
        "workloadRef": {"workloadName": "serve", "templateName": template},
        "schedulingPolicy": {"gang": gang},
    }
    spec |= {"parentCompositePodGroupName": within} if within else {}
    spec |= {"schedulingConstraints": {"topology": [{"key": domain}]}} if domain else {}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}


def member(of: str, number: int, **more: Any) -> Json:
    return pod(f"{of}-{number}", schedulingGroup={"podGroupName": of}, gpus=4, **more)


def nodes_of(users: Users, *pods: str) -> list[str]:
    """The nodes of those that have one."""
    found = (users.pod(name) for name in pods)
    return [one["spec"]["nodeName"] for one in found if one is not None and one["spec"].get("nodeName")]


async def test_a_tree_waits_for_the_last_of_its_groups_then_each_replica_is_in_one_rack(users: Users) -> None:
    users.create(composite("serve", 2))
    users.create(composite("replica-0", 1, "serve", RACK))
    users.create(pod_group("workers-0", 2, "replica-0"))
    for number in range(2):
        users.create(member("workers-0", number, seconds=LONG))
    first, second = (tuple(f"workers-{copy}-{number}" for number in range(2)) for copy in range(2))
    said = await users.until_told(first[0], "GangIncomplete")
    assert "1 of 2 groups are there" in said["message"]
    assert nodes_of(users, *first) == []
    users.create(composite("replica-1", 1, "serve", RACK))
    users.create(pod_group("workers-1", 2, "replica-1"))
    for number in range(2):
        users.create(member("workers-1", number, seconds=LONG))
    await users.until(lambda: len(nodes_of(users, *first, *second)) == 4, "the whole tree has its nodes")
    rack = {"gpu-0": 0, "gpu-1": 0, "gpu-2": 1, "gpu-3": 1}
    assert sorted(len({rack[node] for node in nodes_of(users, *replica)}) for replica in (first, second)) == [1, 1]

    def is_told() -> bool:
        top = users.api.get(f"{GROUPS}/serve")
        return bool(condition(top, "CompositePodGroupInitiallyScheduled"))

    await users.until(is_told, "the topmost group says that it was scheduled")
    users.finish("workers")
    await users.until_succeeded(*first, *second)
    users.delete_pods(*first, *second)


async def test_a_tree_that_does_not_fit_is_bound_in_no_part_and_says_why(users: Users) -> None:
    users.create(pod("there", gpus=4, seconds=LONG))
    await users.until_phase("there", "Running")
    users.create(composite("wide", 2))
    pods = [(f"of-{copy}", number) for copy in range(2) for number in range(2)]
    for copy in range(2):
        users.create(pod_group(f"of-{copy}", 2, "wide", RACK))
    for of, number in pods:
        users.create(member(of, number))
    names = [f"{of}-{number}" for of, number in pods]

    def reason() -> str:
        return str(
            condition(users.api.get(f"{GROUPS}/wide"), "CompositePodGroupInitiallyScheduled", "False").get("reason")
        )

    await users.until(lambda: reason() == "Unschedulable", "the topmost group says that it waits")
    assert nodes_of(users, *names) == []
    users.finish("there")
    await users.until_succeeded("there", *names)
    users.delete_pods("there", *names)


async def test_after_all_of_it_everything_is_well(live: KubernetesLive) -> None:
    one = await live.submit(job("another"))
    await live.until_ended(one.job_id)
    await assert_all_is_well(live)

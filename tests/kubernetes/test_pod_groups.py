"""
Kubernetes' own groups on a real API server with their features on: those that the Job controller makes for its Jobs,
and those that users write. Each gang is bound whole or not at all, and the group's status says which.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.lasting import LONG
from tests.e2e.live import configuration, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.commands import WORKLOADS_OF_JOBS
from tests.kubernetes.conftest import running
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.nodes import kwok_node
from tests.kubernetes.users import Users, condition
from tests.kubernetes.users_objects import batch_job, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
API, RACK = "scheduling.k8s.io/v1alpha2", "example.com/rack"
GROUPS = f"/apis/{API}/namespaces/lab/podgroups"


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Two racks of two nodes with four GPUs each."""
    with running(tmp_path_factory.mktemp("kubernetes"), WORKLOADS_OF_JOBS) as plane:
        for number in range(4):
            plane.api().create(kwok_node(f"gpu-{number}", gpus=4, cpu="16", labels={RACK: f"r{number // 2}"}))
        plane.wait_for_nodes([f"gpu-{number}" for number in range(4)])
        yield plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(gated: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    async with live_on(gated, tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


def pod_group(name: str, count: int, **spec: Any) -> Json:
    policy = {"schedulingPolicy": {"gang": {"minCount": count}}}
    return {"apiVersion": API, "kind": "PodGroup", "metadata": {"name": name}, "spec": policy | spec}


def member(group: str, number: int, **more: Any) -> Json:
    return pod(f"{group}-{number}", schedulingGroup={"podGroupName": group}, **more)


def is_scheduled(users: Users, group: str) -> Json:
    return condition(users.api.get(f"{GROUPS}/{group}"), "PodGroupScheduled", "True", "False")


def bound(users: Users, group: str, pods: int) -> list[str]:
    found = (users.pod(f"{group}-{number}") for number in range(pods))
    return [one["spec"]["nodeName"] for one in found if one is not None and one["spec"].get("nodeName")]


async def test_a_gang_of_the_job_controllers_own_making_runs_to_its_end(users: Users) -> None:
    users.create(batch_job("made", 4, completionMode="Indexed"))
    await users.until(lambda: users.pods("made"), "the Job has pods")
    group = users.pods("made")[0]["spec"]["schedulingGroup"]["podGroupName"]
    await users.until(lambda: is_scheduled(users, group).get("status") == "True", "its group is scheduled")
    await users.until_complete("made")
    users.delete("job", "made")


async def test_two_gangs_that_do_not_both_fit_are_never_bound_in_part_and_say_why(users: Users) -> None:
    for name in ("one", "two"):
        users.create(pod_group(name, 3))
    for number in range(3):
        for name in ("one", "two"):
            users.create(member(name, number, gpus=4, seconds=LONG))
    await users.until(lambda: any(len(bound(users, name, 3)) == 3 for name in ("one", "two")), "one runs")
    first, second = ("one", "two") if bound(users, "one", 3) else ("two", "one")
    assert bound(users, second, 3) == []
    await users.until(lambda: is_scheduled(users, second).get("status") == "False", "the other says that it waits")
    said = is_scheduled(users, second)
    assert (said["reason"], "NoFit" in said["message"]) == ("Unschedulable", True)
    users.finish("one", "two")
    await users.until_succeeded(*(f"{first}-{number}" for number in range(3)))
    await users.until_succeeded(*(f"{second}-{number}" for number in range(3)))
    assert is_scheduled(users, second)["status"] == "True"
    users.delete_pods(*(f"{name}-{number}" for number in range(3) for name in ("one", "two")))


async def test_a_group_with_a_topology_is_in_one_domain_of_it(users: Users) -> None:
    users.create(pod("there", gpus=4, seconds=LONG))
    await users.until_phase("there", "Running")
    users.create(pod_group("near", 2, schedulingConstraints={"topology": [{"key": RACK}]}))
    for number in range(2):
        users.create(member("near", number, gpus=4))
    await users.until(lambda: len(bound(users, "near", 2)) == 2, "both are placed")
    rack = {"gpu-0": 0, "gpu-1": 0, "gpu-2": 1, "gpu-3": 1}
    assert len({rack[node] for node in bound(users, "near", 2)}) == 1
    users.finish("there")
    await users.until_succeeded("near-0", "near-1", "there")
    users.delete_pods("near-0", "near-1", "there")


async def test_the_priority_of_the_group_goes_before_that_of_its_pods(users: Users, live: KubernetesLive) -> None:
    users.create(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "soon"}, "value": 500}
    )
    users.create(pod_group("prior", 1, priorityClassName="soon", disruptionMode="PodGroup"))
    users.create(member("prior", 0, seconds=3))
    said = dict[str, tuple[int, str]]()  # kept from when it is in line on: its pod may have ended soon after it began

    def is_seen() -> bool:
        named = (each for each in live.state.jobs.values() if each.name == "prior" and each.adopted is not None)
        said.update({each.name: (each.adopted.priority, each.adopted.priority_class) for each in named})  # type: ignore[union-attr]
        return bool(said)

    await users.until(is_seen, "the ledger has the group's job")
    assert said == {"prior": (500, "soon")}
    await users.until_succeeded("prior-0")
    users.delete_pods("prior-0")


async def test_after_all_of_it_everything_is_well(live: KubernetesLive) -> None:
    one = await live.submit(job("another"))
    await live.until_ended(one.job_id)
    await assert_all_is_well(live)

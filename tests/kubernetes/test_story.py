"""
The one-accelerator story on a real API server, with the manifests that users have, and one line in them: test1, test2
and test3 want the same node; while test2 runs, the urgent test-p1 comes, and test2 makes room for it and comes back.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera_schemas.config import Policy
from tests.e2e.live import configuration, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users, scheduled

pytestmark = pytest.mark.asyncio(loop_scope="module")

JOBS = ("test1", "test2", "test3", "test-p1")
WHY_WAITING = ("NoFit", "WaitingForTurn", "WaitingForPreemptedWorkloads")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(1, "precious", gpus=0, cpu="2", labels={"node-type": "my-precious"})
    own_plane.add_nodes(1, "common", gpus=8)
    body = configuration(policy=Policy(preset="priority", min_runtime_seconds=0))
    soon = {"binder": {"TESSERA_TELL_SECONDS": "0.1"}}  # nothing waits for long here
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), body, settings=soon) as live:
        yield live


async def test_the_urgent_job_takes_the_node_and_the_one_that_made_room_comes_back(live: KubernetesLive) -> None:
    users = Users(live)
    users.apply("priorities", "test1")
    await users.until_running("test1")
    users.apply("test2")
    second = await waiting(users, "test2")
    users.apply("test3")
    third = await waiting(users, "test3")
    for pod in (second, third):
        told = await users.until_told(pod, *WHY_WAITING)
        assert told["reason"] in told["message"]
        described = users.describe(users.pod(pod) or {})
        assert told["reason"] in described.partition("Events:")[2], "the event is there, too"
    first_try = await users.until_running("test2")
    assert first_try["metadata"]["name"] == second

    users.apply("test-p1")
    urgent = await users.until_running("test-p1")
    assert users.in_phase("test2", "Running") == []
    assert users.job("test2")["spec"]["suspend"] is True, "it waits without a pod, and without a failure to wait out"
    preempted = [event["message"] for event in users.events(second) if event["reason"] == "Preempted"]
    assert "gives way to job test-p1" in preempted[0]
    await users.until_complete("test-p1", "test2", "test3", "test1")

    assert order_of_placing(live, *JOBS) == ["test1", "test2", "test-p1", "test2", "test3"]
    assert users.job("test2")["status"]["succeeded"] == 1
    assert "failed" not in users.job("test2")["status"]
    assert scheduled(urgent)["status"] == "True"
    for name in JOBS:
        users.delete("job", name)
    native = await live.submit(job("native"))
    await live.until_ended(native.job_id)
    await assert_all_is_well(live)


GANG = {"app": "gang"}


def gang_of(name: str, pods: int, gpus: int, **spec: Any) -> dict[str, Any]:
    """A Job whose pods run for ten minutes, or as long as their annotation says."""
    amounts = {"cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "train:1", "resources": {"requests": amounts, "limits": amounts}}
    template = {
        "metadata": {"labels": GANG, "annotations": {"tessera.io/simulate-seconds": "600"}},
        "spec": {"schedulerName": "tessera", "restartPolicy": "Never", "containers": [container], **spec},
    }
    body = {"parallelism": pods, "completions": pods, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": body}


async def test_a_gang_that_a_budget_would_let_go_only_in_part_is_left_alone_and_says_so(live: KubernetesLive) -> None:
    users = Users(live)
    budget = {"minAvailable": 2, "selector": {"matchLabels": GANG}}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep"}}
    users.create(kind | {"spec": budget})
    users.create(gang_of("gang", pods=3, gpus=2))
    await users.until(lambda: len(users.in_phase("gang", "Running")) == 3, "the gang runs")
    before = {pod["metadata"]["uid"] for pod in users.pods("gang")}
    urgent = users.create(gang_of("urgent", pods=1, gpus=8, priorityClassName="high"))
    assert urgent["metadata"]["name"] == "urgent"
    await users.until(lambda: spared(live), "the plan is undone")
    assert {pod["metadata"]["uid"] for pod in users.pods("gang")} == before
    told = [event for pod in users.pods("gang") for event in users.events(pod["metadata"]["name"])]
    assert "BlockedByDisruptionBudget" in {event["reason"] for event in told}
    assert not live.state.earmarks
    users.delete("job", "urgent")
    users.delete("job", "gang")
    await live.until_idle()
    await assert_all_is_well(live)


def spared(live: KubernetesLive) -> bool:
    """A run was to stop and goes on."""
    return any(run.kept_ts and run.revoked is None for run in live.state.runs.values())


async def waiting(users: Users, name: str) -> str:
    """The name of the Job's pod that is not placed, once there is one."""
    found: list[str] = []

    def one_waits() -> bool:
        found[:] = [pod["metadata"]["name"] for pod in users.in_phase(name, "Pending") if "nodeName" not in pod["spec"]]
        return bool(found)

    await users.until(one_waits, f"a pod of {name} waits")
    return found[0]


def order_of_placing(live: KubernetesLive, *jobs: str) -> list[str]:
    """The Jobs of the pods in the order in which they were bound to a node."""
    found: dict[str, str] = {}
    for change in live.pods:
        meta, node = change.object["metadata"], change.object["spec"].get("nodeName")
        name = (meta.get("labels") or {}).get("job-name")
        if node and name in jobs:
            found.setdefault(meta["uid"], name)
    return list(found.values())

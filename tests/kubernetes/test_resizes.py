"""
Pods of native jobs are resized in place on a real API server, whose resize subresource judges each.

KWOK plays the pods, and says nothing of sizes; what a kubelet says of them is played here.
"""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from tessera_schemas.ledger import LEDGER_MESSAGE
from tests.e2e.live import GPUS, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on

pytestmark = pytest.mark.asyncio(loop_scope="module")
GIB = 2**30
PODS = "/api/v1/namespaces/lab/pods"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(GPUS // 8, "gpu")
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


def pods_of(live: KubernetesLive, job_id: str) -> list[dict[str, Any]]:
    """Pods of the job's first run, in order of rank."""
    found = [pod for pod in live.plane.api().items(PODS) if pod["metadata"]["name"].startswith(f"{job_id}-1-")]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def say_size(live: KubernetesLive, pod: dict[str, Any], *conditions: dict[str, str]) -> None:
    """As the kubelet of a pod does whose container has what its spec asks for; or that has a condition instead."""
    asked = pod["spec"]["containers"][0]["resources"]
    told = {} if conditions else {"resources": asked, "allocatedResources": asked["requests"]}
    statuses = [status | told for status in pod["status"]["containerStatuses"]]
    more = [one for one in pod["status"]["conditions"] if not one["type"].startswith("PodResize")]
    status = {"containerStatuses": statuses, "conditions": [*more, *conditions]}
    live.plane.api().patch(f"{PODS}/{pod['metadata']['name']}/status", {"status": status})


def asks_for(live: KubernetesLive, job_id: str, cpu: str) -> bool:
    asked = [pod["spec"]["containers"][0]["resources"] for pod in pods_of(live, job_id)]
    return all(each[part]["cpu"] == cpu for each in asked for part in ("requests", "limits"))


def ends(live: KubernetesLive, job_id: str) -> list[str]:
    """Codes of the ends of its resizes, "" for one that was taken."""
    records = [record for stored in live.stored for record in LEDGER_MESSAGE.validate_json(stored).records]
    ended = [r for r in records if r.kind == "resize_ended" and r.run_id == f"{job_id}-1"]
    return [r.reason.detail if r.reason is not None else "" for r in ended]


async def test_a_run_grows_and_shrinks_in_place_once_its_kubelets_say_so(live: KubernetesLive) -> None:
    made = (await live.submit(job("grows", replicas=2, seconds=600))).job_id
    await live.until_phase(made, "running")
    before = [pod["metadata"]["uid"] for pod in pods_of(live, made)]
    for pod in pods_of(live, made):
        say_size(live, pod)  # else the server refuses: a kubelet that says no size knows no resizes
    for cpu, memory, wanted in ((3000, 2 * GIB, "3"), (500, 3 * GIB, "500m")):
        done = len(ends(live, made))
        await live.clients["lab"].resize(made, cpu_milli=cpu, memory_bytes=memory)
        await eventually(partial(asks_for, live, made, wanted), f"all pods ask for {wanted}")
        await live.until(lambda state: state.runs.get(f"{made}-1").resize is not None, "the resize is under way")
        assert live.state.runs.get(f"{made}-1").roles[0].need.cpu_milli == 3000, "the larger of both sizes is held"
        for pod in pods_of(live, made):
            say_size(live, pod)
        await live.until(lambda _, done=done: len(ends(live, made)) > done, "the resize has ended")
    run = live.state.runs.get(f"{made}-1")
    assert (run.resize, run.roles[0].need.cpu_milli, run.roles[0].need.memory_bytes) == (None, 500, 3 * GIB)
    assert ends(live, made) == ["", ""]
    assert [pod["metadata"]["uid"] for pod in pods_of(live, made)] == before
    await live.clients["lab"].cancel(made)
    await live.until_ended(made)


async def test_what_a_kubelet_or_the_server_refuses_goes_back_with_its_words(live: KubernetesLive) -> None:
    made = (await live.submit(job("refused", seconds=600))).job_id
    await live.until_phase(made, "running")
    await live.clients["lab"].resize(made, cpu_milli=2000)
    await live.until(lambda _: len(ends(live, made)) == 2, "the server refuses, and the pod is as it was")
    assert "without support for resize" in ends(live, made)[0]
    (pod,) = pods_of(live, made)
    say_size(live, pod)
    await live.clients["lab"].resize(made, cpu_milli=2000)
    await eventually(partial(asks_for, live, made, "2"), "the pod asks for more")
    why = {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": "Node is too small"}
    say_size(live, pods_of(live, made)[0], why)
    await eventually(partial(asks_for, live, made, "1"), "the pod asks for what it had")
    say_size(live, pods_of(live, made)[0])
    await live.until(lambda _: len(ends(live, made)) == 4, "it has gone back")
    assert ends(live, made)[2:] == ["Node is too small", ""]
    assert live.state.jobs.get(made).resized == ()
    await live.clients["lab"].cancel(made)
    await live.until_ended(made)
    await assert_all_is_well(live)

"""
Nodes that go, fall silent, are cordoned or shrink, and objects that people take away or put in the way, on a real API
server with its own controllers. After each of them everything has ended as it should and the ledger explains it all.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.kernel.ports import ApiError
from tessera_schemas.base import job_id
from tessera_schemas.cluster.labels import CHECKPOINT_ANNOTATION, FINALIZER, OUT_OF_SERVICE_TAINT, RUN_LABEL, pod_name
from tessera_schemas.commands import DrainNode
from tessera_schemas.config import Policy
from tessera_schemas.job import JobSpec, Retry
from tessera_schemas.ledger import LEDGER_MESSAGE, Requeued
from tessera_schemas.shard.services import SEPARATE
from tests.e2e.live import configuration, eventually, job
from tests.e2e.node_faults import operate, saving
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes import deployed
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.nodes import kwok_node

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = 600.0
SOON = {"TESSERA_NODE_GONE_SECONDS": "2"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(4, "gpu")
    body = configuration(policy=Policy(node_lost_seconds=2, cordoned_seconds=4))
    settings = {"binder": SOON, "reclamation": SOON}
    async with live_on(
        own_plane, tmp_path_factory.mktemp("platform"), body, settings=settings, layout=SEPARATE
    ) as live:
        yield live


def nodes_of(live: KubernetesLive, job_id: str) -> list[str]:
    known = live.state.jobs.get(job_id)
    run = known and live.state.runs.get(known.run_id)
    return sorted({placement.node for placement in run.placements}) if run else []


async def running(live: KubernetesLive, spec: JobSpec, attempt: int = 1) -> str:
    """The id of the job, submitted now, once it runs."""
    done = await live.submit(spec)
    await until_attempt(live, done.job_id, attempt)
    return done.job_id


async def until_attempt(live: KubernetesLive, job_id: str, attempt: int) -> None:
    def runs(_: object) -> bool:
        known = live.state.jobs.get(job_id)
        return known is not None and known.attempt == attempt and known.phase == "running"

    await live.until(runs, f"attempt {attempt} of job {job_id} runs")


async def ends_well(live: KubernetesLive, *jobs: str) -> None:
    for each in jobs:
        await live.clients["lab"].cancel(each)
    await assert_all_is_well(live)


def pod_path(name: str) -> str:
    return f"/api/v1/namespaces/lab/pods/{name}"


def patch_node(live: KubernetesLive, name: str, change: dict[str, Any], part: str = "") -> None:
    live.plane.api().patch(f"/api/v1/nodes/{name}{part}", change)


async def until_ready(live: KubernetesLive, node: str) -> None:
    live.plane.wait_for_nodes([node])
    await live.until(lambda state: bool((n := state.nodes.get(node)) and n.ready), f"the ledger has {node} ready")


# -- nodes


async def test_a_gang_whose_node_is_deleted_restarts_elsewhere(live: KubernetesLive) -> None:
    gang = await running(live, job("gang", gpus=8, replicas=2, seconds=LONG))
    gone = nodes_of(live, gang)[0]
    live.plane.api().delete(f"/api/v1/nodes/{gone}")
    await until_attempt(live, gang, 2)
    assert gone not in nodes_of(live, gang)
    await ends_well(live, gang)
    live.plane.api().create(kwok_node(gone))
    await until_ready(live, gone)


async def test_a_silent_node_keeps_its_gpus_until_it_is_fenced_and_its_gang_restarts_elsewhere(
    live: KubernetesLive,
) -> None:
    gang = await running(live, job("gang", gpus=8, replicas=2, seconds=LONG))
    silent = nodes_of(live, gang)[0]
    patch_node(live, silent, {"metadata": {"labels": {"type": None}}})  # its kubelet is gone: nobody renews its lease
    await live.until_phase(gang, "evicting")
    assert live.state.nodes.get(silent).gpu_free == (0,) * 8  # type: ignore[union-attr]
    fence = {"key": OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoExecute"}
    taints = live.plane.api().get(f"/api/v1/nodes/{silent}")["spec"].get("taints", [])
    patch_node(live, silent, {"spec": {"taints": [*taints, fence]}})
    await until_attempt(live, gang, 2)
    assert silent not in nodes_of(live, gang)
    await ends_well(live, gang)
    kept = [taint for taint in live.plane.api().get(f"/api/v1/nodes/{silent}")["spec"]["taints"] if taint != fence]
    patch_node(live, silent, {"metadata": {"labels": {"type": "kwok"}}, "spec": {"taints": kept}})
    await until_ready(live, silent)


async def test_a_cordon_stops_nothing_that_runs_and_moves_what_saves_its_work(live: KubernetesLive) -> None:
    moves = await running(live, job("moves", gpus=2, seconds=LONG))
    stays = await running(live, job("stays", gpus=2, seconds=LONG))  # it has nothing saved
    fixed = await running(live, job("fixed", gpus=2, seconds=LONG, preemptible=False))
    (cordoned,) = nodes_of(live, moves)
    assert nodes_of(live, stays) == nodes_of(live, fixed) == [cordoned]
    patch_node(live, cordoned, {"spec": {"unschedulable": True}})
    # Only what is saved while the cordon lasts makes a move cost less than the cordon did.
    await live.until(lambda state: state.nodes.get(cordoned).cordoned, "the ledger knows of the cordon")
    saved = {"metadata": {"annotations": {CHECKPOINT_ANNOTATION: "/checkpoints/100"}}}
    live.plane.api().patch(pod_path(f"{moves}-1-0"), saved)
    await until_attempt(live, moves, 2)
    assert nodes_of(live, moves) != [cordoned]
    new = await running(live, job("new", gpus=2, replicas=4, seconds=LONG))
    assert cordoned not in nodes_of(live, new)
    assert [live.state.jobs.get(each).attempt for each in (stays, fixed)] == [1, 1]  # type: ignore[union-attr]
    patch_node(live, cordoned, {"spec": {"unschedulable": None}})
    await until_ready(live, cordoned)
    await ends_well(live, moves, stays, fixed, new)


async def test_a_gang_goes_on_where_its_gpus_are_not_offered_for_a_while_and_nobody_joins_it(
    live: KubernetesLive,
) -> None:
    gang = await running(live, job("gang", gpus=8, replicas=2, seconds=LONG))
    short = nodes_of(live, gang)[0]
    patch_node(live, short, {"status": {"allocatable": {"nvidia.com/gpu": "0"}}}, "/status")
    await live.until(lambda state: state.nodes.get(short).gpus == 0, "the ledger knows that they are away")
    new = await running(live, job("new", gpus=1, replicas=2, seconds=LONG))
    assert short not in nodes_of(live, new)
    await asyncio.sleep(4)
    assert live.state.jobs.get(gang).attempt == 1  # type: ignore[union-attr]
    patch_node(live, short, {"status": {"allocatable": {"nvidia.com/gpu": "8"}}}, "/status")
    await live.until(lambda state: len(state.nodes.get(short).gpu_free) == 8, "the ledger knows that they are back")
    await ends_well(live, gang, new)


async def test_a_drained_gang_saves_its_work_in_its_notice_and_goes_on_with_it_elsewhere(live: KubernetesLive) -> None:
    gang = await running(live, saving(job("gang", gpus=1, replicas=2, seconds=20), every=600, notice=60))
    drained = nodes_of(live, gang)
    for node in drained:
        await operate(live, DrainNode(kind="drain_node", v=1, node=node, evict=True, why="maintenance"))
    await until_attempt(live, gang, 2)  # long before the notice is over: its work is saved
    known = live.state.jobs.get(gang)
    assert known is not None
    assert known.saved_path.startswith("/checkpoints/")
    assert not set(drained) & set(nodes_of(live, gang))
    (variable,) = {env["value"] for pod in pods_of(live, gang, 2) for env in env_of(pod) if "CHECKPOINT" in env["name"]}
    assert variable == known.saved_path
    for node in drained:
        await operate(live, DrainNode(kind="drain_node", v=1, node=node, undo=True))
    await live.until_ended(gang)
    assert live.phase(gang) == "succeeded"
    await assert_all_is_well(live)


def pods_of(live: KubernetesLive, job_id: str, attempt: int) -> list[dict[str, Any]]:
    return live.plane.api().items("/api/v1/namespaces/lab/pods", labelSelector=f"{RUN_LABEL}={job_id}-{attempt}")


def env_of(pod: dict[str, Any]) -> list[dict[str, str]]:
    env: list[dict[str, str]] = pod["spec"]["containers"][0]["env"]
    return env


# -- objects


async def test_a_gang_whose_pod_is_deleted_by_hand_is_started_again_whole(live: KubernetesLive) -> None:
    gang = await running(live, job("gang", gpus=1, replicas=3, seconds=LONG))
    live.plane.api().delete(pod_path(pod_name(f"{gang}-1", 1)))
    await until_attempt(live, gang, 2)
    await ends_well(live, gang)


async def test_a_gang_whose_pod_is_deleted_by_force_is_started_again_whole(live: KubernetesLive) -> None:
    gang = await running(live, job("gang", gpus=1, replicas=3, seconds=LONG))
    path = pod_path(pod_name(f"{gang}-1", 1))
    live.plane.api().patch(path, {"metadata": {"finalizers": None}})
    live.plane.api().delete(path, gracePeriodSeconds=0)
    await until_attempt(live, gang, 2)
    await ends_well(live, gang)


async def test_a_foreign_pod_with_the_name_of_ours_costs_a_run_and_is_left_alone(live: KubernetesLive) -> None:
    name = pod_name(f"{job_id(live.shard_name, 'lab', 'taken')}-1", 0)
    containers = [{"name": "main", "image": "img"}]
    foreign = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "lab"}}
    live.plane.api().create({**foreign, "spec": {"schedulerName": "somebody", "containers": containers}})
    done = await live.submit(job("taken", seconds=0.2), key="taken")
    await live.until_ended(done.job_id)
    ended = live.state.ended.get(done.job_id)
    assert ended is not None
    assert (ended.phase, ended.attempt) == ("succeeded", 2)
    assert FINALIZER not in live.plane.api().get(pod_path(name))["metadata"].get("finalizers", [])
    live.plane.api().delete(pod_path(name), gracePeriodSeconds=0)
    await assert_all_is_well(live)


async def waits_saying(live: KubernetesLive, spec: JobSpec, words: str) -> str:
    """The API server refuses a job's pods again and again, which costs the job no attempt; returns the job's id."""
    done = await live.submit(spec.model_copy(update={"retry": Retry(max_attempts=1)}))
    await until_refused(live, done.job_id, words)
    return done.job_id


async def until_refused(live: KubernetesLive, job_id: str, words: str, times: int = 3) -> None:
    """Wait until so many of the job's runs were given back for what the API server said."""

    def refused(_state: object) -> bool:
        records = (record for stored in live.stored for record in LEDGER_MESSAGE.validate_json(stored).records)
        back = [record for record in records if isinstance(record, Requeued) and record.job_id == job_id]
        assert not any(record.strike for record in back)
        return sum(words in record.reason.sentence() for record in back) >= times

    await live.until(refused, f"job {job_id} was refused {times} times: {words}")


async def succeeds(live: KubernetesLive, spec: JobSpec) -> None:
    done = await live.submit(spec)
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "succeeded"


async def test_a_job_that_a_resource_quota_refuses_waits_with_the_servers_own_words_until_there_is_room(
    live: KubernetesLive,
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": "lab"}}
    live.plane.api().create({**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "2"}}})
    path = "/api/v1/namespaces/lab/resourcequotas/few"
    await eventually(lambda: "hard" in live.plane.api().get(path).get("status", {}), "the quota is in force")
    waits = await waits_saying(live, job("too-much", gpus=2, replicas=2, seconds=0.2), "exceeded quota: few")
    live.plane.api().delete(path)
    await live.until_ended(waits)
    assert live.phase(waits) == "succeeded"
    await assert_all_is_well(live)


async def test_a_job_that_an_admission_policy_denies_waits_with_the_policys_own_words(live: KubernetesLive) -> None:
    group, name = "/apis/admissionregistration.k8s.io/v1", "no-such-image"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    rule = {"expression": "object.spec.containers.all(c, c.image != 'denied:1')", "message": "this image is denied"}
    spec = {"matchConstraints": {"resourceRules": [pods]}, "validations": [rule]}
    live.plane.api().call("POST", f"{group}/validatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec})
    binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    live.plane.api().call("POST", f"{group}/validatingadmissionpolicybindings", binding)
    await eventually(lambda: is_denied(live, "denied:1"), "the policy is in force")
    waits = await waits_saying(live, job_of_image("denied:1"), "this image is denied")
    await succeeds(live, job_of_image("train:1"))
    live.plane.api().delete(f"{group}/validatingadmissionpolicybindings/{name}")
    live.plane.api().delete(f"{group}/validatingadmissionpolicies/{name}")
    await live.until_ended(waits)
    assert live.phase(waits) == "succeeded"
    await assert_all_is_well(live)


async def test_a_job_waits_out_a_broken_webhook_and_then_runs_in_the_same_attempt(
    live: KubernetesLive,
) -> None:
    group, name = "/apis/admissionregistration.k8s.io/v1", "nobody-answers"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": "nobody.answers.example",
        "clientConfig": {"url": "https://127.0.0.1:1/never"},
        "rules": [pods],
        "failurePolicy": "Fail",
        "timeoutSeconds": 1,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    path = f"{group}/validatingwebhookconfigurations"
    live.plane.api().call("POST", path, {"metadata": {"name": name}, "webhooks": [hook]})
    await eventually(lambda: is_denied(live, "train:1"), "the webhook must be asked")
    done = await live.submit(job("waits", gpus=1, replicas=2, seconds=0.2))
    await live.until_phase(done.job_id, "allocated", "binding")
    await eventually(lambda: "failed calling webhook" in binder_log(live), "the binder was refused")
    assert live.phase(done.job_id) in ("allocated", "binding")
    live.plane.api().delete(f"{path}/{name}")
    await live.until_ended(done.job_id)
    ended = live.state.ended.get(done.job_id)
    assert ended is not None
    assert (ended.phase, ended.attempt) == ("succeeded", 1)
    await assert_all_is_well(live)


def binder_log(live: KubernetesLive) -> str:
    return "".join(path.read_text(errors="replace") for path in (live.home / "logs").glob("binder*"))


def job_of_image(image: str) -> JobSpec:
    spec = job("of-an-image", seconds=0.2)
    (role,) = spec.roles
    template = role.template.model_copy(update={"image": image})
    return spec.model_copy(update={"roles": (role.model_copy(update={"template": template}),)})


def is_denied(live: KubernetesLive, image: str) -> bool:
    """Whether such a pod would be refused; none is made."""
    containers = [{"name": "main", "image": image}]
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": {"containers": containers}}
    try:
        live.plane.api().call("POST", "/api/v1/namespaces/lab/pods", probe, query={"dryRun": "All"})
    except ApiError:
        return True
    return False


async def test_a_tenants_namespace_is_deleted_and_its_jobs_wait_saying_so_until_it_is_back(
    live: KubernetesLive,
) -> None:
    gang = await running(live, job("gang", gpus=1, replicas=2, seconds=LONG, retry=Retry(max_attempts=1)))
    live.plane.api().delete("/api/v1/namespaces/lab")
    await until_refused(live, gang, "lab", times=2)
    await eventually(lambda: not is_there(live, "lab"), "the namespace is gone")
    deployed.let_in(live.plane, "lab")
    again = await live.submit(job("again", seconds=0.2))
    await live.until_ended(again.job_id)
    assert live.phase(again.job_id) == "succeeded"
    await live.until_phase(gang, "running")
    await live.clients["lab"].cancel(gang, now=True)
    await live.until_ended(gang)
    await assert_all_is_well(live)


def is_there(live: KubernetesLive, namespace: str) -> bool:
    return any(found["metadata"]["name"] == namespace for found in live.plane.api().items("/api/v1/namespaces"))

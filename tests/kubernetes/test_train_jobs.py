"""
TrainJobs beside the controllers of Kubeflow's Trainer and of JobSet, with Trainer's own runtimes: how they start, give
way, fail and end.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tests.e2e.lasting import LONG
from tests.e2e.live import job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes import binaries
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import JOB_SET, TRAINER, at_work
from tests.kubernetes.live import KubernetesLive
from tests.kubernetes.users import Users, condition, live_with_priorities, runs_of, uids
from tests.kubernetes.users_objects import batch_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
API = "trainer.kubeflow.org/v1alpha1"
JOBS, SETS = f"/apis/{API}/namespaces/lab/trainjobs", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/lab/jobsets"
RUNTIMES = "manifests/base/runtimes"
SERVES = 3600.0
TWO_GPUS: Json = {"limits": {"cpu": "100m", "nvidia.com/gpu": "2"}}


@pytest.fixture(scope="module")
def plane(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    own_plane.add_nodes(1, "gpu", gpus=8, cpu="16")
    folder = tmp_path_factory.mktemp("controllers")
    with at_work(JOB_SET, own_plane, folder), at_work(TRAINER, own_plane, folder):
        yield own_plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    async with live_with_priorities(plane, tmp_path_factory.mktemp("platform")) as live:
        yield live


def runtime(users: Users, sample: str, name: str, seconds: float, **spec: Any) -> None:
    """
    Trainer's own runtime under another name, whose templates name our scheduler. A node that only serves a launcher has
    no end; claims of volumes, which nothing here would make, are left out.
    """
    made = yaml.safe_load((binaries.sources("trainer") / RUNTIMES / f"{sample}.yaml").read_text())
    made["metadata"]["name"] = name
    made["spec"]["template"]["spec"] |= spec
    for part in made["spec"]["template"]["spec"]["replicatedJobs"]:
        ends = SERVES if part["name"] == "node" and "mpi" in made["spec"]["mlPolicy"] else seconds
        template = part["template"]["spec"]["template"]
        template["metadata"] = {"annotations": {"tessera.io/simulate-seconds": str(ends)}}
        template["spec"] |= {"schedulerName": "tessera", "volumes": []}
        for container in template["spec"]["containers"]:
            container["volumeMounts"] = []
    users.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(made))


def train_job(users: Users, name: str, of: str, trainer: Json | None = None, **spec: Any) -> None:
    its = {"trainer": trainer} if trainer else {}
    body = {"runtimeRef": {"name": of}, **its, **spec}
    users.create({"apiVersion": API, "kind": "TrainJob", "metadata": {"name": name}, "spec": body})


def training(users: Users, name: str, seconds: float = 1, failures: Json | None = None, **spec: Any) -> None:
    """Four nodes of two GPUs each by the runtime for PyTorch, who need the whole of ours."""
    more = {"failurePolicy": failures} if failures else {}
    runtime(users, "torch_distributed", name, seconds, **more)
    train_job(users, name, name, {"numNodes": 4, "resourcesPerNode": TWO_GPUS}, **spec)


def found(users: Users, name: str) -> Json:
    return users.api.get(f"{JOBS}/{name}")


def pods_of(users: Users, name: str, *phases: str) -> list[Json]:
    return users.labelled(f"jobset.sigs.k8s.io/jobset-name={name}", *phases)


async def until_all_run(users: Users, name: str, number: int = 4) -> list[Json]:
    await users.until(lambda: len(pods_of(users, name, "Running")) == number, f"all pods of {name} run")
    return pods_of(users, name, "Running")


async def until_complete(users: Users, name: str) -> None:
    await users.until(lambda: condition(found(users, name), "Complete"), f"TrainJob {name} is complete")


async def until_it_waits(users: Users, name: str) -> None:
    def says() -> bool:
        made = [one for one in users.api.items(SETS) if one["metadata"]["name"] == name]
        return any(condition(one, "tessera.io/Placed", "False") for one in made)

    await users.until(says, f"the JobSet of {name} says why it waits")


async def delete(users: Users, name: str) -> None:
    users.api.delete(f"{JOBS}/{name}", propagationPolicy="Foreground")
    await users.until(lambda: not pods_of(users, name), f"pods of {name} go with it")


async def test_the_nodes_of_a_train_job_start_together_in_the_order_of_their_ranks(users: Users) -> None:
    users.create(batch_job("holds", gpus=2, seconds=3600))
    await users.until_running("holds")
    training(users, "torch", LONG)
    await until_it_waits(users, "torch")
    assert [one["spec"].get("nodeName") for one in pods_of(users, "torch")] == [None] * 4
    users.delete("job", "holds")
    pods = await until_all_run(users, "torch")
    ((job_id, attempt),) = runs_of(pods)
    index = "batch.kubernetes.io/job-completion-index"
    ranks = {one["metadata"]["annotations"][index]: one["metadata"]["annotations"]["tessera.io/rank"] for one in pods}
    assert (attempt, ranks) == (1, {str(rank): str(rank) for rank in range(4)})
    users.finish("torch")
    await until_complete(users, "torch")
    await users.live.until_phase(job_id, "succeeded")
    await delete(users, "torch")


async def test_the_sample_that_names_nothing_but_its_runtime_completes(users: Users) -> None:
    runtime(users, "torch_distributed", "sample", 1)
    train_job(users, "sample", "sample")
    await until_complete(users, "sample")
    await delete(users, "sample")


async def test_a_launcher_and_its_nodes_are_one_gang_and_end_with_the_launcher(users: Users) -> None:
    runtime(users, "mpi_distributed", "mpi", LONG)
    train_job(users, "mpi", "mpi", {"numNodes": 4, "resourcesPerNode": TWO_GPUS})
    pods = await until_all_run(users, "mpi")
    ((job_id, _),) = runs_of(pods)
    users.finish("mpi-launcher")
    await until_complete(users, "mpi")
    await users.live.until_phase(job_id, "succeeded")
    users.create(batch_job("after", gpus=8))
    await users.until_complete("after")
    users.delete("job", "after")
    await delete(users, "mpi")


async def test_initializers_start_one_after_the_other_before_the_nodes(users: Users) -> None:
    runtime(users, "torchtune/llama3_2/llama3_2_1B", "tune", 1)
    train_job(users, "tune", "tune", {"resourcesPerNode": TWO_GPUS})
    await until_complete(users, "tune")
    assert len(runs_of(pods_of(users, "tune"))) == 3, "each of its Jobs is a job of its own"
    await delete(users, "tune")


async def test_one_created_suspended_waits_without_pods_and_is_resumed_as_a_gang(users: Users) -> None:
    users.create(batch_job("holds", gpus=2, seconds=3600))
    await users.until_running("holds")
    training(users, "parked", LONG, suspend=True)
    await until_it_waits(users, "parked")
    assert pods_of(users, "parked") == []
    users.delete("job", "holds")
    assert len(runs_of(await until_all_run(users, "parked"))) == 1
    assert found(users, "parked")["spec"]["suspend"] is False
    users.finish("parked")
    await until_complete(users, "parked")
    await delete(users, "parked")


async def test_one_gives_way_by_suspension_and_is_resumed(users: Users) -> None:
    training(users, "gives-way", LONG)
    ((job_id, _),) = runs_of(await until_all_run(users, "gives-way"))
    users.create(batch_job("urgent", gpus=8, seconds=2, template={"priorityClassName": "high"}))
    await users.until_complete("urgent")
    assert runs_of(await until_all_run(users, "gives-way")) == {(job_id, 2)}
    assert found(users, "gives-way")["metadata"]["annotations"]["tessera.io/suspended"] == "false"
    users.finish("gives-way")
    await until_complete(users, "gives-way")
    await delete(users, "gives-way")
    users.delete("job", "urgent")


async def test_a_node_that_fails_restarts_all_of_them_where_the_runtime_says_so(users: Users) -> None:
    training(users, "again", 3600, failures={"maxRestarts": 1})
    first = await until_all_run(users, "again")
    ((job_id, _),) = runs_of(first)
    users.fail(first[0])
    # A Job that is suspended keeps its failed pods; the others go with the gang, which begins anew as a whole.
    await users.until(lambda: not uids(first) & uids(pods_of(users, "again", "Running")), "its first pods are gone")
    assert runs_of(await until_all_run(users, "again")) == {(job_id, 2)}
    await delete(users, "again")
    await users.live.until_phase(job_id, "cancelled")


async def test_nothing_of_all_of_it_is_left(users: Users) -> None:
    await users.live.submit(job())
    await assert_all_is_well(users.live)

"""MPIJobs beside the MPI operator: how launcher and workers start, fail, give way and end."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.lasting import LONG
from tests.e2e.live import job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import MPI_OPERATOR, at_work
from tests.kubernetes.live import KubernetesLive
from tests.kubernetes.users import Users, condition, live_with_priorities, runs_of, uids
from tests.kubernetes.users_objects import batch_job, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
JOBS = "/apis/kubeflow.org/v2beta1/namespaces/lab/mpijobs"
ROLE = "training.kubeflow.org/job-role"


@pytest.fixture(scope="module")
def plane_with_mpi_jobs(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    own_plane.add_nodes(1, "gpu", gpus=8, cpu="16")
    with at_work(MPI_OPERATOR, own_plane, tmp_path_factory.mktemp("controllers")):
        yield own_plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    plane_with_mpi_jobs: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubernetesLive]:
    async with live_with_priorities(plane_with_mpi_jobs, tmp_path_factory.mktemp("platform")) as live:
        yield live


def part(replicas: int, gpus: int, seconds: float) -> Json:
    made = pod("", gpus=gpus, seconds=seconds)
    del made["spec"]["restartPolicy"]
    template = {"metadata": {"annotations": made["metadata"]["annotations"]}, "spec": made["spec"]}
    return {"replicas": replicas, "template": template}


def computing(name: str, seconds: float = 1, launcher_gpus: int = 0, policy: Json | None = None, **spec: Any) -> Json:
    """A launcher, whose end is that of the job, and two workers that serve for as long as they are let."""
    parts = {"Launcher": part(1, launcher_gpus, seconds), "Worker": part(2, 4 - launcher_gpus // 2, 3600)}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "slotsPerWorker": 4,
            "runPolicy": {"cleanPodPolicy": "Running", **(policy or {})},
            "mpiReplicaSpecs": parts,
            **spec,
        },
    }


def found(users: Users, name: str) -> Json:
    return users.api.get(f"{JOBS}/{name}")


def pods_of(users: Users, name: str, *phases: str) -> list[Json]:
    return users.labelled(f"training.kubeflow.org/job-name={name}", *phases)


def worker_of(pods: list[Json]) -> Json:
    return next(one for one in pods if one["metadata"]["labels"][ROLE] == "worker")


async def until_all_run(users: Users, name: str) -> list[Json]:
    await users.until(lambda: len(pods_of(users, name, "Running")) == 3, f"all pods of {name} run")
    return pods_of(users, name, "Running")


async def until_succeeded(users: Users, name: str) -> None:
    await users.until(lambda: condition(found(users, name), "Succeeded"), f"MPIJob {name} has succeeded")


async def delete(users: Users, name: str) -> None:
    users.api.delete(f"{JOBS}/{name}", propagationPolicy="Background")
    await users.until(lambda: not pods_of(users, name), f"pods of {name} go with it")


async def test_launcher_and_workers_start_together_and_the_workers_end_with_the_launcher(users: Users) -> None:
    users.create(batch_job("holds", gpus=2, seconds=3600))
    await users.until_running("holds")
    users.create(computing("pi", LONG))
    await users.until(lambda: len(pods_of(users, "pi")) == 3, "its pods are made")
    for one in pods_of(users, "pi"):
        await users.until_told(one["metadata"]["name"], "NoFit")
    users.delete("job", "holds")
    pods = await until_all_run(users, "pi")
    ((job_id, _),) = runs_of(pods)
    assert sorted(one["metadata"]["annotations"]["tessera.io/rank"] for one in pods) == ["0", "1", "2"]
    users.finish("pi-launcher")
    await until_succeeded(users, "pi")
    await users.live.until_phase(job_id, "succeeded")
    users.create(batch_job("after", gpus=8))
    await users.until_complete("after")
    users.delete("job", "after")
    await delete(users, "pi")


async def test_workers_that_their_operator_leaves_running_after_the_end_hold_their_gpus(users: Users) -> None:
    users.create(computing("kept", 1, policy={"cleanPodPolicy": "None"}))
    await until_succeeded(users, "kept")
    users.create(batch_job("after", gpus=8))
    await users.until(lambda: users.pods("after"), "its pod is made")
    await users.until_told(users.pods("after")[0]["metadata"]["name"], "NoFit")
    assert len(pods_of(users, "kept", "Running")) == 2
    await delete(users, "kept")
    await users.until_complete("after")
    users.delete("job", "after")


async def test_a_launcher_that_runs_as_a_worker_is_of_the_gang_with_its_gpus(users: Users) -> None:
    users.create(computing("as-worker", LONG, launcher_gpus=2, runLauncherAsWorker=True))
    pods = await until_all_run(users, "as-worker")
    assert len(runs_of(pods)) == 1
    users.finish("as-worker-launcher")
    await until_succeeded(users, "as-worker")
    await delete(users, "as-worker")


async def test_a_worker_that_fails_has_all_of_it_begin_anew(users: Users) -> None:
    users.create(computing("again", 3600))
    pods = await until_all_run(users, "again")
    ((job_id, _),) = runs_of(pods)
    users.fail(worker_of(pods))
    await users.until(lambda: not uids(pods) & uids(pods_of(users, "again")), "its first pods are gone")
    assert runs_of(await until_all_run(users, "again")) == {(job_id, 2)}
    await delete(users, "again")


async def test_a_worker_that_is_deleted_has_all_of_it_begin_anew(users: Users) -> None:
    users.create(computing("lost", 3600))
    pods = await until_all_run(users, "lost")
    ((job_id, _),) = runs_of(pods)
    users.delete_pods(worker_of(pods)["metadata"]["name"])
    await users.until(lambda: not uids(pods) & uids(pods_of(users, "lost")), "its first pods are gone")
    assert runs_of(await until_all_run(users, "lost")) == {(job_id, 2)}
    await delete(users, "lost")


async def test_a_launcher_that_fails_for_good_ends_the_job(users: Users) -> None:
    users.create(computing("fails", 3600, policy={"backoffLimit": 0}))
    pods = await until_all_run(users, "fails")
    ((job_id, _),) = runs_of(pods)
    users.fail(next(one for one in pods if one["metadata"]["labels"][ROLE] == "launcher"))
    await users.until(lambda: condition(found(users, "fails"), "Failed"), "MPIJob fails has failed")
    await users.live.until_phase(job_id, "failed")
    ended = users.live.state.ended.get(job_id)
    assert ended is not None
    assert ended.reason is not None
    assert ended.reason.code == "OwnerFailed"
    await delete(users, "fails")


async def test_it_gives_way_by_suspension_which_fails_nothing_and_is_resumed(users: Users) -> None:
    users.create(computing("gives-way", LONG, policy={"backoffLimit": 0}))
    ((job_id, _),) = runs_of(await until_all_run(users, "gives-way"))
    users.create(batch_job("urgent", gpus=8, seconds=2, template={"priorityClassName": "high"}))
    await users.until_complete("urgent")
    assert runs_of(await until_all_run(users, "gives-way")) == {(job_id, 2)}
    users.finish("gives-way-launcher")
    await until_succeeded(users, "gives-way")
    assert not condition(found(users, "gives-way"), "Failed")
    await delete(users, "gives-way")
    users.delete("job", "urgent")


async def test_one_created_suspended_waits_without_pods_and_is_resumed_as_a_gang(users: Users) -> None:
    users.create(batch_job("holds", gpus=2, seconds=3600))
    await users.until_running("holds")
    users.create(computing("parked", LONG, policy={"suspend": True}))
    await users.until(lambda: condition(found(users, "parked"), "Suspended"), "its operator knows that it is suspended")
    assert pods_of(users, "parked") == []
    users.delete("job", "holds")
    assert len(runs_of(await until_all_run(users, "parked"))) == 1
    users.finish("parked-launcher")
    await until_succeeded(users, "parked")
    await delete(users, "parked")


async def test_one_that_its_user_suspends_waits_for_the_user(users: Users) -> None:
    users.create(computing("paused", 3600))
    ((job_id, _),) = runs_of(await until_all_run(users, "paused"))
    users.api.patch(f"{JOBS}/paused", {"spec": {"runPolicy": {"suspend": True}}})
    await users.until(lambda: not pods_of(users, "paused"), "its pods are taken away")
    users.create(batch_job("meanwhile", gpus=8))
    await users.until_complete("meanwhile")
    assert pods_of(users, "paused") == []
    users.api.patch(f"{JOBS}/paused", {"spec": {"runPolicy": {"suspend": False}}})
    assert runs_of(await until_all_run(users, "paused")) == {(job_id, 2)}
    await delete(users, "paused")
    users.delete("job", "meanwhile")


async def test_a_launcher_that_comes_last_starts_by_itself_once_the_workers_run(users: Users) -> None:
    users.create(computing("last", LONG, launcherCreationPolicy="WaitForWorkersReady"))
    pods = await until_all_run(users, "last")
    assert len(runs_of(pods)) == 2
    users.finish("last-launcher")
    await until_succeeded(users, "last")
    await delete(users, "last")


async def test_nothing_of_all_of_it_is_left(users: Users) -> None:
    await users.live.submit(job())
    await assert_all_is_well(users.live)

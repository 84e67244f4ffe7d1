"""
RayJobs and RayServices beside KubeRay's own operator, with its samples; their heads are played (`ray_dashboard`).
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
from tests.kubernetes.controllers import KUBERAY, at_work
from tests.kubernetes.live import KubernetesLive
from tests.kubernetes.ray_dashboard import Dashboard, ray_dashboard
from tests.kubernetes.users import Users, live_with_priorities, runs_of
from tests.kubernetes.users_objects import batch_job, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
API = "/apis/ray.io/v1/namespaces/lab"
OURS = {"tessera.io/min-replicas": "1", "lab/owner": "somebody"}


@pytest.fixture(scope="module")
def dashboard() -> Iterator[Dashboard]:
    with ray_dashboard() as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
def plane(
    own_plane: ControlPlane, dashboard: Dashboard, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    own_plane.add_nodes(1, "gpu", gpus=8, cpu="16")
    with at_work(KUBERAY, own_plane, tmp_path_factory.mktemp("controllers"), HTTP_PROXY=dashboard.url):
        yield own_plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    async with live_with_priorities(plane, tmp_path_factory.mktemp("platform")) as live:
        yield live


def sample(kind: str, name: str, of_cluster: str) -> Json:
    """KubeRay's own sample, whose pods name our scheduler; its worker has four GPUs."""
    file = binaries.sources("kuberay") / "config" / "samples" / f"ray-{kind}.sample.yaml"
    made: Json = next(iter(yaml.safe_load_all(file.read_text())))
    made["metadata"]["name"] = name
    cluster = made["spec"][of_cluster]
    templates = [cluster["headGroupSpec"]["template"], *(each["template"] for each in cluster["workerGroupSpecs"])]
    for template in templates:
        template["metadata"] = {"annotations": {"tessera.io/simulate-seconds": "3600"}}
        template["spec"]["schedulerName"] = "tessera"
    templates[-1]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "4"
    return made


def ray_job(name: str, seconds: float) -> Json:
    """One whose submitter names our scheduler, too, and ends after so many seconds."""
    made = sample("job", name, "rayClusterSpec")
    submitter = pod("", gpus=0, seconds=seconds)
    template = {"metadata": {"annotations": submitter["metadata"]["annotations"]}, "spec": submitter["spec"]}
    made["spec"] |= {"shutdownAfterJobFinishes": True, "submitterPodTemplate": template}
    return made


def fills(name: str, gpus: int, cpu: str) -> Json:
    """A pod that takes all that head, worker and submitter leave of the node."""
    asks = {"cpu": cpu, "nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "train:1", "resources": {"requests": asks, "limits": asks}}
    return pod(name, seconds=3600, containers=[container])


def found(users: Users, kind: str, name: str) -> Json:
    return users.api.get(f"{API}/{kind}/{name}")


def clusters_of(users: Users, name: str) -> list[Json]:
    return users.api.items(f"{API}/rayclusters", labelSelector=f"ray.io/originated-from-cr-name={name}")


def pods_of(users: Users, name: str, *phases: str) -> list[Json]:
    """Pods of all clusters that were made for it."""
    return [one for each in clusters_of(users, name) for one in of_cluster(users, each, *phases)]


def of_cluster(users: Users, cluster: Json, *phases: str) -> list[Json]:
    return users.labelled(f"ray.io/cluster={cluster['metadata']['name']}", *phases)


async def until_all_run(users: Users, name: str) -> list[Json]:
    """The head, the worker and the submitter."""

    def there() -> list[Json]:
        return [*pods_of(users, name, "Running"), *users.in_phase(name, "Running")]

    await users.until(lambda: len(there()) == 3, f"head, worker and submitter of {name} run")
    return there()


async def delete(users: Users, kind: str, name: str) -> None:
    users.api.delete(f"{API}/{kind}/{name}", propagationPolicy="Background")
    await users.until(lambda: not pods_of(users, name) and not users.pods(name), f"pods of {name} go with it")


async def test_its_submitter_has_its_room_when_it_comes_and_its_end_is_the_job_s(
    users: Users, dashboard: Dashboard
) -> None:
    users.create(ray_job("sample", LONG))
    await users.until(lambda: pods_of(users, "sample"), "its cluster is made")
    users.create(fills("fills", gpus=4, cpu="15500m"))
    pods = await until_all_run(users, "sample")
    ((job_id, attempt),) = runs_of(pods)
    assert attempt == 1
    assert sorted(one["metadata"]["annotations"]["tessera.io/rank"] for one in pods) == ["0", "1", "2"]
    dashboard.job = "SUCCEEDED"
    users.finish(*(one["metadata"]["name"] for one in users.pods("sample")))
    await users.until(
        lambda: found(users, "rayjobs", "sample")["status"].get("jobDeploymentStatus") == "Complete", "it is complete"
    )
    await users.live.until_phase(job_id, "succeeded")
    dashboard.job = "RUNNING"
    users.delete_pods("fills")
    await delete(users, "rayjobs", "sample")


async def test_it_gives_way_by_suspension_and_its_next_cluster_is_its_next_attempt(users: Users) -> None:
    users.create(ray_job("gives-way", 3600))
    first = await until_all_run(users, "gives-way")
    ((job_id, _),) = runs_of(first)
    users.create(batch_job("urgent", gpus=8, seconds=2, template={"priorityClassName": "high"}))
    await users.until_complete("urgent")
    second = await until_all_run(users, "gives-way")
    assert runs_of(second) == {(job_id, 2)}
    assert not {one["metadata"]["name"] for one in first} & {one["metadata"]["name"] for one in second}
    await delete(users, "rayjobs", "gives-way")
    users.delete("job", "urgent")


async def test_the_clusters_of_a_ray_service_have_its_marks_and_are_its_replicas(users: Users) -> None:
    made = sample("service", "fruits", "rayClusterConfig")
    made["metadata"] |= {"annotations": dict(OURS), "labels": {"tessera.io/queue": "default"}}
    made["spec"]["rayClusterDeletionDelaySeconds"] = 1
    users.create(made)
    await users.until(lambda: len(pods_of(users, "fruits", "Running")) == 2, "its cluster runs")
    (first,) = clusters_of(users, "fruits")
    assert OURS.items() <= first["metadata"]["annotations"].items(), "its operator copies annotations to clusters"
    assert first["metadata"]["labels"]["tessera.io/queue"] == "default", "and labels"
    for one in of_cluster(users, first):
        assert not OURS.keys() & one["metadata"]["annotations"].keys(), "it copies none of them to pods"
    ((job_id, _),) = runs_of(of_cluster(users, first))
    service = service_of(users, job_id)
    assert (service.kind, service.name, service.min_replicas) == ("RayService", "fruits", 1)
    await users.until(lambda: active_of(users) == first["metadata"]["name"], "it serves")

    change: Json = {"spec": {"rayClusterConfig": {"rayVersion": "2.47.0"}}}
    users.api.patch(f"{API}/rayservices/fruits", change)
    await users.until(lambda: len(pods_of(users, "fruits", "Running")) == 4, "a second cluster runs beside the first")
    (second,) = [each for each in clusters_of(users, "fruits") if each["metadata"]["name"] != first["metadata"]["name"]]
    ((other_id, _),) = runs_of(of_cluster(users, second))
    assert other_id != job_id
    assert service_of(users, other_id).uid == service.uid
    await users.until(lambda: active_of(users) == second["metadata"]["name"], "the second serves in its place")
    await users.live.until_phase(job_id, "cancelled")
    assert len(pods_of(users, "fruits", "Running")) == 2
    await delete(users, "rayservices", "fruits")


def service_of(users: Users, job_id: str) -> Any:
    known = users.live.state.jobs.get(job_id)
    assert known is not None
    assert known.adopted is not None
    assert known.adopted.service is not None
    return known.adopted.service


def active_of(users: Users) -> str:
    status = found(users, "rayservices", "fruits").get("status", {})
    return str(status.get("activeServiceStatus", {}).get("rayClusterName", ""))


async def test_nothing_of_all_of_it_is_left(users: Users) -> None:
    await users.live.submit(job())
    await assert_all_is_well(users.live)

"""RayClusters beside KubeRay's own operator: how they start, lose a worker, give way and end."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.live import job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import KUBERAY, at_work
from tests.kubernetes.live import KubernetesLive
from tests.kubernetes.users import Users, condition, live_with_priorities, runs_of, uids
from tests.kubernetes.users_objects import batch_job, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
CLUSTERS = "/apis/ray.io/v1/namespaces/lab/rayclusters"


@pytest.fixture(scope="module")
def plane(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    own_plane.add_nodes(1, "gpu", gpus=8, cpu="16")
    with at_work(KUBERAY, own_plane, tmp_path_factory.mktemp("controllers")):
        yield own_plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    async with live_with_priorities(plane, tmp_path_factory.mktemp("platform")) as live:
        yield live


def template(gpus: int) -> Json:
    made = pod("", gpus=gpus, seconds=3600, restartPolicy="Always")
    return {"metadata": {"annotations": made["metadata"]["annotations"]}, "spec": made["spec"]}


def ray_cluster(name: str, **spec: Any) -> Json:
    """A head without GPUs, and two workers, who need the whole node."""
    size = {"replicas": 2, "minReplicas": 2, "maxReplicas": 2}
    workers = {"groupName": "workers", "rayStartParams": {}, "template": template(4), **size}
    head = {"rayStartParams": {}, "template": template(0)}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {"rayVersion": "2.46.0", "headGroupSpec": head, "workerGroupSpecs": [workers], **spec},
    }


def found(users: Users, name: str) -> Json:
    return users.api.get(f"{CLUSTERS}/{name}")


async def until_all_run(users: Users, name: str) -> list[Json]:
    label = f"ray.io/cluster={name}"
    await users.until(lambda: len(users.labelled(label, "Running")) == 3, f"all pods of {name} run")
    return users.labelled(label, "Running")


def assert_is_a_later_run(pods: list[Json], job_id: str) -> None:
    """The second, or one later where the operator took longer to make its pods than they are waited for."""
    ((job, attempt),) = runs_of(pods)
    assert job == job_id
    assert attempt > 1


async def delete(users: Users, name: str) -> None:
    users.api.delete(f"{CLUSTERS}/{name}", propagationPolicy="Background")
    await users.until(lambda: not users.labelled(f"ray.io/cluster={name}"), f"pods of {name} go with it")


async def test_a_cluster_starts_whole_and_is_ready(users: Users) -> None:
    users.create(batch_job("holds", gpus=2, seconds=3600))
    await users.until_running("holds")
    users.create(ray_cluster("whole"))
    await users.until(lambda: condition(found(users, "whole"), "tessera.io/Placed", "False"), "it says why it waits")
    assert not users.labelled("ray.io/cluster=whole", "Running")
    users.delete("job", "holds")
    assert len(runs_of(await until_all_run(users, "whole"))) == 1
    await users.until(lambda: condition(found(users, "whole"), "tessera.io/Placed"), "it says that it is placed")
    await users.until(lambda: found(users, "whole")["status"].get("state") == "ready", "its operator says ready")
    # Whoever comes last of the two leaves the other's word alone: in the end both stand.
    await users.until(lambda: condition(found(users, "whole"), "tessera.io/Placed"), "its operator left our condition")
    await delete(users, "whole")


async def test_a_worker_that_fails_has_the_cluster_begin_anew(users: Users) -> None:
    users.create(ray_cluster("again"))
    pods = await until_all_run(users, "again")
    ((job_id, _),) = runs_of(pods)
    users.fail(next(one for one in pods if one["metadata"]["labels"]["ray.io/node-type"] == "worker"))
    await users.until(lambda: not uids(pods) & uids(users.labelled("ray.io/cluster=again")), "its first pods are gone")
    assert_is_a_later_run(await until_all_run(users, "again"), job_id)
    await delete(users, "again")


async def test_a_cluster_gives_way_by_suspension_and_is_resumed(users: Users) -> None:
    users.create(ray_cluster("gives-way"))
    ((job_id, _),) = runs_of(await until_all_run(users, "gives-way"))
    users.create(batch_job("urgent", gpus=8, seconds=2, template={"priorityClassName": "high"}))
    await users.until_complete("urgent")
    assert_is_a_later_run(await until_all_run(users, "gives-way"), job_id)
    await delete(users, "gives-way")
    users.delete("job", "urgent")


async def test_a_cluster_created_suspended_is_resumed_as_a_gang(users: Users) -> None:
    users.create(ray_cluster("parked", suspend=True))
    assert len(runs_of(await until_all_run(users, "parked"))) == 1
    await delete(users, "parked")


async def test_nothing_of_all_of_it_is_left(users: Users) -> None:
    await users.live.submit(job())
    await assert_all_is_well(users.live)

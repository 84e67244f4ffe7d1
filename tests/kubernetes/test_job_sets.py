"""JobSets beside JobSet's own controller and webhooks: how they start, restart, give way and end."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.lasting import LONG
from tests.e2e.live import job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import JOB_SET, at_work
from tests.kubernetes.live import KubernetesLive
from tests.kubernetes.users import Users, condition, live_with_priorities, runs_of, uids
from tests.kubernetes.users_objects import batch_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/lab/jobsets"


@pytest.fixture(scope="module")
def plane_with_job_sets(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    own_plane.add_nodes(1, "gpu", gpus=8, cpu="16")
    with at_work(JOB_SET, own_plane, tmp_path_factory.mktemp("controllers")):
        yield own_plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    plane_with_job_sets: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubernetesLive]:
    async with live_with_priorities(plane_with_job_sets, tmp_path_factory.mktemp("platform")) as live:
        yield live


def part(name: str, replicas: int, count: int, **more: Any) -> Json:
    """So many Jobs of `count` pods each, none of which is tried again by its Job."""
    return {"name": name, "replicas": replicas, "template": {"spec": batch_job(name, count, **more)["spec"]}}


def training(name: str, **spec: Any) -> Json:
    """A leader without GPUs, and four workers in two Jobs, who need the whole node; each works on until it is ended."""
    more: Json = {"seconds": LONG, "backoffLimit": 0}
    parts = [part("leader", 1, 1, gpus=0, **more), part("workers", 2, 2, gpus=2, **more)]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": parts, **spec},
    }


def found(users: Users, name: str) -> Json:
    return users.api.get(f"{SETS}/{name}")


def pods_of(users: Users, name: str, *phases: str) -> list[Json]:
    return users.labelled(f"jobset.sigs.k8s.io/jobset-name={name}", *phases)


async def until_all_run(users: Users, name: str) -> list[Json]:
    await users.until(lambda: len(pods_of(users, name, "Running")) == 5, f"all pods of {name} run")
    return pods_of(users, name)


async def until_completed(users: Users, name: str) -> None:
    users.finish(name)
    await users.until(lambda: condition(found(users, name), "Completed"), f"JobSet {name} is completed")


def delete(users: Users, *names: str) -> None:
    for name in names:
        users.api.delete(f"{SETS}/{name}", propagationPolicy="Foreground")


async def test_a_job_set_starts_whole_and_completes(users: Users) -> None:
    users.create(batch_job("holds", gpus=2, seconds=3600))
    await users.until_running("holds")
    users.create(training("whole"))
    await users.until(lambda: condition(found(users, "whole"), "tessera.io/Placed", "False"), "it says why it waits")
    assert [one["spec"].get("nodeName") for one in pods_of(users, "whole")] == [None] * 5
    users.delete("job", "holds")
    pods = await until_all_run(users, "whole")
    assert len(runs_of(pods)) == 1, "they are one run of one job"
    assert sorted(one["metadata"]["annotations"]["tessera.io/rank"] for one in pods) == ["0", "1", "2", "3", "4"]
    await until_completed(users, "whole")
    delete(users, "whole")


async def test_a_pod_that_fails_restarts_the_set_and_its_next_pods_are_the_jobs_next_attempt(users: Users) -> None:
    users.create(training("again", failurePolicy={"maxRestarts": 1}))
    first = await until_all_run(users, "again")
    users.fail(users.pods("again-workers-1")[0])
    await users.until(lambda: found(users, "again")["status"].get("restarts") == 1, "its controller restarts it")
    await users.until(lambda: not uids(first) & uids(pods_of(users, "again")), "its first pods are gone")
    second = await until_all_run(users, "again")
    ((job_id, attempt),) = runs_of(first)
    assert (attempt, runs_of(second)) == (1, {(job_id, 2)})
    delete(users, "again")
    await users.until(lambda: not pods_of(users, "again"), "its pods go with it")


async def test_a_set_without_restarts_fails_with_its_pod_and_gives_its_gpus_back(users: Users) -> None:
    users.create(training("once"))
    ((job_id, _),) = runs_of(await until_all_run(users, "once"))
    users.fail(users.pods("once-workers-1")[0])
    await users.until(lambda: condition(found(users, "once"), "Failed"), "JobSet once has failed")
    await users.live.until_phase(job_id, "failed")
    ended = users.live.state.ended.get(job_id)
    assert ended is not None
    assert ended.reason is not None
    assert ended.reason.code == "OwnerFailed"
    users.create(batch_job("after", gpus=8))
    await users.until_complete("after")
    delete(users, "once")
    users.delete("job", "after")


async def test_a_set_gives_way_by_suspension_which_costs_no_restart_and_is_resumed(users: Users) -> None:
    users.create(training("gives-way"))
    ((job_id, _),) = runs_of(await until_all_run(users, "gives-way"))
    users.create(batch_job("urgent", gpus=8, seconds=2, template={"priorityClassName": "high"}))
    await users.until_complete("urgent")
    assert runs_of(await until_all_run(users, "gives-way")) == {(job_id, 2)}
    await until_completed(users, "gives-way")
    assert found(users, "gives-way")["status"].get("restarts", 0) == 0
    delete(users, "gives-way")
    users.delete("job", "urgent")


async def test_a_set_created_suspended_waits_without_pods_and_is_resumed_as_a_gang(users: Users) -> None:
    users.create(batch_job("holds", gpus=2, seconds=3600))
    await users.until_running("holds")
    users.create(training("parked", suspend=True))
    await users.until(lambda: condition(found(users, "parked"), "tessera.io/Placed", "False"), "it says why it waits")
    assert pods_of(users, "parked") == []
    assert condition(found(users, "parked"), "Suspended"), "what its controller says is still there"
    users.delete("job", "holds")
    assert len(runs_of(await until_all_run(users, "parked"))) == 1
    await until_completed(users, "parked")
    delete(users, "parked")


async def test_jobs_that_are_made_one_after_the_other_are_gangs_of_their_own(users: Users) -> None:
    users.create(training("ordered", startupPolicy={"startupPolicyOrder": "InOrder"}))
    pods = await until_all_run(users, "ordered")
    assert len(runs_of(pods)) == 3
    await until_completed(users, "ordered")
    delete(users, "ordered")


async def test_a_set_that_is_deleted_leaves_nothing(users: Users) -> None:
    users.create(training("dropped"))
    ((job_id, _),) = runs_of(await until_all_run(users, "dropped"))
    delete(users, "dropped")
    await users.live.until_phase(job_id, "cancelled")
    await users.until(lambda: not pods_of(users, "dropped"), "its pods go with it")


async def test_nothing_of_all_of_it_is_left(users: Users) -> None:
    await users.live.submit(job())
    await assert_all_is_well(users.live)

"""LeaderWorkerSets beside their own controller and webhooks: how groups start, are recreated, scale and end."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.live import job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import LEADER_WORKER_SET, at_work
from tests.kubernetes.live import KubernetesLive
from tests.kubernetes.users import Users, condition, live_with_priorities, runs_of, uids
from tests.kubernetes.users_objects import batch_job, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/lab/leaderworkersets"
LWS = "leaderworkerset.sigs.k8s.io"
GROUP, WORKER = f"{LWS}/group-index", f"{LWS}/worker-index"


@pytest.fixture(scope="module")
def plane(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    own_plane.add_nodes(1, "gpu", gpus=8, cpu="16")
    with at_work(LEADER_WORKER_SET, own_plane, tmp_path_factory.mktemp("controllers")):
        yield own_plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    async with live_with_priorities(plane, tmp_path_factory.mktemp("platform")) as live:
        yield live


def serving(name: str, groups: int, **spec: Any) -> Json:
    """Groups of a leader and a worker, who need four GPUs together."""
    made = pod("", gpus=2, seconds=3600, restartPolicy="Always")
    template = {"metadata": {"annotations": made["metadata"]["annotations"]}, "spec": made["spec"]}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": groups, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}, **spec},
    }


def found(users: Users, name: str) -> Json:
    return users.api.get(f"{SETS}/{name}")


def group(users: Users, name: str, number: int, *phases: str) -> list[Json]:
    return users.labelled(f"{LWS}/name={name},{GROUP}={number}", *phases)


async def until_runs(users: Users, name: str, *numbers: int) -> list[list[Json]]:
    """The pods of these groups, once all of them run."""
    for number in numbers:
        wanted = f"group {number} of {name} runs"
        await users.until(lambda number=number: len(group(users, name, number, "Running")) == 2, wanted)  # type: ignore[misc]
    return [group(users, name, number) for number in numbers]


async def delete(users: Users, name: str) -> None:
    users.api.delete(f"{SETS}/{name}", propagationPolicy="Background")
    await users.until(lambda: not users.labelled(f"{LWS}/name={name}"), f"pods of {name} go with it")


async def test_each_group_is_a_gang_and_the_set_is_available(users: Users) -> None:
    users.create(batch_job("holds", gpus=2, seconds=3600))
    await users.until_running("holds")
    users.create(serving("llm", 2))
    await users.until(lambda: len(users.labelled(f"{LWS}/name=llm")) == 4, "all pods are made")
    await users.until(lambda: len(users.labelled(f"{LWS}/name=llm", "Running")) == 2, "there is room for one group")
    (waiting,) = {one["metadata"]["labels"][GROUP] for one in users.labelled(f"{LWS}/name=llm", "Pending")}
    for one in group(users, "llm", int(waiting)):
        await users.until_told(one["metadata"]["name"], "NoFit")
    users.delete("job", "holds")
    both = await until_runs(users, "llm", 0, 1)
    assert [len(runs_of(pods)) for pods in both] == [1, 1]
    assert runs_of(both[0]) != runs_of(both[1])
    for pods in both:
        metas = [one["metadata"] for one in pods]
        ranks = {meta["labels"][WORKER]: meta["annotations"]["tessera.io/rank"] for meta in metas}
        assert ranks == {"0": "0", "1": "1"}
    await users.until(lambda: condition(found(users, "llm"), "Available"), "the set is available")
    await delete(users, "llm")


async def test_a_worker_that_restarts_has_its_group_made_anew_and_the_other_goes_on(users: Users) -> None:
    users.create(serving("recreated", 2))
    first, other = await until_runs(users, "recreated", 0, 1)
    (worker,) = [one for one in first if one["metadata"]["labels"][WORKER] == "1"]
    users.restart(worker)
    await users.until(lambda: not uids(first) & uids(group(users, "recreated", 0)), "its pods are gone")
    again, still = await until_runs(users, "recreated", 0, 1)
    ((job_id, attempt),) = runs_of(first)
    assert (attempt, runs_of(again)) == (1, {(job_id, 2)}), "it is the next attempt of one job"
    assert uids(still) == uids(other)
    await delete(users, "recreated")


async def test_a_group_gives_way_whole_and_comes_back(users: Users) -> None:
    users.create(serving("revoked", 2))
    await until_runs(users, "revoked", 0, 1)
    users.create(batch_job("urgent", gpus=4, seconds=2, template={"priorityClassName": "high"}))
    await users.until_running("urgent")
    assert len(users.labelled(f"{LWS}/name=revoked", "Running")) == 2, "one group goes on"
    await users.until_complete("urgent")
    await until_runs(users, "revoked", 0, 1)
    await delete(users, "revoked")
    users.delete("job", "urgent")


async def test_a_set_is_scaled_and_what_it_does_not_need_is_free(users: Users) -> None:
    users.create(serving("scaled", 1))
    (first,) = await until_runs(users, "scaled", 0)
    users.api.patch(f"{SETS}/scaled", {"spec": {"replicas": 2}})
    await until_runs(users, "scaled", 0, 1)
    users.create(batch_job("next", gpus=4))
    users.api.patch(f"{SETS}/scaled", {"spec": {"replicas": 1}})
    await users.until_complete("next")
    assert uids(group(users, "scaled", 0, "Running")) == uids(first)
    await delete(users, "scaled")
    users.delete("job", "next")


async def test_a_rolling_update_replaces_group_by_group(users: Users) -> None:
    made = serving("rolled", 2)
    users.create(made)
    first = await until_runs(users, "rolled", 0, 1)
    template = made["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    template["spec"]["containers"][0]["image"] = "train:2"
    users.api.patch(f"{SETS}/rolled", {"spec": {"leaderWorkerTemplate": {"workerTemplate": template}}})
    await users.until(lambda: images(users, "rolled") == ["train:2"] * 4, "all pods are of the new image")
    second = await until_runs(users, "rolled", 0, 1)
    assert not uids(first[0] + first[1]) & uids(second[0] + second[1])
    await users.until(lambda: found(users, "rolled")["status"].get("updatedReplicas") == 2, "the update is done")
    await delete(users, "rolled")


def images(users: Users, name: str) -> list[str]:
    return [one["spec"]["containers"][0]["image"] for one in users.labelled(f"{LWS}/name={name}", "Running")]


async def test_a_set_whose_workers_wait_for_their_leader_is_refused_by_the_field(users: Users) -> None:
    users.create(serving("late", 1, startupPolicy="LeaderReady"))
    told = await users.until_told("late-0", "NotSupportedYet")
    assert "spec.startupPolicy" in told["message"]
    await delete(users, "late")


async def test_nothing_of_all_of_it_is_left(users: Users) -> None:
    await users.live.submit(job())
    await assert_all_is_well(users.live)

"""Gangs that other systems' marks name, on a node that holds one and a half of them: never two halves of two."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tessera.kernel.ports import ApiError
from tessera_local.cluster.in_memory import MemoryCluster
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas.config import Queue
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, batch_job

Json = dict[str, Any]
GANGS: dict[str, Any] = {
    "ray": lambda name, i: ({"ray.io/cluster": name, "ray.io/node-type": "worker" if i else "head"}, {}),
    "kueue": lambda name, _: ({"kueue.x-k8s.io/pod-group-name": name}, {"kueue.x-k8s.io/pod-group-total-count": "3"}),
    "old coscheduling": lambda name, _: (
        {"pod-group.scheduling.sigs.k8s.io/name": name, "pod-group.scheduling.sigs.k8s.io/min-available": "3"},
        {},
    ),
    "volcano": lambda name, _: ({}, {"scheduling.k8s.io/group-name": name}),
    "leader and workers": lambda name, i: (
        {"leaderworkerset.sigs.k8s.io/group-key": name, "leaderworkerset.sigs.k8s.io/worker-index": str(i)},
        {"leaderworkerset.sigs.k8s.io/size": "3"},
    ),
    "armada": lambda name, _: ({}, {"armadaproject.io/gangId": name, "armadaproject.io/gangCardinality": "3"}),
    "koordinator": lambda name, _: (
        {},
        {"gang.scheduling.koordinator.sh/name": name, "gang.scheduling.koordinator.sh/min-available": "3"},
    ),
    "yunikorn": lambda name, i: (
        {"applicationId": name},
        {
            "yunikorn.apache.org/task-group-name": "w" if i else "m",
            "yunikorn.apache.org/task-groups": '[{"name": "m", "minMember": 1}, {"name": "w", "minMember": 2}]',
        },
    ),
}


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


def make_pod(world: AdoptionWorld, system: str, name: str, number: int, **more: Any) -> None:
    labels, notes = GANGS[system](name, number)
    world.make_pod(f"{name}-{number}", labels=labels, notes=notes, **{"gpus": 2, "seconds": 20, **more})


def bound(world: AdoptionWorld, name: str) -> int:
    return sum(bool(pod["spec"].get("nodeName")) for pod in world.owned(f"{name}-"))


def make_volcano_group(world: AdoptionWorld, name: str, **spec: Any) -> None:
    world.core.create("podgroups.scheduling.volcano.sh", NS, {"metadata": {"name": name}, "spec": spec})


@pytest.mark.parametrize("system", GANGS)
async def test_two_gangs_on_room_for_one_and_a_half_run_one_after_the_other(world: AdoptionWorld, system: str) -> None:
    if system == "volcano":
        for name in ("one", "two"):
            make_volcano_group(world, name, minMember=3)
    for number in range(3):
        for name in ("one", "two"):
            make_pod(world, system, name, number)
    seen: set[tuple[int, int]] = set()
    for _ in range(30):
        await world.run(2)
        seen.add((bound(world, "one"), bound(world, "two")))
    assert seen <= {(0, 0), (3, 0), (0, 3), (3, 3)}
    assert (3, 3) in seen, "both have had their turn"


async def test_a_ray_cluster_waits_for_all_the_workers_that_its_object_wants(world: AdoptionWorld) -> None:
    workers = {"groupName": "w", "replicas": 2, "minReplicas": 1, "maxReplicas": 2}
    world.core.create("rayclusters", NS, {"metadata": {"name": "one"}, "spec": {"workerGroupSpecs": [workers]}})
    for number in range(2):
        make_pod(world, "ray", "one", number, seconds=600)
    await world.run(20)
    assert bound(world, "one") == 0
    assert world.condition(world.owned("one")[0])["reason"] == "GangIncomplete"
    make_pod(world, "ray", "one", 2, seconds=600)
    await world.run(10)
    assert bound(world, "one") == 3


async def test_pods_beyond_the_least_start_by_themselves_once_the_gang_is_at_work(world: AdoptionWorld) -> None:
    make_volcano_group(world, "one", minMember=2)
    for number in range(4):
        make_pod(world, "volcano", "one", number, seconds=600)
    await world.run(20)
    assert bound(world, "one") == 4
    assert sorted(job.pods for job in world.adopted("one")) == [1, 1, 2]


async def test_the_parts_of_a_gang_are_there_in_their_numbers_before_it_starts(world: AdoptionWorld) -> None:
    for number in (1, 2, 3):
        make_pod(world, "yunikorn", "one", number, gpus=1)
    await world.run(10)
    assert bound(world, "one") == 0
    told = world.condition(world.owned("one")[0])
    assert (told["reason"], "of m" in told["message"]) == ("GangIncomplete", True)
    make_pod(world, "yunikorn", "one", 0, gpus=1)
    await world.run(10)
    assert bound(world, "one") == 4


async def test_volcanos_tasks_are_there_in_their_numbers_before_the_gang_starts(world: AdoptionWorld) -> None:
    make_volcano_group(world, "one", minMember=2, minTaskMember={"ps": 1, "worker": 1})
    for number in range(2):
        world.make_pod(
            f"one-{number}",
            labels={"volcano.sh/task-spec": "worker"},
            notes={"scheduling.k8s.io/group-name": "one"},
            seconds=600,
        )
    await world.run(10)
    assert bound(world, "one") == 0
    assert "of ps" in world.condition(world.owned("one")[0])["message"]
    world.make_pod(
        "one-2", labels={"volcano.sh/task-spec": "ps"}, notes={"scheduling.k8s.io/group-name": "one"}, seconds=600
    )
    await world.run(20)
    assert bound(world, "one") == 3


async def test_a_number_of_pods_without_the_name_of_their_gang_is_refused_on_the_pod(world: AdoptionWorld) -> None:
    world.make_pod("one-0", notes={"kueue.x-k8s.io/pod-group-total-count": "3"}, seconds=600)
    await world.run(10)
    assert bound(world, "one") == 0
    told = world.condition(world.owned("one")[0])
    assert (told["reason"], "kueue.x-k8s.io/pod-group-name" in told["message"]) == ("MissingField", True)


async def test_a_preference_that_is_not_honoured_is_said_on_the_pod_that_is_placed_all_the_same(
    world: AdoptionWorld,
) -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    world.make_pod("train", topologySpreadConstraints=[spread], notes={"volcano.sh/sla-waiting-time": "1h"})
    await world.run(10)
    (pod,) = world.owned()
    assert world.only().phase == "running"
    said = next(one for one in pod["status"]["conditions"] if one["type"] == "tessera.io/NotHonoured")
    assert "spec.topologySpreadConstraints[0]" in said["message"]
    assert "volcano.sh/sla-waiting-time" in said["message"]
    assert [event["reason"] for event in world.events()] == ["NotHonoured"]


async def test_a_job_is_stopped_once_it_has_run_for_as_long_as_kueues_mark_allows(world: AdoptionWorld) -> None:
    job = batch_job(seconds=3600)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/max-exec-time-seconds": "100"}
    world.core.create("jobs", NS, job)
    await world.run(60)
    assert world.only().phase == "running"
    (first,) = [pod["metadata"]["uid"] for pod in world.owned()]
    await world.run(150)
    assert first not in [pod["metadata"]["uid"] for pod in world.owned()]


async def test_a_job_begins_with_the_least_of_its_pods_and_the_others_come_as_there_is_room(
    world: AdoptionWorld,
) -> None:
    world.make_pod("other", gpus=3, seconds=30)
    await world.run(5)
    job = batch_job(pods=4, gpus=2)
    job["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    world.core.create("jobs", NS, job)
    await world.run(10)
    assert bound(world, "train") == 2
    await world.run(40)
    assert bound(world, "train") == 4


async def test_pods_beyond_those_that_volcano_keeps_in_one_domain_are_refused_by_name(world: AdoptionWorld) -> None:
    tier = {"highestTierName": "kubernetes.io/hostname"}
    make_volcano_group(world, "one", minMember=2, networkTopology=tier)
    for number in range(3):
        make_pod(world, "volcano", "one", number, seconds=600)
    await world.run(20)
    assert bound(world, "one") == 2
    (left,) = [pod for pod in world.owned("one") if not pod["spec"].get("nodeName")]
    assert "PodGroup.spec.networkTopology" in world.condition(left)["message"]


async def test_workers_that_are_made_once_their_leader_is_ready_are_no_gang_and_it_is_told(
    world: AdoptionWorld,
) -> None:
    for name, policy in (("one", "LeaderReady"), ("two", "LeaderCreated")):
        spec = {"startupPolicy": policy}
        world.core.create("leaderworkersets", NS, {"metadata": {"name": name}, "spec": spec})
        labels, notes = GANGS["leader and workers"](name, 0)
        world.make_pod(f"{name}-0", labels={**labels, "leaderworkerset.sigs.k8s.io/name": name}, notes=notes)
    await world.run(20)
    (one,), (two,) = world.owned("one"), world.owned("two")
    told = world.condition(one)
    assert (told["reason"], "LeaderWorkerSet.spec.startupPolicy" in told["message"]) == ("NotSupportedYet", True)
    assert world.condition(two)["reason"] == "GangIncomplete"


async def test_pods_that_say_the_memory_that_they_need_share_a_gpu(world: AdoptionWorld) -> None:
    row = NodeRow(name="shared", cpu="64", memory="512Gi", gpus=1, gpu_memory="80Gi", device_profile="shares")
    world.core.create("nodes", "", node_object(row, "shared"))
    await world.run(5)
    world.make_job("first", gpus=0, pods=2, notes={"gpu-memory": "40960"})
    await world.run(10)
    world.make_job("second", gpus=0, pods=1, notes={"gpu-memory": "20480"}, suspend=True)
    await world.run(10)
    assert [pod["spec"].get("nodeName") for pod in world.owned("first")] == ["shared"] * 2
    second = world.only("second")
    assert (second.phase, second.roles[0].need.gpu_milli) == ("queued", 250)


async def test_a_pod_that_excludes_the_model_of_the_only_node_waits_for_another_and_runs_there() -> None:
    async with AdoptionWorld(nodes=()) as world:

        def add(name: str, model: str) -> None:
            world.core.create(
                "nodes", "", node_object(NodeRow(name=name, cpu="64", memory="512Gi", gpus=8, gpu_model=model), name)
            )

        add("new", "NVIDIA-H100-80GB-HBM3")
        await world.run(5)
        world.make_pod("train", notes={"nvidia.com/nouse-gputype": "H100"})
        world.make_pod("other", notes={"nvidia.com/use-gputype": "A100,H100"})
        await world.run(10)
        assert [pod["metadata"]["name"] for pod in world.pods() if pod["spec"].get("nodeName")] == ["other"]
        add("old", "Tesla-V100")
        await world.run(60)
        assert [pod["spec"].get("nodeName") for pod in world.owned("train")] == ["old"]


async def test_a_queue_of_another_system_is_the_one_that_the_configuration_says(world: AdoptionWorld) -> None:
    yunikorn = {"applicationId": "app", "queue": "root.sandbox", "tessera.io/queue": ""}
    world.make_pod("train", labels=yunikorn)
    await world.run(10)
    told = world.condition(world.owned("train")[0])
    assert (told["reason"], "queue_names" in told["message"]) == ("InvalidField", True)
    await world.configure(Queue(name="default"), Queue(name="research"), names={"root.sandbox": "research"})
    await world.run(20)
    assert (world.only().queue, world.only().phase) == ("research", "running")


async def test_an_owner_that_the_binder_may_not_read_is_said_on_its_pods(
    world: AdoptionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(*_: str) -> None:
        raise ApiError(403, "Forbidden", "cannot get")

    monkeypatch.setattr(MemoryCluster, "get_object", forbidden)
    make_pod(world, "ray", "one", 0)
    await world.run(10)
    told = world.condition(world.owned("one")[0])
    assert told["reason"] == "Forbidden"
    assert "rayclusters.ray.io" in told["message"]
    assert "tessera-owner-reader" in told["message"]


async def test_a_suspended_job_with_another_queues_label_is_told_who_has_to_resume_it(world: AdoptionWorld) -> None:
    job = batch_job(suspend=True)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "theirs"}
    world.core.create("jobs", NS, job)
    await world.run(30)
    (event,) = world.events()
    assert (event["reason"], event["type"]) == ("SuspendedByAnother", "Normal")
    assert "kueue.x-k8s.io/queue-name" in event["message"]
    assert world.job_object()["spec"]["suspend"] is True
    assert world.adopted() == []


async def test_a_pod_of_a_namespace_that_is_not_let_in_is_not_asked_about_for_ever(
    world: AdoptionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def forbidden(_self: MemoryCluster, namespace: str, name: str, _patch: Json) -> None:
        asked.append(f"{namespace}/{name}")
        raise ApiError(403, "Forbidden", "cannot patch")

    monkeypatch.setattr(MemoryCluster, "patch_pod_status", forbidden)
    world.make_pod("train", labels={"tessera.io/queue": "nowhere"})
    with capture_logs() as logs:
        await world.run(30)
    assert len(asked) <= 10
    assert [line["namespace"] for line in logs if line["event"] == "pods_not_told"] == [NS]

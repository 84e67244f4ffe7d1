"""
Owners that change their number of pods while these run: a smaller number is no loss of a rank, a larger one is growth
by pods that start by themselves, and what the gang is follows the least number of each part.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import NOTICE_ANNOTATION
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, run_of, user_pod


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


def running(world: AdoptionWorld, name: str = "train") -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in world.owned(name)
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def uids(world: AdoptionWorld, name: str = "train") -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.owned(name)}


def free_gpus(world: AdoptionWorld) -> int:
    return 8 * len(world.state.nodes) - sum(run.amount.gpu_milli for run in world.state.runs.values()) // 1000


class Scaled:
    """An owner, its number of workers, and what its controller does when that changes."""

    def __init__(self, world: AdoptionWorld) -> None:
        self.world = world

    def make(self, number: int) -> None:
        raise NotImplementedError

    def scale(self, number: int) -> None:
        """The owner's spec first, then its pods, as controllers do."""
        raise NotImplementedError

    def _pod(self, name: str, owner: Json, labels: dict[str, str]) -> None:
        pod = user_pod(name, labels=labels)
        pod["metadata"]["ownerReferences"] = [owner]
        self.world.core.create("pods", NS, pod)

    def _keep(self, wanted: dict[str, dict[str, str]], owner: Json) -> None:
        there = {pod["metadata"]["name"] for pod in self.world.owned()}
        for name in sorted(there - wanted.keys()):
            self.world.core.delete("pods", NS, name)
        for name in sorted(wanted.keys() - there):
            self._pod(name, owner, wanted[name])


def owned_by(kind: str, api_version: str, made: Any) -> Json:
    return {"apiVersion": api_version, "kind": kind, "name": "train", "uid": made.uid, "controller": True}


class ElasticJob(Scaled):
    """An Indexed Job whose parallelism and completions change together; its controller is the simulated one."""

    def make(self, number: int) -> None:
        self.world.make_job(pods=number, completionMode="Indexed")

    def scale(self, number: int) -> None:
        self.world.core.patch("jobs", NS, "train", {"spec": {"parallelism": number, "completions": number}})
        for pod in self.world.owned():
            if int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]) >= number:
                self.world.core.delete("pods", NS, pod["metadata"]["name"])


class ElasticTraining(Scaled):
    def make(self, number: int) -> None:
        spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": number, "restartPolicy": "OnFailure"}}}
        made = self.world.core.create("pytorchjobs", NS, {"metadata": {"name": "train"}, "spec": spec})
        self.owner = owned_by("PyTorchJob", "kubeflow.org/v1", made)
        self._keep(self._pods(number), self.owner)

    def scale(self, number: int) -> None:
        spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": number, "restartPolicy": "OnFailure"}}}
        self.world.core.patch("pytorchjobs", NS, "train", {"spec": spec})
        self._keep(self._pods(number), self.owner)

    def _pods(self, number: int) -> dict[str, dict[str, str]]:
        labels = {"training.kubeflow.org/job-name": "train", "training.kubeflow.org/replica-type": "worker"}
        index = "training.kubeflow.org/replica-index"
        return {f"train-worker-{each}": labels | {index: str(each)} for each in range(number)}


class ElasticRay(Scaled):
    """A RayCluster with a head and one group of workers; `autoscales` with at least one of them."""

    def __init__(self, world: AdoptionWorld, autoscales: bool) -> None:
        super().__init__(world)
        self.autoscales = autoscales

    def make(self, number: int) -> None:
        made = self.world.core.create("rayclusters", NS, {"metadata": {"name": "train"}, "spec": self._spec(number)})
        self.owner = owned_by("RayCluster", "ray.io/v1", made)
        self._keep(self._pods(range(number)), self.owner)

    def scale(self, number: int) -> None:
        """Down, the autoscaler takes away whoever is idle: here the first worker."""
        self.world.core.patch("rayclusters", NS, "train", {"spec": self._spec(number)})
        there = sorted(name for name in running(self.world) if "-w-" in name)
        newest = 1 + max((int(name.rpartition("-")[2]) for name in there), default=-1)
        staying = [int(name.rpartition("-")[2]) for name in there][-number:]
        self._keep(self._pods([*staying, *range(newest, newest + number - len(staying))]), self.owner)

    def _spec(self, number: int) -> Json:
        group = {"groupName": "w", "replicas": number, "minReplicas": 1, "maxReplicas": 8}
        return {"enableInTreeAutoscaling": self.autoscales, "workerGroupSpecs": [group]}

    def _pods(self, workers: Any) -> dict[str, dict[str, str]]:
        cluster = {"ray.io/cluster": "train"}
        of = {f"train-w-{each}": cluster | {"ray.io/group": "w"} for each in workers}
        return {"train-head": cluster | {"ray.io/group": "headgroup"}, **of}


class ElasticJobSet(Scaled):
    """Each replica is a Job of one pod."""

    def make(self, number: int) -> None:
        made = self.world.core.create("jobsets", NS, {"metadata": {"name": "train"}, "spec": self._spec(number)})
        self.owner = owned_by("JobSet", "jobset.x-k8s.io/v1alpha2", made)
        self._jobs(number)

    def scale(self, number: int) -> None:
        self.world.core.patch("jobsets", NS, "train", {"spec": self._spec(number)})
        self._jobs(number)

    def _spec(self, number: int) -> Json:
        template = {"spec": {"parallelism": 1, "completions": 1}}
        return {"replicatedJobs": [{"name": "w", "replicas": number, "template": template}]}

    def _jobs(self, number: int) -> None:
        there = {version.object["metadata"]["name"] for version in self.world.core.list("jobs")[0]}
        wanted = [f"train-w-{each}" for each in range(number)]
        for name in sorted(there - set(wanted)):
            self.world.core.delete("jobs", NS, name)
        for each, name in enumerate(wanted):
            if name not in there:
                labels = {"jobset.sigs.k8s.io/replicatedjob-name": "w", "jobset.sigs.k8s.io/job-index": str(each)}
                template = user_pod(name, labels=labels)
                del template["metadata"]["name"]
                spec = {"parallelism": 1, "completions": 1, "template": template}
                job = {"metadata": {"name": name, "ownerReferences": [self.owner]}, "spec": spec}
                self.world.core.create("jobs", NS, job)


KINDS = {
    "Job": ElasticJob,
    "PyTorchJob": ElasticTraining,
    "RayCluster": lambda world: ElasticRay(world, autoscales=False),
    "RayCluster with its autoscaler": lambda world: ElasticRay(world, autoscales=True),
    "JobSet": ElasticJobSet,
}


@pytest.fixture(params=KINDS)
def owner(request: pytest.FixtureRequest, world: AdoptionWorld) -> Any:
    return KINDS[request.param](world)  # type: ignore[no-untyped-call]


async def test_a_smaller_number_is_no_loss_and_gives_the_gpus_of_those_that_left_back(
    world: AdoptionWorld, owner: Any
) -> None:
    owner.make(3)
    await world.run(20)
    before, free = uids(world), free_gpus(world)
    assert len(running(world)) == len(before)
    owner.scale(2)
    await world.run(60)
    assert uids(world) < before, "those that stay are those that were there"
    assert len(running(world)) == len(before) - 1
    assert free_gpus(world) == free + 1
    assert {run_of(pod).rpartition("-")[2] for pod in world.owned()} == {"1"}


def end_at_once(world: AdoptionWorld) -> None:
    """Programs that end by SIGTERM before anybody has read that their pods are to go."""
    ended = {"state": {"terminated": {"exitCode": 143, "reason": "Error"}}}
    for pod in world.owned():
        if "deletionTimestamp" in pod["metadata"]:
            said = {"phase": "Failed", "containerStatuses": [status | ended for status in statuses(pod)]}
            world.core.patch("pods", NS, pod["metadata"]["name"], {"status": said}, subresource="status")


def statuses(pod: Json) -> list[Json]:
    return list(pod["status"].get("containerStatuses", ()))


@pytest.mark.parametrize("owner", ["Job", "PyTorchJob", "RayCluster"], indirect=True)
async def test_pods_that_end_as_soon_as_their_owner_wants_fewer_are_no_failure(
    world: AdoptionWorld, owner: Any
) -> None:
    owner.make(3)
    await world.run(20)
    before, free = uids(world), free_gpus(world)
    owner.scale(2)
    end_at_once(world)
    await world.run(60)
    assert uids(world) < before, "those that stay are those that were there"
    assert len(running(world)) == len(before) - 1
    assert free_gpus(world) == free + 1
    assert {run_of(pod).rpartition("-")[2] for pod in world.owned()} == {"1"}


@pytest.mark.parametrize("owner", ["Job", "PyTorchJob", "RayCluster", "JobSet"], indirect=True)
@pytest.mark.parametrize("phase", ["Pending", "Running"])
async def test_a_smaller_number_at_the_very_start_is_no_loss_either(
    world: AdoptionWorld, owner: Any, phase: str
) -> None:
    """Once all have a node, or all run: nobody has told the ledger of either yet."""
    owner.make(3)

    def so(pod: Json) -> bool:
        return bool(pod["spec"].get("nodeName")) and (phase == "Pending" or pod["status"].get("phase") == phase)

    while not any(run.uids for run in world.state.runs.values()):
        await world.run(0.05, 0.05)
    while not all(map(so, world.owned())):
        await world.clock.run(0.05)
    before = uids(world)
    owner.scale(2)
    await world.clock.run(0.5)
    await world.run(60)
    assert uids(world) < before
    assert len(running(world)) == len(before) - 1
    assert {run_of(pod).rpartition("-")[2] for pod in world.owned()} == {"1"}


async def test_a_larger_number_is_growth_that_changes_nothing_for_those_that_run(
    world: AdoptionWorld, owner: Any
) -> None:
    owner.make(2)
    await world.run(20)
    before = uids(world)
    owner.scale(4)
    await world.run(30)
    assert before < uids(world)
    assert len(running(world)) == len(before) + 2
    owner.scale(3)
    await world.run(60)
    assert len(running(world)) == len(before) + 1


async def test_a_pod_that_is_replaced_waits_for_its_whole_gang_where_nobody_may_suspend(world: AdoptionWorld) -> None:
    owner = ElasticTraining(world)
    owner.make(3)
    world.core.patch("pytorchjobs", NS, "train", {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}})
    await world.run(20)
    world.core.delete("pods", NS, "train-worker-0")
    for _ in range(60):
        await world.run(1)
        owner.scale(3)
    assert len(running(world)) == 3
    assert {run_of(pod).rpartition("-")[2] for pod in world.owned()} == {"2"}


# -- the groups of a RayCluster


def ray_of_two_groups(world: AdoptionWorld) -> Json:
    groups = [
        {"groupName": "a", "replicas": 2, "minReplicas": 1, "maxReplicas": 3},
        {"groupName": "b", "replicas": 1, "minReplicas": 1, "maxReplicas": 2},
    ]
    spec = {"enableInTreeAutoscaling": True, "workerGroupSpecs": groups}
    made = world.core.create("rayclusters", NS, {"metadata": {"name": "train"}, "spec": spec})
    return owned_by("RayCluster", "ray.io/v1", made)


PODS = {"b-0": ("b", 8), "head": ("headgroup", 0), "a-0": ("a", 1), "a-1": ("a", 1)}
ORDERS = [("b-0", "head", "a-0", "a-1"), ("a-0", "a-1", "head", "b-0"), ("head", "a-1", "a-0", "b-0")]


async def make_in_order(world: AdoptionWorld, names: tuple[str, ...], pause: float) -> None:
    owner = ray_of_two_groups(world)
    for name in names:
        group, gpus = PODS[name]
        pod = user_pod(f"train-{name}", gpus=gpus, labels={"ray.io/cluster": "train", "ray.io/group": group})
        pod["metadata"]["ownerReferences"] = [owner]
        world.core.create("pods", NS, pod)
        await world.run(pause)


@pytest.mark.parametrize("pause", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("names", ORDERS, ids="-".join)
async def test_a_cluster_of_two_groups_is_not_torn_down_while_its_pods_arrive(
    world: AdoptionWorld, names: tuple[str, ...], pause: float
) -> None:
    world.core.create("nodes", "", node_object(NodeRow(name="node-b", cpu="64", memory="512Gi", gpus=8), "node-b"))
    await make_in_order(world, names, pause)
    await world.run(30)
    assert len(running(world)) == 4
    assert {run_of(pod).rpartition("-")[2] for pod in world.owned()} == {"1"}, "each at its first attempt"


@pytest.mark.parametrize("names", ORDERS, ids="-".join)
async def test_a_cluster_of_two_groups_starts_only_with_the_least_of_each(
    world: AdoptionWorld, names: tuple[str, ...]
) -> None:
    world.make_pod("other", gpus=4, seconds=60)
    await world.run(5)
    await make_in_order(world, names, 1.0)
    await world.run(30)
    assert running(world) == set(), "b has no room"


# -- Jobs in waves


async def test_new_pods_start_when_parallelism_is_raised_to_completions(world: AdoptionWorld) -> None:
    world.make_job(pods=2, completions=4, seconds=600)
    await world.run(10)
    assert len(running(world)) == 2
    world.core.patch("jobs", NS, "train", {"spec": {"parallelism": 4}})
    await world.run(20)
    assert len(running(world)) == 4


# -- ends after a shrink


async def test_what_ends_in_its_notice_after_its_owner_made_it_smaller_has_ended(world: AdoptionWorld) -> None:
    world.make_job(pods=3, seconds=60, completionMode="Indexed", notes={NOTICE_ANNOTATION: "60"})
    await world.run(20)
    ElasticJob(world).scale(2)
    await world.run(20)
    assert world.only().phase == "running"
    await world.drain("node-a")
    await world.run(10)
    assert world.only().phase == "evicting"
    await world.run(30)
    assert [(job.phase, job.attempt) for job in world.ended()] == [("succeeded", 1)]

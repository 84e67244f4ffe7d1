"""An MPIJob of the MPI operator comes through whole after one of its workers has failed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.binder.workloads.registry import kind_of_object
from tests.unit.binder.adoption.adoption_builders import an_object
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, batch_job, user_pod
from tests.unit.binder.cluster_world import RESERVED

Json = dict[str, Any]
API = "kubeflow.org/v2beta1"
NAME, ROLE = "training.kubeflow.org/job-name", "training.kubeflow.org/job-role"


class MpiOperator:
    """
    Plays it: a suspension takes those of its workers away that are to be cleaned up, and the launcher's pod. The first
    one of `failing` fails.
    """

    def __init__(self, world: AdoptionWorld, cleans: str) -> None:
        self.world, self.cleans = world, cleans
        self.failing = {"train-worker-1"}
        parts: Json = {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}
        policy = {"suspend": False, "cleanPodPolicy": cleans}
        body = {"metadata": {"name": "train"}, "spec": {"mpiReplicaSpecs": parts, "runPolicy": policy}}
        made = world.core.create("mpijobs", NS, body)
        self.owner = {"apiVersion": API, "kind": "MPIJob", "name": "train", "uid": made.uid, "controller": True}
        launcher = batch_job("train-launcher", gpus=0, labels={NAME: "train", ROLE: "launcher"})
        launcher["metadata"]["ownerReferences"] = [self.owner]
        world.core.create("jobs", NS, launcher)

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self._act()
            await self.world.run(1)

    def _act(self) -> None:
        suspended = self.world.core.get("mpijobs", NS, "train").object["spec"]["runPolicy"]["suspend"]
        if self.world.job_object("train-launcher")["spec"].get("suspend", False) != suspended:
            self.world.core.patch("jobs", NS, "train-launcher", {"spec": {"suspend": suspended}})
        there = {pod["metadata"]["name"]: pod for pod in self.world.owned("train-worker")}
        if suspended:
            for name, pod in there.items():
                if "deletionTimestamp" not in pod["metadata"] and self._cleans_up(pod):
                    self.world.core.delete("pods", NS, name)
            return
        for name in {"train-worker-0", "train-worker-1"} - there.keys():
            labels = {NAME: "train", ROLE: "worker", "training.kubeflow.org/replica-index": name[-1]}
            ends = {f"{RESERVED}seconds": "5", f"{RESERVED}exit-code": "1"} if name in self.failing else {}
            self.failing.discard(name)
            pod = user_pod(name, gpus=4, labels=labels, notes=ends)
            pod["metadata"]["ownerReferences"] = [self.owner]
            self.world.core.create("pods", NS, pod)

    def _cleans_up(self, pod: Json) -> bool:
        return self.cleans != "Running" or pod["status"].get("phase") in ("Pending", "Running")


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


@pytest.mark.parametrize("cleans", ["Running", "None"])
async def test_a_worker_that_failed_is_made_anew_with_all_the_others(world: AdoptionWorld, cleans: str) -> None:
    operator = MpiOperator(world, cleans)
    for _ in range(120):
        await operator.run(1)
        if world.adopted() and world.only().attempt == 2 and world.only().phase == "running":
            break
    assert (world.only().attempt, world.only().phase) == (2, "running")
    assert {pod["status"]["phase"] for pod in world.owned("train-worker")} == {"Running"}


@pytest.mark.parametrize(("api_version", "pods"), [(API, 1), ("kubeflow.org/v1", 2)])
def test_workers_that_say_no_number_are_as_many_as_their_operator_makes(api_version: str, pods: int) -> None:
    owner = an_object(api_version, "MPIJob", mpiReplicaSpecs={"Launcher": {}, "Worker": {}})
    kind = kind_of_object(owner)
    assert kind is not None
    assert kind.size(owner) == pods

"""A TrainJob of Kubeflow's Trainer is suspended and resumed in the place of the JobSet that its controller makes."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, batch_job, user_pod

Json = dict[str, Any]
PODS = 8
"""More than the six failures that a Job allows by default."""
SUSPENDED = "tessera.io/suspended"


class Trainer:
    """Plays Trainer's controller and JobSet's: each writes the suspension of the object above to the one below."""

    def __init__(self, world: AdoptionWorld, suspended: bool = False, **labels: str) -> None:
        self.world = world
        meta, spec = {"name": "train", "labels": labels}, {"suspend": suspended}
        above = self._owner("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", meta, spec)
        node = batch_job("train-node-0", pods=PODS, gpus=1, completionMode="Indexed")
        node["spec"]["template"]["metadata"]["labels"] |= {
            "jobset.sigs.k8s.io/replicatedjob-name": "node",
            "jobset.sigs.k8s.io/job-index": "0",
        }
        parts = [{"name": "node", "replicas": 1, "template": {"spec": node["spec"]}}]
        spec = {"suspend": suspended, "replicatedJobs": parts}
        meta = {"name": "train", "ownerReferences": [above]}
        owner = self._owner("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", meta, spec)
        node["metadata"]["ownerReferences"] = [owner]
        node["spec"]["suspend"] = suspended
        world.core.create("jobs", NS, node)

    def _owner(self, api_version: str, kind: str, resource: str, meta: Json, spec: Json) -> Json:
        made = self.world.core.create(resource, NS, {"metadata": meta, "spec": spec})
        return {"apiVersion": api_version, "kind": kind, "name": "train", "uid": made.uid, "controller": True}

    def there(self, resource: str) -> Json:
        return self.world.core.get(resource, NS, "train").object

    def suspend(self, suspended: bool) -> None:
        self.world.core.patch("trainjobs", NS, "train", {"spec": {"suspend": suspended}})

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            wanted = {"spec": {"suspend": self.there("trainjobs")["spec"]["suspend"]}}
            if self.there("jobsets")["spec"]["suspend"] != wanted["spec"]["suspend"]:
                self.world.core.patch("jobsets", NS, "train", wanted)
                self.world.core.patch("jobs", NS, "train-node-0", wanted)
            await self.world.run(1)


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


async def test_one_created_suspended_waits_without_pods_and_is_resumed_by_its_own_field(world: AdoptionWorld) -> None:
    world.core.create("pods", NS, user_pod("holds", gpus=8, seconds=20))
    await world.run(5)
    trainer = Trainer(world, suspended=True)
    await trainer.run(5)
    assert (world.only().phase, world.only().pods, world.owned()) == ("queued", PODS, [])
    await trainer.run(35)
    assert world.only().phase == "running"
    assert trainer.there("trainjobs")["metadata"]["annotations"][SUSPENDED] == "false"
    assert SUSPENDED not in trainer.there("jobsets")["metadata"].get("annotations", {})


async def test_one_that_lost_a_pod_is_suspended_which_its_job_counts_as_no_further_failure(
    world: AdoptionWorld,
) -> None:
    trainer = Trainer(world)
    await trainer.run(10)
    job = world.only()
    assert (job.phase, job.attempt, job.preemptible) == ("running", 1, True)
    world.core.evict(NS, world.owned()[0]["metadata"]["name"])
    for _ in range(90):
        await trainer.run(1)
        if world.only().phase == "running" and world.only().attempt == 2:
            break
    assert (world.only().job_id, world.only().phase, world.only().attempt) == (job.job_id, "running", 2)
    assert world.job_object("train-node-0")["status"]["failed"] == 1
    assert SUSPENDED in trainer.there("trainjobs")["metadata"]["annotations"]
    assert SUSPENDED not in trainer.there("jobsets")["metadata"].get("annotations", {})


async def test_one_that_its_user_suspends_waits_for_the_user(world: AdoptionWorld) -> None:
    trainer = Trainer(world)
    await trainer.run(10)
    job_id = world.only().job_id
    trainer.suspend(True)
    await trainer.run(60)
    assert (world.only().job_id, world.only().phase, world.owned()) == (job_id, "queued", [])
    assert trainer.there("trainjobs")["spec"]["suspend"] is True
    trainer.suspend(False)
    await trainer.run(30)
    assert (world.only().job_id, world.only().phase, world.only().attempt) == (job_id, "running", 2)


async def test_one_that_kueue_looks_after_is_not_preempted(world: AdoptionWorld) -> None:
    trainer = Trainer(world, **{"kueue.x-k8s.io/queue-name": "team"})
    await trainer.run(10)
    assert (world.only().phase, world.only().preemptible) == ("running", False)

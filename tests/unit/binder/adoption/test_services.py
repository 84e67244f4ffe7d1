"""Replicas of users' services: which object they are of, and how many of them are guaranteed."""

from typing import Any

import pytest

from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import MIN_REPLICAS_ANNOTATION
from tessera_schemas.reasons import Code
from tessera_schemas.work.adopted import Service
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, user_pod

DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat", "uid": "of-chat", "controller": True}


def replica_set(world: AdoptionWorld, name: str, least: str = "", owner: Json | None = DEPLOYMENT) -> Json:
    notes = {"annotations": {MIN_REPLICAS_ANNOTATION: least}} if least else {}
    meta: Json = {"name": name, "namespace": NS, **notes, "ownerReferences": [] if owner is None else [owner]}
    world.core.create("replicasets", NS, {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta})
    made = world.core.get("replicasets", NS, name).object["metadata"]
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": made["uid"], "controller": True}


def replica(world: AdoptionWorld, name: str, maker: Json, **more: Any) -> None:
    pod = user_pod(name, seconds=6000, **more)
    pod["metadata"]["ownerReferences"] = [maker]
    world.core.create("pods", NS, pod)


def services(world: AdoptionWorld) -> dict[str, Service | None]:
    return {job.name: job.adopted.service for job in world.state.jobs.values() if job.adopted is not None}


async def test_replicas_of_both_replica_sets_of_a_rollout_are_their_deployments() -> None:
    async with AdoptionWorld() as world:
        old, new = replica_set(world, "chat-1", "2"), replica_set(world, "chat-2", "2")
        replica(world, "chat-1-a", old)
        replica(world, "chat-2-a", new)
        await world.run(10)
        chat = Service(kind="Deployment", name="chat", uid="of-chat", min_replicas=2)
        assert services(world) == {"chat-1-a": chat, "chat-2-a": chat}
        assert all(job.in_minimum and job.phase == "running" for job in world.state.jobs.values())


async def test_pods_of_an_inference_service_are_replicas_of_the_deployment_that_it_made() -> None:
    """As KServe makes them in its mode of plain Deployments: it copies the annotation to the pods."""
    async with AdoptionWorld() as world:
        predictor = {**DEPLOYMENT, "name": "llama-predictor", "uid": "of-llama"}
        maker = replica_set(world, "llama-predictor-7d9", owner=predictor)
        labels = {"serving.kserve.io/inferenceservice": "llama", "component": "predictor", "app": "isvc.llama"}
        for name in ("llama-predictor-7d9-a", "llama-predictor-7d9-b"):
            replica(world, name, maker, notes={MIN_REPLICAS_ANNOTATION: "1"}, labels=labels)
        await world.run(10)
        llama = Service(kind="Deployment", name="llama-predictor", uid="of-llama", min_replicas=1)
        assert list(services(world).values()) == [llama, llama]
        assert sorted(job.in_minimum for job in world.state.jobs.values()) == [False, True]


async def test_the_pods_own_number_counts_before_that_of_what_makes_them() -> None:
    async with AdoptionWorld() as world:
        replica(world, "chat-1-a", replica_set(world, "chat-1", "2"), notes={MIN_REPLICAS_ANNOTATION: "1"})
        await world.run(10)
        (service,) = services(world).values()
        assert service is not None
        assert service.min_replicas == 1


async def test_a_replica_set_by_itself_is_a_service_and_one_without_a_number_is_none() -> None:
    async with AdoptionWorld() as world:
        alone = replica_set(world, "alone", "1", owner=None)
        replica(world, "alone-a", alone)
        replica(world, "none-a", replica_set(world, "none"))
        await world.run(10)
        found = services(world)
        assert found["none-a"] is None
        assert found["alone-a"] == Service(kind="ReplicaSet", name="alone", uid=alone["uid"], min_replicas=1)


@pytest.mark.parametrize("words", ["two", "-1", "1.5", "99999999", "²"])
async def test_what_is_no_number_of_replicas_is_refused_by_name(words: str) -> None:
    async with AdoptionWorld() as world:
        replica(world, "chat-1-a", replica_set(world, "chat-1", words))
        await world.run(10)
        assert world.state.jobs.get("") is None
        assert services(world) == {}
        message = world.condition(world.owned("chat-1-a")[0])["message"]
        assert MIN_REPLICAS_ANNOTATION in message
        assert Code.INVALID_FIELD.value in message or "no number of replicas" in message


async def test_a_job_whose_pods_are_one_gang_is_no_service() -> None:
    async with AdoptionWorld() as world:
        world.make_job(pods=2, notes={MIN_REPLICAS_ANNOTATION: "1"})
        await world.run(10)
        assert world.adopted() == []
        assert "one gang" in world.condition(world.owned()[0])["message"]


async def test_a_number_that_changes_while_a_replica_waits_reaches_the_ledger() -> None:
    async with AdoptionWorld() as world:
        maker = replica_set(world, "chat-1", "1")
        for name in ("chat-1-a", "chat-1-b"):
            replica(world, name, maker, gpus=5)
        await world.run(10)
        waiting = next(job for job in world.state.jobs.values() if job.phase == "queued")
        assert not waiting.in_minimum
        more = {"metadata": {"annotations": {MIN_REPLICAS_ANNOTATION: "2"}}}
        world.core.patch("replicasets", NS, "chat-1", more)
        await world.run(40)
        now = world.state.jobs.get(waiting.job_id)
        assert now is not None
        assert now.in_minimum
        assert world.kinds().count("back_in_line") == 1


def ray_cluster(world: AdoptionWorld, name: str, owner: Json | None, least: str = "", **more: Any) -> None:
    """A head and a worker of four GPUs, as KubeRay makes them for a RayService, whose annotations it copies."""
    group = {"groupName": "w", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "template": {}}
    notes = {"annotations": {MIN_REPLICAS_ANNOTATION: least}} if least else {}
    meta = {"name": name, **notes, "ownerReferences": [] if owner is None else [owner]}
    spec = {"headGroupSpec": {"template": {}}, "workerGroupSpecs": [group]} | more
    made = world.core.create("rayclusters", NS, {"metadata": meta, "spec": spec})
    maker = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": name, "uid": made.uid, "controller": True}
    for part, gpus in (("headgroup", 0), ("w", 4)):
        replica(world, f"{name}-{part}", maker, gpus=gpus, labels={"ray.io/cluster": name, "ray.io/group": part})


RAY_SERVICE = {"apiVersion": "ray.io/v1", "kind": "RayService", "name": "llm", "uid": "of-llm", "controller": True}


async def test_both_clusters_of_a_ray_service_that_is_upgraded_are_its_replicas() -> None:
    """Each as one gang: the new one waits for room beside the old one, which is kept."""
    async with AdoptionWorld() as world:
        ray_cluster(world, "llm-1", RAY_SERVICE, "1")
        await world.run(10)
        ray_cluster(world, "llm-2", RAY_SERVICE, "1")
        await world.run(10)
        llm = Service(kind="RayService", name="llm", uid="of-llm", min_replicas=1)
        assert list(services(world).values()) == [llm, llm]
        kept = {job.name: (job.in_minimum, job.phase) for job in world.state.jobs.values()}
        assert kept == {"llm-1": (True, "running"), "llm-2": (False, "running")}


async def test_a_ray_cluster_by_itself_is_one_gang_whose_number_is_refused() -> None:
    async with AdoptionWorld() as world:
        ray_cluster(world, "train", None, "1")
        await world.run(10)
        assert world.adopted() == []
        assert "one gang" in world.condition(world.owned()[0])["message"]


async def test_a_ray_service_without_a_number_is_a_job_like_others() -> None:
    async with AdoptionWorld() as world:
        ray_cluster(world, "llm-1", RAY_SERVICE)
        await world.run(10)
        assert services(world) == {"llm-1": None}

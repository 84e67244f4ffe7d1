"""Users' pods with claims on devices: reserved before their bind, and left when a run lets go of a pod."""

from typing import Any

import pytest

from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import DELETE_PROTECTION, RUN_ANNOTATION
from tessera_schemas.facts import CancelRequested, DrainRequested
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, batch_job, user_pod
from tests.unit.binder.claim_builders import DRIVER, claim
from tests.unit.binder.claim_worlds import claims, publish_devices

THE_CLAIM = [{"name": "gpu", "resourceClaimName": "mine"}]


def make_claim(world: AdoptionWorld, **status: Any) -> None:
    wanted = claim("mine", **status)
    wanted["metadata"]["namespace"] = NS
    world.core.create("resourceclaims", NS, wanted)


def make_pod_with_claim(world: AdoptionWorld, name: str = "alone", **more: Any) -> None:
    world.make_pod(name, gpus=0, resourceClaims=THE_CLAIM, **more)


def allocated_on(node: str, device: str = "gpu-1") -> Json:
    """What another scheduler writes."""
    result = {"request": "one", "driver": DRIVER, "pool": node, "device": device}
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    return {"devices": {"results": [result]}, "nodeSelector": terms}


def only_claim(world: AdoptionWorld) -> Json:
    (found,) = claims(world)
    return found


async def test_a_users_claim_is_marked_and_reserved_before_its_pod_is_bound() -> None:
    async with AdoptionWorld(gpus=0) as world:
        publish_devices(world)
        await world.run(3)  # until the ledger has the devices
        make_claim(world)
        make_pod_with_claim(world)
        await world.run(15)
        job = world.only("alone")
        (pod,) = world.owned("alone")
        found = only_claim(world)
        assert job.phase == "running"
        assert found["metadata"]["annotations"] == {RUN_ANNOTATION: job.run_id}
        assert found["status"]["reservedFor"][0]["uid"] == pod["metadata"]["uid"]


async def test_a_run_that_lets_go_of_a_users_pod_leaves_its_claim_as_it_was() -> None:
    async with AdoptionWorld(gpus=0) as world:
        publish_devices(world, bindingConditions=["up"])
        await world.run(3)  # until the ledger has the devices
        make_claim(world)
        make_pod_with_claim(world)
        await world.run(15)
        job = world.only("alone")
        assert only_claim(world)["metadata"]["finalizers"] == [DELETE_PROTECTION]
        await world.commit(CancelRequested(kind="cancel_requested", job_id=job.job_id, tenant=NS))
        await world.run(15)
        found = only_claim(world)
        assert not found["metadata"].get("finalizers")
        assert not found["metadata"].get("annotations")
        assert not found["status"]
        assert "released" in world.kinds()
        assert not world.owned("alone")[0]["spec"].get("nodeName")


async def test_a_claim_that_another_scheduler_allocated_leads_its_pod_to_its_node_and_stays_allocated() -> None:
    async with AdoptionWorld(nodes=("node-a", "node-b"), gpus=0) as world:
        await world.run(3)
        make_claim(world, allocation=allocated_on("node-b"))
        make_pod_with_claim(world)
        await world.run(15)
        job, (pod,), found = world.only("alone"), world.owned("alone"), only_claim(world)
        assert job.phase == "running"
        assert pod["spec"]["nodeName"] == "node-b"
        assert [user["uid"] for user in found["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
        assert found["status"]["allocation"] == allocated_on("node-b")
        assert RUN_ANNOTATION not in (found["metadata"].get("annotations") or {})
        assert not world.state.runs.get(job.run_id).placements[0].drawn
        assert job.amount.gpu_milli == 0


async def test_a_pod_that_comes_later_goes_to_the_devices_that_another_job_has() -> None:
    """They are counted with the job that drew them, and are its own until the last pod has left them."""
    async with AdoptionWorld(nodes=("node-a", "node-b"), gpus=0) as world:
        publish_devices(world)
        await world.run(3)
        make_claim(world)
        make_pod_with_claim(world, "first", seconds=30)
        await world.run(15)
        make_pod_with_claim(world, "second", seconds=60)
        await world.run(10)
        first = world.state.runs.get(world.only("first").run_id)
        assert [user["name"] for user in only_claim(world)["status"]["reservedFor"]] == ["first", "second"]
        assert {pod["spec"].get("nodeName") for pod in world.pods()} == {"node-a"}
        (had,) = first.placements[0].drawn
        await world.run(25)  # the first has ended
        assert [pod["status"]["phase"] for pod in world.owned("first")] == ["Succeeded"]
        assert had.id in dict(world.state.nodes.get("node-a").drawn)
        await world.run(45)
        assert world.state.nodes.get("node-a").drawn == ()
        assert not only_claim(world)["status"]


@pytest.mark.parametrize("seconds", [600, 20], ids=["the first is at work", "the first has ended"])
async def test_a_pod_that_has_joined_the_claim_of_another_job_is_still_the_same_job_before_its_bind(
    seconds: int,
) -> None:
    async with AdoptionWorld(nodes=("node-a", "node-b"), gpus=0) as world:
        publish_devices(world)
        await world.run(3)
        make_claim(world)
        make_pod_with_claim(world, "first", seconds=seconds)
        await world.run(10)
        await world.commit(DrainRequested(kind="drain_requested", node="node-a", evict=False))
        make_pod_with_claim(world, "second")
        await world.run(5)
        job, (pod,) = world.only("second"), world.owned("second")
        # As a binder leaves it that was behind while an earlier run of the job was let go of.
        user = {"resource": "pods", "name": "second", "uid": pod["metadata"]["uid"]}
        users = [*only_claim(world)["status"]["reservedFor"], user]
        world.core.patch("resourceclaims", NS, "mine", {"status": {"reservedFor": users}}, "status")
        await world.run(20)
        assert (job.phase, len(world.adopted("first"))) == ("queued", seconds == 600)
        assert world.only("second").job_id == job.job_id
        await world.drain("node-a", undo=True)
        await world.run(15)
        assert world.owned("second")[0]["spec"]["nodeName"] == "node-a"
        assert world.state.runs.get(world.only("second").run_id).placements[0].drawn == ()


async def test_devices_of_pods_that_have_ended_lead_nobody_to_their_node() -> None:
    async with AdoptionWorld(nodes=("node-a", "node-b"), gpus=0) as world:
        publish_devices(world)
        await world.run(3)
        gone = {"resource": "pods", "name": "gone", "uid": "gone"}
        make_claim(world, allocation=allocated_on("node-a"), reservedFor=[gone])
        make_pod_with_claim(world)
        await world.run(10)
        (pod,) = world.owned("alone")
        assert not pod["spec"].get("nodeName")
        assert "still has the devices of pods that have ended" in world.condition(pod)["message"]


async def test_a_suspended_job_with_a_claim_is_given_its_device_before_it_is_resumed() -> None:
    async with AdoptionWorld(gpus=0) as world:
        publish_devices(world)
        await world.run(3)
        make_claim(world)
        world.core.create("jobs", NS, batch_job("train", gpus=0, suspend=True, resourceClaims=THE_CLAIM))
        await world.run(25)
        job, (pod,) = world.only("train"), world.owned("train")
        assert job.phase == "running"
        assert len(world.state.runs.get(job.run_id).placements[0].drawn) == 1
        assert only_claim(world)["status"]["reservedFor"][0]["uid"] == pod["metadata"]["uid"]


@pytest.mark.parametrize("suspend", [False, True])
async def test_pods_of_a_job_that_name_one_claim_share_its_devices_on_one_node(suspend: bool) -> None:
    async with AdoptionWorld(nodes=("node-b", "node-a"), gpus=0) as world:
        publish_devices(world)
        await world.run(3)
        make_claim(world)
        world.core.create("jobs", NS, batch_job("train", pods=3, gpus=0, suspend=suspend, resourceClaims=THE_CLAIM))
        await world.run(25)
        job, pods, found = world.only("train"), world.owned("train"), only_claim(world)
        assert job.phase == "running"
        assert [len(place.drawn) for place in world.state.runs.get(job.run_id).placements] == [1, 0, 0]
        assert {pod["spec"]["nodeName"] for pod in pods} == {"node-a"}
        assert {user["uid"] for user in found["status"]["reservedFor"]} == {pod["metadata"]["uid"] for pod in pods}
        assert found["metadata"]["annotations"] == {RUN_ANNOTATION: job.run_id}


async def test_a_run_that_lets_go_of_pods_that_share_a_claim_leaves_it_as_it_was() -> None:
    async with AdoptionWorld(gpus=0) as world:
        publish_devices(world, bindingConditions=["up"])
        await world.run(3)
        make_claim(world)
        world.core.create("jobs", NS, batch_job("train", pods=12, gpus=0, resourceClaims=THE_CLAIM))
        await world.run(15)
        job = world.only("train")
        # All have the claim, and none is bound: the device is not ready.
        assert only_claim(world)["metadata"]["annotations"] == {RUN_ANNOTATION: job.run_id}
        await world.commit(CancelRequested(kind="cancel_requested", job_id=job.job_id, tenant=NS))
        await world.run(15)
        found = only_claim(world)
        assert not found["metadata"].get("finalizers")
        assert not found["metadata"].get("annotations")
        assert not found["status"]
        assert "released" in world.kinds()


async def test_pods_that_share_a_claim_are_bound_anew_after_a_refused_bind_of_one_of_them() -> None:
    async with AdoptionWorld(gpus=0) as world:
        publish_devices(world)
        await world.run(3)
        make_claim(world)
        world.core.faults.answer("bind", 422, count=2)
        world.core.create("jobs", NS, batch_job("train", pods=2, gpus=0, resourceClaims=THE_CLAIM))
        await world.run(40)
        job, found = world.only("train"), only_claim(world)
        assert (job.phase, job.attempt) == ("running", 2)
        assert found["metadata"]["annotations"] == {RUN_ANNOTATION: job.run_id}
        assert len(found["status"]["reservedFor"]) == 2


async def test_pods_of_one_owner_that_start_by_themselves_share_the_claim_that_they_name() -> None:
    """As those of a Deployment: each is a job, and the second joins the first while it is at work."""
    async with AdoptionWorld(nodes=("node-b", "node-a"), gpus=0) as world:
        publish_devices(world)
        await world.run(3)
        make_claim(world)
        keeper = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "serve", "uid": "serve", "controller": True}
        for name in ("serve-1", "serve-2"):
            pod = user_pod(name, gpus=0, resourceClaims=THE_CLAIM)
            pod["metadata"]["ownerReferences"] = [keeper]
            world.core.create("pods", NS, pod)
        await world.run(60)
        pods = world.owned("serve")
        assert [pod["spec"].get("nodeName") for pod in pods] == ["node-a", "node-a"], [world.condition(p) for p in pods]
        assert {user["uid"] for user in only_claim(world)["status"]["reservedFor"]} == {
            pod["metadata"]["uid"] for pod in pods
        }

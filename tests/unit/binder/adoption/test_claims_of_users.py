"""Users' pods with claims on devices: reserved before their bind, and left when a run lets go of a pod."""

from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import DELETE_PROTECTION, RUN_ANNOTATION
from tessera_schemas.facts import CancelRequested
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld
from tests.unit.binder.claim_builders import claim
from tests.unit.binder.claim_worlds import claims, publish_devices


def make_pod_with_claim(world: AdoptionWorld) -> None:
    wanted = claim("mine")
    wanted["metadata"]["namespace"] = NS
    world.core.create("resourceclaims", NS, wanted)
    world.make_pod("alone", gpus=0, resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])


def only_claim(world: AdoptionWorld) -> Json:
    (found,) = claims(world)
    return found


async def test_a_users_claim_is_marked_and_reserved_before_its_pod_is_bound() -> None:
    async with AdoptionWorld(gpus=0) as world:
        publish_devices(world)
        await world.run(3)  # until the ledger has the devices
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

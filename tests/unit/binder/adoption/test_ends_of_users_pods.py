"""Ends and starts of users' own pods: the same words as of pods that Tessera made, and more patience."""

import pytest

from tessera_schemas.base import Json
from tessera_schemas.ledger import Revoked
from tessera_schemas.reasons import Code
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld

NEVER_MS = 10**9
IMAGE = "registry.example/train:2"


def unpulled(there: AdoptionWorld, pod: Json) -> None:
    said = {"reason": "ErrImagePull", "message": f"{IMAGE}: not found"}
    status = {"phase": "Pending", "containerStatuses": [{"name": "main", "image": IMAGE, "state": {"waiting": said}}]}
    there.core.patch("pods", NS, pod["metadata"]["name"], {"status": status}, "status")


def revokes(there: AdoptionWorld) -> list[Code]:
    return [record.reason.code for record in there.records if isinstance(record, Revoked)]


async def test_an_eviction_of_a_users_pod_by_somebody_else_is_one() -> None:
    async with AdoptionWorld() as there:
        there.make_job(pods=2)
        await there.run(10)
        there.core.evict(NS, there.owned()[1]["metadata"]["name"])
        await there.run(5)
        assert revokes(there) == [Code.POD_EVICTED]
        assert there.only().strikes == 0


async def test_a_bare_pod_whose_image_does_not_exist_is_told_of_and_left_to_its_owner() -> None:
    """Nobody would make it again; `kubectl set image` mends it where it is."""
    async with AdoptionWorld(start_ms=NEVER_MS) as there:
        there.make_pod("alone")
        await there.run(10)
        (pod,) = there.owned("alone")
        unpulled(there, pod)
        await there.run(120)
        job = there.only("alone")
        assert job.reason is not None
        assert (job.reason.code, revokes(there)) == (Code.IMAGE_NOT_FOUND, [])
        assert IMAGE in job.reason.detail


@pytest.mark.parametrize("kind", ["pod", "job"])
async def test_a_slow_pull_of_users_pods_is_warned_of_and_stops_nothing(kind: str) -> None:
    async with AdoptionWorld(start_ms=NEVER_MS) as there:
        there.make_pod("train") if kind == "pod" else there.make_job(backoffLimit=0)
        await there.run(10)
        (pod,) = there.owned()
        said = {"reason": "ContainerCreating"}
        status = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": said}}]}
        there.core.patch("pods", NS, pod["metadata"]["name"], {"status": status}, "status")
        await there.run(4000, turn=5.0)
        assert revokes(there) == []
        assert [event["reason"] for event in there.events()] == ["SlowStart"]
        assert there.owned()[0]["metadata"]["uid"] == pod["metadata"]["uid"]


async def test_a_job_that_survives_it_gives_its_gpus_back_for_an_image_that_does_not_exist() -> None:
    async with AdoptionWorld(start_ms=NEVER_MS) as there:
        there.make_job(pods=2)
        await there.run(10)
        assert there.only().preemptible
        unpulled(there, there.owned()[1])
        await there.run(20)
        assert revokes(there) == [Code.IMAGE_NOT_FOUND]

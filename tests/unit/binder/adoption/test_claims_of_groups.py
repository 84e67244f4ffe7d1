"""
Claims of Kubernetes' own PodGroups (`spec.resourceClaims`): pods that name one share its devices, for as long as one of
them runs.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tessera.binder.adoption.decide.device_claims import group_to_ask, with_claims_of_group
from tessera_schemas.base import Json
from tessera_schemas.facts import CancelRequested
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, user_pod
from tests.unit.binder.claim_builders import claim
from tests.unit.binder.claim_worlds import claims, publish_devices

SHELF = "podgroups.scheduling.k8s.io"
SHARED = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
MADE = [{"name": "gpu", "resourceClaimName": "train-gpu-x7"}]


def group(*claims: Json, made: list[Json] | None = None, count: int = 2) -> Json:
    policy = {"gang": {"minCount": count}} if count else {"basic": {}}
    spec = {"schedulingPolicy": policy, "resourceClaims": list(claims)}
    return {"metadata": {"name": "train"}, "spec": spec, "status": {"resourceClaimStatuses": made or []}}


def member(name: str = "train-0", *claims: Json, **more: Any) -> Json:
    return user_pod(name, gpus=0, schedulingGroup={"podGroupName": "train"}, resourceClaims=list(claims), **more)


OTHERS = {
    "of another name": {"name": "nic", "resourceClaimTemplateName": "one-gpu"},
    "of another template": {"name": "gpu", "resourceClaimTemplateName": "two-gpus"},
    "of a claim": {"name": "gpu", "resourceClaimName": "one-gpu"},
}


def test_a_claim_of_one_name_and_template_with_the_groups_is_the_groups() -> None:
    found = with_claims_of_group(member("train-0", SHARED), group(SHARED, made=MADE))
    assert not isinstance(found, Reason)
    assert found["spec"]["resourceClaims"] == MADE


@pytest.mark.parametrize("own", OTHERS.values(), ids=OTHERS)
def test_any_other_claim_stays_the_pods_own(own: Json) -> None:
    found = with_claims_of_group(member("train-0", own), group(SHARED, made=MADE))
    assert not isinstance(found, Reason)
    assert found["spec"]["resourceClaims"] == [own]


def test_a_claim_that_is_still_to_be_made_is_waited_for() -> None:
    found = with_claims_of_group(member("train-0", OTHERS["of another name"], SHARED), group(SHARED))
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (Code.CLAIM_NOT_READY, "spec.resourceClaims[1]")


def test_the_group_is_asked_for_pods_with_templates_alone() -> None:
    assert group_to_ask(member("train-0", SHARED)) == "train"
    assert group_to_ask(member("train-0", OTHERS["of a claim"])) == ""
    assert group_to_ask(user_pod("train-0", resourceClaims=[SHARED])) == ""


# -- in a cluster -----------------------------------------------------------------------------------------------------


def make(world: AdoptionWorld, *names: str, **more: Any) -> None:
    """Pods of the group, as Kubernetes' controller of claims has looked at them."""
    for name in names:
        world.core.create("pods", NS, member(name, SHARED, **more))
        world.core.patch("pods", NS, name, {"status": {"resourceClaimStatuses": MADE}}, "status")


def make_claim(world: AdoptionWorld) -> None:
    wanted = claim("train-gpu-x7")
    wanted["metadata"]["namespace"] = NS
    world.core.create("resourceclaims", NS, wanted)
    world.core.patch(SHELF, NS, "train", {"status": {"resourceClaimStatuses": MADE}}, "status")


async def test_a_gang_waits_for_its_groups_claim_and_shares_it_while_one_of_its_pods_runs() -> None:
    async with AdoptionWorld(nodes=("node-b", "node-a"), gpus=0) as world:
        publish_devices(world)
        world.core.create(SHELF, NS, group(SHARED))
        make(world, "train-0", "train-1", seconds=30)
        await world.run(10)
        assert "still to be made" in world.condition(world.owned()[0])["message"]
        make_claim(world)
        await world.run(20)
        job, pods, (found,) = world.only("train"), world.owned(), claims(world)
        assert job.phase == "running"
        assert [len(place.drawn) for place in world.state.runs.get(job.run_id).placements] == [1, 0]
        assert {pod["spec"]["nodeName"] for pod in pods} == {"node-a"}
        users = [(user["resource"], user["uid"]) for user in found["status"]["reservedFor"]]
        assert sorted(users) == sorted(("pods", pod["metadata"]["uid"]) for pod in pods)
        await world.run(60)
        assert world.state.nodes.get("node-a").drawn == (), "the group is still there"
        # The next pods of the group draw anew.
        make(world, "train-2", "train-3")
        await world.run(20)
        assert world.only("train").phase == "running"
        assert len(claims(world)[0]["status"]["reservedFor"]) == 2


async def test_the_devices_of_a_gang_that_is_stopped_are_another_jobs_though_its_group_stays() -> None:
    async with AdoptionWorld(gpus=0) as world:
        publish_devices(world)
        world.core.create(SHELF, NS, group(SHARED))
        make_claim(world)
        make(world, "train-0", "train-1")
        await world.run(25)
        job = world.only("train")
        await world.commit(CancelRequested(kind="cancel_requested", job_id=job.job_id, tenant=NS))
        await world.run(60)
        assert "released" in world.kinds()
        assert world.state.nodes.get("node-a").drawn == ()
        assert not claims(world)[0]["status"]


WHOLE = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "train", "uid": "train"}


def reserve_for_group(world: AdoptionWorld) -> None:
    """As Kubernetes' controller of claims does where a pod of the group ends before the others."""
    (found,) = claims(world)
    users = [*found["status"]["reservedFor"], WHOLE]
    world.core.patch("resourceclaims", NS, "train-gpu-x7", {"status": {"reservedFor": users}}, "status")


@asynccontextmanager
async def kept_by_its_group(*seconds: float) -> AsyncIterator[AdoptionWorld]:
    """A gang of two that is at work, with a claim that was reserved for the group, too."""
    async with AdoptionWorld(gpus=0) as world:
        publish_devices(world)
        world.core.create(SHELF, NS, group(SHARED))
        make_claim(world)
        for number, each in enumerate(seconds):
            make(world, f"train-{number}", seconds=each)
        await world.run(15)
        assert world.only("train").phase == "running"
        reserve_for_group(world)
        yield world


def devices_had(world: AdoptionWorld) -> int:
    return len(world.state.nodes.get("node-a").drawn)


async def test_devices_that_are_kept_for_the_group_are_given_back_with_its_last_pod() -> None:
    async with kept_by_its_group(20, 40) as world:
        await world.run(15)
        assert [pod["status"]["phase"] for pod in world.owned()] == ["Succeeded", "Running"]
        assert [user["resource"] for user in claims(world)[0]["status"]["reservedFor"]] == ["pods", "podgroups"]
        assert devices_had(world) == 1
        await world.run(40)
        assert not claims(world)[0]["status"]
        assert devices_had(world) == 0


async def test_devices_that_are_kept_for_the_group_of_a_stopped_run_are_given_back() -> None:
    async with kept_by_its_group(600, 600) as world:
        job = world.only("train")
        await world.commit(CancelRequested(kind="cancel_requested", job_id=job.job_id, tenant=NS))
        await world.run(60)
        assert not claims(world)[0]["status"]
        assert "released" in world.kinds()


async def test_devices_that_are_kept_for_the_group_stay_a_pods_that_another_scheduler_runs() -> None:
    async with kept_by_its_group(20, 20) as world:
        other = member("other", SHARED, seconds=60)
        other["spec"] |= {"schedulerName": "another", "nodeName": "node-a"}
        world.core.create("pods", NS, other)
        world.core.patch("pods", NS, "other", {"status": {"resourceClaimStatuses": MADE}}, "status")
        await world.run(40)
        assert [user["resource"] for user in claims(world)[0]["status"]["reservedFor"]] == ["podgroups"]
        assert devices_had(world) == 1
        await world.run(90)
        assert devices_had(world) == 0


async def test_a_binder_that_died_gives_back_what_is_kept_for_the_group() -> None:
    async with kept_by_its_group(20, 20) as world:
        await world.stop("binder")
        await world.run(40)
        assert devices_had(world) == 1
        world.start_binder()
        await world.run(40)
        assert devices_had(world) == 0


async def test_pods_that_start_by_themselves_join_the_claim_of_their_group() -> None:
    async with AdoptionWorld(nodes=("node-b", "node-a"), gpus=0) as world:
        publish_devices(world)
        world.core.create(SHELF, NS, group(SHARED, count=0))
        make_claim(world)
        make(world, "train-0", "train-1")
        await world.run(40)
        assert {pod["spec"].get("nodeName") for pod in world.owned()} == {"node-a"}
        assert len(claims(world)[0]["status"]["reservedFor"]) == 2
        assert [len(run.placements[0].drawn) for run in world.state.runs.values()] in ([1, 0], [0, 1])


async def test_devices_that_are_reserved_for_a_group_lead_its_pods_to_their_node() -> None:
    """As another scheduler writes, which takes pods of the group, too."""
    async with AdoptionWorld(nodes=("node-a", "node-b"), gpus=0) as world:
        world.core.create(SHELF, NS, group(SHARED))
        make_claim(world)
        here = {"key": "metadata.name", "operator": "In", "values": ["node-b"]}
        result = {"request": "one", "driver": "gpu.example.com", "pool": "node-b", "device": "gpu-1"}
        had = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]}}
        status = {"status": {"allocation": had, "reservedFor": [WHOLE]}}
        world.core.patch("resourceclaims", NS, "train-gpu-x7", status, "status")
        make(world, "train-0", "train-1")
        await world.run(25)
        assert world.only("train").phase == "running"
        assert {pod["spec"].get("nodeName") for pod in world.owned()} == {"node-b"}
        (found,) = claims(world)
        assert len(found["status"]["reservedFor"]) == 3
        assert found["status"]["allocation"] == had

"""Owners that can be suspended are stopped so, and resumed: no failure is counted, nobody waits for a back-off."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.binder.adoption.suspending import can_be_suspended, is_ours_to_suspend, is_suspended, suspension
from tessera_schemas.adopted import Adopted
from tessera_schemas.labels import SUSPENDED_ANNOTATION
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


def mark(world: AdoptionWorld) -> str:
    return str((world.job_object()["metadata"].get("annotations") or {}).get(SUSPENDED_ANNOTATION, ""))


async def drained(world: AdoptionWorld) -> None:
    """A gang of four runs, and its node is emptied."""
    world.make_job(pods=4, gpus=2, seconds=60, backoffLimit=4)
    await world.run(10)
    await world.drain("node-a")


async def test_a_job_is_stopped_by_suspending_it_and_comes_back_without_a_failure(world: AdoptionWorld) -> None:
    await drained(world)
    await world.run(40)
    assert (world.job_object()["spec"]["suspend"], mark(world)) == (True, "true")
    assert world.owned() == []
    job = world.only()
    assert (job.phase, job.away, job.strikes) == ("queued", False, 0), "it is in line without a pod"
    await world.drain("node-a", undo=True)
    await world.run(10)
    assert (world.job_object()["spec"]["suspend"], mark(world)) == (False, "false")
    assert (world.only().phase, world.only().attempt) == ("running", 2)
    assert world.job_object()["status"]["failed"] == 0
    await world.run(70)
    assert [job.phase for job in world.ended()] == ["succeeded"]


async def test_a_job_that_its_user_suspends_stays_suspended(world: AdoptionWorld) -> None:
    world.make_job(pods=2)
    await world.run(10)
    world.core.patch("jobs", NS, "train", {"spec": {"suspend": True}})
    await world.run(1200)
    assert (world.job_object()["spec"]["suspend"], mark(world)) == (True, "")
    assert (world.only().phase, world.only().away) == ("queued", True)
    assert "SuspendedByUser" in {event["reason"] for event in world.events()}
    world.core.patch("jobs", NS, "train", {"spec": {"suspend": False}})
    await world.run(10)
    assert (world.only().phase, world.only().attempt) == ("running", 2)


async def test_a_job_that_we_resumed_and_its_user_suspends_stays_suspended(world: AdoptionWorld) -> None:
    await drained(world)
    await world.run(40)
    await world.drain("node-a", undo=True)
    await world.run(10)
    world.core.patch("jobs", NS, "train", {"spec": {"suspend": True}})
    await world.run(60)
    assert world.job_object()["spec"]["suspend"] is True
    assert world.only().away


async def test_without_the_right_to_suspend_pods_are_evicted(world: AdoptionWorld) -> None:
    world.make_job(pods=1)
    await world.run(10)
    watch = world.core.open_watch("pods", world.core.resource_version)
    world.core.faults.answer("patch", 403, count=1)
    await world.drain("node-a")
    await world.run(40)
    assert any(b"EvictionByEvictionAPI" in json for _, json in watch.take())
    assert "suspend" not in world.job_object()["spec"]


async def test_a_job_that_kueue_looks_after_is_not_suspended(world: AdoptionWorld) -> None:
    world.make_job(pods=1)
    world.core.patch("jobs", NS, "train", {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}})
    await world.run(10)
    await world.drain("node-a")
    await world.run(40)
    assert "suspend" not in world.job_object()["spec"]


async def test_a_binder_that_dies_after_the_suspension_is_followed_by_one_that_knows_it(world: AdoptionWorld) -> None:
    await drained(world)
    await world.run(2)
    assert world.job_object()["spec"]["suspend"] is True
    await world.stop("binder")
    await world.run(40)
    world.start_binder()
    await world.drain("node-a", undo=True)
    await world.run(30)
    assert (world.only().phase, world.only().attempt) == ("running", 2)


@pytest.mark.parametrize(
    ("api_version", "kind", "path"),
    [
        ("batch/v1", "Job", ("spec",)),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", ("spec",)),
        ("ray.io/v1", "RayCluster", ("spec",)),
        ("kubeflow.org/v1", "PyTorchJob", ("spec", "runPolicy")),
    ],
)
def test_where_each_kind_says_that_it_is_suspended(api_version: str, kind: str, path: tuple[str, ...]) -> None:
    meta = {"name": "a", "uid": "u", "resourceVersion": "7"}
    owner: dict[str, Any] = {"apiVersion": api_version, "kind": kind, "metadata": meta}
    patch = suspension(owner, True)
    assert patch["metadata"] == {"uid": "u", "resourceVersion": "7", "annotations": {SUSPENDED_ANNOTATION: "true"}}
    inner = patch
    for name in path:
        inner = inner[name]
    assert inner == {"suspend": True}
    assert is_suspended(owner | {"spec": patch["spec"]})
    assert not is_suspended(owner)
    group = f"{api_version.partition('/')[0]}/{kind}/lab/u"
    adopted = Adopted(api_version=api_version, owner_kind=kind, owner_name="a", owner_uid="u", group=group)
    assert can_be_suspended(adopted)
    assert not can_be_suspended(adopted.model_copy(update={"group": "gang/lab/pair"})), "others' pods may be in it"


def test_what_another_controller_made_is_not_ours_to_suspend() -> None:
    def made_by(api_version: str, kind: str) -> dict[str, Any]:
        ref = {"apiVersion": api_version, "kind": kind, "name": "a", "uid": "u", "controller": True}
        return {"metadata": {"ownerReferences": [ref]}}

    assert is_ours_to_suspend({"metadata": {}})
    assert is_ours_to_suspend(made_by("batch/v1", "CronJob"))
    assert not is_ours_to_suspend(made_by("jobset.x-k8s.io/v1alpha2", "JobSet"))
    assert not is_ours_to_suspend({"metadata": {}, "spec": {"managedBy": "kueue.x-k8s.io/multikueue"}})

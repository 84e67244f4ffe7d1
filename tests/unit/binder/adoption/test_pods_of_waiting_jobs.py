"""The ledger knows the pods of a waiting job: they are permitted with its allocation, and bound if still there."""

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, user_pod
from tests.unit.binder.adoption.training_jobs import LABEL, make_pods, make_training_job


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


def uids(world: AdoptionWorld) -> tuple[str, ...]:
    return tuple(sorted(pod["metadata"]["uid"] for pod in world.owned()))


def known(world: AdoptionWorld) -> tuple[str, ...]:
    adopted: Any = world.only().adopted
    return tuple(sorted(adopted.uids))


async def fill_the_node(world: AdoptionWorld) -> None:
    world.make_pod("first", gpus=8)
    await world.run(10)


async def test_pods_that_wait_already_are_permitted_with_the_allocation(world: AdoptionWorld) -> None:
    world.make_job(pods=3)
    await world.run(20)
    assert world.only().phase == "running"
    assert world.said("pods_made") == []
    assert world.kinds().count("permitted") == 1


async def test_a_gang_that_lost_a_pod_after_its_permit_has_none_of_its_pods_bound(world: AdoptionWorld) -> None:
    await world.drain("node-a")
    make_pods(world, make_training_job(world))
    await world.run(10)
    await world.stop("binder")
    await world.drain("node-a", undo=True)
    await world.run(1)
    assert "permitted" in world.kinds()
    world.core.delete("pods", NS, "train-1")
    world.start_binder()
    await world.run(10)
    assert [pod["spec"].get("nodeName") for pod in world.owned()] == [None]
    assert world.only().phase == "queued"


async def test_another_pod_in_the_place_of_one_is_known_and_the_job_keeps_its_place(world: AdoptionWorld) -> None:
    await fill_the_node(world)
    world.make_job()
    await world.run(10)
    before, pods = world.only(), uids(world)
    world.core.delete("pods", NS, world.owned()[0]["metadata"]["name"])
    await world.run(10)
    assert known(world) == uids(world) != pods
    assert (world.only().job_id, world.only().taken_n) == (before.job_id, before.taken_n)
    assert "out_of_line" not in world.kinds()

    world.core.delete("pods", NS, "first")
    await world.run(20)
    assert (world.only().phase, world.only().attempt) == ("running", 1)


async def test_a_gang_that_lacks_a_pod_is_out_of_line_until_its_owner_has_made_it_again(world: AdoptionWorld) -> None:
    await fill_the_node(world)
    owner = make_training_job(world)
    make_pods(world, owner)
    await world.run(10)
    before = world.only()
    world.core.delete("pods", NS, "train-1")
    await world.run(10)
    assert world.only().away
    world.core.delete("pods", NS, "first")
    await world.run(30)
    assert world.only().phase == "queued"
    assert not len(world.state.runs)  # no device waits for the pod that is not there

    again = user_pod("train-1", labels=LABEL)
    again["metadata"]["ownerReferences"] = [owner]
    world.core.create("pods", NS, again)
    await world.run(10)
    assert (world.only().job_id, world.only().phase, world.only().attempt) == (before.job_id, "running", 1)
    assert world.kinds().count("out_of_line") == 1

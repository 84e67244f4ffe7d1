"""How users' pods are found, gathered and let go of again, whatever they claim to be."""

from collections.abc import AsyncIterator

import pytest

from tests.builders import SHARD
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, run_of, user_pod


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


async def test_pods_of_other_schedulers_are_left_alone(world: AdoptionWorld) -> None:
    world.make_pod("other", schedulerName="default-scheduler")
    await world.run(20)
    assert world.commands == []
    assert world.condition(world.owned("other")[0]) == {}


async def test_a_pod_that_names_another_shard_is_not_adopted_here(world: AdoptionWorld) -> None:
    world.make_pod("theirs", labels={"tessera.io/shard": "second"})
    world.make_pod("ours", labels={"tessera.io/shard": SHARD})
    await world.run(20)
    assert [job.name for job in world.state.jobs.values()] == ["ours"]
    assert world.condition(world.owned("theirs")[0]) == {}


async def test_gangs_of_one_name_in_two_namespaces_are_two(world: AdoptionWorld) -> None:
    for namespace in ("lab", "other"):
        for number in range(2):
            pod = user_pod(f"g-{number}", labels={"tessera.io/gang": "g"}, notes={"tessera.io/gang-size": "2"})
            world.core.create("pods", namespace, pod)
    await world.run(20)
    assert sorted((job.tenant, job.pods) for job in world.state.jobs.values()) == [("lab", 2), ("other", 2)]


async def test_a_pod_that_names_a_job_of_others_as_its_owner_does_not_join_it(world: AdoptionWorld) -> None:
    world.make_job("real", pods=2, gpus=1)
    await world.run(10)
    job = world.job_object("real")
    forged = user_pod("forged")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "real", "uid": job["metadata"]["uid"], "controller": True}
    forged["metadata"]["ownerReferences"] = [owner]
    world.core.create("pods", NS, forged)
    await world.run(20)
    assert (world.only("real").pods, world.only("forged").pods) == (2, 1)
    assert run_of(world.owned("forged")[0]).startswith(world.only("forged").job_id)


async def test_a_pod_waits_for_a_pod_group_that_is_not_there_and_goes_on_once_it_is(world: AdoptionWorld) -> None:
    world.make_pod("member", labels={"scheduling.x-k8s.io/pod-group": "later"})
    await world.run(20)
    assert world.condition(world.owned("member")[0])["reason"] == "OwnerNotFound"
    world.core.create("podgroups", NS, {"metadata": {"name": "later"}, "spec": {"minMember": 1}})
    await world.run(40)
    assert world.owned("member")[0]["status"]["phase"] == "Running"


async def test_a_pod_that_has_a_node_stays_in_its_group_whatever_its_labels_say(world: AdoptionWorld) -> None:
    for number in range(2):
        world.make_pod(f"g-{number}", labels={"tessera.io/gang": "g"}, notes={"tessera.io/gang-size": "2"}, seconds=20)
    await world.run(10)
    world.core.patch("pods", NS, "g-1", {"metadata": {"labels": {"tessera.io/gang": "other"}}})
    await world.run(30)
    assert [(job.phase, job.attempt) for job in world.ended("g")] == [("succeeded", 1)]
    assert len(world.commands) == 1


async def test_a_label_that_puts_a_pod_into_another_gang_takes_it_out_of_the_one_before(world: AdoptionWorld) -> None:
    sized = {"tessera.io/gang-size": "2"}
    world.make_pod("a", labels={"tessera.io/gang": "one"}, notes=sized)
    world.make_pod("b", labels={"tessera.io/gang": "two"}, notes=sized)
    await world.run(10)
    assert world.commands == []
    world.core.patch("pods", NS, "b", {"metadata": {"labels": {"tessera.io/gang": "one"}}})
    await world.run(20)
    assert [(job.name, job.pods) for job in world.state.jobs.values()] == [("one", 2)]


async def test_a_whole_gang_of_more_pods_than_its_size_leaves_the_rest_waiting(world: AdoptionWorld) -> None:
    for number in range(3):
        world.make_pod(f"g-{number}", labels={"tessera.io/gang": "g"}, notes={"tessera.io/gang-size": "2"}, gpus=1)
    await world.run(20)
    phases = sorted(pod["status"]["phase"] for pod in world.owned("g-"))
    assert phases == ["Pending", "Running", "Running"]


async def test_an_api_that_is_away_delays_and_loses_nothing(world: AdoptionWorld) -> None:
    world.make_job(pods=2, seconds=10)
    for verb in ("list", "get", "patch", "bind", "create"):
        world.core.faults.answer(verb, 500, count=3)
    world.core.faults.lose_answers("patch", 2)
    world.core.faults.lose_answers("bind", 2)
    await world.run(120)
    assert [(job.phase, job.attempt) for job in world.ended()] == [("succeeded", 1)]


async def test_a_priority_of_many_pods_is_the_least_that_any_of_them_has(world: AdoptionWorld) -> None:
    for number, priority in enumerate((5, 1_000)):
        more = {"labels": {"tessera.io/gang": "g"}, "notes": {"tessera.io/gang-size": "2"}}
        world.make_pod(f"g-{number}", priority=priority, **more)
    await world.run(20)
    (job,) = world.state.jobs.values()
    assert world.state.tree.priority_of(job) == 5

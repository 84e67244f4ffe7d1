"""The pod that submits a RayJob's program comes once its cluster runs: its room is held from the start."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, run_of, user_pod
from tests.unit.binder.adoption.ray_operator import Operator, template
from tests.unit.binder.cluster_world import RESERVED

Json = dict[str, Any]
CPUS = 64


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world
        report = check(world.books.stored)
        check_rules(report, world.books.stored)
        assert [violation.text for violation in report.violations] == []
        assert verify(world.books.stored).findings == []


def takes_cpus(name: str, cpus: int, seconds: float = 600) -> Json:
    asks = {"cpu": str(cpus), "memory": "1Gi"}
    container = {"name": "main", "image": "train:1", "resources": {"requests": asks, "limits": asks}}
    return user_pod(name, seconds=seconds, gpus=0, containers=[container])


async def test_it_has_its_room_however_full_the_cluster_is_by_then(world: AdoptionWorld) -> None:
    operator = Operator(world, submitter=template(0))
    await world.run(3)
    operator.act()
    world.core.create("pods", NS, takes_cpus("fills", CPUS - 4))
    await world.run(10)
    world.core.create("pods", NS, takes_cpus("waits", 1))
    await operator.run(20)
    (submitter,) = operator.submitters()
    job = world.only()
    assert job.pods == 4
    assert run_of(submitter) == job.run_id
    assert submitter["metadata"]["annotations"]["tessera.io/rank"] == "3"
    assert submitter["status"]["phase"] == "Running"
    assert world.only("waits").phase == "queued"


async def test_its_room_is_held_until_it_comes(world: AdoptionWorld) -> None:
    operator = Operator(world, submitter=template(0))
    operator.act()
    await world.run(10)
    world.core.create("pods", NS, takes_cpus("greedy", CPUS - 3))
    await world.run(20)
    assert (world.only().phase, world.only("greedy").phase) == ("running", "queued")
    await operator.run(20)
    assert operator.submitters()[0]["spec"].get("nodeName")


async def test_one_in_the_place_of_one_that_failed_is_a_job_of_its_own_and_the_cluster_goes_on(
    world: AdoptionWorld,
) -> None:
    failing = template(0)
    failing["metadata"]["annotations"] |= {f"{RESERVED}seconds": "15", f"{RESERVED}exit-code": "1"}
    operator = Operator(world, submitter=failing)
    await operator.run(30)
    jobs = {job.adopted.owner_kind: job for job in world.adopted() if job.adopted is not None}
    assert {kind: (job.phase, job.attempt) for kind, job in jobs.items()} == {
        "RayJob": ("running", 1),
        "Job": ("running", 1),
    }
    assert {(run_of(pod), pod["status"]["phase"]) for pod in operator.submitters()} == {
        (jobs["RayJob"].run_id, "Failed"),
        (jobs["Job"].run_id, "Running"),
    }
    assert world.state.runs.get(jobs["RayJob"].run_id).released_ranks == (3,)


async def test_the_next_cluster_has_room_for_the_next_one(world: AdoptionWorld) -> None:
    operator = Operator(world, submitter=template(0))
    await operator.run(20)
    before = world.only()
    world.core.delete("pods", NS, operator.of_cluster()[-1]["metadata"]["name"])
    await operator.run(90)
    job = world.only()
    assert (job.job_id, job.phase, job.attempt) == (before.job_id, "running", 2)
    assert {run_of(pod) for pod in operator.submitters()} == {job.run_id}


async def test_a_ray_job_that_waits_suspended_is_the_same_job_once_it_has_its_room(world: AdoptionWorld) -> None:
    world.core.create("pods", NS, takes_cpus("holds", CPUS - 3, seconds=20))
    await world.run(5)
    operator = Operator(world, suspended=True, submitter=template(0))
    await operator.run(10)
    waits = world.only()
    assert (waits.phase, waits.pods, world.owned()) == ("queued", 4, [])
    await operator.run(60)
    job = world.only()
    assert (job.job_id, job.phase) == (waits.job_id, "running")
    assert {run_of(pod) for pod in operator.submitters()} == {job.run_id}


async def test_one_that_another_scheduler_places_is_not_counted(world: AdoptionWorld) -> None:
    others = template(0)
    del others["spec"]["schedulerName"]
    operator = Operator(world, submitter=others)
    await operator.run(20)
    assert (world.only().phase, world.only().pods) == ("running", 3)


async def test_one_that_asks_for_more_than_its_template_said_queues_by_itself(world: AdoptionWorld) -> None:
    operator = Operator(world, submitter=template(0))
    operator.act()
    await world.run(10)
    grown = template(1)
    operator.submit(grown)
    await world.run(20)
    assert {job.adopted.owner_kind for job in world.adopted() if job.adopted is not None} == {"RayJob", "Job"}

"""
A gang whose owner can suspend is stopped so for every reason: evictions of its pods would count against the owner's
limits, and end it for good where there are more pods than it allows failures.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera_local.cluster.in_memory import MemoryCluster
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas.facts import CancelRequested
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld
from tests.unit.binder.cluster_world import RESERVED

PODS = 8
"""More than the six failures that a Job allows by default."""


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld(nodes=("node-a", "node-b")) as world:
        yield world


async def make_gang(world: AdoptionWorld, **more: Any) -> None:
    """Eight pods, four on each node, that run."""
    world.make_job(pods=PODS, gpus=2, **more)
    await world.run(10)
    assert world.only().phase == "running"


def failures(world: AdoptionWorld) -> int:
    return int(world.job_object()["status"]["failed"])


async def until_next_attempt(world: AdoptionWorld, seconds: int = 120) -> None:
    for _ in range(seconds):
        await world.run(1)
        if world.only().phase == "running" and world.only().attempt == 2:
            return
    raise AssertionError((world.only(), world.job_object()))


async def delete_a_pod(world: AdoptionWorld) -> None:
    world.core.delete("pods", NS, world.owned()[0]["metadata"]["name"])


async def evict_a_pod(world: AdoptionWorld) -> None:
    world.core.evict(NS, world.owned()[0]["metadata"]["name"])


@pytest.mark.parametrize("lose", [delete_a_pod, evict_a_pod], ids=["is deleted", "is evicted"])
async def test_the_rest_of_a_gang_that_lost_a_pod_is_taken_away_without_a_further_failure(
    world: AdoptionWorld, lose: Any
) -> None:
    await make_gang(world)
    await lose(world)
    await until_next_attempt(world)
    assert failures(world) == 1


async def test_a_pod_that_fails_is_the_only_failure_of_its_job(world: AdoptionWorld) -> None:
    world.make_job(pods=PODS, gpus=2)
    while not world.owned():
        await world.run(0.25)
    name, failing = world.owned()[0]["metadata"]["name"], {"seconds": "5", "exit-code": "1"}
    notes = {f"{RESERVED}{key}": value for key, value in failing.items()}
    world.core.patch("pods", NS, name, {"metadata": {"annotations": notes}})
    await until_next_attempt(world)
    assert failures(world) == 1


async def test_a_lost_node_costs_its_jobs_no_failure_beside_those_that_kubernetes_counts(world: AdoptionWorld) -> None:
    await make_gang(world)
    on_it = [pod for pod in world.owned() if pod["spec"]["nodeName"] == "node-b"]
    spare = node_object(NodeRow(name="node-c", cpu="64", memory="512Gi", gpus=8), "node-c")
    world.core.create("nodes", "", spare)
    world.core.delete("nodes", "", "node-b")
    await until_next_attempt(world)
    assert failures(world) <= len(on_it)
    assert {pod["spec"]["nodeName"] for pod in world.owned() if pod["status"]["phase"] == "Running"} == {
        "node-a",
        "node-c",
    }


async def test_a_gang_of_more_pods_than_its_job_allows_failures_may_be_preempted(world: AdoptionWorld) -> None:
    await make_gang(world)
    assert world.only().preemptible


async def test_what_says_that_it_may_not_be_preempted_is_not(world: AdoptionWorld) -> None:
    await make_gang(world, notes={"tessera.io/preemptible": "false"})
    assert not world.only().preemptible


async def test_a_job_that_is_cancelled_here_is_suspended_and_makes_no_pods_that_nobody_places(
    world: AdoptionWorld,
) -> None:
    await make_gang(world)
    await world.commit(CancelRequested(kind="cancel_requested", job_id=world.only().job_id))
    await world.run(60)
    assert [job.phase for job in world.ended()] == ["cancelled"]
    assert (world.job_object()["spec"]["suspend"], failures(world), world.owned()) == (True, 0, [])


async def test_a_job_that_may_not_be_suspended_counts_as_what_an_eviction_would_end(
    world: AdoptionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the binder's rights in a namespace are narrower than the chart's."""

    async def may(_cluster: Any, _namespace: str, verb: str, resource: str, group: str = "") -> bool:
        return (verb, resource, group) != ("patch", "jobs", "batch")

    monkeypatch.setattr(MemoryCluster, "may", may)
    await make_gang(world)
    assert not world.only().preemptible
    told = [event["message"] for event in world.events() if event["reason"] == "NotHonoured"]
    assert ["the binder may not patch a Job here" in message for message in told] == [True]
    world.make_job("small", pods=2, gpus=0)
    await world.run(10)
    assert world.only("small").preemptible, "it survives an eviction"


async def test_after_a_refused_suspension_a_job_is_not_preemptible_any_more(world: AdoptionWorld) -> None:
    world.make_job(pods=PODS, gpus=2, backoffLimit=PODS)
    await world.run(10)
    assert world.only().preemptible
    world.core.faults.answer("patch", 403, count=1)
    await world.drain("node-a")
    await world.run(5)
    await world.drain("node-a", undo=True)
    for _ in range(60):
        await world.run(1)
        if world.only().phase == "queued" and world.only().adopted.uids:
            break
    await world.run(20)
    assert (failures(world), world.only().preemptible) == (PODS, False)

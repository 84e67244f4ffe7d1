"""Pods that Tessera did not make take what they ask for of their nodes, from when they are bound until they end."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.binder.others import Uses, reduced, summed, uses_of
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import NodeSeen, Others
from tests.builders import GIB
from tests.unit.binder.cluster_world import World, train

A_WHILE = 3


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as world:
        yield world


def foreign(
    world: World,
    name: str,
    node: str = "node-a",
    seconds: int = 3600,
    scheduler: str = "default-scheduler",
    notes: dict[str, str] | None = None,
    **requests: str,
) -> None:
    asked = {key.replace("gpus", "nvidia.com/gpu"): amount for key, amount in requests.items()}
    containers = [{"name": "main", "image": "x", "resources": {"requests": asked, "limits": asked}}]
    notes = {"tessera.io/simulate-seconds": str(seconds)} | (notes or {})
    spec = {"schedulerName": scheduler, "nodeName": node, "containers": containers}
    world.core.create("pods", "theirs", {"metadata": {"name": name, "annotations": notes}, "spec": spec})


def seen(world: World, node: str = "node-a") -> list[NodeSeen]:
    return [fact for fact in world.said("node_seen") if isinstance(fact, NodeSeen) and fact.name == node]


def free(world: World, node: str = "node-a") -> tuple[int, int, int]:
    found = world.state.nodes.get(node)
    assert found is not None
    return found.cpu_free, found.pods_free, found.gpu_free.count(1000)


async def test_what_a_pod_of_others_asks_for_is_taken_until_it_ends(world: World) -> None:
    cpu, pods, gpus = free(world)
    foreign(world, "theirs", seconds=30, cpu="1500m", gpus="3")
    await world.run(A_WHILE)
    assert free(world) == (cpu - 1500, pods - 1, gpus - 3)
    await world.run(30)
    assert free(world) == (cpu, pods, gpus)


async def test_jobs_go_where_others_left_room(world: World) -> None:
    foreign(world, "theirs", gpus="5")
    await world.run(A_WHILE)
    job = await world.submit(spec=train(gpus=4))
    assert world.nodes_of(job) == {"node-b"}


async def test_what_runs_goes_on_when_others_come_beside_it(world: World) -> None:
    job = await world.submit(spec=train(gpus=8))
    (node,) = world.nodes_of(job)
    foreign(world, "theirs", node, cpu="60", gpus="1")
    await world.run(120)
    assert (world.job(job).phase, world.job(job).attempt) == ("running", 1)


async def test_pods_of_ours_are_not_counted_twice(world: World) -> None:
    job = await world.submit(spec=train(gpus=4))
    (node,) = world.nodes_of(job)
    await world.run(A_WHILE)
    assert seen(world, node)[-1].others == Others()


async def test_a_pod_that_is_not_bound_takes_nothing(world: World) -> None:
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}
    world.core.create("pods", "theirs", {"metadata": {"name": "waits"}, "spec": spec})
    await world.run(A_WHILE)
    assert [fact.others for fact in seen(world)] == [Others()]


async def test_many_changes_within_a_moment_are_said_together(world: World) -> None:
    for number in range(40):
        foreign(world, f"agent-{number}", cpu="10m")
        await world.run(0.25)
    said = seen(world)
    assert said[-1].others.pods <= 40
    await world.run(A_WHILE)
    said = seen(world)
    assert (said[-1].others.pods, said[-1].others.cpu_milli) == (40, 400)
    assert len(said) <= 1 + 40 * 0.25 + A_WHILE


async def test_a_binder_that_starts_says_no_node_before_it_knows_what_others_take(world: World) -> None:
    await world.stop("binder")
    foreign(world, "theirs", gpus="5")
    before = len(seen(world))
    world.start_binder()
    await world.run(A_WHILE)
    assert {fact.others.gpus for fact in seen(world)[before:]} == {5}


# -- pods that name us and came to a node past us


async def test_a_pod_that_names_us_and_was_bound_by_hand_counts_until_it_ends(world: World) -> None:
    cpu, pods, gpus = free(world)
    foreign(world, "by-hand", seconds=30, scheduler="tessera", cpu="1500m", gpus="3")
    await world.run(A_WHILE)
    assert free(world) == (cpu - 1500, pods - 1, gpus - 3)
    await world.run(40)
    assert free(world) == (cpu, pods, gpus)


async def test_a_run_written_on_a_pod_by_its_user_does_not_hide_what_it_takes(world: World) -> None:
    cpu, pods, gpus = free(world)
    forged = {"tessera.io/run": "another-1", "tessera.io/permit": "copied"}
    foreign(world, "forged", scheduler="tessera", notes=forged, gpus="3")
    await world.run(A_WHILE)
    assert free(world) == (cpu, pods - 1, gpus - 3)


async def test_a_pod_of_ours_without_our_label_counts_for_as_long_as_it_runs(world: World) -> None:
    job = await world.submit(spec=train(gpus=8))
    (pod,) = world.pods(f"{job}-1")
    node = pod["spec"]["nodeName"]
    name, space = pod["metadata"]["name"], pod["metadata"]["namespace"]
    world.core.patch("pods", space, name, {"metadata": {"labels": {"tessera.io/run": None}}})
    await world.run(A_WHILE)
    seen_last = seen(world, node)[-1]
    assert (seen_last.others.pods, seen_last.others.gpus) == (1, 8)


# -- one pod ----------------------------------------------------------------------------------------------------------


def pod(*containers: dict[str, str], **spec: Any) -> dict[str, Any]:
    meta = {"uid": "u", "name": "p", "namespace": "n", "resourceVersion": "7", "managedFields": [{"much": "more"}]}
    return {"metadata": meta, "spec": {"nodeName": "a", "containers": [*map(asks, containers)], **spec}}


def asks(requests: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": requests}, **more}


COUNTED = [
    ("a pod without requests takes its place only", pod({}), Uses()),
    ("containers run together", pod({"cpu": "1"}, {"cpu": "500m", "memory": "1Gi"}), Uses(1500, GIB)),
    (
        "an init container counts where it asks for more than all that come after it",
        pod({"cpu": "1", "memory": "2Gi"}, initContainers=[asks({"cpu": "3"}), asks({"memory": "1Gi"})]),
        Uses(3000, 2 * GIB),
    ),
    (
        "a sidecar goes on beside the containers and the init containers after it",
        pod(
            {"cpu": "1"},
            initContainers=[asks({"cpu": "4"}), asks({"cpu": "1"}, restartPolicy="Always"), asks({"cpu": "3500m"})],
        ),
        Uses(4500),
    ),
    ("the runtime's overhead comes on top", pod({"cpu": "1"}, overhead={"cpu": "250m"}), Uses(1250)),
    (
        "GPUs, instances and other devices are counted by name, and what nodes do not offer to jobs is not",
        pod({"nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "1", "rdma/hca": "1", "hugepages-2Mi": "2Mi"}),
        Uses(0, 0, 2, (("nvidia.com/mig-1g.10gb", 1), ("rdma/hca", 1))),
    ),
    ("a part of a thousandth counts as one", pod({"cpu": "1u", "memory": "1m"}), Uses(1, 1)),
    ("a pod that cannot be read takes its place", pod({"cpu": "many"}), Uses()),
]


@pytest.mark.parametrize(("given_pod", "uses"), [case[1:] for case in COUNTED], ids=[case[0] for case in COUNTED])
def test_what_one_pod_takes(given_pod: dict[str, Any], uses: Uses) -> None:
    assert uses_of(given_pod) == uses


def test_of_a_pod_only_its_numbers_and_who_it_is_are_kept() -> None:
    kept = reduced(pod({"cpu": "1"}))
    assert kept.pop("metadata") == {"uid": "u", "name": "p", "namespace": "n", "resourceVersion": "7"}
    assert kept == {"node": "a", "uses": Uses(1000)}


@given(st.lists(st.builds(Uses, st.integers(0, INT_MAX), st.integers(0, INT_MAX), st.integers(0, INT_MAX))))
def test_no_numbers_of_others_make_a_fact_that_cannot_be_said(pods: list[Uses]) -> None:
    said = summed(pods)
    assert (said.pods, said.cpu_milli) == (len(pods), min(INT_MAX, sum(uses.cpu_milli for uses in pods)))
    assert NodeSeen.model_validate_json(NodeSeen(kind="node_seen", name="a", others=said).to_bytes()).others == said

"""Pods that Tessera did not make take what they ask for of their nodes, from when they are bound until they end."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.binder.nodes import watching as watch_nodes
from tessera.binder.nodes.others import Uses, reduced, summed, uses_of
from tessera.domain.devices.resources import Node
from tessera.domain.devices.slots import is_as_seen
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import NodeSeen, Others
from tests.builders import GIB
from tests.unit.binder.cluster_world import World, train

A_WHILE = 3
ROUND = 11
"""Seconds in which every node is looked at once."""


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


async def test_only_a_node_that_changed_is_compared_with_the_ledger_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    def note(node: Node | None, fact: NodeSeen) -> bool:
        compared.append(fact.name)
        return is_as_seen(node, fact)

    monkeypatch.setattr(watch_nodes, "is_as_seen", note)
    foreign(world, "theirs", cpu="1")
    await world.run(2 * ROUND)
    assert len(set(compared)) > 1
    compared.clear()
    await world.run(3 * ROUND)
    assert compared == []
    before = free(world)
    await world.commit(seen(world)[-1].model_copy(update={"others": Others()}))  # an older report, published last
    assert free(world) != before
    await world.run(ROUND)
    assert (free(world), set(compared)) == (before, {"node-a"})


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
        pod({"nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "1", "rdma/hca": "1", "hugepages-1Gi": "1Gi"}),
        Uses(0, 0, 2, (("nvidia.com/mig-1g.10gb", 1), ("rdma/hca", 1))),
    ),
    (
        "a resource kind that is counted in bytes is counted so",
        pod({"hugepages-2Mi": "2Mi"}),
        Uses(0, 0, 0, (("hugepages-2Mi", 2 * 2**20),)),
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


# -- pods that are resized in place -----------------------------------------------------------------------------------


def resized(
    spec: str, actual: str = "", allocated: str = "", condition: str = "", restart: str = "", init: bool = False
) -> dict[str, Any]:
    """One container that asks for `spec` of CPU, of which its node has allocated so much."""
    made = pod()
    more = {"restartPolicy": restart} if restart else {}
    containers = [{"name": "main", **asks({"cpu": spec}, **more)}]
    made["spec"]["initContainers" if init else "containers"] = containers
    status = {"name": "main", "resources": {"requests": {"cpu": actual}}, "allocatedResources": {"cpu": allocated}}
    said = {"initContainerStatuses" if init else "containerStatuses": [status] if actual else [{"name": "main"}]}
    said["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": condition}] if condition else []
    return made | {"status": said}


RESIZED = [
    ("a node that does not say what it allocated is believed to give what is asked for", resized("60"), 60_000),
    ("a pod that grows takes what it asks for before its node has given it", resized("60", "1", "1"), 60_000),
    ("a pod that shrinks takes what it had until its node has taken it back", resized("1", "60", "60"), 60_000),
    ("what is allocated counts before it is in force", resized("1", "1", "4"), 4000),
    ("a growth that waits for room counts", resized("60", "1", "1", "Deferred"), 60_000),
    ("a growth for which there never is room does not", resized("60", "1", "1", "Infeasible"), 1000),
    ("a sidecar is resized, too", resized("1", "3", "3", restart="Always", init=True), 3000),
    ("an init container is not", resized("1", "3", "3", init=True), 1000),
]


@pytest.mark.parametrize(("given_pod", "cpu"), [case[1:] for case in RESIZED], ids=[case[0] for case in RESIZED])
def test_what_is_allocated_to_a_pod_is_what_its_status_says(given_pod: dict[str, Any], cpu: int) -> None:
    assert uses_of(given_pod).cpu_milli == cpu


def test_a_whole_pod_is_resized_like_a_container() -> None:
    made = pod({"cpu": "1"}, resources={"requests": {"cpu": "2"}})
    assert uses_of(made).cpu_milli == 2000
    status = {"resources": {"requests": {"cpu": "9"}}, "allocatedResources": {"cpu": "4"}}
    assert uses_of(made | {"status": status}).cpu_milli == 9000


def grow(world: World, namespace: str, name: str, cpu: str) -> None:
    """What the kubelet says once it has carried out a resize in place."""
    found = world.core.get("pods", namespace, name).object
    container = found["spec"]["containers"][0]
    allocated = container["resources"]["requests"] | {"cpu": cpu}
    said = {"name": container["name"], "resources": {"requests": allocated}, "allocatedResources": allocated}
    world.core.patch("pods", namespace, name, {"status": {"containerStatuses": [said]}}, "status")


async def test_a_pod_of_others_that_grew_in_place_leaves_less_room(world: World) -> None:
    foreign(world, "theirs", cpu="1")
    await world.run(A_WHILE)
    cpu, _, _ = free(world)
    grow(world, "theirs", "theirs", "60")
    await world.run(A_WHILE)
    assert free(world)[0] == cpu - 59_000


async def test_a_pod_of_a_run_that_grew_in_place_takes_more_than_its_run_holds(world: World) -> None:
    job = await world.submit(spec=train(gpus=1))
    (node,) = world.nodes_of(job)
    await world.run(A_WHILE)
    cpu, pods, _ = free(world, node)
    (made,) = world.pods(f"{job}-1")
    grow(world, "lab", made["metadata"]["name"], "60")
    await world.run(A_WHILE)
    assert free(world, node)[:2] == (cpu - 59_000, pods)
    assert seen(world, node)[-1].others == Others(cpu_milli=59_000)
    grow(world, "lab", made["metadata"]["name"], "1")
    await world.run(A_WHILE)
    assert free(world, node)[0] == cpu


async def test_what_a_run_took_beyond_what_it_held_goes_with_its_pods(world: World) -> None:
    job = await world.submit(spec=train(gpus=1, seconds=60))
    (node,) = world.nodes_of(job)
    (made,) = world.pods(f"{job}-1")
    grow(world, "lab", made["metadata"]["name"], "60")
    await world.run(A_WHILE)
    assert free(world, node)[0] < 10_000
    await world.run(90)
    assert world.job(job).phase == "succeeded"
    assert seen(world, node)[-1].others == Others()


async def test_a_binder_that_starts_knows_what_grew_before(world: World) -> None:
    job = await world.submit(spec=train(gpus=1))
    (node,) = world.nodes_of(job)
    (made,) = world.pods(f"{job}-1")
    await world.stop("binder")
    grow(world, "lab", made["metadata"]["name"], "60")
    world.start_binder()
    await world.run(A_WHILE)
    assert seen(world, node)[-1].others == Others(cpu_milli=59_000)

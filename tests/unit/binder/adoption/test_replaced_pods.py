"""A pod group of Kueue takes another pod in the place of one that failed, and the others go on meanwhile."""

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, run_of
from tests.unit.binder.cluster_world import RESERVED

GROUP = {"kueue.x-k8s.io/pod-group-name": "train"}


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


def make(world: AdoptionWorld, name: str, exit_code: int = 0, seconds: float = 60) -> None:
    notes = {"kueue.x-k8s.io/pod-group-total-count": "3", f"{RESERVED}exit-code": str(exit_code)}
    world.make_pod(f"train-{name}", labels=GROUP, notes=notes, seconds=seconds)


def pod(world: AdoptionWorld, name: str) -> Any:
    return world.core.get("pods", NS, f"train-{name}").object


def phases(world: AdoptionWorld, *names: str) -> list[str]:
    return [pod(world, name)["status"]["phase"] for name in names]


def held(world: AdoptionWorld) -> int:
    return sum(run.amount.gpu_milli for run in world.state.runs.values()) // 1000


async def test_the_others_go_on_without_a_pod_that_failed_and_its_replacement_runs_beside_them(
    world: AdoptionWorld,
) -> None:
    for name in ("a", "b"):
        make(world, name)
    make(world, "c", exit_code=1, seconds=5)
    await world.run(20)
    assert phases(world, "a", "b", "c") == ["Running", "Running", "Failed"]
    assert held(world) == 2, "what failed holds nothing"
    make(world, "d", seconds=20)
    make(world, "one-too-many")
    await world.run(10)
    assert phases(world, "a", "b", "d", "one-too-many") == ["Running", "Running", "Running", "Pending"]
    assert run_of(pod(world, "a")).endswith("-1")
    assert world.condition(pod(world, "one-too-many"))["reason"] == "GangIncomplete"
    await world.run(60)
    assert sorted((job.name, job.phase) for job in world.ended()) == [("train", "succeeded"), ("train-d", "succeeded")]


async def test_a_pod_that_was_deleted_is_replaced_likewise_also_after_a_restart_of_the_binder(
    world: AdoptionWorld,
) -> None:
    for name in ("a", "b", "c"):
        make(world, name)
    await world.run(10)
    world.core.delete("pods", NS, "train-c")
    await world.run(5)
    await world.stop("binder")
    make(world, "d")
    world.start_binder()
    await world.run(20)
    assert phases(world, "a", "b", "d") == ["Running", "Running", "Running"]
    assert held(world) == 3


async def test_a_group_whose_failed_pod_nobody_replaced_has_failed(world: AdoptionWorld) -> None:
    for name in ("a", "b"):
        make(world, name, seconds=30)
    make(world, "c", exit_code=3, seconds=5)
    await world.run(60)
    assert phases(world, "a", "b", "c") == ["Succeeded", "Succeeded", "Failed"]
    assert [(job.phase, job.exit_code) for job in world.ended()] == [("failed", 3)]
    assert held(world) == 0


async def test_a_group_before_its_start_is_whole_with_the_replacement(world: AdoptionWorld) -> None:
    for name in ("a", "b"):
        make(world, name)
    await world.run(5)
    world.core.delete("pods", NS, "train-b")
    for name in ("c", "d"):
        make(world, name)
    await world.run(10)
    assert phases(world, "a", "c", "d") == ["Running", "Running", "Running"]

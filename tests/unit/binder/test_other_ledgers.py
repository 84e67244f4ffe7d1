"""Pods that another ledger made, or that this one lost: told, counted wholly, and not stopped."""

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tessera.binder.decide.pods import spec_label
from tessera_schemas.config import Policy
from tessera_schemas.labels import GPU_RESOURCE, LEDGER_LABEL, MANAGED_BY_LABEL, RUN_LABEL, SHARD_LABEL, SPEC_LABEL
from tests.builders import SHARD, admitted
from tests.unit.binder.cluster_world import RESERVED, World, train

UNKNOWN = f"{'a' * 20}-1"
ANOTHER = "0123456789abcdef"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(nodes=("node-a",)) as world:
        yield world


def place(
    world: World, ledger: str, run: str = UNKNOWN, gpus: int = 8, seconds: int = 100_000, spec: str = "0123-7"
) -> None:
    """A pod that runs on node-a, as a binder of `ledger` made it."""
    labels = {MANAGED_BY_LABEL: "tessera", RUN_LABEL: run, SHARD_LABEL: SHARD, SPEC_LABEL: spec} | (
        {LEDGER_LABEL: ledger} if ledger else {}
    )
    notes = {f"{RESERVED}seconds": str(seconds), "tessera.io/allocated-n": "1"}
    asked = {"cpu": "1", "memory": "1Gi", GPU_RESOURCE: str(gpus)}
    container = {"name": "main", "image": "train:1", "resources": {"requests": asked, "limits": asked}}
    meta = {"name": f"{run}-0", "labels": labels, "annotations": notes, "finalizers": ["tessera.io/held"]}
    made = world.core.create(
        "pods", "lab", {"metadata": meta, "spec": {"schedulerName": "tessera", "containers": [container]}}
    )
    world.core.bind("lab", f"{run}-0", {"metadata": {"uid": made.uid}, "target": {"name": "node-a"}})


def phases(world: World) -> list[tuple[str, bool]]:
    return [(pod["status"]["phase"], "deletionTimestamp" in pod["metadata"]) for pod in world.pods()]


def gpus_of_others(world: World) -> int:
    return int(world.state.nodes.get("node-a").others.gpus)


async def test_a_pod_of_another_ledger_is_never_touched_and_counts_on_its_node(world: World) -> None:
    place(world, ANOTHER)
    await world.run(300)
    assert phases(world) == [("Running", False)]
    assert gpus_of_others(world) == 8


async def test_a_second_installation_deletes_no_pod_of_the_first(world: World) -> None:
    """Not configured, with a ledger that has no record yet, and the shard name left at its default."""
    await world.submit(spec=train(gpus=8))
    async with World(nodes=(), beside=world) as second:
        assert second.state.ledger_id != world.state.ledger_id
        await second.run(300)
    assert phases(world) == [("Running", False)]


async def test_a_binder_that_meets_pods_of_another_ledger_is_not_ready_until_they_are_gone(world: World) -> None:
    strangers = world.strangers
    assert strangers.problem() is None
    with capture_logs() as logs:
        place(world, ANOTHER, seconds=20)
        await world.run(5)
    assert "pods of another installation run on this shard's nodes: 1" in str(strangers.problem())
    assert [entry["ledger"] for entry in logs if entry["event"] == "pod_of_another_ledger"] == [ANOTHER]
    await world.run(30)
    assert strangers.problem() is None


async def test_a_pod_without_a_ledgers_name_of_a_job_that_nobody_knows_is_told_and_left_alone(world: World) -> None:
    with capture_logs() as logs:
        place(world, "")
        await world.run(300)
    assert phases(world) == [("Running", False)]
    assert [entry["event"] for entry in logs if entry["event"].startswith("orphan")] == ["orphan_pod"]
    assert gpus_of_others(world) == 8


async def test_a_pod_that_the_ledger_lost_counts_wholly_until_it_is_gone(world: World) -> None:
    place(world, world.state.ledger_id)
    await world.run(3)
    assert gpus_of_others(world) == 8
    await world.run(90)
    assert world.pods() == []
    assert gpus_of_others(world) == 0


async def test_a_pod_of_a_job_that_was_sent_again_after_a_restore_goes_on_and_the_job_waits_for_it() -> None:
    async with World() as world:
        fact = admitted("k1", train(gpus=8))
        place(world, world.state.ledger_id, run=f"{fact.job_id}-1", seconds=200)
        await world.run(2)
        await world.commit(fact)
        await world.run(150)
        assert ("Running", False) in phases(world)
        assert len(world.pods()) == 1
        said = world.said("bind_failed")
        assert said
        assert all("as after a restore" in each.reason.detail for each in said)
        assert world.job(fact.job_id).strikes == 0
        await world.run(150)
        assert world.job(fact.job_id).phase == "running"


async def test_such_a_pod_goes_on_also_where_the_job_was_taken_in_by_a_message_of_the_same_number() -> None:
    """Then nothing on the pod tells one life of the job from the other, but that it is bound and has no permit."""
    async with World(policy=Policy(start_timeout_seconds=30)) as world:
        fact = admitted("k1", train(gpus=8))
        await world.commit(fact)
        own = spec_label(world.job(fact.job_id))
        place(world, world.state.ledger_id, run=f"{fact.job_id}-1", spec=own)
        await world.run(150)
        assert phases(world) == [("Running", False)]
        assert world.job(fact.job_id).strikes == 0

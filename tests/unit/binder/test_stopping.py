"""How a run is stopped: with notice where it can still save its work, and so that any binder goes on with it."""

from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from tessera.binder.decide.steps import read_pod
from tessera_schemas.cluster.labels import (
    EVICT_AT_ANNOTATION,
    FINALIZER,
    LEDGER_LABEL,
    NOTICE_ANNOTATION,
    RUN_LABEL,
    SHARD_LABEL,
)
from tessera_schemas.config import Policy
from tessera_schemas.facts import CancelRequested, DrainRequested, PlanProposed
from tessera_schemas.work.placement import Placement
from tests.builders import SHARD, admitted
from tests.unit.binder.binder_builders import api_pod
from tests.unit.binder.cluster_world import World, train

NOTICE = 60


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(orphan_seconds=30) as world:
        yield world


async def cancel(world: World, job: str) -> None:
    await world.commit(CancelRequested(kind="cancel_requested", job_id=job, why="test"))


async def drain(world: World, job: str) -> None:
    """Its node is to be empty: the run is well, and can still save its work."""
    for node in world.nodes_of(job):
        await world.commit(DrainRequested(kind="drain_requested", node=node, evict=True))


def notices(world: World) -> list[int]:
    """When the pods were told to be gone, in milliseconds."""
    texts = [pod["metadata"].get("annotations", {}).get(EVICT_AT_ANNOTATION) for pod in world.pods()]
    return [int(datetime.fromisoformat(text).timestamp() * 1000) for text in texts if text]


def deleting(world: World) -> list[bool]:
    return ["deletionTimestamp" in pod["metadata"] for pod in world.pods()]


async def test_without_a_declared_checkpoint_a_run_is_stopped_at_once(world: World) -> None:
    job = await world.submit(spec=train(replicas=2))
    await drain(world, job)
    await world.run(3)
    assert world.job(job).attempt == 2
    assert notices(world) == []


async def test_every_pod_is_told_when_it_will_be_stopped_and_runs_until_then(world: World) -> None:
    job = await world.submit(spec=train(replicas=2, notice=NOTICE))
    told_at = world.clock.now_ms()
    await drain(world, job)
    await world.run(NOTICE - 2)
    assert deleting(world) == [False, False]
    assert all(abs(at - told_at - NOTICE * 1000) <= 1000 for at in notices(world))
    assert len(notices(world)) == 2
    await world.run(4)
    assert world.job(job).attempt == 2


async def preempted(world: World) -> tuple[str, str]:
    """A run of all of a node that is told to stop for another job, which is committed with the plan."""
    job = await world.submit(spec=train(gpus=8, notice=40, priority_class="low"))
    (node,) = world.nodes_of(job)
    urgent = admitted("k2", train(gpus=8, priority_class="urgent"))
    await world.commit(urgent)
    place = Placement(0, "worker", node, tuple(range(8)), 1000)
    fields = {"cause": "preemption", "basis_n": 1, "ts": 1, "engine": "test", "policy": 1, "preset": "fair"}
    victims = (world.current(job).run_id,)
    said = await world.commit(
        PlanProposed.model_validate(
            {"kind": "plan_proposed", "job_id": urgent.job_id, "victims": victims, "placements": (place,)} | fields
        )
    )
    assert [record.kind for record in said.records][:2] == ["revoked", "earmark_set"], said.records
    return job, urgent.job_id


@pytest.mark.parametrize(("after", "attempt"), [(0, 1), (38, 1), (43, 2)])
async def test_a_victim_goes_on_if_its_preemptor_goes_within_the_notice_and_is_told_so(
    after: float, attempt: int
) -> None:
    policy = Policy(node_lost_seconds=30, min_runtime_seconds=0, preset="fair")
    async with World(("node-a",), policy=policy) as world:
        job, urgent = await preempted(world)
        await world.run(after)
        assert attempt == 2 or world.current(job).stopping
        await cancel(world, urgent)
        await world.run(60)
        assert world.job(job).attempt == attempt
        assert deleting(world) == [False]
        assert notices(world) == []


async def test_an_undrain_within_the_notice_takes_it_back(world: World) -> None:
    job = await world.submit(spec=train(replicas=2, notice=40))
    await drain(world, job)
    await world.run(38)
    for node in world.nodes_of(job):
        await world.commit(DrainRequested(kind="drain_requested", node=node, undo=True))
    await world.run(30)
    assert (world.job(job).attempt, notices(world)) == (1, [])


async def test_a_cancelled_job_gets_its_notice_too(world: World) -> None:
    job = await world.submit(spec=train(notice=NOTICE))
    await cancel(world, job)
    await world.run(NOTICE - 2)
    assert deleting(world) == [False]
    await world.run(4)
    assert world.job(job).phase == "cancelled"


async def cancel_now(world: World, job: str) -> None:
    await world.commit(CancelRequested(kind="cancel_requested", job_id=job, now=True))


async def test_a_job_that_is_cancelled_now_gets_no_notice(world: World) -> None:
    job = await world.submit(spec=train(replicas=2, notice=NOTICE))
    await cancel_now(world, job)
    await world.run(8)
    assert world.job(job).phase == "cancelled"
    assert notices(world) == []


async def test_a_notice_that_runs_ends_when_the_job_is_cancelled_now_and_once_is_enough(world: World) -> None:
    for stop in (cancel, drain):
        job = await world.submit(f"k-{stop.__name__}", spec=train(notice=NOTICE))
        await stop(world, job)
        await world.run(5)
        assert world.job(job).phase == "evicting"
        await cancel_now(world, job)
        await cancel_now(world, job)
        await cancel(world, job)
        await world.run(8)
        assert world.job(job).phase == "cancelled"
        await world.commit(DrainRequested(kind="drain_requested", node="node-a", undo=True))


async def test_a_checkpoint_that_follows_the_notice_ends_it(world: World) -> None:
    job = await world.submit(spec=train(notice=NOTICE, saves_every=1000))
    await drain(world, job)
    await world.run(3)
    assert world.job(job).attempt == 2
    assert [fact.path for fact in world.said("checkpoint_saved")] == [world.job(job).saved_path]


async def test_a_gang_that_broke_gets_no_notice() -> None:
    async with World() as world:
        job = await world.submit(spec=train(replicas=2, notice=NOTICE))
        world.core.delete("pods", "lab", f"{world.current(job).run_id}-0")
        await world.run(5)
        assert world.job(job).attempt == 2


@pytest.mark.parametrize("after", [0.0, 0.25, 1, 30, NOTICE - 1, NOTICE + 1])
async def test_a_notice_goes_on_where_it_was_when_the_binder_starts_anew(world: World, after: float) -> None:
    """After 0 seconds nothing was told yet."""
    job = await world.submit(spec=train(replicas=2, notice=NOTICE))
    await drain(world, job)
    await world.run(after)
    before = notices(world)
    await world.stop("binder")
    world.start_binder()
    await world.run(1)
    assert not before or notices(world) in (before, [])  # never told anew
    await world.run(NOTICE + 2 - after)
    assert world.job(job).attempt == 2


async def test_while_no_binder_is_there_a_notice_runs_out_and_the_next_binder_deletes_at_once(world: World) -> None:
    job = await world.submit(spec=train(seconds=6000, notice=NOTICE))
    await drain(world, job)
    await world.run(1)
    await world.stop("binder")
    await world.run(10 * NOTICE)
    assert deleting(world) == [False]
    world.start_binder()
    await world.run(3)
    assert world.job(job).attempt == 2


async def test_a_pod_that_puts_its_own_end_off_is_stopped_after_one_notice(world: World) -> None:
    job = await world.submit(spec=train(notice=NOTICE))
    name = f"{world.current(job).run_id}-0"
    world.core.patch("pods", "lab", name, {"metadata": {"annotations": {EVICT_AT_ANNOTATION: "2999-01-01T00:00:00Z"}}})
    await drain(world, job)
    await world.run(NOTICE + 3)
    assert world.job(job).attempt == 2


def test_a_pod_that_asks_for_a_notice_without_end_gets_an_hour_at_most() -> None:
    pod = api_pod()
    pod["metadata"]["annotations"] = {NOTICE_ANNOTATION: "999999"}
    assert read_pod(pod).notice_seconds == 3600


async def test_a_notice_that_nobody_can_read_is_over(world: World) -> None:
    job = await world.submit(spec=train(notice=NOTICE))
    name = f"{world.current(job).run_id}-0"
    world.core.patch("pods", "lab", name, {"metadata": {"annotations": {EVICT_AT_ANNOTATION: "soon"}}})
    await drain(world, job)
    await world.run(3)
    assert world.job(job).attempt == 2


# -- pods that no run explains


def stray(run: str, scheduler: str, shard: str, ledger: str, **annotations: str) -> dict[str, object]:
    labels = {RUN_LABEL: run, SHARD_LABEL: shard} | ({LEDGER_LABEL: ledger} if ledger else {})
    meta = {"name": f"{run}-0", "labels": labels, "finalizers": [FINALIZER], "annotations": annotations}
    body = {"name": "main", "image": "train:1"}
    return {"metadata": meta, "spec": {"schedulerName": scheduler, "containers": [body]}}


UNKNOWN = f"{'a' * 20}-1"
FOR_EVER = {"tessera.io/simulate-seconds": "100000"}


def place_stray(
    world: World,
    scheduler: str = "tessera",
    shard: str = SHARD,
    bound: bool = True,
    allocated_n: int = 0,
    ledger: str | None = None,
) -> None:
    notes = FOR_EVER | {"tessera.io/allocated-n": str(allocated_n)}
    made = world.core.create(
        "pods", "lab", stray(UNKNOWN, scheduler, shard, world.state.ledger_id if ledger is None else ledger, **notes)
    )
    if bound:
        binding = {"metadata": {"uid": made.uid}, "target": {"name": "node-a"}}
        world.core.bind("lab", f"{UNKNOWN}-0", binding)


async def test_a_running_pod_that_no_run_explains_is_deleted_after_a_while(world: World) -> None:
    place_stray(world)
    await world.run(28)
    assert deleting(world) == [False]
    await world.run(40)
    assert world.pods() == []


async def test_the_time_for_which_such_a_pod_is_only_told_runs_while_the_binder_looks(world: World) -> None:
    place_stray(world)
    await world.run(20)
    world.clock.pause(600)
    await world.run(26)
    assert deleting(world) == [False]
    await world.run(40)
    assert world.pods() == []


async def test_an_unbound_pod_that_no_run_explains_is_deleted_at_once(world: World) -> None:
    place_stray(world, bound=False)
    await world.run(1)
    assert world.pods() == []


async def test_a_pod_of_another_scheduler_is_left_alone_whatever_its_labels_say(world: World) -> None:
    place_stray(world, scheduler="default-scheduler")
    await world.run(120)
    assert deleting(world) == [False]


async def test_a_pod_of_another_shard_is_left_alone(world: World) -> None:
    place_stray(world, shard="b")
    await world.run(120)
    assert deleting(world) == [False]


async def test_a_pod_of_an_allocation_that_the_ledger_lost_is_deleted_like_any_that_no_run_explains(
    world: World,
) -> None:
    place_stray(world, allocated_n=999_999)
    await world.run(28)
    assert deleting(world) == [False]
    await world.run(80)
    assert world.pods() == []


async def test_a_pod_of_an_allocation_that_the_ledger_lost_goes_when_an_operator_deletes_it(world: World) -> None:
    place_stray(world, allocated_n=999_999)
    world.core.delete("pods", "lab", f"{UNKNOWN}-0")
    await world.run(28)
    assert world.pods() == []

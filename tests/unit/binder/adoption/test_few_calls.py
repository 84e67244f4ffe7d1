"""What an adopted pod costs on its way to a node, and that what is spared is asked for where it matters."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tessera.binder.adoption.assembly import UsersWork
from tessera.binder.decide.steps import read_pod
from tessera.binder.pods.calls import RefusedByCluster
from tessera.binder.settings import BinderSettings
from tessera.kernel.ports import ApiError
from tessera.kernel.process.leases import Members
from tessera.kernel.tasks.freshness import Freshness
from tessera_local.cluster.in_memory import MemoryCluster
from tessera_schemas.cluster.labels import NAMES_US
from tests.builders import SHARD
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld
from tests.unit.binder.cluster_world import Everything


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """All calls of binder and reclamation but those that read lists and changes."""
    counted: Counter[str] = Counter()
    entered = MemoryCluster._enter

    async def counting(self: Any, operation: str, *about: Any, **more: Any) -> None:
        if operation not in ("list", "watch"):
            counted[operation] += 1
        await entered(self, operation, *about, **more)

    monkeypatch.setattr(MemoryCluster, "_enter", counting)
    return counted


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


async def test_a_pod_that_finds_room_costs_its_bind_and_an_event_in_its_own_time(
    calls: Counter[str], world: AdoptionWorld
) -> None:
    world.make_job(pods=3)
    await world.run(20)
    assert world.only().phase == "running"
    assert calls == {"bind": 3, "create": 3}


async def test_a_suspended_job_that_finds_room_costs_its_resume_besides(
    calls: Counter[str], world: AdoptionWorld
) -> None:
    world.make_job(pods=3, suspend=True)
    await world.run(20)
    assert world.only().phase == "running"
    assert calls == {"patch": 1, "bind": 3, "create": 3}


async def test_a_pod_is_looked_at_before_it_is_bound_once_a_bind_was_refused(
    calls: Counter[str], world: AdoptionWorld
) -> None:
    world.core.faults.answer("bind", 409, count=1)
    world.make_pod("alone")
    await world.run(20)
    assert world.only("alone").phase == "running"
    assert calls == {"bind": 2, "get": 2, "create": 1}  # what became of the refused one, and as what to bind it


async def test_a_pod_that_changes_between_permit_and_bind_is_bound_as_it_is_then(world: AdoptionWorld) -> None:
    world.make_pod("alone")
    while "permitted" not in world.kinds():
        await world.clock.run(0.01)
        await world.turn()
    world.core.patch("pods", NS, "alone", {"metadata": {"annotations": {"note": "new"}}})
    await world.run(10)
    job = world.only("alone")
    assert (job.phase, job.attempt) == ("running", 1)


async def while_time_passes(world: AdoptionWorld, call: Coroutine[Any, Any, Any]) -> None:
    calling = asyncio.create_task(call)
    await world.clock.run(1)
    await calling


async def test_a_binder_that_is_behind_cannot_bind_a_pod_that_was_given_back(world: AdoptionWorld) -> None:
    """Giving back changes the pod's version: the bind fails, and the next look says why."""
    world.make_pod("alone")
    await world.run(10)
    job = world.only("alone")
    run = world.current(job.job_id)
    await world.stop("binder")
    world.make_pod("late")
    (shown,) = world.owned("late")
    uid = shown["metadata"]["uid"]
    late = replace(run, uids=(uid,))

    ports = world._ports("binder")
    behind = UsersWork(
        ports, BinderSettings(shard=SHARD), world.state, cast(Members, Everything()), Freshness(world.clock)
    )
    behind.pods.objects[uid] = shown
    name, version = await behind.runs.target(job, late, uid, fresh=False)
    await while_time_passes(world, behind.runs.give_back(late, read_pod(shown)))
    with pytest.raises(ApiError) as refused:
        await while_time_passes(world, ports.cluster.bind_pod(NS, name, uid, "node-a", {}, version))
    assert refused.value.status == 409
    with pytest.raises(RefusedByCluster, match="not this run's any more"):
        await while_time_passes(world, behind.runs.target(job, late, uid, fresh=True))
    name, _ = await behind.runs.target(job, replace(late, allocated_ts=late.allocated_ts + 1), uid, fresh=False)
    assert name == "late"  # for a run since


async def test_a_pod_that_was_given_back_is_given_back_once(calls: Counter[str], world: AdoptionWorld) -> None:
    world.make_pod("alone")
    await world.run(10)
    run = world.current(world.only("alone").job_id)
    world.make_pod("late")
    users = UsersWork(
        world._ports("binder"),
        BinderSettings(shard=SHARD),
        world.state,
        cast(Members, Everything()),
        Freshness(world.clock),
    )
    for _ in range(2):
        (shown,) = world.owned("late")
        await while_time_passes(world, users.runs.give_back(run, read_pod(shown)))
    assert calls["patch"] == 1


async def test_pods_that_are_all_deleted_at_once_are_not_listed_one_by_one(
    calls: Counter[str], world: AdoptionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        world.make_pod(f"each-{number}")
    await world.run(20)
    lists = Counter[str]()
    listed = MemoryCluster.list

    async def counting(self: Any, kind: str, *about: Any) -> Any:
        lists[kind] += 1
        return await listed(self, kind, *about)

    monkeypatch.setattr(MemoryCluster, "list", counting)
    for number in range(8):
        world.core.delete("pods", NS, f"each-{number}")
    await world.run(30)
    assert len(world.state.runs) == 0
    assert lists["pods"] == 0


async def test_a_binder_that_has_just_begun_waits_for_the_list_instead_of_listing_for_each_run(
    world: AdoptionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        world.make_pod(f"each-{number}")
    await world.run(20)
    await world.stop("binder")
    world.make_pod("permitted")
    lists = Counter[str]()
    listed = MemoryCluster.list

    async def slow(self: Any, kind: str, labels: str = "", fields: str = "", *reduce: Any) -> Any:
        lists[fields] += 1
        if fields == NAMES_US:  # ten thousand of them
            await world.clock.sleep(5)
        return await listed(self, kind, labels, fields, *reduce)

    monkeypatch.setattr(MemoryCluster, "list", slow)
    with capture_logs() as logs:
        world.start_binder()
        await world.run(20)
    assert {job.phase for job in world.state.jobs.values()} == {"running"}
    assert lists[f"{NAMES_US},metadata.namespace={NS}"] == 0
    assert [line for line in logs if line["event"] == "work_retries"] == []


# -- patience


async def test_a_pod_that_is_placed_within_a_moment_is_told_nothing(calls: Counter[str], world: AdoptionWorld) -> None:
    world.make_pod("first", gpus=8, seconds=11)
    await world.run(10)
    world.make_pod("second", gpus=8)
    await world.run(5)
    assert world.only("second").phase == "running"
    assert world.events() == []
    assert calls == {"bind": 2, "create": 2}


async def test_the_pods_of_a_gang_that_are_made_one_after_the_other_are_told_nothing(world: AdoptionWorld) -> None:
    for number in range(3):
        gang = {"labels": {"tessera.io/gang": "three"}, "notes": {"tessera.io/gang-size": "3"}}
        world.make_pod(f"three-{number}", **gang)
        await world.run(0.5)
    await world.run(10)
    assert world.only("three").phase == "running"
    assert world.events() == []


async def test_a_pod_that_goes_on_waiting_is_told_after_two_seconds(world: AdoptionWorld) -> None:
    world.make_pod("first", gpus=8)
    await world.run(5)
    world.make_pod("second", gpus=8)
    await world.run(1.5)
    assert world.events() == []
    await world.run(2)
    assert [event["reason"] for event in world.events()] == ["NoFit"]


async def test_a_refused_pod_is_told_at_once(world: AdoptionWorld) -> None:
    world.make_pod("alone", labels={"tessera.io/queue": "nowhere"})
    await world.run(1)
    assert world.condition(world.owned("alone")[0])["reason"] == "NoSuchQueue"


async def test_a_suspended_job_that_waits_is_told_once(world: AdoptionWorld) -> None:
    world.make_pod("first", gpus=8)
    await world.run(5)
    world.make_job("second", gpus=8, suspend=True)
    await world.run(30)
    assert [event["reason"] for event in world.events() if event["involvedObject"]["name"] == "second"] == ["NoFit"]

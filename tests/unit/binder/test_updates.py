"""Pods follow changes of their job's spec: new ones are made by it, and deadlines of those at work come earlier."""

from typing import Any

import pytest

from tessera_schemas.cluster.labels import NAME_ANNOTATION
from tessera_schemas.facts import HoldRequested, UpdateRequested
from tessera_schemas.reasons import Code
from tessera_schemas.work.spec_changes import SpecChanges
from tests.builders import admitted
from tests.unit.binder.cluster_world import World, train


async def update(world: World, job: str, **changes: Any) -> None:
    said = SpecChanges.model_validate(changes)
    await world.commit(UpdateRequested(kind="update_requested", job_id=job, changes=said, tenant="lab"))


def deadlines(world: World) -> list[int | None]:
    return [pod["spec"].get("activeDeadlineSeconds") for pod in world.pods()]


async def test_pods_are_made_by_the_spec_as_it_is_then() -> None:
    async with World() as world:
        fact = admitted("k1", train(time_limit_seconds=60))
        await world.commit(fact.model_copy(update={"held": True}))
        await update(world, fact.job_id, time_limit_seconds=3600, name="renamed")
        world.start_binder()  # one that remembers no spec of before
        await world.commit(HoldRequested(kind="hold_requested", job_id=fact.job_id, undo=True))
        await world.run(3)
        assert deadlines(world) == [3600]
        assert world.pods()[0]["metadata"]["annotations"][NAME_ANNOTATION] == "renamed"


@pytest.mark.parametrize("limit", [None, 3600], ids=["the first limit", "a lower one"])
async def test_all_pods_of_a_run_get_a_lower_deadline(limit: int | None) -> None:
    async with World() as world:
        job = await world.submit(spec=train(replicas=3, time_limit_seconds=limit))
        await update(world, job, time_limit_seconds=100)
        await world.run(1)
        assert deadlines(world) == [100] * 3
        assert world.job(job).phase == "running"
        await world.run(110)
        ended = world.job(job)
        assert (ended.phase, ended.reason and ended.reason.code) == ("failed", Code.TIME_LIMIT)


async def test_a_run_that_has_had_more_than_its_new_limit_ends_now() -> None:
    async with World() as world:
        job = await world.submit(spec=train(time_limit_seconds=3600))
        await world.run(30)
        await update(world, job, time_limit_seconds=10)
        await world.run(3)
        ended = world.job(job)
        assert (ended.phase, ended.reason and ended.reason.code) == ("failed", Code.TIME_LIMIT)


async def test_a_binder_that_was_away_lowers_the_deadlines_once_it_is_back() -> None:
    async with World() as world:
        job = await world.submit(spec=train(replicas=2, time_limit_seconds=3600))
        await world.stop("binder")
        await update(world, job, time_limit_seconds=100)
        await world.run(5)
        assert deadlines(world) == [3600] * 2
        world.start_binder()
        await world.run(3)
        assert deadlines(world) == [100] * 2


async def test_a_deadline_is_written_once_and_nothing_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with World() as world:
        job = await world.submit(spec=train(replicas=2, time_limit_seconds=3600))
        patched, patch = list[str](), world.core.patch

        def counted(resource: str, namespace: str, name: str, *more: Any) -> Any:
            patched.append(name)
            return patch(resource, namespace, name, *more)

        monkeypatch.setattr(world.core, "patch", counted)
        await world.run(60)
        assert patched == []
        await update(world, job, time_limit_seconds=1000)
        await world.run(60)
        assert sorted(patched) == sorted({*patched})
        assert len(patched) == 2

"""How the pods of a run are made while the API server refuses some of the calls."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tessera.binder.pods.templates import Templates
from tessera.domain.entities import Job
from tessera_schemas.job import JobSpec
from tests.builders import admitted
from tests.unit.binder.cluster_world import World, train


async def test_a_pod_that_is_made_is_not_asked_for_again_because_another_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a large gang would be made only once every call of it succeeds at the same time."""
    async with World() as world:
        asked: Counter[str] = Counter()
        create = world.core.create

        def counted(resource: str, namespace: str, obj: Any) -> Any:
            asked[obj["metadata"]["name"]] += resource == "pods"
            return create(resource, namespace, obj)

        monkeypatch.setattr(world.core, "create", counted)
        world.core.faults.answer("create", 500, count=2)
        await world.submit(spec=train(replicas=6))
        assert sorted((+asked).values()) == [1, 1, 1, 1, 2, 2]


async def test_a_job_that_starts_has_its_spec_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bind needs nothing of it but the claims, which stay known; decoding costs about as much as the call."""
    decoded = list[str]()
    of = Templates.of

    async def counted(templates: Templates, job: Job) -> JobSpec:
        decoded.append(job.job_id)
        return await of(templates, job)

    monkeypatch.setattr(Templates, "of", counted)
    async with World() as world:
        job_id = await world.submit(spec=train(replicas=2))
        await world.run(5)
        assert world.job(job_id).phase == "running"
        assert decoded == [job_id]


async def test_many_runs_of_one_tenant_do_not_delay_the_run_of_another() -> None:
    async with flooded() as world:
        late = admitted("late", train(), "other")
        await world.commit(late)
        await world.run(4)
        assert world.job(late.job_id).phase == "running"
        assert 2 < len(world.said("pods_made")) < 15  # of the other tenant's runs most are not made yet
        world.api.before = at_once
        await world.run(5)
        assert {job.phase for job in world.state.jobs.values()} == {"running"}


async def test_runs_that_were_begun_are_carried_on_before_others_of_their_tenant_are_begun() -> None:
    """Else each of a flood holds its GPUs until the pods of all are made, and nobody's are free."""
    async with flooded() as world:
        await world.run(40)
        assert len(world.said("run_started")) == 30
        said = [fact.kind for fact in world.facts if fact.kind in ("pods_made", "run_started")]
        begun = [said[:place].count("pods_made") - said[:place].count("run_started") for place in range(len(said))]
        assert max(begun) <= 6  # as many as are in work, and as many again whose facts are on their way


@asynccontextmanager
async def flooded() -> AsyncIterator[World]:
    """Two places a tenant, 30 runs of one, and an API server that takes a second to make a pod."""
    nodes = tuple(f"node-{name}" for name in "abcd")
    async with World(nodes, runs_at_once=4, runs_at_once_per_tenant=2) as world:

        async def takes_a_second(call: str) -> None:
            if call == "create":
                await world.clock.sleep(1)

        world.api.before = takes_a_second
        await world.commit(*(admitted(f"k{number}", train()) for number in range(30)))
        yield world


async def at_once(call: str) -> None:
    """The API server answers at once."""

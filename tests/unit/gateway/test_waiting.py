"""Waiting for a job over HTTP: one request is answered at its end, or with what it is when the time is over."""

import asyncio

from tessera_schemas.base import job_id
from tessera_schemas.facts import CancelRequested
from tests.builders import SHARD, admitted, job_spec
from tests.unit.gateway.gateway_world import SECONDS, World

JOB = job_id(SHARD, "lab", "k1")
PATH = f"/v1/jobs/{JOB}/wait"


async def test_the_answer_comes_when_the_job_has_ended(world: World) -> None:
    await world.commit(admitted("k1", job_spec()))
    token = world.token("lab")
    async with world.gateway():
        asked = asyncio.create_task(world.ask("GET", f"{PATH}?timeout=30", token))
        await asyncio.sleep(0.5)
        assert not asked.done()
        await world.commit(CancelRequested(kind="cancel_requested", job_id=JOB, why=""))
        said = await asked
    assert (said.status, said.body["job"]["phase"]) == (200, "cancelled")


async def test_a_job_that_goes_on_is_shown_as_it_is_when_the_time_is_over(world: World) -> None:
    await world.commit(admitted("k1", job_spec()))
    token = world.token("lab")
    async with world.gateway():
        said = await world.ask("GET", f"{PATH}?timeout=1", token)
        assert (said.status, said.body["job"]["phase"]) == (200, "queued")
        said = await world.ask("GET", f"{PATH}?timeout=301", token)
        assert (said.status, said.body["field"]) == (422, "timeout")


async def test_another_tenants_job_cannot_be_waited_for(world: World) -> None:
    await world.commit(admitted("k1", job_spec()))
    token = world.token("ops")
    async with world.gateway():
        said = await world.ask("GET", PATH, token)
    assert (said.status, said.code) == (404, "NoSuchJob")


async def test_those_who_wait_count_as_open_streams_of_their_token(world: World) -> None:
    await world.commit(admitted("k1", job_spec()))
    token = world.token("lab")
    async with world.gateway(streams_per_token=1):
        asked = asyncio.create_task(world.ask("GET", f"{PATH}?timeout=300", token))
        async with asyncio.timeout(SECONDS):
            while not world.measured("tessera_gateway_event_streams"):
                await asyncio.sleep(0.01)
        said = await world.ask("GET", PATH, token)
        assert (said.status, said.code) == (429, "RateLimited")
        await world.commit(CancelRequested(kind="cancel_requested", job_id=JOB, why=""))
        await asked

"""
Parts die while a hundred and fifty jobs go through: every one of them ends, once, and everything can be accounted for.

Jobs are submitted before, during and after each death, so that there is something in every phase when it comes.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tessera_schemas.job import JobSpec
from tessera_schemas.shard import keys
from tessera_schemas.shard.services import SERVICES
from tests.e2e.live import Live, eventually, job
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio(loop_scope="module")

EACH_SECONDS = 0.08
LEASE_SECONDS = 2.0

KINDS: tuple[JobSpec, ...] = (
    job("single", seconds=0.3),
    job("share", gpus=0, gpu_milli=300, seconds=0.5),
    job("gang", gpus=2, replicas=3, seconds=0.4),
    job("node", gpus=8, seconds=0.2),
    job("failing", seconds=0.2, exit_code=1),
    job("wide", gpus=1, replicas=8, seconds=0.3, priority_class="high"),
)


@asynccontextmanager
async def load(live: Live, at_least: int) -> AsyncIterator[None]:
    """Submit a mix of jobs of both tenants from before the body until after it, then see all of them end."""
    submitted: list[str] = []
    enough = asyncio.Event()

    async def submit() -> None:
        for spec, tenant in zip(cycle(KINDS), cycle(("lab", "lab", "ops")), strict=False):
            done = await live.submit(spec, tenant, answer_seconds=0)
            submitted.append(done.job_id)
            if enough.is_set() and len(submitted) >= at_least:
                return
            await asyncio.sleep(EACH_SECONDS)

    submitting = asyncio.create_task(submit())
    try:
        await eventually(lambda: len(submitted) >= 8, "the load has begun")
        yield
    finally:
        enough.set()
    await submitting
    await live.until_ended(*submitted)
    failing = [job_id for job_id in submitted if live.state.ended.get(job_id).name == "failing"]  # type: ignore[union-attr]
    assert {live.phase(job_id) for job_id in failing} == {"failed"}
    assert {live.phase(job_id) for job_id in submitted if job_id not in failing} == {"succeeded"}
    assert len(failing) >= len(submitted) // len(KINDS)


async def test_every_service_is_killed_in_turn(live: Live) -> None:
    async with load(live, at_least=60):
        for service in SERVICES:
            await live.kill(service)
    for service in SERVICES:
        await live.until_ready(service)
    await assert_all_is_well(live)


async def test_all_services_are_killed_at_once(live: Live) -> None:
    async with load(live, at_least=30):
        await asyncio.gather(*(live.kill(service) for service in SERVICES))
        for service in SERVICES:
            await live.until_ready(service)
    await assert_all_is_well(live)


async def test_the_nats_server_is_killed_and_comes_back_with_its_store(live: Live) -> None:
    async with load(live, at_least=40):
        await live.kill("nats")
        await eventually(lambda: live.bus.connected, "we are connected again")
    for service in SERVICES:
        await live.until_ready(service)
    await assert_all_is_well(live)


async def test_redis_is_killed_then_emptied_and_is_built_again_to_the_same_hash(live: Live) -> None:
    async with load(live, at_least=40):
        redis = await live.redis_admin()  # kills it
        await eventually(lambda: _answers(redis), "Redis answers again")
        generation = await redis.get(keys.current(live.platform.shard))
        await redis.flushall()
        await live.submit(job("after-the-flush"))
        await eventually(lambda: _built_anew(redis, live, generation), "the views are built anew")
        await redis.aclose()
    await assert_all_is_well(live)


async def _answers(redis: Redis) -> bool:
    try:
        return bool(await redis.ping())
    except (RedisError, OSError):
        return False


async def _built_anew(redis: Redis, live: Live, old: bytes) -> bool:
    now = await redis.get(keys.current(live.platform.shard))
    return now is not None and now != old


async def test_a_scheduler_that_sleeps_beyond_its_lease_wakes_up_as_nobody(live: Live) -> None:
    async with live.another("scheduler") as standby, load(live, at_least=40):
        await standby.until_ready()
        epoch = live.state.epoch
        live.platform.pause("scheduler")
        try:
            await live.until(lambda state: state.epoch == epoch + 1, "the standby leads")
            await live.submit(job("meanwhile"))
            await asyncio.sleep(LEASE_SECONDS / 4)  # decisions of the new one for the old one to run into
        finally:
            live.platform.resume("scheduler")
        await live.submit(job("afterwards"))
        await live.until_ready("scheduler")
        assert live.state.epoch == epoch + 1
    await live.until(lambda state: state.epoch == epoch + 2, "the first one takes over again when the second is gone")
    await assert_all_is_well(live)


async def test_a_scheduler_killed_beside_its_standby_loses_no_decision(live: Live) -> None:
    async with live.another("scheduler") as standby, load(live, at_least=30):
        await standby.until_ready()
        epoch = live.state.epoch
        await live.kill("scheduler")
        await live.until(lambda state: state.epoch > epoch, "somebody leads again")
        standby.process.send_signal(signal.SIGKILL)
        await standby.process.wait()
    await assert_all_is_well(live)

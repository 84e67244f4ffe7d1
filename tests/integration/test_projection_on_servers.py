"""Projection on a real NATS and a real Redis, with no more rights than its identity has."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tessera.kernel.clock import SystemClock
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.nats.bus import NatsBus
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tessera_schemas.events import CURSOR_HEADER
from tessera_schemas.shard import keys
from tests.builders import SHARD
from tests.integration.connections import bus_of, projection, store_of
from tests.random_ledger import random_ledger
from tests.unit.projection.projection_world import expected_digest, expected_events

SECONDS = 120.0


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform(tmp_path / "up", services=[], cluster=False, tenants=["lab"]) as running:
        yield running


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await condition():
            await asyncio.sleep(0.02)


async def events_in(bus: NatsBus) -> list[tuple[str, str, bytes]]:
    last = await bus.last(subjects.stream("EVENTS", SHARD), f"events.{SHARD}.>")
    source, found = bus.follow(subjects.stream("EVENTS", SHARD), f"events.{SHARD}.>", 0), []
    while last is not None and (not found or found[-1].seq < last.seq):
        found += await source.next(timeout=SECONDS)
    await source.close()
    return [(message.subject, message.headers[CURSOR_HEADER], message.data) for message in found]


async def test_events_views_and_snapshots_follow_through_restarts_and_a_lost_redis(platform):
    whole = random_ledger(3, 240, SystemClock().now_ms())
    parts = (whole.stored[:80], whole.stored[80:160], whole.stored[160:])
    store = store_of(platform)
    appended = 0

    async with bus_of(platform, "scheduler") as scheduler, bus_of(platform, "operator") as reader:

        async def append(stored: list[bytes]) -> None:
            nonlocal appended
            for data in stored:
                appended = await StreamLedger(scheduler, SHARD).append(data, appended)

        async def caught_up() -> bool:
            newest = expected_events(whole.stored[:appended])[-1]
            last = await reader.last(subjects.stream("EVENTS", SHARD), f"events.{SHARD}.>")
            published = last is not None and last.headers[CURSOR_HEADER] == newest[1]
            return published and await store.cursor() == appended

        async with projection(platform):
            await append(parts[0])
            await until(caught_up)
        await append(parts[1])
        async with projection(platform):
            await until(caught_up)
            await forget_everything(platform)
            await append(parts[2])
            await until(caught_up)
        assert await events_in(reader) == expected_events(whole.stored)
        assert await store.digest() == expected_digest(whole.state)
        snapshot = await reader.last(subjects.stream("SNAP", SHARD), subjects.snapshot_manifest(SHARD))
        assert snapshot is not None
    await store.close()


async def forget_everything(platform: Platform) -> None:
    login = platform.credentials.read("projection").redis
    assert login is not None
    client = Redis.from_url(platform.redis.url, username=login.user, password=login.password, protocol=2)
    await client.unlink(*[name async for name in client.scan_iter(match=keys.pattern(SHARD))])
    await client.aclose()

"""Connections of one identity to a platform, as its service would have them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from tessera.kernel.clock import SystemClock
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.redis.store import RedisStore
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.projection.main import serve
from tessera.projection.settings import ProjectionSettings
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tests.builders import SHARD


@asynccontextmanager
async def bus_of(platform: Platform, identity: str) -> AsyncIterator[NatsBus]:
    login = platform.credentials.read(identity).nats
    bus = await NatsBus.connect(
        platform.nats.url, user=login.user, password=login.password, inbox_prefix=subjects.inbox(identity)
    )
    yield bus
    await bus.close()


def store_of(platform: Platform) -> RedisStore:
    login = platform.credentials.read("projection").redis
    assert login is not None
    return RedisStore(platform.redis.url, login.user, login.password, SHARD)


@asynccontextmanager
async def projection(platform: Platform) -> AsyncIterator[Any]:
    clock, metrics, store = SystemClock(), Metrics("projection"), store_of(platform)
    async with bus_of(platform, "projection") as bus:
        cluster: Any = None
        ledger = StreamLedger(bus, SHARD)
        ports = Ports(clock, bus, ledger, store, cluster, Health(clock, metrics), metrics, "projection-1", str)
        settings = ProjectionSettings(snapshot_seconds=0, redis_check_seconds=0.2)
        task = asyncio.ensure_future(serve(ports, settings, asyncio.Event()))
        yield task
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await store.close()

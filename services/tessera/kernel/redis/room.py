"""
Fill level of Redis as a metric: Redis evicts nothing here, and refuses writes once its memory is used up.

A look that fails leaves the last value and stops nobody.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from tessera.kernel.errors import KernelError
from tessera.kernel.ports import Clock
from tessera.kernel.service.metrics import Metrics
from tessera.kernel.tasks.task_group import cancel_all

LOOK_SECONDS = 15.0
ReadMemory = Callable[[], Awaitable[tuple[int, int]]]
"""Bytes held, and the most that may be held; 0 without a bound."""

log = structlog.get_logger()


@asynccontextmanager
async def watching_redis(look: ReadMemory, metrics: Metrics, clock: Clock) -> AsyncIterator[None]:
    """Measure again and again while inside."""
    task = asyncio.create_task(_watch(look, metrics, clock))
    try:
        yield
    finally:
        await cancel_all(task)


async def _watch(look: ReadMemory, metrics: Metrics, clock: Clock) -> None:
    while True:
        try:
            held, most = await look()
        except (KernelError, ValueError, KeyError) as error:
            log.debug("redis_not_measured", error=str(error))
        else:
            metrics.redis_bytes.set(held)
            metrics.redis_bytes_max.set(most)
        await clock.sleep(LOOK_SECONDS)

"""Virtual time of simulations."""

import asyncio
from collections.abc import Iterator

import pytest

from tessera.testkit.sim.loop import VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    yield loop
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
    asyncio.set_event_loop(None)
    loop.close()

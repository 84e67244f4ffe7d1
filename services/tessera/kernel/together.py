"""Run the loops of a service until it is told to stop, or until one of them fails."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(stop: asyncio.Event, *loops: Coroutine[Any, Any, None]) -> None:
    """Cancels the other loops when `stop` is set or one ends; raises what the first failed one raised."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(loop) for loop in loops]
    stopping: asyncio.Task[Any] = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in (*tasks, stopping):
            task.cancel()
        await asyncio.gather(*tasks, stopping, return_exceptions=True)

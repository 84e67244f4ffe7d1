"""`top`: what the shard is busy with, live."""

from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.views.live import EVERY_SECONDS, watch
from tessera.client.views.overview import overview
from tessera.kernel.clock import SystemClock


@command
async def top(
    at: AccessOptions,
    once: Annotated[bool, typer.Option("--once", help="Show it once and leave")] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between looks", min=0.1)] = EVERY_SECONDS,
) -> None:
    """Watch GPUs in use by queue and tenant, and why jobs wait; until Ctrl-C."""
    async with at.views() as views:

        async def read() -> list[str]:
            title, jobs, nodes, queues = (
                await views.title(),
                await views.glances(),
                await views.nodes(),
                await views.queues(),
            )
            return [f"{title}, as of {await views.as_of()}", *overview(jobs, nodes, queues, SystemClock().now_ms())]

        if once:
            print("\n".join(await read()))
        else:
            await watch(read, every)

"""`top`: what the shard is busy with, live."""

from typing import Annotated

import typer

from tessera.client.commands.context import As, Home, InShard, carry_out, shard_views
from tessera.client.live import EVERY_SECONDS, watch
from tessera.client.outcomes import Exit
from tessera.client.overview import overview
from tessera.kernel.clock import SystemClock
from tessera_schemas.config import Config


def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once and leave")] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between looks", min=0.1)] = EVERY_SECONDS,
    home: Home = None,
    shard: InShard = None,
    identity: As = None,
) -> None:
    """Watch GPUs in use by queue and tenant, and why jobs wait; until Ctrl-C."""

    async def work() -> None:
        async with shard_views(home, identity, shard) as (where, views):

            async def read() -> list[str]:
                as_of = await views.as_of()
                jobs, nodes, queues = await views.jobs(), await views.nodes(), await views.queues()
                head = f"shard {where.shard}, preset {_preset(await views.config())}, as of {as_of}"
                return [head, *overview(jobs, nodes, queues, SystemClock().now_ms())]

            if once:
                print("\n".join(await read()))
            else:
                await watch(read, every)

    try:
        carry_out(work())
    except KeyboardInterrupt:
        raise typer.Exit(Exit.OK) from None


def _preset(config: Config) -> str:
    return "none: nothing is configured" if config.body is None else config.body.policy.preset

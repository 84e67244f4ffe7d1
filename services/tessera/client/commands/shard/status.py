"""`status`: who leads, what waits, who is ready, and what is wrong. `top`: what the shard is busy with, live."""

from collections import Counter
from collections.abc import Iterator
from textwrap import wrap
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, Format, ShardOptions, command
from tessera.client.connect.shard_status import shard_status
from tessera.client.outcomes import Exit
from tessera.client.views.live import EVERY_SECONDS, watch
from tessera.client.views.overview import overview
from tessera.client.views.rendering import COLUMNS, Output, show_value
from tessera.kernel.clock import SystemClock
from tessera_schemas.shard.services import SERVICES
from tessera_schemas.shard.status import ShardStatus
from tessera_schemas.text.units import format_age


@command
async def status(at: ShardOptions, output: Format = Output.TABLE) -> Exit | None:
    """Say how the shard is; exit code 0 when all is well, 1 when not."""
    where = at.find()
    found = await shard_status(where)
    if output.for_programs:
        show_value(output, found.model_dump(mode="json"), None)
    else:
        print("\n".join(lines_of(found, where.shard)))
    return None if found.well else Exit.FAILED


def lines_of(found: ShardStatus, shard: str) -> Iterator[str]:
    """Lines for a person: the verdict, the figures, and a line for each trouble."""
    yield f"shard {shard}: {'well' if found.well else found.standstill or 'not well'}"
    yield f"  leads               {found.leader or ('a scheduler' if found.led else 'nobody')}"
    yield f"  newest record       {_record(found)}"
    yield f"  oldest unanswered   {_since(found, found.waiting_since_ts) if found.waiting_since_ts else 'none'}"
    yield f"  lists hold up to    {f'record {found.views_n}' if found.views_n else 'nothing'}"
    yield from wrap(", ".join(_ready(found)), COLUMNS, initial_indent=f"  {'ready':<20}", subsequent_indent=" " * 22)
    yield f"  NATS                {found.nats}"
    yield f"  Redis               {found.redis}"
    yield from (trouble.line() for trouble in found.troubles)
    yield from found.notes


def _record(found: ShardStatus) -> str:
    return f"{found.ledger_n}, {_since(found, found.ledger_ts)} ago" if found.ledger_ts else "none"


def _since(found: ShardStatus, ts: int) -> str:
    return format_age(max(0, found.ts - ts))


def _ready(found: ShardStatus) -> Iterator[str]:
    there = Counter(one.service for one in found.services)
    ready = Counter(one.service for one in found.services if one.ready)
    return (f"{service} {ready[service]}/{there[service]}" for service in SERVICES)


@command
async def top(
    at: AccessOptions,
    once: Annotated[bool, typer.Option("--once", help="Show it once and leave")] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between looks", min=0.1)] = EVERY_SECONDS,
) -> None:
    """Watch GPUs in use by queue and tenant, and why jobs wait; until Ctrl-C."""
    views, shard = at.views(), at.find().shard

    async def read() -> list[str]:
        title, work = await views.title(), await views.groups()
        nodes, queues = await views.nodes(), await views.queues()
        return [
            f"shard {shard} at {title}, as of {await views.as_of()}",
            *overview(work, nodes, queues, SystemClock().now_ms(), await views.slots()),
        ]

    if once:
        print("\n".join(await read()))
    else:
        await watch(read, every)

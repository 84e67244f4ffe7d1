"""`drain` and `undrain`: nodes that an operator wants empty."""

from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, Yes, command
from tessera.client.commands.nodes.reservations import give as give_booking
from tessera.client.commands.nodes.reservations import reserve
from tessera.client.connect.connecting import views_of
from tessera.client.connect.shard_status import why_views_lack
from tessera.client.connect.shard_views import ENDED, LIVE, ShardViews
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.sending.consent import ask_first
from tessera.client.slurm.windows import read_windows
from tessera_schemas.commands import DrainNode
from tessera_schemas.views import JobView, NodeView

DrainedNode = Annotated[str, typer.Argument(help="The node's name")]


@command
async def drain(
    at: AccessOptions,
    node: DrainedNode,
    evict: Annotated[bool, typer.Option("--evict", help="What runs there restarts elsewhere, at once")] = False,
    why: Annotated[str, typer.Option("--why", help="Reason, for the record")] = "",
    start: Annotated[
        str | None, typer.Option("--at", help="Later, with --for: now+2hours, 22:00, 2030-01-31T12:00")
    ] = None,
    for_: Annotated[str | None, typer.Option("--for", help="How long it is empty then, such as 2h")] = None,
    yes: Yes = False,
) -> None:
    """
    Let nothing new start on a node; what runs there goes on, unless --evict. With --at and --for, a reservation for
    maintenance: who would not have left by then starts elsewhere, and the others leave in time.
    """
    where = _check_operator(at)
    if start is not None or for_ is not None:
        if evict:
            raise Failure(Exit.USAGE, "drain: --evict is for now; at a later time the node is empty anyway")
        print(await _reserve(at, await _known(where, node), start or "now", for_, why, yes))
        return
    before = await _known(where, node)
    order = DrainNode(kind="drain_node", v=1, node=node, evict=evict, why=why)
    await ask_first(where, at.identity, order, yes)
    await give(where, at, order, before)
    views = views_of(where)
    jobs = on_node(await views.jobs(LIVE), node)
    print(drain_line(node, jobs, evict))


@command
async def undrain(at: AccessOptions, node: DrainedNode) -> None:
    """Let jobs start on a drained node again."""
    where = _check_operator(at)
    before = await _known(where, node)
    await give(where, at, DrainNode(kind="drain_node", v=1, node=node, undo=True), before)
    print(f"node {node} takes jobs again" if before.drained else f"node {node} is not drained")


async def _reserve(at: AccessOptions, node: NodeView, start: str, length: str | None, why: str, yes: bool) -> str:
    windows = read_windows("drain", start, None, length, None)
    name = f"drain-{node.name}-{windows[0]['start_ts'] // 1000}".replace(".", "-")[-63:].lstrip("-")
    order = reserve(name=name, pool=node.pool, windows=windows, nodes=[node.name], why=why)
    return await give_booking(at, order, yes)


def on_node(jobs: list[JobView], node: str) -> list[JobView]:
    """Jobs that hold something there."""
    return [job for job in jobs if job.phase not in ENDED and any(place.node == node for place in job.placements)]


def drain_line(node: str, jobs: list[JobView], evict: bool) -> str:
    """One sentence on work that is leaving the node."""
    count = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
    if not jobs:
        return f"node {node} is drained, and empty"
    if evict:
        return f"node {node} is drained; {count} there restart elsewhere: " + _named(jobs)
    return f"node {node} is drained; {count} there run on to their end (--evict restarts them): " + _named(jobs)


def _named(jobs: list[JobView]) -> str:
    return ", ".join(job.name for job in jobs[:5]) + (f" and {len(jobs) - 5} more" if len(jobs) > 5 else "")


def _check_operator(at: AccessOptions) -> Where:
    where = at.find()
    ordering.check_operator(where, at.identity, "drain", "drain nodes")
    return where


async def _known(where: Where, node: str) -> NodeView:
    views = views_of(where)
    nodes = {found.name: found for found in await views.nodes() if not found.gone or found.drained}
    if node not in nodes:
        raise Failure(Exit.NOT_FOUND, f"node {node}: there is none in shard {where.shard}; see `tessera nodes`")
    return nodes[node]


async def give(where: Where, at: AccessOptions, command: DrainNode, before: NodeView) -> None:
    """
    Send it, also where the views show the node so already: they may lack what it is to undo. Raises Failure.
    """
    await ordering.send(where, at.identity, command)
    why = await why_views_lack(where) if before.drained is not command.undo else ""

    async def carried_out(views: ShardViews) -> bool:
        return any(node.name == command.node and node.drained is not command.undo for node in await views.nodes())

    if why or not await ordering.is_seen(where, carried_out):
        raise Failure(
            Exit.GAVE_UP,
            f"node {command.node}: the command is stored, but not carried out after {ordering.SEEN_SECONDS:g} s"
            f"{f' ({why})' if why else ''}; it will be once admission, scheduler and projection run; see "
            "`tessera nodes`",
        )

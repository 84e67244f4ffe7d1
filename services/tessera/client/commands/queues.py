"""`queue list|show|hold|drain|release` and `quota`: what queues use, lend and borrow, and stopping them."""

from typing import Annotated, Literal

import typer

from tessera.client import applying
from tessera.client.commands.context import AccessOptions, Format, ShardOptions, command, shard_views
from tessera.client.outcomes import Exit, Failure
from tessera.client.queues import QUEUES, QUOTAS, QueueRow, queue_rows, quota_rows, state_of
from tessera.client.rendering import Output, plain, show, show_value, table
from tessera_schemas.config import ConfigBody, Queue
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.units import format_milli

Name = Annotated[str, typer.Argument(help="The queue's name")]
StopPolicy = Literal["none", "hold", "hold_and_drain"]
SEEN_SECONDS = 30.0

queue = typer.Typer(help="Show and stop queues.", no_args_is_help=True)


@queue.command("list")
@command
async def list_queues(at: AccessOptions, output: Format = Output.TABLE) -> None:
    """List queues: what each uses of its quota of GPUs, borrows and lends, and how many jobs wait in it."""
    async with at.views() as views:
        rows, as_of = queue_rows(await views.queues(), await views.nodes()), await views.as_of()
    waiting = sum(row.queue.queued for row in rows if not row.queue.inner)
    show(output, QUEUES, rows, as_of, f"{waiting} jobs wait; SHARE is of the pool's GPUs")


@queue.command("show")
@command
async def show_queue(
    at: AccessOptions,
    name: Name,
    output: Format = Output.TABLE,
) -> None:
    """Show one queue with all its quotas."""
    async with at.views() as views:
        queues, nodes, as_of = await views.queues(), await views.nodes(), await views.as_of()
    row = next((row for row in queue_rows(queues, nodes) if row.queue.name == name), None)
    if row is None:
        raise _no_such(name)
    if output.for_programs:
        show_value(output, plain(row.queue), as_of)
        return
    for title, value in queue_facts(row):
        print(f"{title:<10} {value}")
    if row.queue.quotas:
        print("\n" + "\n".join(table(QUOTAS, quota_rows(queues, name), wide=output is Output.WIDE)))
    print(f"as of {as_of}")


@queue.command("hold")
@command
async def hold(at: ShardOptions, name: Name) -> None:
    """Let nothing of a queue, or of those below it, start; what runs goes on."""
    await _stop(at, name, "hold")


@queue.command("drain")
@command
async def drain(at: ShardOptions, name: Name) -> None:
    """Let nothing of a queue start, and let what runs go back into it."""
    await _stop(at, name, "hold_and_drain")


@queue.command("release")
@command
async def release(at: ShardOptions, name: Name) -> None:
    """Let jobs of a stopped queue start again."""
    await _stop(at, name, "none")


@command
async def quota(
    at: AccessOptions,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue")] = None,
    output: Format = Output.TABLE,
) -> None:
    """List quotas by queue, resource and flavor: used, borrowed, lent, and what is left with borrowing."""
    async with at.views() as views:
        queues, as_of = await views.queues(), await views.as_of()
    if queue is not None and all(found.name != queue for found in queues):
        raise _no_such(queue)
    rows = quota_rows(queues, queue)
    show(output, QUOTAS, rows, as_of, "LEFT counts what can be borrowed now" if rows else "there are no quotas")


def queue_facts(row: QueueRow) -> list[tuple[str, str]]:
    """Facts that `queue show` prints above the quotas."""
    found = row.queue
    kind = "inner: it takes no jobs itself" if found.inner else f"{found.queued} jobs wait, {found.live} live"
    return [
        ("queue", found.name),
        *([("parent", found.parent)] if found.parent else []),
        ("pool", found.pool),
        ("state", state_of(found)),
        ("weight", str(found.weight)),
        ("jobs", kind),
        ("gpus", f"{format_milli(row.used)}, {row.share_permille // 10}.{row.share_permille % 10}% of the pool"),
    ]


def stopped(body: ConfigBody, name: str, policy: StopPolicy) -> ConfigBody:
    """The configuration with one queue's stop policy changed. Raises Failure when there is no such queue."""
    if all(found.name != name for found in body.queues):
        raise _no_such(name)
    queues = tuple(_with(found, policy) if found.name == name else found for found in body.queues)
    return body.model_copy(update={"queues": queues})


def _with(queue: Queue, policy: StopPolicy) -> Queue:
    return queue.model_copy(update={"stop_policy": policy})


async def _stop(at: ShardOptions, name: str, policy: StopPolicy) -> None:
    """Apply the configuration in force with this one change; another change in the meantime is a conflict."""
    async with shard_views(at) as (where, views):
        now = await views.config()
        if now.body is None:
            raise Failure(Exit.CONFLICT, "queue: nothing is configured yet; use `tessera apply`")
        change = applying.ConfigChange(now, stopped(now.body, name, policy))
        if not change.lines:
            print(f"queue {name}: nothing changes")
            return
        config = await applying.put_in_force(where, where.identity(OPERATOR), views, change, SEEN_SECONDS)
    effects = {"none": "is open", "hold": "is held", "hold_and_drain": "is held, what runs goes back into it"}
    print(f"queue {name} {effects[policy]} (version {config.version})")


def _no_such(name: str) -> Failure:
    return Failure(Exit.NOT_FOUND, f"queue {name}: there is no such queue; see `tessera queue list`")

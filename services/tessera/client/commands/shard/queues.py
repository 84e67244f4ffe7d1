"""`queue list|show|hold|drain|release|move` and `quota`: use, lending and borrowing; stopping and emptying queues."""

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Literal

import typer

from tessera.client.cluster import applying
from tessera.client.commands.context import AccessOptions, Format, ShardOptions, Yes, command, operators_views
from tessera.client.connect.connecting import views_of
from tessera.client.connect.shard_status import why_views_lack
from tessera.client.connect.shard_views import ENDED, ShardViews
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.sending.consent import ask_first
from tessera.client.views.queues import QUEUES, QUOTAS, QueueRow, queue_rows, quota_rows, state_of
from tessera.client.views.rendering import Output, notify, plain, show, show_value, table
from tessera_schemas.commands import MoveJob
from tessera_schemas.config import ConfigBody, Queue
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.text.units import format_milli
from tessera_schemas.views import JobView, QueueView

QueueName = Annotated[str, typer.Argument(help="The queue's name")]
StopPolicy = Literal["none", "hold", "hold_and_drain"]
SEEN_SECONDS = 30.0
QUEUED = "queued"

queue = typer.Typer(help="Show, stop and empty queues.", no_args_is_help=True)


@queue.command("list")
@command
async def list_queues(at: AccessOptions, output: Format = Output.TABLE) -> None:
    """List queues: what each uses of its quota of GPUs, borrows and lends, and how many jobs wait in it."""
    views = at.views()
    rows, as_of = queue_rows(await views.queues(), await views.nodes()), await views.as_of()
    waiting = sum(row.queue.queued for row in rows if not row.queue.inner)
    show(output, QUEUES, rows, as_of, f"{waiting} jobs wait; SHARE is of the pool's GPUs")


@queue.command("show")
@command
async def show_queue(
    at: AccessOptions,
    name: QueueName,
    output: Format = Output.TABLE,
) -> None:
    """Show one queue with all its quotas."""
    views = at.views()
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
async def hold(at: ShardOptions, name: QueueName, yes: Yes = False) -> None:
    """Let nothing of a queue, or of those below it, start; what runs goes on."""
    await _stop(at, name, "hold", yes)


@queue.command("drain")
@command
async def drain(at: ShardOptions, name: QueueName, yes: Yes = False) -> None:
    """Let nothing of a queue start, and let what runs go back into it."""
    await _stop(at, name, "hold_and_drain", yes)


@queue.command("release")
@command
async def release(at: ShardOptions, name: QueueName, yes: Yes = False) -> None:
    """Let jobs of a stopped queue start again."""
    await _stop(at, name, "none", yes)


@queue.command("move")
@command
async def move(
    at: AccessOptions,
    old: Annotated[str, typer.Argument(metavar="FROM", help="The queue in which the jobs wait")],
    new: Annotated[str, typer.Argument(metavar="TO", help="The queue in which they are to wait")],
    job: Annotated[list[str] | None, typer.Option("--job", help="Only this one; one option for each")] = None,
) -> Exit | None:
    """Let what waits in a queue wait in another; what runs goes on where it is. Tenants move their own jobs."""
    where = at.find()
    views = views_of(where)
    jobs = await views.jobs((QUEUED,))
    named = {(await views.live_job(each)).job_id for each in job} if job else None
    _check_takes_jobs(await views.queues(), new)
    own = [each for each in jobs if _may_move(where, at.identity, each)]
    moving = movable(own, old, named)
    if not moving:
        why = await why_views_lack(where)
        if not why:
            print(f"queue {old}: no job of it waits" + (" of those" if job else ""))
            return None
        undone = movable(own, new, named) if named else []
        if not undone:
            raise Failure(
                Exit.UNAVAILABLE,
                f"queue {old}: the lists show no job to move, and may lack some: {why}; nothing was sent: name the "
                f"jobs that are to wait in {new} with --job",
            )
        # An earlier move out of `new` may be on its way, which this one is to undo.
        await ordering.send_all(where, at.identity, _moves(undone, new))
        raise Failure(
            Exit.GAVE_UP,
            f"{len(undone)} of {len(named or ())} jobs: the lists show them in queue {new}, and may be behind: {why}; "
            "the command is stored, and not answered yet; see `tessera ls`",
        )
    await ordering.send_all(where, at.identity, _moves(moving, new))
    still: list[JobView] = []

    async def carried_out(views: ShardViews) -> bool:
        still[:] = [each for each in await views.jobs(queue=old) if each.job_id in moving]
        return all(each.phase != QUEUED for each in still)

    seen = await ordering.is_seen(where, carried_out)
    print(f"{len(moving) - len(still)} of {len(moving)} jobs moved from {old} to {new}")
    if not seen:
        return _not_moved([each for each in still if each.phase == QUEUED], new)
    if started := [each for each in still if each.phase not in ENDED]:
        notify(f"{len(started)} started meanwhile and go on in {old}")
    return None


def _moves(jobs: Iterable[str], queue: str) -> list[tuple[str, MoveJob]]:
    return [(job, MoveJob(kind="move_job", v=1, job_id=job, queue=queue)) for job in jobs]


def _may_move(where: Where, identity: str | None, job: JobView) -> bool:
    """Whether the job is of whoever asks; an operator moves all."""
    if where.login is not None and identity is None:
        return True  # the gateway shows a tenant its own
    who = ordering.choose_identity(where, identity).identity
    return who.role == OPERATOR or who.name == job.tenant


def movable(jobs: Iterable[JobView], queue: str, named: Collection[str] | None = None) -> list[str]:
    """Ids of the jobs that wait in the queue, of all or of those named; an array stands for its tasks."""
    waiting = [job for job in jobs if job.queue == queue and job.phase == QUEUED]
    found = {job.job_id for job in waiting if named is None or job.job_id in named}
    return [job.job_id for job in waiting if job.job_id in found and job.task_of not in found]


def _not_moved(stay: Sequence[JobView], new: str) -> Exit:
    some = ", ".join(each.job_id for each in stay[:5])
    notify(
        f"error: not moved after {ordering.SEEN_SECONDS:g} s: {some}; admission, scheduler and projection have to run, "
        f"and queue {new} has to take jobs of their tenants"
    )
    return Exit.GAVE_UP


def _check_takes_jobs(queues: Iterable[QueueView], name: str) -> None:
    """Raises Failure for a queue that is not there, or that only has queues below it."""
    found = next((queue for queue in queues if queue.name == name and queue.pool and not queue.removed), None)
    if found is None:
        raise _no_such(name)
    if found.inner:
        raise Failure(Exit.USAGE, f"queue {name}: takes no jobs itself; name one of the queues below it")


@command
async def quota(
    at: AccessOptions,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue")] = None,
    output: Format = Output.TABLE,
) -> None:
    """List quotas by queue, resource and flavor: used, borrowed, lent, and what is left with borrowing."""
    views = at.views()
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
        ("gpus", f"{format_milli(row.used)}, {row.share} of the pool"),
    ]


def stopped(body: ConfigBody, name: str, policy: StopPolicy) -> ConfigBody:
    """The configuration with one queue's stop policy changed. Raises Failure when there is no such queue."""
    if all(found.name != name for found in body.queues):
        raise _no_such(name)
    queues = tuple(_with(found, policy) if found.name == name else found for found in body.queues)
    return body.model_copy(update={"queues": queues})


def _with(queue: Queue, policy: StopPolicy) -> Queue:
    return queue.model_copy(update={"stop_policy": policy})


async def _stop(at: ShardOptions, name: str, policy: StopPolicy, yes: bool) -> None:
    """Apply the configuration in force with this one change; another change in the meantime is a conflict."""
    where, views = operators_views(at)
    now = await views.config()
    if now.body is None:
        raise Failure(Exit.CONFLICT, "queue: nothing is configured yet; use `tessera apply`")
    change = applying.ConfigChange(now, stopped(now.body, name, policy))
    if not change.lines and await applying.is_surely_in_force(where, views, change):
        print(f"queue {name}: nothing changes")
        return
    if change.lines:
        await ask_first(where, OPERATOR, change.command, yes)
    config = await applying.put_in_force(where, where.identity(OPERATOR), views, change, SEEN_SECONDS)
    effects = {"none": "is open", "hold": "is held", "hold_and_drain": "is held, what runs goes back into it"}
    print(f"queue {name} {effects[policy]} (version {config.version})")


def _no_such(name: str) -> Failure:
    return Failure(Exit.NOT_FOUND, f"queue {name}: there is no such queue; see `tessera queue list`")

"""`hold`, `release` and `prio`: orders about one job."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tessera.client import ordering
from tessera.client.commands.context import As, Home, InShard, carry_out
from tessera.client.outcomes import Exit, Refused
from tessera.client.rendering import say
from tessera.client.shard_views import ENDED, ShardViews
from tessera.client.where import find
from tessera_schemas.base import Strict
from tessera_schemas.commands import HoldJob, ReleaseJob, SetPriority
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.views import JobView


class CommandTarget(NamedTuple):
    """The shard that a command goes to, and the identity that sends it."""

    home: Path | None
    shard: str | None
    identity: str | None


Job = Annotated[str, typer.Argument(help="Its id, the beginning of one, or its name")]


def hold(job: Job, home: Home = None, shard: InShard = None, identity: As = None) -> None:
    """Keep a job from starting, until it is released; what runs already goes on."""
    _order(
        job,
        "hold",
        lambda found: HoldJob(kind="hold_job", v=1, job_id=found),
        lambda view: view.held,
        lambda view: "is held" if view.phase == "queued" else f"is {view.phase}: it goes on, but will not start again",
        CommandTarget(home, shard, identity),
    )


def release(job: Job, home: Home = None, shard: InShard = None, identity: As = None) -> None:
    """Let a held job start again."""
    _order(
        job,
        "release",
        lambda found: ReleaseJob(kind="release_job", v=1, job_id=found),
        lambda view: not view.held,
        lambda view: "is not held",
        CommandTarget(home, shard, identity),
    )


def prio(
    job: Job,
    priority_class: Annotated[str, typer.Argument(metavar="CLASS", help="The priority class it gets")],
    home: Home = None,
    shard: InShard = None,
    identity: As = None,
) -> None:
    """Give a job another priority class; its place in line follows it."""
    _order(
        job,
        "reprioritise",
        lambda found: SetPriority(kind="set_priority", v=1, job_id=found, priority_class=priority_class),
        lambda view: view.priority_class == priority_class,
        lambda view: f"has priority class {priority_class} now",
        CommandTarget(home, shard, identity),
        lambda views: check_order(views, job, priority_class),
    )


async def check_order(views: ShardViews, job: str, name: str) -> None:
    """Adopted work keeps the priority that Kubernetes gave its pods. Raises Refused, Failure."""
    await check_class(views, name)
    owner = (await views.job(job)).owner
    if owner:
        detail = f"{owner} has the priority of its PriorityClass in Kubernetes; change it there"
        raise Refused((Reason(code=Code.PRIORITY_NOT_ALLOWED, field="priority_class", detail=detail),))


async def check_class(views: ShardViews, name: str) -> None:
    """An operator's orders are not judged by the configuration on their way. Raises Refused."""
    body = (await views.config()).body
    known = [entry.name for entry in body.priority_classes] if body is not None else []
    if name not in known:
        detail = f"{name}; there are {', '.join(known) or 'none yet'}"
        raise Refused((Reason(code=Code.NO_SUCH_PRIORITY_CLASS, field="priority_class", detail=detail[:1024]),))


def _order(
    named: str,
    doing: str,
    command: Callable[[str], Strict],
    done: Callable[[JobView], bool],
    said: Callable[[JobView], str],
    asked: CommandTarget,
    check: Callable[[ShardViews], Awaitable[None]] | None = None,
) -> None:
    """Send it, then say what the views make of it: an order for a job that has just ended changes nothing."""

    async def work() -> Exit | None:
        where = find(asked.home, shard=asked.shard)
        who = ordering.choose_identity(where, asked.identity)
        job = await ordering.find_live_job(where, who, named, doing)
        if check is not None and where.can_be(OPERATOR):
            async with where.store(where.identity(OPERATOR)) as store:
                await check(ShardViews(store))
        answered = await ordering.give(where, who, command(job), job)
        shown: list[JobView] = []

        async def carried_out(views: ShardViews) -> bool:
            shown[:] = [await views.job(job)]
            return done(shown[0]) or shown[0].phase in ENDED

        seen = await ordering.seen(where, carried_out)
        if seen is None:
            print(f"job {job}: the order is " + ("accepted" if answered else "stored, not yet answered"))
            return None
        if seen and shown[0].phase in ENDED:
            say(f"error: job {job}: it was {shown[0].phase} before the order reached it; nothing was changed")
            return Exit.CONFLICT
        if not seen:
            say(f"error: job {job}: the order is stored, but not carried out after {ordering.SEEN_SECONDS:g} s; "
                f"it will be, once admission, scheduler and projection run; see `tessera get {job}`")  # fmt: skip
            return Exit.TIMED_OUT
        print(f"job {job} {said(shown[0])}")
        return None

    carry_out(work())

"""`hold`, `release`, `requeue`, `scale` and `prio`: orders about one job."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, Yes, command
from tessera.client.connect.connecting import views_of
from tessera.client.connect.shard_status import why_views_lack
from tessera.client.connect.shard_views import ENDED, ShardViews
from tessera.client.outcomes import Exit, Refused
from tessera.client.sending import ordering
from tessera.client.sending.consent import ask_first
from tessera.client.views.completing import JobReference
from tessera.client.views.rendering import notify
from tessera_schemas.base import Strict
from tessera_schemas.commands import HoldJob, ReleaseJob, RequeueJob, ScaleService, SetPriority
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.views import JobView


@command
async def hold(at: AccessOptions, job: JobReference) -> Exit | None:
    """Keep a job from starting, until it is released; what runs already goes on."""
    return await order_job(
        at,
        job,
        "hold",
        lambda found: HoldJob(kind="hold_job", v=1, job_id=found),
        lambda view: view.held,
        say_held,
    )


def say_held(view: JobView) -> str:
    """Words about a job that a hold reached."""
    held = "is held by an operator, who alone releases it" if view.operator_hold else "is held"
    return held if view.phase == "queued" else f"is {view.phase}: it goes on, but will not start again"


@command
async def release(at: AccessOptions, job: JobReference) -> Exit | None:
    """Let a held job start again."""
    return await order_job(
        at,
        job,
        "release",
        lambda found: ReleaseJob(kind="release_job", v=1, job_id=found),
        lambda view: not view.held,
        lambda view: "is released",
        unchanged="is not held",
    )


@command
async def requeue(at: AccessOptions, job: JobReference) -> Exit | None:
    """Stop a job's run, with its notice, and put the job back in line; no attempt is spent."""
    seen = list[JobView]()

    def gives_way(view: JobView) -> bool:
        """Whether no run of the job goes on that did at first; of an array its tasks tell that."""
        seen.append(view)
        if view.array is not None:
            return len(seen) > 1
        return view.phase in ("queued", "evicting") or view.attempt > seen[0].attempt

    def now(view: JobView) -> str:
        if view.array is not None:
            return "goes on in line; its tasks that run are stopped and go back there"
        return "waits in line" if view.phase == "queued" else "is stopped, and goes back in line"

    return await order_job(
        at, job, "requeue", lambda found: RequeueJob(kind="requeue_job", v=1, job_id=found), gives_way, now
    )


@command
async def scale(
    at: AccessOptions,
    job: JobReference,
    replicas: Annotated[int, typer.Argument(min=0, help="Replicas that it is to have")],
) -> Exit | None:
    """Give a service another number of replicas, from its minimum to its maximum."""

    def has_size(view: JobView) -> bool:
        return view.array is not None and view.array.max_replicas > 0 and view.array.replicas == replicas

    def order(found: str) -> ScaleService:
        return ScaleService(kind="scale_service", v=1, job_id=found, replicas=replicas)

    words = f"is to have {replicas} {'replica' if replicas == 1 else 'replicas'}"
    return await order_job(at, job, "scale", order, has_size, lambda view: words)


@command
async def prio(
    at: AccessOptions,
    job: JobReference,
    priority_class: Annotated[str, typer.Argument(metavar="CLASS", help="The priority class it gets")],
    yes: Yes = False,
) -> Exit | None:
    """Give a job another priority class; its place in line follows it."""
    return await order_job(
        at,
        job,
        "reprioritise",
        lambda found: SetPriority(kind="set_priority", v=1, job_id=found, priority_class=priority_class),
        lambda view: view.priority_class == priority_class,
        lambda view: f"has priority class {priority_class} now",
        lambda views: check_order(views, job, priority_class),
        yes=yes,
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


async def order_job(
    at: AccessOptions,
    named: str,
    doing: str,
    command: Callable[[str], Strict],
    done: Callable[[JobView], bool],
    said: Callable[[JobView], str],
    check: Callable[[ShardViews], Awaitable[None]] | None = None,
    unchanged: str = "",
    otherwise: str = "",
    yes: bool | None = None,
) -> Exit | None:
    """
    Send a job command, then report what the views show; for a job that has just ended nothing changes. `otherwise` is
    what else than a delay it may be that nothing is seen of it. With `yes`, True or False, its consequences are said
    before, and without it asked about.

    The views may show it as `done` because they lack an earlier command, which this one is to undo: it is sent all the
    same, and that nothing changes is said only of views that lack nothing.
    """
    where = at.find()
    job = await ordering.find_job_id(where, named, doing)
    if check is not None and where.can_be(OPERATOR):
        await check(views_of(where, OPERATOR))
    if yes is not None:
        await ask_first(where, at.identity, command(job), yes)
    before = await ordering.job_now(where, job)
    answered = await ordering.send(where, at.identity, command(job), job)
    if before is not None and before.phase not in ENDED and done(before):
        why, now = await why_views_lack(where), await ordering.job_now(where, job)
        if why:
            notify(f"error: job {job}: the command is stored, and not carried out yet: {why}; see `tessera get {job}`")
            return Exit.GAVE_UP
        if now is not None and now.phase not in ENDED and done(now):
            is_another = now.operator_hold != before.operator_hold  # an operator's hold takes the place of the owner's
            print(f"job {job} {said(now)}" if is_another else f"job {job} {unchanged or said(now)}; nothing changes")
            return None
    shown: list[JobView] = []

    async def carried_out(views: ShardViews) -> bool:
        shown[:] = [await views.job(job)]
        return done(shown[0]) or shown[0].phase in ENDED

    seen = await ordering.is_seen(where, carried_out)
    if seen is None:
        print(f"job {job}: the command is " + ("accepted" if answered else "stored, and not answered yet"))
        return None
    # An order may end the job, as a time limit that is over already does: then it has reached it.
    came_in_time = before is not None and before.phase not in ENDED and done(shown[0]) if seen else False
    if seen and shown[0].phase in ENDED and not came_in_time:
        notify(f"error: job {job}: had ended ({shown[0].phase}) before the command reached it; nothing was changed")
        return Exit.CONFLICT
    if not seen:
        notify(
            f"error: job {job}: the command is stored, but not carried out after {ordering.SEEN_SECONDS:g} s; it will "
            f"be once admission, scheduler and projection run{otherwise}; see `tessera get {job}`"
        )
        return Exit.GAVE_UP
    print(f"job {job} {said(shown[0])}")
    return None

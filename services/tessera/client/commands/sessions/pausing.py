"""`pause` and `resume`: a job gives back what it holds, keeps its volumes and its id, and waits for a word to go on."""

from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.jobs.orders import check_order, order_job
from tessera.client.connect.connecting import views_of
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.views.completing import JobReference
from tessera_schemas.commands import HoldJob, ReleaseJob, RequeueJob, SetPriority
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.views import JobView


@command
async def pause(at: AccessOptions, job: JobReference) -> Exit | None:
    """Stop a job's run, with its notice, and hold the job: its quota is free, and its volume claims stay."""
    where = at.find()
    found = await ordering.find_job_id(where, job, "pause")
    check_pausable(await ordering.job_now(where, found))
    # The hold comes first, so that no run begins between the two; a pause that is cut short here is said once more.
    if not await ordering.send(where, at.identity, HoldJob(kind="hold_job", v=1, job_id=found), found):
        raise Failure(Exit.GAVE_UP, f"job {found}: its hold is not answered yet, and its run goes on; say again")
    return await order_job(
        at, found, "pause", lambda job_id: RequeueJob(kind="requeue_job", v=1, job_id=job_id), _is_paused, _say_paused
    )


@command
async def resume(
    at: AccessOptions,
    job: JobReference,
    priority_class: Annotated[
        str | None,
        typer.Option("--priority", metavar="CLASS", help="The priority class in which it waits from now on"),
    ] = None,
) -> Exit | None:
    """Let a paused job wait in line again, with `--priority` in another class, such as one for sessions."""
    where = at.find()
    found = await ordering.find_job_id(where, job, "resume")
    if priority_class is not None:
        if where.can_be(OPERATOR):
            await check_order(views_of(where, OPERATOR), found, priority_class)
        order = SetPriority(kind="set_priority", v=1, job_id=found, priority_class=priority_class)
        if not await ordering.send(where, at.identity, order, found):
            raise Failure(Exit.GAVE_UP, f"job {found}: its new class is stored, not answered yet; say again")
    return await order_job(
        at,
        found,
        "resume",
        lambda job_id: ReleaseJob(kind="release_job", v=1, job_id=job_id),
        lambda view: not view.held,
        lambda view: f"waits in line in class {view.priority_class}" if view.phase == "queued" else f"is {view.phase}",
        unchanged="is not paused",
    )


def check_pausable(job: JobView | None) -> None:
    """Raises Failure where a hold would not keep what is stopped from running again."""
    if job is None:
        return
    if job.array is not None:
        raise Failure(Exit.USAGE, f"pause: {job.name} is an array; name a task, or cancel it and submit it again later")
    if job.owner.startswith("Pod/"):
        way_out = "stop it where it was made: a Kubeflow notebook by its page, a JupyterHub server by its hub"
        raise Failure(Exit.USAGE, f"pause: {job.owner} would be gone, or made anew as another job; {way_out}")


def _is_paused(job: JobView) -> bool:
    return job.held and job.phase in ("queued", "evicting")


def _say_paused(job: JobView) -> str:
    if job.phase == "queued":
        return f"is paused and holds nothing; `tessera resume {job.job_id}` lets it wait in line"
    return "is stopped, with its notice, and paused then"

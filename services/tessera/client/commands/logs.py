"""`logs`: what a pod of a job writes, through the gateway, or for an operator straight from Kubernetes."""

import sys
from contextlib import aclosing
from typing import Annotated, Any, BinaryIO

import typer

from tessera.client.commands.context import AccessOptions, ago, command
from tessera.client.completing import JobName
from tessera.client.job_glance import ENDED
from tessera.client.job_logs import LogPart, log_pieces
from tessera.client.outcomes import EXPECTED, Exit, Failure, NotYet
from tessera.client.rendering import notify
from tessera.client.where import Where
from tessera.kernel.clock import SystemClock
from tessera_schemas.arrays import task_index
from tessera_schemas.views import JobView

BINDING = "binding"
FIRST_POLL_SECONDS, POLL_SECONDS = 0.1, 1.0  # each pause is twice the one before: most jobs start soon, or late


@command
async def logs(
    at: AccessOptions,
    job: JobName,
    rank: Annotated[int, typer.Option("--rank", help="Which pod of the gang", min=0)] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for the job to start, and go on until the pod ends")
    ] = False,
    attempt: Annotated[int | None, typer.Option("--attempt", help="An earlier run; else the newest", min=1)] = None,
    tail: Annotated[int, typer.Option("--tail", help="The newest lines alone", min=0)] = 0,
    since: Annotated[int, ago("--since", says="The newest part alone, as 90s, 10m or 2h")] = 0,
) -> None:
    """
    Show what a pod of a job writes.

    The text comes from the pod's node as long as the pod is there, by default for an hour after the job's end; by HTTP
    what was stored of a pod that is gone.
    """
    part: dict[str, Any] = {"rank": rank, "attempt": attempt, "follow": follow, "tail": tail, "newest": since}
    await copy_log(at.find(), at.identity, job, sys.stdout.buffer, **part)


async def copy_log(
    where: Where,
    identity: str | None,
    job: str,
    to: BinaryIO,
    rank: int = 0,
    attempt: int | None = None,
    follow: bool = False,
    tail: int = 0,
    newest: int = 0,
) -> None:
    """
    Write what a pod of a job writes; `newest` is the part of so many seconds, 0 all.

    With `follow` a pod that is still on its way, as one of an elastic job may be, is waited for. Raises Failure.
    """
    part, shown = LogPart(rank, attempt, follow, tail, newest), ""
    while True:
        found = await until_started(where, job, follow)
        try:
            async with aclosing(log_pieces(where, found, part, by_api=identity is None)) as pieces:
                async for piece in pieces:
                    to.write(piece)
                    to.flush()
            return
        except NotYet as failure:
            if not follow or found.phase in ENDED or (attempt or 0) > found.attempt:
                raise
            if str(failure) != shown:
                notify(shown := str(failure))
        job = found.job_id  # a newer job of this name is another one
        await SystemClock().sleep(POLL_SECONDS)


async def until_started(where: Where, named: str, follow: bool) -> JobView:
    """The job, once it has run or ended if it is to be followed. Raises Failure for one that has not started else."""
    shown, pause = "", FIRST_POLL_SECONDS
    async with where.views() as views:
        while True:
            job = await views.job(named)
            named = job.job_id
            if job.array is not None:
                first = task_index(job.array.tasks, 0)
                raise Failure(Exit.USAGE, f"job {job.name}: is an array; name a task, such as {job.name}_{first}")
            if (job.attempt and job.started_ts) or job.phase in ENDED:
                return job
            now = job.phase + (f": {job.reason.sentence()}" if job.reason else "")
            if follow and job.phase == BINDING:
                now += await _why_it_does_not_run(where, job)
            if not follow:
                raise Failure(Exit.CONFLICT, f"job {job.name}: has not started yet ({now}); `--follow` waits for it")
            if now != shown:
                notify(now)
            shown = now
            await SystemClock().sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)


async def _why_it_does_not_run(where: Where, job: JobView) -> str:
    """Words of the node of the first pod, such as that it cannot pull the image; "" where there are none."""
    try:
        async with aclosing(log_pieces(where, job, LogPart(tail=1))) as pieces:
            await anext(pieces, None)
    except NotYet as failure:
        return f": {failure}"
    except EXPECTED:
        pass
    return ""

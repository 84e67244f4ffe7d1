"""`logs`: what a pod of a job writes, through the gateway."""

import sys
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, BinaryIO

import typer

from tessera.client.commands.context import AccessOptions, ago, command
from tessera.client.connect.api import Api
from tessera.client.connect.connecting import api_of, views_of
from tessera.client.connect.shard_views import ENDED
from tessera.client.connect.where import Where
from tessera.client.outcomes import EXPECTED, Exit, Failure, NotYet
from tessera.client.sending.job_logs import LogPart, LogPlace, log_pieces, pieces_from
from tessera.client.views.completing import JobReference
from tessera.client.views.rendering import notify
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.views import JobView
from tessera_schemas.work.arrays import task_index

BINDING = "binding"
NOT_STARTED = ("allocated", BINDING)
FIRST_POLL_SECONDS, POLL_SECONDS = 0.1, 1.0  # each pause is twice the one before: most jobs start soon, or late


@command
async def logs(
    at: AccessOptions,
    job: JobReference,
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

    The text comes from the pod's node as long as the pod is there, by default for an hour after the job's end, and
    then from where the gateway stores logs, if it does.
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

    With `follow` a pod that is still on its way, as one of an elastic job may be, is waited for, and a gateway that is
    away; then it goes on from where it stood. Raises Failure.
    """
    part, shown, outage = LogPart(rank, attempt, follow, tail, newest), "", Outage()
    place = LogPlace(is_whole=not tail and not newest)
    while True:
        found = await until_started(where, identity, job, follow, attempt or (None if follow else 1), outage)
        job = found.job_id  # a newer job of this name is another one
        if follow:  # newest runs change, and what is read goes on
            part = replace(part, attempt=attempt or found.attempt or None)
        elif attempt is None and found.phase not in ENDED and not _is_at_work(found):
            part = replace(part, attempt=last_run(found))
            told = f"this is its run {part.attempt}, `--follow` waits for the next"
            notify(f"job {found.name} is {_state_of(found)}; {told}")
        pieces = pieces_from(api_of(where, identity), found, part, place, _say_that_it_begins_again)
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    outage.end()
                    to.write(piece)
                    to.flush()
            return
        except NotYet as failure:
            if not follow or found.phase in ENDED or (attempt or 0) > found.attempt:
                raise
            if str(failure) != shown:
                notify(shown := str(failure))
        except Transient as error:
            if not follow:
                raise
            outage.begin(error)
        await SystemClock().sleep(POLL_SECONDS)


class Outage:
    """Time in which nobody answers a command that waits, which says so once."""

    def __init__(self) -> None:
        self._is_told = False

    def begin(self, error: Transient) -> None:
        """Notes that nobody answers, and says so the first time."""
        if not self._is_told:
            notify(f"{error}; it goes on from where it stood as soon as there is an answer")
        self._is_told = True

    def end(self) -> None:
        """An answer came."""
        self._is_told = False


def _say_that_it_begins_again() -> None:
    notify("the log no longer holds what was shown last; all that is kept of it follows")


def last_run(job: JobView) -> int:
    """The newest run of a job that can have written anything; 0 where there was none."""
    return job.attempt - 1 if job.phase in NOT_STARTED else job.attempt


def _is_at_work(job: JobView) -> bool:
    return bool(job.attempt and job.started_ts)


def _state_of(job: JobView) -> str:
    return job.phase + (f": {job.reason.sentence()}" if job.reason else "")


async def until_started(
    where: Where, identity: str | None, named: str, follow: bool, run: int | None = None, outage: Outage | None = None
) -> JobView:
    """
    The job, once it has run or ended if it is to be followed. Raises Failure for one that has not started else.

    Followed, it is waited for while nobody answers, too. With `run` a job that waits for its next run is enough, if
    that one or a later run of it is over.
    """
    shown, pause, outage = "", FIRST_POLL_SECONDS, outage or Outage()
    views = views_of(where, identity)
    while True:
        try:
            job = await views.job(named)
        except Transient as error:
            if not follow:
                raise
            outage.begin(error)
            await SystemClock().sleep(POLL_SECONDS)
            continue
        named = job.job_id
        if job.array is not None:
            first = task_index(job.array.tasks, 0)
            raise Failure(Exit.USAGE, f"job {job.name}: is an array; name a task, such as {job.name}_{first}")
        if _is_at_work(job) or job.phase in ENDED or (run is not None and last_run(job) >= run):
            return job
        outage.end()
        now = _state_of(job)
        if follow and job.phase == BINDING:
            now += await _why_it_does_not_run(api_of(where, identity), job)
        if not follow:
            raise Failure(Exit.CONFLICT, f"job {job.name}: has not started yet ({now}); `--follow` waits for it")
        if now != shown:
            notify(now)
        shown = now
        await SystemClock().sleep(pause)
        pause = min(2 * pause, POLL_SECONDS)


async def _why_it_does_not_run(api: Api, job: JobView) -> str:
    """Words of the node of the first pod, such as that it cannot pull the image; "" where there are none."""
    try:
        async with aclosing(log_pieces(api, job, LogPart(tail=1))) as pieces:
            await anext(pieces, None)
    except NotYet as failure:
        return f": {failure}"
    except EXPECTED:
        pass
    return ""

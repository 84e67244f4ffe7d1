"""`logs`: what a pod of a job writes, through the gateway, or for an operator straight from Kubernetes."""

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from tessera.client.api import path_of
from tessera.client.commands.context import AccessOptions, command
from tessera.client.outcomes import Exit, Failure
from tessera.client.quantities import seconds
from tessera.client.rendering import say
from tessera.client.shard_views import ENDED
from tessera.client.where import Where
from tessera.kernel.clock import SystemClock
from tessera_schemas.base import run_id
from tessera_schemas.labels import pod_name
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.views import JobView

if TYPE_CHECKING:
    from tessera.kernel.kubernetes.cluster import HttpCluster

POLL_SECONDS = 1.0


@command
async def logs(
    at: AccessOptions,
    job: Annotated[str, typer.Argument(help="Id, the beginning of one, or name")],
    rank: Annotated[int, typer.Option("--rank", help="Which pod of the gang", min=0)] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for the job to start, and go on until the pod ends")
    ] = False,
    attempt: Annotated[int | None, typer.Option("--attempt", help="An earlier run; else the newest", min=1)] = None,
    tail: Annotated[int, typer.Option("--tail", help="The newest lines alone", min=0)] = 0,
    since: Annotated[str, typer.Option("--since", help="The newest part alone, as 90s, 10m or 2h")] = "",
) -> None:
    """
    Show what a pod of a job writes.

    The text comes from the pod's node, as long as the pod is there: by default for an hour after the job's end.
    """
    where, newest = at.find(), seconds(since) if since else 0
    found = await _started(where, job, follow)
    if where.api is not None and at.identity is None:
        path, going_on = path_of(found.job_id, "logs"), "true" if follow else None
        pieces = where.api.pieces(path, rank=rank, attempt=attempt, follow=going_on, tail=tail, since_seconds=newest)
    else:
        pieces = _from_kubernetes(where, found, rank, attempt or found.attempt, follow, tail, newest)
    async with aclosing(pieces):
        async for piece in pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


async def _started(where: Where, named: str, follow: bool) -> JobView:
    """The job, once it has run or ended if it is to be followed. Raises Failure for one that has not started else."""
    told = ""
    async with where.views() as views:
        while True:
            job = await views.job(named)
            if (job.attempt and job.started_ts) or job.phase in ENDED:
                return job
            now = job.phase + (f": {job.reason.sentence()}" if job.reason else "")
            if not follow:
                raise Failure(Exit.CONFLICT, f"job {job.name}: has not started yet ({now}); `--follow` waits for it")
            if now != told:
                say(now)
            told = now
            await SystemClock().sleep(POLL_SECONDS)


async def _from_kubernetes(
    where: Where, job: JobView, rank: int, attempt: int, follow: bool, tail: int, newest: int
) -> AsyncGenerator[bytes, None]:
    """As the operator may read it in Kubernetes. Raises Failure."""
    from tessera.kernel.ports import ApiError

    if job.owner:
        raise Failure(
            Exit.CONFLICT,
            f"job {job.name}: its pods are the user's own; `kubectl logs -n {job.tenant} {job.owner.lower()}`",
        )
    name, cluster = pod_name(run_id(job.job_id, attempt), rank), _cluster(where)
    pieces = cluster.read_log(job.tenant, name, follow=follow, tail_lines=tail, since_seconds=newest)
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece
    except ApiError as error:
        if error.status == 404:
            raise Failure(
                Exit.NOT_FOUND,
                f"pod {name}: is gone, and its log with it; pods stay for the job's `ttl_seconds_after_finished`",
            ) from error
        raise Failure(Exit.UNAVAILABLE, f"pod {name}: {error.message}") from error
    finally:
        await cluster.close()


def _cluster(where: Where) -> "HttpCluster":
    """The local platform's cluster, else that of the kubeconfig. Raises StartupError without one."""
    from tessera.kernel.kubernetes.cluster import HttpCluster
    from tessera.kernel.kubernetes.kubeconfig import find_access

    if where.cluster_url:
        return HttpCluster(where.cluster_url, where.identity(OPERATOR).cluster_token)
    access = find_access()
    return access.cluster()

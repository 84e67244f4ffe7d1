"""Log of one pod of a job, through the gateway, or for an operator straight from Kubernetes."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from tessera.client.outcomes import Exit, Failure
from tessera.client.where import Where
from tessera_schemas.base import run_id
from tessera_schemas.labels import pod_name
from tessera_schemas.views import JobView


@dataclass(frozen=True, slots=True)
class LogPart:
    """A pod by its rank, its run (None: the newest), and how much of its log to read; 0 means all."""

    rank: int = 0
    attempt: int | None = None
    follow: bool = False
    tail: int = 0
    since_seconds: int = 0


def log_pieces(where: Where, job: JobView, part: LogPart, *, by_api: bool = True) -> AsyncGenerator[bytes, None]:
    """Pieces of the log as they come, to its end. Raises Failure where there is none, Transient when it is cut."""
    if where.api is None or not by_api:
        return _from_kubernetes(where, job, part)
    from tessera.client.api import path_of

    return where.api.pieces(
        path_of(job.job_id, "logs"),
        rank=part.rank,
        attempt=part.attempt,
        follow="true" if part.follow else None,
        tail=part.tail,
        since_seconds=part.since_seconds,
    )


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Whole lines of a text that comes in pieces; what cannot be read as UTF-8 is replaced."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


async def _from_kubernetes(where: Where, job: JobView, part: LogPart) -> AsyncGenerator[bytes, None]:
    """Reads the log from Kubernetes with the operator's rights. Raises Failure."""
    from tessera.client.commands.context import cluster_of
    from tessera.kernel.kubernetes.missing_logs import no_log, no_run, users_own_pods
    from tessera.kernel.ports import ApiError

    if job.owner:
        raise Failure(Exit.CONFLICT, users_own_pods(job.tenant, job.owner).sentence())
    attempt = part.attempt or job.attempt
    reason = no_run(job.phase, bool(job.ended_ts), attempt, job.attempt)
    if reason is not None:
        raise Failure(Exit.CONFLICT, reason.sentence())
    name, cluster = pod_name(run_id(job.job_id, attempt), part.rank), cluster_of(where)
    pieces = cluster.read_log(
        job.tenant, name, follow=part.follow, tail_lines=part.tail, since_seconds=part.since_seconds
    )
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece
    except ApiError as error:
        reason = no_log(error, part.rank, job.pods)
        if reason is None:
            raise Failure(Exit.UNAVAILABLE, f"pod {name}: {error.message}") from error
        raise Failure(Exit.CONFLICT, reason.sentence()) from error
    finally:
        await cluster.close()

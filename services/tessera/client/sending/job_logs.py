"""Log of one pod of a job, through the gateway, or for an operator straight from Kubernetes."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure, NotYet
from tessera.kernel.errors import Transient
from tessera_schemas.base import run_id
from tessera_schemas.cluster.labels import pod_name
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView

if TYPE_CHECKING:
    from tessera.client.connect.api import Api
    from tessera.kernel.kubernetes.cluster import HttpCluster


class PodGone(Failure):
    """Kubernetes has no such pod any more, and its log with it."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """A pod by its rank, its run (None: the newest), and how much of its log to read; 0 means all."""

    rank: int = 0
    attempt: int | None = None
    follow: bool = False
    tail: int = 0
    since_seconds: int = 0


RECENT_BYTES = 4096
"""Newest bytes that a reader keeps, so that it knows them again."""


class LogPlace:
    """
    Place that a reader of one run's log has come to.

    Read from its beginning, the place is a number of bytes. A log whose oldest part is gone since, as kubelets rotate
    it, or of which the newest part alone was asked for, is searched for the newest bytes that were read.
    """

    def __init__(self, is_whole: bool) -> None:
        self._offset, self._recent = 0 if is_whole else None, b""

    def __bool__(self) -> bool:
        return bool(self._recent)

    def move(self, piece: bytes) -> None:
        """The piece was read."""
        self._offset = None if self._offset is None else self._offset + len(piece)
        self._recent = (self._recent + piece)[-RECENT_BYTES:]

    def begin_again(self, text: bytes) -> bytes | None:
        """The text of the whole log behind the place, which moves to its end; None: the place is not in it."""
        at = self._offset
        if at is None or text[max(0, at - len(self._recent)) : at] != self._recent:
            found = text.rfind(self._recent)
            at = None if found < 0 else found + len(self._recent)
        self._offset, self._recent = len(text), text[-RECENT_BYTES:]
        return None if at is None else text[at:]


async def pieces_from(
    where: Where, job: JobView, part: LogPart, place: LogPlace, lost: Callable[[], None], *, by_api: bool = True
) -> AsyncGenerator[bytes, None]:
    """
    As `log_pieces`, from where a reader stood when its connection was lost; moves the place.

    Calls `lost` where the log no longer holds it; then all that is kept comes again. The log has no place to ask for,
    so all of it is read up to now, then followed.
    """
    known = 0
    if place:
        part = replace(part, tail=0, since_seconds=0)
        async with aclosing(log_pieces(where, job, replace(part, follow=False), by_api=by_api)) as pieces:
            text = b"".join([piece async for piece in pieces])
        rest, known = place.begin_again(text), len(text)
        if rest is None:
            lost()
        yield text if rest is None else rest
    async with aclosing(log_pieces(where, job, part, by_api=by_api)) as pieces:
        async for piece in pieces:
            new, known = piece[known:], max(0, known - len(piece))
            place.move(new)
            yield new


def log_pieces(where: Where, job: JobView, part: LogPart, *, by_api: bool = True) -> AsyncGenerator[bytes, None]:
    """Pieces of the log as they come, to its end. Raises Failure where there is none, Transient when it is cut."""
    if where.api is None or not by_api:
        return _as_operator(where, job, part)
    return _from_gateway(where.api, job, part)


def _from_gateway(api: "Api", job: JobView, part: LogPart) -> AsyncGenerator[bytes, None]:
    """By HTTP, where the log of a pod that is gone may be stored."""
    from tessera.client.connect.api import path_of

    return api.pieces(
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


async def _as_operator(where: Where, job: JobView, part: LogPart) -> AsyncGenerator[bytes, None]:
    """Reads the log from Kubernetes; that of a pod that is gone from the store of logs, by the gateway."""
    from tessera.client.connect.api import Api

    begun = False
    try:
        async with aclosing(_from_kubernetes(where, job, part)) as pieces:
            async for piece in pieces:
                yield piece
    except PodGone as gone:
        if where.gateway is None:
            raise
        try:
            async with aclosing(_from_gateway(Api(where.gateway), job, part)) as pieces:
                async for piece in pieces:
                    begun = True
                    yield piece
        except (Failure, Transient) as instead:
            if begun or (isinstance(instead, Failure) and instead.code is Exit.CONFLICT):
                raise  # it is cut, or the gateway knows better why there is none
            raise gone from instead


async def _from_kubernetes(where: Where, job: JobView, part: LogPart) -> AsyncGenerator[bytes, None]:
    """Reads the log from Kubernetes with the operator's rights. Raises Failure, PodGone."""
    from tessera.kernel.kubernetes.missing_logs import no_log, no_run, users_own_pods
    from tessera.kernel.ports import ApiError

    attempt = part.attempt or job.attempt
    reason = no_run(job.phase, bool(job.ended_ts), attempt, job.attempt)
    if reason is not None:
        raise Failure(Exit.CONFLICT, reason.sentence())
    run, cluster = run_id(job.job_id, attempt), where.cluster()
    try:
        name = await _find_users_pod(cluster, job, run, part.rank) if job.owner else pod_name(run, part.rank)
        if not name:
            raise Failure(Exit.CONFLICT, users_own_pods(job.tenant, job.owner).sentence())
        try:
            async for piece in _log_of(cluster, job.tenant, name, part):
                yield piece
        except ApiError as error:  # nobody remembers of an ended job whether users made its pods
            name = "" if job.owner or error.status != 404 else await _find_users_pod(cluster, job, run, part.rank)
            if not name:
                raise
            async for piece in _log_of(cluster, job.tenant, name, part):
                yield piece
    except ApiError as error:
        reason = no_log(error, part.rank, job.pods, job.tenant)
        if reason is None:
            raise Failure(Exit.UNAVAILABLE, f"log of job {job.job_id}: {error.message}") from error
        kind = PodGone if error.status == 404 else NotYet if reason.code == Code.NOT_RUNNING else Failure
        raise kind(Exit.CONFLICT, reason.sentence()) from error
    finally:
        await cluster.close()


async def _log_of(cluster: "HttpCluster", namespace: str, name: str, part: LogPart) -> AsyncGenerator[bytes, None]:
    pieces = cluster.read_log(
        namespace, name, follow=part.follow, tail_lines=part.tail, since_seconds=part.since_seconds
    )
    async with aclosing(pieces):
        async for piece in pieces:
            yield piece


async def _find_users_pod(cluster: "HttpCluster", job: JobView, run: str, rank: int) -> str:
    """Name of the pod that a user made and that has this rank of the run; "" where none is seen."""
    from tessera.kernel.ports import ApiError
    from tessera_schemas.cluster.labels import run_and_rank

    try:
        pods, _ = await cluster.list("pods", field_selector=f"metadata.namespace={job.tenant}")
    except ApiError as error:
        if error.status in (401, 403):
            return ""
        raise
    return next((str(pod["metadata"]["name"]) for pod in pods if run_and_rank(pod) == (run, str(rank))), "")

"""
Logs of a job's pods, read from their kubelets through the API server while the pods are there, then from where they
were stored at the end of their runs.

The gateway may read nothing else of Kubernetes, and only in the namespaces of tenants. Pods that Tessera makes have
names that follow from the run, and a pod that a user made by itself is the job's owner; the names of pods of users'
other objects are not known, so that `kubectl` has to show theirs.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

import structlog
from aiohttp import web

from tessera.domain.entities import EndedJob, Job
from tessera.domain.work.phases import Phase
from tessera.gateway.entrance.guard import CALLER
from tessera.gateway.entrance.loop_shares import SHARE
from tessera.gateway.entrance.problems import Refusal, refused
from tessera.gateway.operations.queries import LogQuery
from tessera.gateway.reading.streaming import HEADERS, Streams
from tessera.gateway.stored_logs.reading import StoredLogs
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.missing_logs import no_log, no_run, users_own_pods
from tessera.kernel.ports import ApiError, Cluster
from tessera_schemas.base import run_id
from tessera_schemas.cluster.labels import pod_name
from tessera_schemas.reasons import Code

HIDDEN = (401, 403)
# Answers of the API server that say what this service may do, not what the caller may.
START_RANKS, START_SECONDS = 16, 1.0
# So many pods of a job that binds are asked after, within so long.

log = structlog.get_logger()


class Logs:
    """Streams logs to callers; a stream counts like a stream of events."""

    def __init__(self, cluster: Cluster, streams: Streams, stored: StoredLogs) -> None:
        self._cluster, self._streams, self.stored = cluster, streams, stored

    async def serve(self, request: web.Request, job: Job | EndedJob, query: LogQuery) -> web.StreamResponse:
        """
        Stream the log of one pod until it ends, or what there is without `follow`.

        Raises Refusal before the first byte: NotRunning for a job without such a run, NoLogs where the pod has none.
        """
        attempt = _attempt(job, query)
        name = _own_pod_of(job) or pod_name(run_id(job.job_id, attempt), query.rank)
        pieces = self._cluster.read_log(
            job.tenant, name, follow=query.follow, tail_lines=query.tail, since_seconds=query.since_seconds
        )
        caller = request[CALLER]
        with self._streams.counting(caller):
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(aclosing(pieces))
                try:
                    await _open(pieces, query.rank, job)
                except Refusal as refusal:
                    pieces = await self.stored.instead_of(refusal, job, attempt, query)
                    await stack.enter_async_context(aclosing(pieces))
                response = web.StreamResponse(headers=HEADERS)
                response.content_type, response.charset = "text/plain", "utf-8"
                await response.prepare(request)
                await self._send(request, response, pieces)
        return response

    async def said_of_start(self, job: Job) -> str:
        """The node's words about the first pod that has not started; "" where there are none, or not in time."""
        if job.phase is not Phase.BINDING or job.adopted is not None:
            return ""
        try:
            async with asyncio.timeout(START_SECONDS):
                for rank in range(min(job.pods, START_RANKS)):
                    said = await self._not_started(job, rank)
                    if said:
                        return said
        except (ApiError, Transient, TimeoutError) as error:
            log.debug("start_not_seen", job=job.job_id, error=str(error))
        return ""

    async def _not_started(self, job: Job, rank: int) -> str:
        name = pod_name(run_id(job.job_id, job.attempt), rank)
        async with aclosing(self._cluster.read_log(job.tenant, name, tail_lines=1)) as pieces:
            try:
                await anext(pieces)
            except ApiError as error:
                reason = no_log(error, rank, job.pods, job.tenant)
                if reason is None:
                    raise
                if reason.code is Code.NOT_RUNNING:
                    return f"Its node says of pod {name}: {reason.detail}"
        return ""

    async def _send(
        self, request: web.Request, response: web.StreamResponse, pieces: AsyncGenerator[bytes, None]
    ) -> None:
        # Send each piece. The status is sent already: what breaks off is cut, so that nobody takes it for whole.
        try:
            async for piece in pieces:
                await request[SHARE].turn()
                over = self._streams.why_over(request[CALLER])
                if over is not None or not await self._streams.written(response, piece):
                    _cut(request)
                    return
        except ConnectionError:
            pass  # the client left
        except (ApiError, Transient) as error:
            log.warning("log_stream_cut", error=str(error))
            _cut(request)


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _own_pod_of(job: Job | EndedJob) -> str:
    # Name of the pod that a user made and that is the job; "" for every other job, and once the job has ended.
    is_pod = isinstance(job, Job) and job.adopted is not None and job.adopted.owner_kind == "Pod"
    return job.adopted.owner_name if is_pod else ""  # type: ignore[union-attr]  # a pod has an owner


def _attempt(job: Job | EndedJob, query: LogQuery) -> int:
    # The attempt that is asked for, else the newest. Raises Refusal when there was no such run.
    if isinstance(job, Job) and job.adopted is not None and not _own_pod_of(job):
        raise Refusal(users_own_pods(job.tenant, job.adopted.owner))
    attempt = query.attempt or job.attempt
    reason = no_run(job.phase.value, isinstance(job, EndedJob), attempt, job.attempt)
    if reason is not None:
        raise Refusal(reason)
    return attempt


async def _open(pieces: AsyncGenerator[bytes, None], rank: int, job: Job | EndedJob) -> None:
    # Take the first piece, which is empty. Raises Refusal where there is no log.
    try:
        await anext(pieces)
    except ApiError as error:
        raise _refusal(error, rank, job) from error
    except Transient as error:
        log.warning("log_not_read", error=str(error))
        raise refused(Code.UNAVAILABLE, "logs", "the Kubernetes API did not answer") from error


def _refusal(error: ApiError, rank: int, job: Job | EndedJob) -> Refusal:
    reason = no_log(error, rank, job.pods, job.tenant)
    if reason is not None:
        return Refusal(reason)
    if error.status in HIDDEN:
        log.error("logs_not_allowed", error=str(error), fix="grant the gateway `get pods/log` in the namespace")
        return refused(Code.UNAVAILABLE, "logs", "the gateway may not read logs here; an operator has to grant it")
    log.warning("log_not_read", error=str(error))
    return refused(Code.UNAVAILABLE, "logs", "the node of the pod did not answer")

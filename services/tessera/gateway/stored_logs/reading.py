"""Stored logs as answers, where the pod itself has none any more."""

from collections.abc import AsyncGenerator

import structlog

from tessera.domain.entities import EndedJob, Job
from tessera.gateway.entrance.problems import Refusal, refused
from tessera.gateway.operations.queries import LogQuery
from tessera.gateway.stored_logs.bounds import read_used
from tessera.gateway.stored_logs.stores import LogName, LogStore, log_key, older_log_key
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.missing_logs import ADOPTED
from tessera.kernel.ports import ApiError
from tessera_schemas.reasons import Code
from tessera_schemas.text.units import format_memory

PIECE_BYTES = 65_536
NOT_KEPT = (
    "its pod is gone, and its log with it; pods stay for the job's `ttl_seconds_after_finished`, and this gateway "
    f"stores no logs (setting logs_store); {ADOPTED}"
)
NOT_COLLECTED = (
    "its pod is gone, and its log is not in the store: it went before it was read, or was older or more than is "
    f"kept; {ADOPTED}"
)
GONE = (
    "gone: bound of stored logs of tenant {tenant}; its oldest made room for newer ones (an operator's setting "
    "logs_bytes_max)"
)

log = structlog.get_logger()


class StoredLogs:
    """Reads a shard's stored logs; without a store it says that there is none."""

    def __init__(self, store: LogStore | None, shard: str) -> None:
        self._store, self._shard = store, shard

    async def instead_of(
        self, refusal: Refusal, job: Job | EndedJob, attempt: int, query: LogQuery
    ) -> AsyncGenerator[bytes, None]:
        """Pieces of the stored log in place of `refusal`; raises it, with the reason why none is stored, otherwise."""
        cause = refusal.__cause__
        is_gone = isinstance(cause, ApiError) and cause.status == 404 and query.rank < job.pods
        if self._store is None:
            raise refused(Code.NO_LOGS, "job_id", NOT_KEPT.format(namespace=job.tenant)) if is_gone else refusal
        try:
            name = LogName(job.tenant, job.job_id, attempt, query.rank)
            text = await self._store.get(log_key(self._shard, name))
            text = text if text is not None else await self._store.get(older_log_key(self._shard, name))
            used = {} if text is not None else await read_used(self._store, self._shard)
        except Transient as error:
            log.warning("stored_log_not_read", error=str(error))
            raise refused(Code.UNAVAILABLE, "logs", "the store of collected logs did not answer") from error
        if text is None:
            share = used.get(job.tenant)
            if is_gone and share is not None and _newest_ms(job) <= share.gone_ms:
                numbers = {"bytes_max": share.bytes_max}
                raise refused(Code.NO_LOGS, "job_id", GONE.format(tenant=job.tenant), numbers)
            raise refused(Code.NO_LOGS, "job_id", NOT_COLLECTED.format(namespace=job.tenant)) if is_gone else refusal
        if query.since_seconds:
            detail = "a stored log has no times of its lines; leave it out, or ask for the last lines with `tail`"
            raise refused(Code.INVALID_FIELD, "since_seconds", detail)
        return _pieces(text, query.tail)

    async def notes(self) -> tuple[str, ...]:
        """For operators: tenants whose next logs make their oldest go."""
        try:
            used = {} if self._store is None else await read_used(self._store, self._shard)
        except Transient:
            return ()
        return tuple(
            f"stored logs of tenant {tenant}: {format_memory(share.bytes)} of its {format_memory(share.bytes_max)}, so "
            "that its oldest go as new ones come (setting logs_bytes_max of the gateway, in equal shares)"
            for tenant, share in used.items()
            if share.is_nearly_full
        )


def _newest_ms(job: Job | EndedJob) -> int:
    # No log of the job that is asked for was written before; of a job that lives on, earlier attempts may be.
    return job.ended_ts if isinstance(job, EndedJob) else job.submitted_ts


async def _pieces(text: bytes, lines: int) -> AsyncGenerator[bytes, None]:
    # The last `lines` lines of a text (0: all).
    if lines:
        text = b"".join(text.splitlines(keepends=True)[-lines:])
    for at in range(0, len(text), PIECE_BYTES):
        yield text[at : at + PIECE_BYTES]

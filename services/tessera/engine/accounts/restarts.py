"""Runs that begin again by a ledger message, and what that costs. Pure."""

from collections.abc import Iterator

from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.domain.work.stops import pool_of
from tessera_schemas.ledger import LedgerMessage, Requeued

Restart = tuple[str, str, str, int]
"""Pool, tenant, reason, and thousandths of a GPU times milliseconds."""


def restarts_in(message: LedgerMessage, state: State) -> Iterator[Restart]:
    """
    Runs that begin again by a message that is about to be folded into `state`, and how much each did since its last
    checkpoint or else its start.
    """
    for record in message.records:
        if type(record) is Requeued and (job := state.jobs.get(record.job_id)) is not None:
            run = state.runs.get(job.run_id)
            lost = 0 if run is None else _lost(run, message.ts)
            yield pool_of(state, job.queue), job.tenant, record.reason.code.value, lost


def _lost(run: Run, ts: int) -> int:
    return run.amount.gpu_milli * max(0, ts - max(run.saved_ts, run.started_ts or run.allocated_ts))

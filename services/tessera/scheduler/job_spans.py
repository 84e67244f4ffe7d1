"""Spans that the committer reports of jobs: the wait in the queue, and the way from submit to running."""

from tessera.domain.state import State
from tessera.kernel.service.spans import Spans, job_span, step_span
from tessera_schemas.ledger import Allocated, LedgerMessage, Started


def report_spans(spans: Spans, state: State, message: LedgerMessage) -> None:
    """Report what a committed message ends; `state` is the one after it."""
    for record in message.records:
        if type(record) is Allocated and (job := state.jobs.get(record.job_id)) is not None:
            since = max(job.submitted_ts, job.not_before)
            queued = step_span("queue", job.job_id, job.trace, since, message.ts, record.attempt)
            spans.report(queued)
        elif type(record) is Started and (run := state.runs.get(record.run_id)) is not None:
            owner = state.jobs.get(run.job_id)
            if owner is not None:
                spans.report(step_span("start", owner.job_id, owner.trace, run.allocated_ts, message.ts, run.attempt))
                names = {"tessera.queue": owner.queue, "tessera.tenant": owner.tenant, "tessera.name": owner.name}
                spans.report(job_span(owner.job_id, owner.trace, owner.submitted_ts, message.ts, **names))

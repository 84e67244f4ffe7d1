"""Facts about the configuration, and what a stopped queue means for what runs of it."""

from tessera.domain.phases import Phase
from tessera.scheduler.decide.draft import Draft, judges, record_waiting
from tessera.scheduler.decide.jobs import record_closed
from tessera_schemas.facts import ConfigProposed
from tessera_schemas.ledger import ConfigRefused, ConfigSet, Revoked
from tessera_schemas.reasons import Code, Reason


@judges(ConfigProposed)
def on_config_proposed(draft: Draft, index: int, fact: ConfigProposed) -> None:
    """Puts a configuration in force if made for the version in force; refuses any other but a repeat."""
    state = draft.state
    if fact.expected_version != state.config.version:
        if fact.body != state.config.body:  # else a repeat of what is in force already
            numbers = {"expected_version": fact.expected_version, "version": state.config.version}
            reason = Reason(code=Code.CONFIG_CONFLICT, numbers=numbers)
            draft.add(ConfigRefused(kind="config_refused", fact=index, reason=reason))
        return
    draft.add(ConfigSet(kind="config_set", fact=index, version=state.config.version + 1))
    _record_stopped(draft)


def _record_stopped(draft: Draft) -> None:
    """Jobs whose queue was stopped, and those whose queue goes on again, as far as the message has room."""
    tree = draft.state.tree
    for queue in sorted(draft.state.index.waiting):
        # The index is the base's: a job in it may have left its queue within this message.
        if tree.pool(queue) is None:
            continue
        stopped = tree.stopped(queue) is not None
        for _, _, _, job_id in draft.state.index.waiting[queue]:
            job = draft.state.jobs.get(job_id)
            if draft.full or job is None or job.phase is not Phase.QUEUED:
                continue
            if stopped:
                record_closed(draft, job_id, queue)
            elif job.reason is not None and job.reason.code is Code.QUEUE_STOPPED:
                record_waiting(draft, job_id, Reason(code=Code.WAITING_FOR_TURN))


def drain_queues(draft: Draft) -> None:
    """Runs of queues that an operator drains go back to their queue."""
    state = draft.state
    drained = {queue for queue in state.tree.queues if state.tree.drained(queue)}
    if not drained:
        return
    for run in sorted((run for run in state.runs.values() if run.queue in drained), key=lambda run: run.run_id):
        if draft.full:
            return
        if not run.stopping:
            reason = Reason(code=Code.QUEUE_DRAINED, field=f"queues.{run.queue}")
            draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=reason, then="requeue", by="operator"))

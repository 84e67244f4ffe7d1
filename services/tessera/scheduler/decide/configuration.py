"""
Facts about the configuration, what becomes of jobs whose names it takes away, and what a stopped queue means for what
runs of it; levels of its budgets, and grants.
"""

from collections.abc import Iterable

from tessera.domain.entities import Job
from tessera.domain.folding.spending import BudgetUse, level_of, levels_due, limit_of, unit_of
from tessera.domain.state import State
from tessera.domain.work.live_names import find_stranded, live_jobs
from tessera.domain.work.phases import Phase
from tessera.engine.queueing.readiness import budget_spent
from tessera.scheduler.decide.draft import Draft, give_up_earmark, judges, record_waiting
from tessera.scheduler.decide.jobs import record_closed, record_open
from tessera_schemas.facts import ConfigProposed, GrantRequested
from tessera_schemas.ledger import (
    BudgetGranted,
    BudgetReached,
    BudgetReopened,
    ConfigRefused,
    ConfigSet,
    EarmarkEnded,
    JobMoved,
    PrioritySet,
    Revoked,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.budgets import MICROS, SPENT, Budget, month_text

REASONS_MAX = 64


@judges(ConfigProposed)
def on_config_proposed(draft: Draft, index: int, fact: ConfigProposed) -> None:
    """
    Puts a configuration in force if made for the version in force, and if it strands no live job unasked.

    A repeat of what is in force changes nothing; any other is refused with the reasons.
    """
    state = draft.state
    against: list[Reason] = []
    # Compare and swap: who wrote against another version has not seen what is in force. The same body again is the
    # repeat of a request whose answer was lost, and no conflict.
    if fact.expected_version != state.config.version:
        if fact.body == state.config.body:
            return
        numbers = {"expected_version": fact.expected_version, "version": state.config.version}
        against.append(Reason(code=Code.CONFIG_CONFLICT, numbers=numbers))
    elif not fact.abandon:
        # The list is cut, not the check: one job is enough to refuse, and a reader mends nothing by the thousandth.
        against += find_stranded(live_jobs(state), state.config.body, fact.body)[:REASONS_MAX]
    if against:
        draft.add(ConfigRefused(kind="config_refused", fact=index, reason=against[0], others=tuple(against[1:])))
        return
    draft.add(ConfigSet(kind="config_set", fact=index, version=state.config.version + 1))
    # Names first, so that whoever only got another name is not told that its queue is gone, nor loses its earmark
    # below.
    _rename(draft, state.jobs.values())
    _record_stopped(draft)
    note_levels(draft)
    tell_reopened(draft)
    # A job that stands in no line cannot use its room, which would be kept from all others up to its deadline.
    for owner in sorted(owner for owner, _ in state.earmarks.items()):
        job = state.jobs.get(owner)
        if job is not None and not state.tree.takes(job):
            give_up_earmark(draft, owner)


def rename_strays(draft: Draft) -> None:
    """Gives jobs the new names of their queues and classes that earlier messages had no room for, or came after."""
    _rename(draft, list(draft.state.jobs.found(draft.state.index.strays)))


def _rename(draft: Draft, jobs: Iterable[Job]) -> None:
    """Follows the names that queues and classes had before (`was`), as far as the message has room."""
    tree = draft.state.tree
    if not tree.new_queues and not tree.new_classes:
        return
    renamed = [job for job in jobs if tree.is_stray(job)]
    for job in sorted(renamed, key=lambda job: job.job_id):
        if draft.full:
            return
        if tree.pool(job.queue) is None and (queue := tree.new_queues.get(job.queue)) is not None:
            draft.add(JobMoved(kind="job_moved", job_id=job.job_id, queue=queue))
            record_open(draft, job.job_id)
        name = tree.new_classes.get(job.priority_class)
        if name is not None and job.adopted is None and job.priority_class not in tree.priorities:
            draft.add(PrioritySet(kind="priority_set", job_id=job.job_id, priority_class=name))


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
    state, drained = draft.state, draft.state.tree.drained
    if not drained:
        return
    # By id, and as far as the message has room: runs that are stopping are passed over, so that the next message goes
    # on where this one ended without any cursor.
    for run in sorted((run for run in state.runs.values() if run.queue in drained), key=lambda run: run.run_id):
        if draft.full:
            return
        if not run.stopping:
            reason = Reason(code=Code.QUEUE_DRAINED, field=f"queues.{run.queue}")
            draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=reason, then="requeue", by="operator"))


def note_levels(draft: Draft) -> None:
    """Records each budget that has come to another level, and what follows for jobs that wait."""
    state = draft.state
    for row, level in levels_due(state) if state.budgets else ():
        budget = state.budgets[row.name]
        if level > row.level:
            draft.add(_reached(state, budget, row))
        else:
            draft.add(BudgetReopened.model_validate({"kind": "budget_reopened", "budget": row.name, "percent": level}))
        if level >= SPENT:
            _give_up_earmarks(draft)
        elif row.level >= SPENT:
            tell_reopened(draft)


def _reached(state: State, budget: Budget, row: BudgetUse) -> BudgetReached:
    takers = state.tree.queues[budget.queue].tenants if budget.queue is not None else (budget.tenant,)
    said = {
        "budget": row.name,
        "percent": level_of(budget, row),
        "spent_micros": row.micros,
        "limit_micros": limit_of(budget, row),
        "unit": unit_of(state, budget),
        "when_spent": budget.when_spent,
        "tenant": takers[0] if len(takers) == 1 else "",
    }
    return BudgetReached.model_validate({"kind": "budget_reached", **said})


def _give_up_earmarks(draft: Draft) -> None:
    """Room that is kept for jobs which may not start now is common again."""
    for owner in sorted(owner for owner, _ in draft.state.earmarks.items()):
        job = draft.state.jobs.get(owner)
        if job is not None and budget_spent(draft.state, job) is not None:
            draft.add(EarmarkEnded(kind="earmark_ended", owner=owner, why="owner_gone"))


def tell_reopened(draft: Draft) -> None:
    """Jobs that were kept by a budget and are by none now wait for their turn again, as far as the message has room."""
    state = draft.state
    for queue in sorted(state.index.waiting):
        for _, _, _, job_id in state.index.waiting[queue]:
            job = state.jobs.get(job_id)
            if job is None or job.reason is None or job.reason.code is not Code.BUDGET_SPENT or draft.full:
                continue
            if job.phase is Phase.QUEUED and budget_spent(state, job) is None:
                record_waiting(draft, job_id, Reason(code=Code.WAITING_FOR_TURN))


@judges(GrantRequested)
def on_grant_requested(draft: Draft, index: int, fact: GrantRequested) -> None:
    """Adds to a budget; nothing for another month, or where other than the sender knew was granted meanwhile."""
    state = draft.state
    row = state.spending.get(fact.budget)
    if row is None or fact.month != month_text(state.ts):
        return
    granted = row.granted if month_text(row.ts) == fact.month else 0
    if granted == fact.granted * MICROS:
        said = {"budget": fact.budget, "amount": fact.amount, "why": fact.why, "by": fact.by or "operator"}
        draft.add(BudgetGranted.model_validate({"kind": "budget_granted", **said}))
        note_levels(draft)

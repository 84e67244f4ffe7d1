"""Arrays: their tasks are queued a few at a time, and they end once all tasks have ended."""

from tessera.domain.entities import Job, Run
from tessera.domain.folding.steps import known
from tessera.domain.work.dependencies import settled, unqueued_task
from tessera.domain.work.phases import Phase
from tessera.domain.work.task_array import TaskArray
from tessera.engine.queueing.entry import over_limit
from tessera.scheduler.decide.draft import SCHEDULER, Draft, record_waiting
from tessera_schemas.ledger import ArrayClosed, DependencyMet, EarmarkEnded, Finished, Held, Revoked, TaskQueued
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import ENDED_ARRAYS_FROM
from tessera_schemas.work.arrays import task_id, task_index

FAILING_MAX = 10
"""After so many tasks in a row that failed within seconds an array is put on hold."""


def settle_arrays(draft: Draft) -> None:
    """
    Queue the next tasks of arrays that have room for more, cancel those of closed ones, end those that are over.

    Goes by the state before this message: what it brings about for an array, the next message finds.
    """
    for array_id in sorted(draft.state.relations.open):
        job = draft.state.jobs.get(array_id)
        if job is None or job.array is None:
            continue
        # Tasks are cancelled before the end is judged: an array ends only once all of its tasks have, since whoever
        # waits for its end must not start beside tasks that are still saving their work (ADR 0033).
        if job.array.closed is not None:
            _cancel_tasks(draft, job, job.array.closed, job.array.hurried)
        _queue_tasks(draft, job)
        _end(draft, array_id)
        if draft.full:
            return


def close_array(draft: Draft, job: Job, reason: Reason, now: bool = False) -> None:
    """
    Lets no more tasks be queued, once; those that are left are cancelled from the next message on.

    With `now` they stop without their notice, also where the array is closed already.
    """
    array = job.array
    if array is not None and (array.closed is None or (now and not array.hurried)):
        draft.add(ArrayClosed(kind="array_closed", job_id=job.job_id, reason=reason, now=now))


def live_tasks(draft: Draft, array_id: str) -> list[Job]:
    """Tasks of an array that have not ended, in the order of their indexes."""
    return draft.state.jobs.found(sorted(draft.state.relations.tasks.get(array_id, ())))


def hold_failing_array(draft: Draft, array_id: str) -> None:
    """Put an array on hold whose tasks fail one after the other within seconds, while some of them are left."""
    job = draft.state.jobs.get(array_id)
    if job is None or job.array is None or job.held or job.array.failing < FAILING_MAX:
        return
    # Tasks that run are left alone: they may be the ones that work, and a hold concerns starts alone.
    waiting = [task for task in live_tasks(draft, array_id) if task.phase is Phase.QUEUED and not task.held]
    if not waiting and not job.array.left:
        return
    numbers = {"failed_in_a_row": job.array.failing, "tasks_left": job.array.left + len(waiting)}
    why = Reason(code=Code.ARRAY_KEEPS_FAILING, numbers=numbers)
    for each in (job, *waiting):
        if not draft.full:
            draft.add(Held(kind="held", job_id=each.job_id, by=SCHEDULER))
            record_waiting(draft, each.job_id, why)


def _queue_tasks(draft: Draft, job: Job) -> None:
    state = draft.state
    if not state.tree.takes(job) or state.tree.stopped(job.queue) is not None:
        return
    # The array is read anew each time: every record moves its cursor, and the window is judged by where that stands.
    while not draft.full and (array := _array_of(draft, job.job_id)) is not None and array.has_room:
        if job.held or job.after or over_limit(state, job.tenant, job.gang.amount) is not None:
            return
        task = task_index(array.tasks, array.queued)
        # A task queued now would find its counterpart unknown, which means the same as ended long ago.
        if any(_is_to_come(draft, other, task) for other in array.follows):
            return
        job_id = task_id(job.job_id, task)
        if known(state, job_id):  # somebody found keys that collide: nothing runs under an id twice
            close_array(draft, job, Reason(code=Code.IDEMPOTENCY_CONFLICT, detail=job_id))
            return
        draft.add(TaskQueued(kind="task_queued", job_id=job_id, array=job.job_id, task=task, number=draft.next_number))


def _is_to_come(draft: Draft, array_id: str, task: int) -> bool:
    """Whether the array that is followed may still queue this task: only then how it ends can be seen."""
    return not known(draft.state, task_id(array_id, task)) and draft.state.jobs.get(array_id) is not None


def _cancel_tasks(draft: Draft, job: Job, reason: Reason, now: bool) -> None:
    for task in live_tasks(draft, job.job_id):
        if draft.full:
            return
        # The earmark before the job: an owner that has ended could not be asked for, and its room would be held until
        # the deadline.
        if draft.state.earmarks.get(task.job_id) is not None:
            draft.add(EarmarkEnded(kind="earmark_ended", owner=task.job_id, why="owner_gone"))
        if task.phase is Phase.QUEUED:
            draft.add(Finished(kind="finished", job_id=task.job_id, phase="cancelled", reason=reason))
            continue
        run = draft.state.runs.get(task.run_id)
        if run is not None:
            cancel_run(draft, run, Reason(code=Code.CANCELLED, detail=reason.detail), job.job_id, now)


def cancel_run(draft: Draft, run: Run, reason: Reason, by: str, now: bool) -> None:
    """Stop a run for good, with `now` also cutting its notice short; what is ending so already is left as it is."""
    hurries = now and not run.hurried
    if not run.over and (not run.stopping or run.then == "requeue" or hurries):
        # A cancel never makes a verdict milder: a run that was to end as failed does so, or a cancel that comes in time
        # would hide a failure from whoever depends on it.
        then = "failed" if run.then == "failed" else "cancelled"
        draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=reason, then=then, by=by, now=hurries))


def _end(draft: Draft, array_id: str) -> None:
    array = _array_of(draft, array_id)
    if array is None or not array.is_over or draft.full or _is_awaited(draft, array_id):
        return
    if array.closed is not None:
        # An array that closed by itself has failed; only somebody's wish, or a dependency that cannot come true, counts
        # as cancelled.
        cancelled = array.closed.code in (Code.CANCELLED, Code.DEPENDENCY_NEVER_SATISFIED)
        phase, reason = ("cancelled" if cancelled else "failed"), array.closed
        draft.add(Finished(kind="finished", job_id=array_id, phase=phase, reason=reason))
    elif array.succeeded == array.count:
        draft.add(Finished(kind="finished", job_id=array_id, phase="succeeded"))
    else:
        numbers = {name: getattr(array, name) for name in ("succeeded", "failed", "cancelled")}
        why = Reason(code=Code.TASKS_FAILED, numbers=numbers)
        draft.add(Finished(kind="finished", job_id=array_id, phase="failed", reason=why))


def _is_awaited(draft: Draft, array_id: str) -> bool:
    """Whether the array must stay, in older ledgers, for a job that waits for a task which was never queued."""
    if draft.state.format >= ENDED_ARRAYS_FROM:
        return False
    array = draft.state.jobs.get(array_id)
    waiting = draft.state.jobs.found(draft.state.relations.dependents_on_tasks(array_id))
    return any(unqueued_task(array, each.job or "") is not None for job in waiting for each in job.after)


def _array_of(draft: Draft, array_id: str) -> TaskArray | None:
    job = draft.state.jobs.get(array_id)
    return None if job is None else job.array


def settle_dependencies(draft: Draft) -> None:
    """
    Let go of what has come true for waiting jobs, and end those for which something never will.

    Goes by what was decided before this message; jobs that end in it are seen by the next.
    """
    for job in draft.state.jobs.found(sorted(draft.state.relations.due)):
        if draft.full:
            return
        verdicts = {each: settled(draft.state, job, each) for each in job.after}
        # One condition that can never hold decides for all, however many others hold: conditions are joined by "and".
        # The job is ended at once, since nobody sees one that waits for ever (ADR 0033).
        never = [each for each, verdict in verdicts.items() if verdict is False]
        if never:
            reason = Reason(code=Code.DEPENDENCY_NEVER_SATISFIED, field="after", detail=never[0].text())
            draft.add(Finished(kind="finished", job_id=job.job_id, phase="cancelled", reason=reason))
        elif any(verdicts.values()):
            left = tuple(each for each in job.after if verdicts[each] is None)
            draft.add(DependencyMet(kind="dependency_met", job_id=job.job_id, left=left))

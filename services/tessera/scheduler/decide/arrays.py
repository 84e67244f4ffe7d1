"""
Arrays: their tasks are queued a few at a time, and they end once all tasks have ended; services, as arrays. And jobs
that wait for others, or are attached to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.domain.devices.levels import domains_of, near_domains
from tessera.domain.entities import Job, Run
from tessera.domain.folding.services import spec_of_next
from tessera.domain.folding.steps import known
from tessera.domain.state import State
from tessera.domain.work.dependencies import attachment_step, explain_detached, settled, unqueued_task
from tessera.domain.work.phases import Phase
from tessera.domain.work.task_array import FAILED_STARTS_MAX, Rollout, TaskArray
from tessera.engine.queueing.entry import over_limit_of_task
from tessera.engine.queueing.updates import least_lost, replicas_beyond
from tessera.scheduler.decide.draft import SCHEDULER, Draft, give_up_earmark, record_waiting
from tessera_schemas.job import RoleReach
from tessera_schemas.ledger import ArrayClosed, DependencyMet, EarmarkEnded, Finished, Held, Revoked, TaskQueued
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import ENDED_ARRAYS_FROM
from tessera_schemas.shard.records import Attached, Detached, ServiceRollout
from tessera_schemas.work.arrays import task_id, task_index

FAILING_MAX = 10
"""After so many tasks in a row that failed within seconds an array is put on hold."""


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """`stops` are replicas that make way, and `surge` is how many are asked for beyond those that are wanted."""

    stops: tuple[Job, ...] = ()
    surge: int = 0
    is_done: bool = False
    fault: Reason | None = None


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
        surge = _settle_replicas(draft, job, job.array) if job.array.is_service else 0
        _queue_tasks(draft, job, surge)
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


def _queue_tasks(draft: Draft, job: Job, surge: int) -> None:
    state = draft.state
    if not state.tree.takes(job) or state.tree.stopped(job.queue) is not None:
        return
    # The array is read anew each time: every record moves its cursor, and the window is judged by where that stands.
    while not draft.full and (array := _array_of(draft, job.job_id)) is not None and array.has_room:
        if job.held or job.after or over_limit_of_task(state, job) is not None:
            return
        # What the fold allows is the most; a rollout asks for one replica more only for each that it will stop.
        if array.is_service and array.missing(surge) <= array.parked:
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


def _settle_replicas(draft: Draft, job: Job, array: TaskArray) -> int:
    """
    Hold and stop the replicas that a service does not want, or not any more, and let go of as many as are missing.

    Returns how many it may have beyond those that it wants, while a rollout goes on.
    """
    # Of a service that somebody holds, or that is being cancelled, each replica goes its own way.
    if job.held or job.after or array.closed is not None:
        return 0
    step = _next_step(draft.state, job, array, live_tasks(draft, job.job_id))
    _end_rollout(draft, job, array, step)
    for task in step.stops:
        if draft.full:
            return 0
        _park(draft, task, job)
    if (now := _array_of(draft, job.job_id)) is None:
        return 0
    # Held ones come before new ones: they have their number, and their place in the line of their priority. One that
    # still stops keeps its programs until it is gone.
    held = [task for task in live_tasks(draft, job.job_id) if task.held and not task.operator_hold]
    parked = [task for task in held if task.phase is Phase.QUEUED or task.spec_at == spec_of_next(job)]
    for task in parked[: now.missing(step.surge)]:
        if draft.full:
            return 0
        draft.add(Held(kind="held", job_id=task.job_id, by=SCHEDULER, undo=True))
        if task.phase is Phase.QUEUED:
            record_waiting(draft, task.job_id, Reason(code=Code.WAITING_FOR_TURN))
    return step.surge


def _end_rollout(draft: Draft, job: Job, array: TaskArray, step: RolloutStep) -> None:
    """Records that each replica has the new revision, or that its replicas fail; what follows is the next message's."""
    if step.is_done or step.fault is not None:
        ended: dict[str, Any] = {"state": "stopped" if step.fault else "done", "revision": array.revision}
        draft.add(ServiceRollout(kind="service_rollout", job_id=job.job_id, reason=step.fault, **ended))


def _park(draft: Draft, task: Job, service: Job) -> None:
    """Holds a replica, and stops what runs of it; its quota comes back once that is gone."""
    # Room that was made for it is for others now.
    if draft.state.earmarks.get(task.job_id) is not None:
        draft.add(EarmarkEnded(kind="earmark_ended", owner=task.job_id, why="owner_gone"))
    if not task.held:
        draft.add(Held(kind="held", job_id=task.job_id, by=SCHEDULER))
    # Its story says why: "fewer replicas" of one that is replaced would send its reader to look for a scale-down.
    rolls = service.array is not None and service.array.rollout is not None and not service.array.rollout.done
    code = Code.NEW_REVISION if rolls and task.spec_at != spec_of_next(service) else Code.SCALED_DOWN
    run = draft.state.runs.get(task.run_id)
    if task.phase is Phase.QUEUED:
        record_waiting(draft, task.job_id, Reason(code=Code.SCALED_DOWN))
    elif run is not None and not (run.stopping or run.over):
        draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=Reason(code=code), then="requeue", by=SCHEDULER))


def _is_to_come(draft: Draft, array_id: str, task: int) -> bool:
    """Whether the array that is followed may still queue this task: only then how it ends can be seen."""
    return not known(draft.state, task_id(array_id, task)) and draft.state.jobs.get(array_id) is not None


def _cancel_tasks(draft: Draft, job: Job, reason: Reason, now: bool) -> None:
    for task in live_tasks(draft, job.job_id):
        if draft.full:
            return
        # The earmark before the job: an owner that has ended could not be asked for, and its room would be held until
        # the deadline.
        give_up_earmark(draft, task.job_id)
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
        if job.attached is not None:
            _settle_attachment(draft, job.job_id)


def _settle_attachment(draft: Draft, job_id: str) -> None:
    """Put an attached job in line when the other one's run has started, take it out when that stops, end it at last."""
    job = draft.state.jobs.get(job_id)
    if job is None or job.attached is None:  # ended just now by what it waited for
        return
    step, reason = attachment_step(draft.state, job), explain_detached(draft.state, job)
    if step == "attach":
        draft.add(Attached(kind="attached", job_id=job_id, near=_near_of(draft, job, job.attached.job)))
    if step not in ("detach", "end") or reason is None:
        return
    # Room that is kept beside a run that stops would be kept for nobody.
    give_up_earmark(draft, job_id)
    run = draft.state.runs.get(job.run_id)
    if step == "end" and job.phase is Phase.QUEUED:
        draft.add(Finished(kind="finished", job_id=job_id, phase="cancelled", reason=reason))
    elif step == "end" and run is not None:
        cancel_run(draft, run, reason, job.attached.job, now=False)
    elif step == "detach":
        _detach(draft, job, run, reason)


def _detach(draft: Draft, job: Job, run: Run | None, reason: Reason) -> None:
    """Stop the run of an attached job, with its notice; the job waits for the other one's next run."""
    if run is not None and not run.stopping:
        by = "" if job.attached is None else job.attached.job
        draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=reason, then="requeue", by=by))
    draft.add(Detached(kind="detached", job_id=job.job_id))
    if job.phase is Phase.QUEUED and not job.held:
        record_waiting(draft, job.job_id, reason)


def _near_of(draft: Draft, job: Job, target: str) -> tuple[RoleReach, ...]:
    """The domains in which the other job's run stands, for the roles of one that is attached to it."""
    state = draft.state
    run = state.runs.get(state.jobs.found((target,))[0].run_id)
    required = job.attached is not None and job.attached.near == "required"
    nodes = () if run is None else state.nodes.found(dict.fromkeys(place.node for place in run.places))
    return near_domains(job.roles, domains_of(nodes, state.tree.levels, required), required)


def _next_step(state: State, service: Job, array: TaskArray, replicas: Sequence[Job]) -> RolloutStep:
    """
    The step that brings a service's replicas nearer to the number and the revision that it wants.

    A replica of an older revision that works is stopped only while enough others work without it: the wanted number
    less `max_unavailable`, and never fewer than are guaranteed. Of the new revision one works once it has run for
    `min_ready_seconds`. One that does not work makes way at once, since it serves nobody.
    """
    rollout = array.rollout
    if rollout is None or rollout.done:
        return RolloutStep(replicas_beyond(replicas, array.wanted))
    if rollout.stopped is not None:
        return _fall_back(state, service, array.wanted, replicas, rollout)
    if rollout.failures >= FAILED_STARTS_MAX:
        return RolloutStep(fault=_why_stopped(service, rollout, replicas))
    return _go_on(state, service, array, replicas, rollout)


def _go_on(state: State, service: Job, array: TaskArray, replicas: Sequence[Job], rollout: Rollout) -> RolloutStep:
    fresh = [task for task in replicas if task.spec_at == service.spec_at and not task.held]
    older = [task for task in replicas if task.spec_at != service.spec_at and (not task.held or _runs(state, task))]
    # Held by hand and running still counts as at work: whoever calls the service does not know that it is held.
    ready = sum(_works(state, task, rollout.min_ready_seconds) for task in fresh)
    working = [task for task in older if _works(state, task)]
    # What would still work without them is what has to be enough.
    spare = ready + len(working) - max(array.wanted - rollout.max_unavailable, array.least)
    makes_way = sorted(working, key=least_lost)[: max(0, spare)]
    makes_way += [task for task in older if task not in working]
    left = sum(not task.held for task in older if task not in makes_way)
    # One more for each that is still to be stopped: the last older replica goes without another surge behind it.
    surge = min(rollout.max_surge, left)
    # A service that was scaled down meanwhile has more of the new revision than it wants.
    makes_way += replicas_beyond(fresh, max(0, array.wanted + surge - left))
    is_done = not older and ready == len(fresh) == array.wanted
    return RolloutStep(tuple(makes_way), surge, is_done)


def _fall_back(state: State, service: Job, wanted: int, replicas: Sequence[Job], rollout: Rollout) -> RolloutStep:
    """Replicas that do not work of a revision that failed make way, and come back with the programs before."""
    # Also one that fails only later: the programs before are known to work, and a mixed service heals towards them.
    broken = [
        task
        for task in replicas
        if task.spec_at == service.spec_at and not (task.held or _works(state, task, rollout.min_ready_seconds))
    ]
    others = [task for task in replicas if task not in broken]
    return RolloutStep((*broken, *replicas_beyond(others, wanted)))


def _works(state: State, replica: Job, ready_seconds: int = 0) -> bool:
    """Whether the replica has run for so long, and nobody stops it."""
    run = state.runs.get(replica.run_id)
    if run is None or not run.started or run.stopping or run.over:
        return False
    return state.ts - run.started_ts >= ready_seconds * 1000


def _runs(state: State, replica: Job) -> bool:
    run = state.runs.get(replica.run_id)
    return run is not None and not (run.stopping or run.over)


def _why_stopped(service: Job, rollout: Rollout, replicas: Sequence[Job]) -> Reason:
    failed = (task for task in replicas if task.spec_at == service.spec_at and task.phase is Phase.QUEUED)
    last = next((task.reason for task in failed if task.reason is not None), None)
    numbers = {"revision": rollout.revision, "failures_in_a_row": rollout.failures}
    detail = "" if last is None else f"last: {last.sentence()}"[:1024]
    return Reason(code=Code.ROLLOUT_STOPPED, numbers=numbers, detail=detail)

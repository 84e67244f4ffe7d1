"""Fold of records about jobs that hold nothing: queued, on hold, requeued, finished, earmarks. Pure."""

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from tessera.domain.devices.datasets import with_data
from tessera.domain.devices.levels import unknown_levels
from tessera.domain.devices.resources import NOTHING
from tessera.domain.entities import Earmark, EndedJob, Job
from tessera.domain.errors import Contradiction
from tessera.domain.folding.books import flavor_of_run
from tessera.domain.folding.device_offers import see_claims, weigh_claims, weigh_job
from tessera.domain.folding.services import follow_rollout, renew
from tessera.domain.folding.steps import (
    FORMAT_OF_LATER,
    applies,
    count_task,
    drop_empty,
    end_backoffs,
    hold,
    is_aside,
    job_of,
    known,
    learn_runtime,
    move,
    run_of,
    tally,
    tally_tenant,
    with_held,
    with_nodes_of,
)
from tessera.domain.health.following import begin_test, end_test, note_lasted
from tessera.domain.mix import see
from tessera.domain.moves.folding import begin_moves
from tessera.domain.state import State
from tessera.domain.storing.canonical import spec_hash
from tessera.domain.storing.fast import replace
from tessera.domain.work.current_spec import merged
from tessera.domain.work.dependencies import corresponding_arrays, own_dependencies
from tessera.domain.work.phases import Phase, moved
from tessera.domain.work.task_array import TaskArray
from tessera_schemas.facts import JobAdmitted, NodeTestProposed, OwnerEnded
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import (
    BackInLine,
    EarmarkEnded,
    EarmarkSet,
    Finished,
    Held,
    JobMoved,
    JobQueued,
    JobUpdated,
    OutOfLine,
    OwnerEndNoted,
    PrioritySet,
    Requeued,
    TakenFact,
    TaskQueued,
    Waiting,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import (
    ENDED_NODES_FROM,
    ONE_MODEL_FROM,
    OWNER_ENDS_FROM,
    RUN_SUMS_FROM,
    SPARES_FROM,
    STOP_TIMES_FROM,
    UNNEEDED_STOPS_FROM,
    UPDATES_FROM,
)
from tessera_schemas.work.run_ends import DISPLACING, EVICTIONS

KEPT_OF_ENDED = tuple(field.name for field in fields(EndedJob) if hasattr(Job, field.name))
"""Fields that an ended job has of the live one."""
_kept_of_ended = attrgetter(*KEPT_OF_ENDED)


@applies(JobQueued)
def apply_job_queued(state: State, record: JobQueued, facts: Sequence[TakenFact]) -> None:
    """Puts an admitted job in line; raises Contradiction if its id is known or a topology level of it is not."""
    fact = facts[record.fact].fact
    if not isinstance(fact, JobAdmitted) or fact.job_id != record.job_id or known(state, fact.job_id):
        raise Contradiction(f"record {state.n}: job {record.job_id} cannot be queued")
    spec = fact.spec
    if unknown_levels(spec, state.tree.levels):
        raise Contradiction(f"record {state.n}: job {record.job_id} names a topology level that is not there")
    as_made, one_model = fact.adopted is not None, state.format >= ONE_MODEL_FROM
    asked = state.tree.gang_of(spec, fact.tenant, as_made, one_model, fact.job_id)
    gang = with_data(state, weigh_claims(state, asked), spec, fact.tenant)
    array = _array(state, spec)
    job = Job(
        fact.job_id,
        fact.tenant,
        spec.queue,
        spec.name,
        fact.key,
        spec_hash(fact),
        spec.priority_class,
        spec.preemptible,
        gang,
        gang.amount if array is None else NOTHING,
        spec.retry,
        state.n,
        record.fact,
        state.ts,
        fact.trace,
        not_before=spec.begin_ts if spec.begin_ts > state.ts else 0,
        time_limit_seconds=spec.time_limit_seconds or 0,
        avoid=() if fact.adopted is None else fact.adopted.failed_on,
        adopted=fact.adopted,
        user=spec.user,
        project=spec.project,
        idle=spec.idle,
        session=spec.session,
        progress=spec.progress,
        array=array,
        after=own_dependencies(state, spec.after),
        stop_seconds=_stop_seconds(spec) if state.format >= STOP_TIMES_FROM else None,
        start_timeout_seconds=spec.start_timeout_seconds or 0,
        number=take_number(state, record),
        attached=spec.attach_to,
        detached=spec.attach_to is not None,
        deadline_ts=spec.deadline_ts,
        booking=spec.reservation or "",
        restarts=tuple(
            (group.name, group.restart.max_restarts, group.restart.backoff_seconds * 1000)
            for group in spec.groups
            if group.restart is not None
        ),
        tests=fact.node if isinstance(fact, NodeTestProposed) else "",
    )
    take_job_in(state, job)
    if job.tests:
        begin_test(state, job.tests, job.job_id)


def take_number(state: State, record: JobQueued | TaskQueued) -> int:
    """The number that a new job gets, 0 for none; raises Contradiction for one that was given before."""
    if record.number:
        if record.number <= state.last_number:
            raise Contradiction(f"record {state.n}: job {record.job_id} has number {record.number}, which was given")
        state.last_number = record.number
    return record.number


def _stop_seconds(spec: JobSpec) -> int:
    """Time that a run of the job takes at most from the word that stops it: notice, then grace after SIGTERM."""
    notice = 0 if spec.checkpoint is None else spec.checkpoint.notice_seconds
    return notice + spec.termination_grace_seconds


def _array(state: State, spec: JobSpec) -> TaskArray | None:
    if spec.array is None:
        return None
    follows, size = corresponding_arrays(state, spec.after), spec.service
    array = TaskArray(spec.array.tasks, spec.array.limit or 0, follows=follows)
    if size is None:
        return array
    return replace(array, least=size.min_replicas, most=size.max_replicas, wanted=size.wanted)


def take_job_in(state: State, job: Job) -> None:
    """Stores a new job, counts it for its tenant, and what runs of it for its pool's mix of jobs."""
    state.put_job(job)
    tally_tenant(state, job, job.amount, 1)
    pool = state.tree.pool(job.queue)
    if pool is not None and job.array is None:
        see(state.seen, state.mixes, state.nodes, pool, job.gang)
        see_claims(state, pool, job.gang)


@applies(Waiting)
def apply_waiting(state: State, record: Waiting, facts: Sequence[TakenFact]) -> None:
    """Notes why a job waits, and since when it was told so; raises Contradiction if the job is not live."""
    job, reason = job_of(state, record.job_id), record.reason
    # It outlives the reason: else a job that finds no room for a moment would wait for its data from the beginning.
    until = reason.numbers.get("until_ts", 0) if reason.code is Code.WAITING_FOR_DATA else job.data_until
    state.put_job(replace(job, reason=reason, told_ts=state.ts, data_until=until))


@applies(Held)
def apply_held(state: State, record: Held, facts: Sequence[TakenFact]) -> None:
    """Puts a job on hold, or ends that with `undo`, which forgives the runs that others broke; raises Contradiction."""
    job = job_of(state, record.job_id)
    over_another, was_held = record.operator and not record.undo and not job.operator_hold, job.held
    if job.held is not record.undo and not over_another:
        raise Contradiction(f"record {state.n}: job {job.job_id} is {'held' if job.held else 'not held'} already")
    operator_hold = record.operator and not record.undo
    troubles, was_aside = 0 if record.undo else job.troubles, is_aside(state, job)
    job = replace(job, held=not record.undo, operator_hold=operator_hold, troubles=troubles)
    if job.is_replica and record.undo:
        job = renew(state, job)
    if record.undo and job.array is not None and job.array.failing:
        job = replace(job, array=replace(job.array, failing=0))
    state.put_job(job)
    if is_aside(state, job) is not was_aside:
        count_task(state, job, aside=-1 if was_aside else 1)
    if job.is_replica and job.held is not was_held:
        count_task(state, job, parked=1 if job.held else -1)
        if job.held and job.phase is not Phase.QUEUED:
            follow_rollout(state, job)


@applies(BackInLine)
def apply_back_in_line(state: State, record: BackInLine, facts: Sequence[TakenFact]) -> None:
    """Puts an adopted job back in line with its new UIDs; raises Contradiction if the record changes nothing."""
    job = job_of(state, record.job_id)
    adopted = job.adopted
    news = record.preemptible is not None or record.budget is not None or record.service is not None
    if adopted is None or not (job.away or news or record.uids != adopted.uids):
        raise Contradiction(f"record {state.n}: job {job.job_id} was not without its pods")
    preemptible = job.preemptible if record.preemptible is None else record.preemptible
    budget = adopted.budget if record.budget is None else record.budget
    service = adopted.service if record.service is None else record.service
    adopted = adopted.model_copy(update={"uids": record.uids, "budget": budget, "service": service})
    state.put_job(replace(job, away=False, preemptible=preemptible, adopted=adopted, nodes=()))


@applies(OutOfLine)
def apply_out_of_line(state: State, record: OutOfLine, facts: Sequence[TakenFact]) -> None:
    """Takes an adopted job without pods out of line; raises Contradiction unless the job waits in line."""
    job = job_of(state, record.job_id)
    if job.adopted is None or job.away or job.phase is not Phase.QUEUED:
        raise Contradiction(f"record {state.n}: job {job.job_id} does not wait for room")
    state.put_job(replace(job, away=True))


@applies(PrioritySet)
def apply_priority_set(state: State, record: PrioritySet, facts: Sequence[TakenFact]) -> None:
    """Gives a job another priority class; raises Contradiction if the job is not live."""
    state.put_job(replace(job_of(state, record.job_id), priority_class=record.priority_class))


@applies(JobMoved)
def apply_job_moved(state: State, record: JobMoved, facts: Sequence[TakenFact]) -> None:
    """Gives a job, and the run that it has, to another queue; raises Contradiction if that is its queue already."""
    job = job_of(state, record.job_id)
    if job.queue == record.queue:
        raise Contradiction(f"record {state.n}: job {job.job_id} is in queue {job.queue} already")
    run = state.runs.get(job.run_id)
    if run is not None:
        flavor = flavor_of_run(state, record.queue, run)
        tally(state, run.queue, run.flavor, run.amount, -1)
        tally(state, record.queue, flavor, run.amount, 1)
        state.put_run(replace(run, queue=record.queue, flavor=flavor))
    state.put_job(replace(job, queue=record.queue))


@applies(JobUpdated)
def apply_job_updated(state: State, record: JobUpdated, facts: Sequence[TakenFact]) -> None:
    """Gives fields of a job other values; raises Contradiction if the job has a run and not its time limit alone."""
    job, changes = job_of(state, record.job_id), record.changes
    if state.format < UPDATES_FROM or (changes.waiting_only and job.phase is not Phase.QUEUED):
        raise Contradiction(f"record {state.n}: job {job.job_id} keeps its {', '.join(changes.given)}")
    given: dict[str, Any] = {"changes": merged(job.changes, changes)}
    if changes.time_limit_seconds is not None:
        given["time_limit_seconds"] = changes.time_limit_seconds
    if changes.name is not None:
        given["name"] = changes.name
    if changes.begin_ts is not None:
        given["not_before"] = changes.begin_ts if changes.begin_ts > state.ts else 0
    if changes.after is not None:
        given["after"] = own_dependencies(state, changes.after)
        if job.array is not None:
            given["array"] = replace(job.array, follows=corresponding_arrays(state, changes.after))
    state.put_job(replace(job, **given))


@applies(Requeued)
def apply_requeued(state: State, record: Requeued, facts: Sequence[TakenFact]) -> None:
    """Queues a job again and counts the strike or eviction; raises Contradiction while its run is not released."""
    job = job_of(state, record.job_id)
    _still_held(state, job)
    job = move(
        state,
        job,
        Phase.QUEUED,
        not_before=record.not_before,
        strikes=(0 if record.fresh else job.strikes) + record.strike,
        troubles=(0 if record.fresh else job.troubles) + record.trouble,
        first_ts=0 if record.fresh else job.first_ts,
        evictions=job.evictions + (record.reason.code in EVICTIONS),
        reason=record.reason,
        earlier_ms=job.earlier_ms + _last_run_ms(state, job),
        started_ts=0,
        away=job.adopted is not None,
        displaced=record.reason.code in DISPLACING and state.format >= SPARES_FROM,
        **_last_run(state, job, record.reason),
    )
    count_task(state, job, waiting=1, aside=is_aside(state, job))
    if job.is_replica:
        follow_rollout(state, job, record)
    weigh_job(state, job)  # more may be known of devices than when its run began, which kept what it counted for


def _last_run(state: State, job: Job, reason: Reason) -> dict[str, Any]:
    """Fields that a job keeps of the run that has just been released: its owner may yet say that it was the last."""
    if job.adopted is None or state.format < OWNER_ENDS_FROM:
        return {"nodes": ()}
    return {"last_end": reason, "last_started_ts": job.started_ts, "last_ended_ts": state.ts}


def _last_run_ms(state: State, job: Job) -> int:
    """Time from the start of the job's last run until now; 0 where it did not start."""
    return max(0, state.ts - job.started_ts) if job.started_ts and state.format >= RUN_SUMS_FROM else 0


@applies(OwnerEndNoted)
def apply_owner_end_noted(state: State, record: OwnerEndNoted, facts: Sequence[TakenFact]) -> None:
    """Notes how the owner of a job with a run has ended; raises Contradiction for a job that waits, and other facts."""
    fact, job = facts[record.fact].fact, job_of(state, record.job_id)
    waits = job.adopted is None or job.phase is Phase.QUEUED
    if not isinstance(fact, OwnerEnded) or fact.job_id != job.job_id or waits:
        raise Contradiction(f"record {state.n}: the owner of job {job.job_id} has not ended")
    state.put_job(replace(job, owner_end=fact))


@applies(Finished)
def apply_finished(state: State, record: Finished, facts: Sequence[TakenFact]) -> None:
    """Ends a job, and remembers its key for `key_memory_seconds` so that a repeat of the submit is recognised."""
    job = job_of(state, record.job_id)
    phase, ended_ts, by_owner = moved(job.job_id, job.phase, Phase(record.phase)), state.ts, _ends_as_owner(state, job)
    if job.array is None and job.phase is Phase.QUEUED and phase is not Phase.CANCELLED and not by_owner:
        raise Contradiction(f"record {state.n}: job {job.job_id} has no run that could end it as {phase}")
    if job.array is not None and job.array.live:
        raise Contradiction(f"record {state.n}: array {job.job_id} ends before its tasks")
    if phase is Phase.SUCCEEDED and job.array is None and not by_owner:
        run = run_of(state, job.run_id)
        learn_runtime(state, run, job)
        # What was to stop it is void: an observed end wins over an intention.
        job, run = with_held(state, job, run)
        job = with_nodes_of(state, job, run)
        state.put_run(replace(run, over=True, revoked=None, then="", stopped_ts=0, hurried=False))
        end_backoffs(state, run.placements, failed=True)
        note_lasted(state, replace(run, revoked=None))
    else:
        _still_held(state, job)
    state.drop_job(job)
    # Its owner made no pods again: the job ended with its last run, though that was only said later.
    if job.phase is Phase.QUEUED and job.away and job.last_ended_ts:
        started_ts, ended_ts = job.last_started_ts, job.last_ended_ts
        earlier_ms = job.earlier_ms - (ended_ts - started_ts if started_ts else 0)
        job = replace(job, started_ts=started_ts, earlier_ms=earlier_ms)
    given: dict[str, Any] = dict(zip(KEPT_OF_ENDED, _kept_of_ended(job), strict=True))
    given |= {"phase": phase, "ended_ts": ended_ts, "reason": record.reason, "exit_code": record.exit_code}
    given["forget_ts"] = state.ts + state.tree.policy.key_memory_seconds * 1000
    given["priority_class"] = _class_of(job) if state.format >= FORMAT_OF_LATER else ""
    given["evictions"] = job.evictions if state.format >= FORMAT_OF_LATER else 0
    given["user"] = job.user if job.number else ""
    given["time_limit_seconds"] = job.time_limit_seconds if state.format >= ENDED_NODES_FROM else 0
    state.put_ended(EndedJob(**given))
    tally_tenant(state, job, job.amount, -1)
    waits, aside, parked = job.phase is Phase.QUEUED, is_aside(state, job), job.is_replica and job.held
    count_task(state, job, live=-1, waiting=-waits, aside=-aside, parked=-parked, **{phase.value: 1})
    _count_failing(state, job, record.quick)
    if job.tests:
        end_test(state, job, phase, record.reason)


def _ends_as_owner(state: State, job: Job) -> bool:
    """Whether the job, whose last run is released, may end by the word of its owner."""
    is_released = state.format >= OWNER_ENDS_FROM and job.adopted is not None and state.runs.get(job.run_id) is None
    return is_released and (job.phase is Phase.QUEUED or job.owner_end is not None)


def _count_failing(state: State, task: Job, quick: bool) -> None:
    """Counts how many tasks of an array in a row failed within seconds."""
    job = state.jobs.get(task.task_of) if task.task_of else None
    if job is not None and job.array is not None and (quick or job.array.failing):
        failing = job.array.failing + 1 if quick else 0
        state.put_job(replace(job, array=replace(job.array, failing=failing)))


def _class_of(job: Job) -> str:
    """The priority class that is shown: of adopted work the one in Kubernetes."""
    return job.priority_class if job.adopted is None else job.adopted.priority_class


def _still_held(state: State, job: Job) -> None:
    if state.runs.get(job.run_id) is not None:
        raise Contradiction(f"record {state.n}: job {job.job_id} leaves run {job.run_id} before its release")


@applies(EarmarkSet)
def apply_earmark_set(state: State, record: EarmarkSet, facts: Sequence[TakenFact]) -> None:
    """Keeps the room of a plan's placements for a job; raises Contradiction if the job has an earmark already."""
    job = job_of(state, record.owner)
    if state.earmarks.get(record.owner) is not None:
        raise Contradiction(f"record {state.n}: job {record.owner} has an earmark already")
    mark = Earmark(
        record.owner, record.cause, record.deadline, job.roles, record.placements, record.flavor, record.victims
    )
    state.earmarks.put(record.owner, mark)
    hold(state, job.gang, record.placements, 1)
    if record.gain_gpu_seconds:
        begin_moves(state, record)


@applies(EarmarkEnded)
def apply_earmark_ended(state: State, record: EarmarkEnded, facts: Sequence[TakenFact]) -> None:
    """Gives the room of an earmark back; raises Contradiction if the job has no earmark."""
    mark = state.earmarks.get(record.owner)
    if mark is None:
        raise Contradiction(f"record {state.n}: job {record.owner} has no earmark")
    # With its deadline over, or its nodes lost, the owner still waits for what stops: spared and evicted again, a run
    # whose notice is longer than an earmark would never stop.
    if state.format >= UNNEEDED_STOPS_FROM and record.why in ("owner_gone", "used", "blocked"):
        for run in state.runs.found(mark.victims):
            if run.then == "requeue":
                state.put_run(replace(run, unneeded=True))
    state.earmarks.drop(record.owner)
    hold(state, mark.gang, mark.placements, -1)
    drop_empty(state, mark.placements)

"""Fold of records about arrays and services, and about jobs that wait for others or are attached to them. Pure."""

from collections.abc import Sequence

from tessera.domain.devices.levels import with_near
from tessera.domain.entities import Job
from tessera.domain.errors import Contradiction
from tessera.domain.folding.jobs import take_job_in, take_number
from tessera.domain.folding.services import begin_rollout, spec_of_next
from tessera.domain.folding.steps import applies, count_task, job_of, known
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import gang_of
from tessera.domain.work.phases import Phase
from tessera_schemas.job import RoleReach
from tessera_schemas.ledger import ArrayClosed, DependencyMet, ServiceRollout, ServiceScaled, TakenFact, TaskQueued
from tessera_schemas.reasons import Code
from tessera_schemas.shard.records import Attached, Detached, RolloutRequested
from tessera_schemas.work.arrays import Dependency, task_id, task_index


@applies(TaskQueued)
def apply_task_queued(state: State, record: TaskQueued, facts: Sequence[TakenFact]) -> None:
    """Makes the array's next task a job in line, as old as its array; raises Contradiction for any other task."""
    job = job_of(state, record.array)
    array = job.array
    if array is None or not array.has_room or record.task != task_index(array.tasks, array.queued):
        raise Contradiction(f"record {state.n}: {record.array} has no task {record.task} to queue")
    if record.job_id != task_id(record.array, record.task) or known(state, record.job_id):
        raise Contradiction(f"record {state.n}: {record.job_id} cannot be task {record.task} of {record.array}")
    after = tuple(Dependency(condition="afterok", job=task_id(other, record.task)) for other in array.follows)
    task = replace(
        job,
        job_id=record.job_id,
        amount=job.gang.amount,
        reason=None,
        told_ts=0,
        array=None,
        task_of=job.job_id,
        task=record.task,
        after=after,
        number=take_number(state, record),
        array_number=job.number,
        guaranteed=array.least if array.is_service else None,
        spec_at=spec_of_next(job),
    )
    take_job_in(state, task)
    count_task(state, task, queued=1, live=1, waiting=1)


@applies(ServiceScaled)
def apply_service_scaled(state: State, record: ServiceScaled, facts: Sequence[TakenFact]) -> None:
    """Gives a service another number of replicas; raises Contradiction if it has that already, or may not have it."""
    job = job_of(state, record.job_id)
    array = job.array
    if array is None or array.wanted == record.replicas or not array.least <= record.replicas <= array.most:
        raise Contradiction(f"record {state.n}: {record.job_id} cannot have {record.replicas} replicas")
    state.put_job(replace(job, array=replace(array, wanted=record.replicas)))


@applies(ServiceRollout)
def apply_service_rollout(state: State, record: ServiceRollout, facts: Sequence[TakenFact]) -> None:
    """Begins the rollout of a service's next revision, or ends it; raises Contradiction for any other."""
    job = job_of(state, record.job_id)
    array = job.array
    if array is None or not array.is_service or array.closed is not None:
        raise Contradiction(f"record {state.n}: {record.job_id} is no service that goes on")
    rollout = array.rollout
    if record.state == "begun":
        fact = facts[record.fact].fact
        if not isinstance(fact, RolloutRequested) or (fact.job_id, array.revision + 1) != (job.job_id, record.revision):
            raise Contradiction(f"record {state.n}: {record.job_id} is asked for no revision {record.revision}")
        state.put_job(begin_rollout(job, array, fact, (state.n, record.fact)))
        return
    if rollout is None or not rollout.goes_on or rollout.revision != record.revision:
        raise Contradiction(f"record {state.n}: no rollout of revision {record.revision} of {record.job_id} goes on")
    ended = replace(rollout, done=record.state == "done", stopped=record.reason)
    if ended.goes_on:
        raise Contradiction(f"record {state.n}: the rollout of {record.job_id} stops for no reason")
    state.put_job(replace(job, array=replace(array, rollout=ended)))


@applies(ArrayClosed)
def apply_array_closed(state: State, record: ArrayClosed, facts: Sequence[TakenFact]) -> None:
    """Lets the array queue no more tasks; raises Contradiction if it is none, or closed and nothing changes by it."""
    job = job_of(state, record.job_id)
    array = job.array
    if array is None or (array.closed is not None and (array.hurried or not record.now)):
        raise Contradiction(f"record {state.n}: {record.job_id} is no array that is open")
    closed = replace(array, closed=array.closed or record.reason, hurried=array.hurried or record.now)
    state.put_job(replace(job, array=closed))


@applies(DependencyMet)
def apply_dependency_met(state: State, record: DependencyMet, facts: Sequence[TakenFact]) -> None:
    """Leaves of what a job waits for only the rest; raises Contradiction unless that is less than before."""
    job = job_of(state, record.job_id)
    left = set(record.left)
    if len(record.left) >= len(job.after) or any(each not in job.after for each in left):
        raise Contradiction(f"record {state.n}: job {job.job_id} does not wait for {record.left}")
    told = job.reason is not None and job.reason.code is Code.DEPENDENCY_NOT_MET and not record.left
    state.put_job(replace(job, after=record.left, reason=None if told else job.reason))


@applies(Attached)
def apply_attached(state: State, record: Attached, facts: Sequence[TakenFact]) -> None:
    """Puts an attached job in line, near the run that has begun; raises Contradiction unless it was out of line."""
    job = job_of(state, record.job_id)
    if not job.detached:
        raise Contradiction(f"record {state.n}: job {job.job_id} waits for no run of another job")
    told = job.reason is not None and job.reason.code is Code.TARGET_NOT_RUNNING and job.phase is Phase.QUEUED
    state.put_job(replace(_near(job, record.near, 1), detached=False, reason=None if told else job.reason))


@applies(Detached)
def apply_detached(state: State, record: Detached, facts: Sequence[TakenFact]) -> None:
    """Takes an attached job out of line; raises Contradiction for any other job, and for one that is out already."""
    job = job_of(state, record.job_id)
    if job.attached is None or job.detached:
        raise Contradiction(f"record {state.n}: job {job.job_id} is not attached to a run")
    state.put_job(replace(_near(job, job.near, -1), detached=True))


def _near(job: Job, near: tuple[RoleReach, ...], sign: int) -> Job:
    """The job with these terms for its roles, or without them."""
    required = job.attached is not None and job.attached.near == "required"
    roles = gang_of(with_near(job.roles, near, required, sign))
    return replace(job, roles=roles, near=near if sign > 0 else ())

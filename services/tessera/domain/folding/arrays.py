"""Fold of records about arrays, and about jobs that wait for others. Pure."""

from collections.abc import Sequence

from tessera.domain.errors import Contradiction
from tessera.domain.folding.jobs import take_job_in, take_number
from tessera.domain.folding.steps import applies, count_task, job_of, known
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera_schemas.ledger import ArrayClosed, DependencyMet, TakenFact, TaskQueued
from tessera_schemas.reasons import Code
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
    )
    take_job_in(state, task)
    count_task(state, task, queued=1, live=1, waiting=1)


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

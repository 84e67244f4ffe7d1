"""
What may change of a job's spec after its submit.

In: the state, a live job, and the changes that somebody asks for. Out: what of it is news, and all reasons against it.
The committer decides by it; the gateway tells it at once. While a job waits, all of it may change; while it has a run,
its time limit may be lowered: the pods of a run have a deadline, which Kubernetes lets nobody raise. Pure.
"""

from collections.abc import Collection, Iterable

from tessera.domain.entities import Job
from tessera.domain.quota.queue_settings import time_limit_fault
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.dependencies import own_dependencies
from tessera.domain.work.dependency_cycles import waits_for_itself
from tessera.domain.work.phases import Phase
from tessera.engine.queueing.entry import dependency_faults
from tessera_schemas.base import INT_MAX
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import UPDATES_FROM
from tessera_schemas.work.spec_changes import SpecChanges


def news_of(state: State, job: Job, changes: SpecChanges) -> SpecChanges | None:
    """The changes without those that give a field of the job the value that it has; None where none is left."""
    given = changes.given
    if changes.time_limit_seconds == job.time_limit_seconds:
        given.pop("time_limit_seconds", None)
    if changes.name == job.name:
        given.pop("name", None)
    # A begin that has passed means at once, which the job has as 0.
    if changes.begin_ts is not None and (changes.begin_ts if changes.begin_ts > state.ts else 0) == job.not_before:
        given.pop("begin_ts")
    if changes.after is not None and own_dependencies(state, changes.after) == job.after and job.array is None:
        given.pop("after")
    return SpecChanges.model_validate(given) if given else None


def news_of_task(state: State, task: Job, changes: SpecChanges) -> SpecChanges | None:
    """The part of a change of its array that a waiting task gets, too: if it has run before, its begin is past."""
    given = changes.given
    if task.attempt:
        given.pop("begin_ts", None)
    return news_of(state, task, SpecChanges.model_validate(given)) if given else None


def waiting_tasks(state: State, job: Job) -> list[Job]:
    """Tasks of an array that have no run, in the order of their indexes; none of any other job."""
    tasks = state.jobs.found(sorted(state.relations.tasks.get(job.job_id, ())))
    return [task for task in tasks if task.phase is Phase.QUEUED]


def scale_fault(job: Job, replicas: int) -> Reason | None:
    """Why the job may not have so many replicas; None if it may."""
    if job.array is not None and job.array.closed is not None:
        return Reason(code=Code.ALREADY_ENDED, field="job_id", detail="the service is being cancelled")
    return size_fault(*((job.array.least, job.array.most) if job.array is not None else (0, 0)), replicas)


def size_fault(least: int, most: int, replicas: int) -> Reason | None:
    """Why a service of `least` to `most` replicas may not have so many; `most` is 0 for what is none."""
    # Only a service has a greatest number, which is at least one.
    if not most:
        return Reason(code=Code.INVALID_FIELD, field="job_id", detail="no service: its spec has no `service`")
    if least <= replicas <= most:
        return None
    numbers = {"min_replicas": least, "max_replicas": most, "replicas": replicas}
    return Reason(code=Code.INVALID_FIELD, field="replicas", detail="outside of what its spec says", numbers=numbers)


def least_lost(replica: Job) -> tuple[bool, int, int]:
    """Order in which a service's replicas are stopped: what waits, then the youngest; the minimum is the oldest."""
    started = replica.started_ts
    return replica.phase is not Phase.QUEUED, -started if started else -INT_MAX, -replica.task


def replicas_beyond(replicas: Iterable[Job], wanted: int) -> tuple[Job, ...]:
    """The replicas that make way where so many are wanted; those that are held count for none."""
    at_work = sorted((replica for replica in replicas if not replica.held), key=least_lost)
    return tuple(at_work[: max(0, len(at_work) - wanted)])


def rollout_faults(job: Job, revision: int, undo: bool, programs: Collection[str] | None = None) -> list[Reason]:
    """
    All reasons why a service of this revision may not get another; `programs` are the roles that it is said for, None
    where that is not known yet.
    """
    array = job.array
    if array is None or not array.is_service:
        return [Reason(code=Code.INVALID_FIELD, field="job_id", detail="no service: its spec has no `service`")]
    if array.closed is not None:
        return [Reason(code=Code.ALREADY_ENDED, field="job_id", detail="the service is being cancelled")]
    # Two updates that were made from the same programs would each drop what the other changed.
    if revision != array.revision:
        numbers = {"revision": array.revision, "asked": revision}
        return [
            Reason(code=Code.INVALID_FIELD, field="revision", detail="another rollout came before", numbers=numbers)
        ]
    if undo:
        detail = "the service has the programs of its submit, before which there were none"
        return [] if array.rollout else [Reason(code=Code.INVALID_FIELD, field="undo", detail=detail)]
    roles = [role.name for role in job.roles]
    # All roles are said, so that a spec that was written before a role came drops none in silence.
    odd = sorted({*programs} ^ {*roles}) if programs is not None else []
    detail = f"there are {', '.join(roles)}; say what each of them is to run"
    return [Reason(code=Code.INVALID_FIELD, field=f"programs.{name}", detail=detail) for name in odd]


def update_faults(state: State, job: Job, changes: SpecChanges, by_tenant: bool) -> list[Reason]:
    """All reasons why the job may not get these values; only a tenant is bound by the longest time limit."""
    if state.format < UPDATES_FROM:
        detail = "a service of an earlier version is still at work here; an operator replaces it"
        return [Reason(code=Code.UNAVAILABLE, field="job_id", detail=detail)]
    if job.adopted is not None:
        detail = f"{job.adopted.owner} is written in Kubernetes; change it there"
        return [Reason(code=Code.INVALID_FIELD, field="job_id", detail=detail)]
    # Only news is judged: a whole spec that is sent again with one new value must not fail by values that it leaves
    # alone.
    wanted = news_of(state, job, changes)
    if wanted is None:
        return []
    if job.phase is not Phase.QUEUED:
        return [
            *faults_with_a_run(job.phase, job.time_limit_seconds, wanted),
            *(_longest(state, job, wanted) if by_tenant else []),
        ]
    against = _longest(state, job, wanted) if by_tenant else []
    return [*against, *_begin_faults(job, wanted), *_name_faults(job, wanted), *_after_faults(state, job, wanted)]


def faults_with_a_run(phase: str, now: int, wanted: SpecChanges) -> list[Reason]:
    """Reasons why a job that does not wait, and whose time limit is `now` (seconds, 0: none), may not get all of it."""
    detail = f"it is {phase}; only what waits gets another"
    against = [Reason(code=Code.NOT_WAITING, field=name, detail=detail) for name in wanted.waiting_only]
    asked = wanted.time_limit_seconds
    # 0 means no limit and is therefore the highest one, although it is the lowest number.
    if asked is not None and now and not 0 < asked < now:
        numbers = {"time_limit_seconds": now} | ({"asked_seconds": asked} if asked else {})
        why = "its pods have a deadline, which Kubernetes lets nobody raise: lower it, or raise it while the job waits"
        against.append(Reason(code=Code.NOT_WAITING, field="time_limit_seconds", detail=why, numbers=numbers))
    return against


def _longest(state: State, job: Job, wanted: SpecChanges) -> list[Reason]:
    """Queues of its tasks that wait count, too."""
    asked = wanted.time_limit_seconds
    if asked is None:
        return []
    queues = dict.fromkeys((job.queue, *(task.queue for task in waiting_tasks(state, job))))
    found = (time_limit_fault(state.tree, queue, job.tenant, asked) for queue in queues)
    return list({fault.field: fault for fault in found if fault is not None}.values())


def _begin_faults(job: Job, wanted: SpecChanges) -> list[Reason]:
    if wanted.begin_ts is None or not job.attempt:
        return []
    detail = "it has run before, and its begin is behind it; a hold puts its next run off"
    return [Reason(code=Code.INVALID_FIELD, field="begin_ts", detail=detail)]


def _name_faults(job: Job, wanted: SpecChanges) -> list[Reason]:
    if wanted.name is None or not job.task_of:
        return []
    return [Reason(code=Code.INVALID_FIELD, field="name", detail="a task is called as its array is")]


def _after_faults(state: State, job: Job, wanted: SpecChanges) -> list[Reason]:
    after, array = wanted.after, job.array
    if after is not None and array is not None and array.queued:
        detail = f"{array.queued} of its tasks are queued, and wait each for itself; name the task"
        return [Reason(code=Code.INVALID_FIELD, field="after", detail=detail)]
    against = list[Reason]()
    if after is not None:
        against = dependency_faults(state, job.tenant, None if array is None else array.tasks, after)
        if array is None and any(each.condition == "aftercorr" for each in after):
            detail = "aftercorr is for arrays, whose tasks have indexes; write afterok"
            against.append(Reason(code=Code.INVALID_FIELD, field="after", detail=detail))
    if against or (after is None and wanted.name is None):
        return against
    # A change can point forward in time, which no submit can: here circles are possible and have to be looked for.
    changed = replace(job, name=wanted.name or job.name, after=job.after if after is None else after)
    if not waits_for_itself(state, changed):
        return []
    return [Reason(code=Code.INVALID_FIELD, field="after" if after else "name", detail="the job would wait for itself")]

"""Jobs that wait for others: they get in line when it has come true, and end where it never will."""

from tessera.domain.dependencies import settled, unqueued_task
from tessera.domain.entities import Job
from tessera.scheduler.decide.draft import Draft
from tessera_schemas.arrays import FAMILY, Dependency, has_task, index_of
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.ledger import DependencyMet, Finished, JobQueued
from tessera_schemas.reasons import Code, Reason


def settle_dependencies(draft: Draft) -> None:
    """
    Let go of what has come true for waiting jobs, and end those for which something never will.

    Goes by what was decided before this message; jobs that end in it are seen by the next.
    """
    for job in draft.state.jobs.found(sorted(draft.state.relations.due)):
        if draft.full:
            return
        verdicts = {each: settled(draft.state, job, each) for each in job.after}
        never = [each for each, verdict in verdicts.items() if verdict is False]
        if never:
            reason = Reason(code=Code.DEPENDENCY_NEVER_SATISFIED, field="after", detail=never[0].text())
            draft.add(Finished(kind="finished", job_id=job.job_id, phase="cancelled", reason=reason))
        elif any(verdicts.values()):
            left = tuple(each for each in job.after if verdicts[each] is None)
            draft.add(DependencyMet(kind="dependency_met", job_id=job.job_id, left=left))


def dependency_faults(draft: Draft, fact: JobAdmitted) -> list[Reason]:
    """A refusal for each dependency on a job that is not the tenant's or is unknown: so there are no cycles."""
    return [fault for index, each in enumerate(fact.spec.after) if (fault := _fault(draft, fact, index, each))]


def _fault(draft: Draft, fact: JobAdmitted, index: int, dependency: Dependency) -> Reason | None:
    field, state = f"after[{index}].job", draft.state
    if dependency.job is None:
        return None
    other = state.jobs.get(dependency.job) or state.ended.get(dependency.job)
    if other is None and (array := _array_of_task(draft, dependency.job)) is not None and array.tenant == fact.tenant:
        wrong = _against_task(array, dependency.job)
        return Reason(code=Code.NO_SUCH_JOB, field=field, detail=wrong) if wrong else None
    if other is None or other.tenant != fact.tenant:
        return Reason(code=Code.NO_SUCH_JOB, field=field, detail=dependency.job)
    own = fact.spec.array
    if dependency.condition != "aftercorr" or other.array is None or own is None or own.tasks == other.array.tasks:
        return None
    detail = f"tasks {own.tasks} do not correspond to tasks {other.array.tasks}; give both arrays the same"
    return Reason(code=Code.INVALID_FIELD, field=f"after[{index}]", detail=detail[:1024])


def _array_of_task(draft: Draft, job_id: str) -> Job | None:
    """The live array of which this could be a task's id, one that this message takes in included."""
    family = job_id[:FAMILY]
    queued = (record.job_id for record in draft.records if isinstance(record, JobQueued))
    found = draft.state.relations.families.get(family) or next((job for job in queued if job[:FAMILY] == family), "")
    job = draft.state.jobs.get(found)
    return job if job is not None and job.array is not None else None


def _against_task(array: Job, job_id: str) -> str:
    """Why nothing can wait for this task, which is neither live nor remembered; "" for one that is not queued yet."""
    named, tasks = f"{array.job_id}_{index_of(job_id)}", array.array.tasks if array.array is not None else ""
    if not has_task(tasks, index_of(job_id)):
        return f"{named}: the array has the tasks {tasks}"[:1024]
    return "" if unqueued_task(array, job_id) is not None else f"{named}: has ended, and how is forgotten"

"""Jobs that wait for others: they get in line when it has come true, and end where it never will."""

from tessera.domain.dependencies import settled
from tessera.domain.state import State
from tessera.scheduler.decide.draft import Draft
from tessera_schemas.arrays import Dependency
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.ledger import DependencyMet, Finished
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


def dependency_faults(state: State, fact: JobAdmitted) -> list[Reason]:
    """A refusal for each dependency on a job that is not the tenant's or is unknown: so there are no cycles."""
    return [fault for index, each in enumerate(fact.spec.after) if (fault := _fault(state, fact, index, each))]


def _fault(state: State, fact: JobAdmitted, index: int, dependency: Dependency) -> Reason | None:
    field = f"after[{index}].job"
    if dependency.job is None:
        return None
    other = state.jobs.get(dependency.job) or state.ended.get(dependency.job)
    if other is None or other.tenant != fact.tenant:
        return Reason(code=Code.NO_SUCH_JOB, field=field, detail=dependency.job)
    own = fact.spec.array
    if dependency.condition != "aftercorr" or other.array is None or own is None or own.tasks == other.array.tasks:
        return None
    detail = f"tasks {own.tasks} do not correspond to tasks {other.array.tasks}; give both arrays the same"
    return Reason(code=Code.INVALID_FIELD, field=f"after[{index}]", detail=detail[:1024])

"""Jobs that wait for others: they get in line when it has come true, and end where it never will."""

from tessera.domain.work.dependencies import settled
from tessera.scheduler.decide.draft import Draft
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

"""
Jobs that passed a waiting one: starts since it waits, of jobs behind it in line or that came later, and why. Pure.

Each start names in the ledger the first blocked jobs that it passed (`Allocated.passed`); a job that it does not name,
although there was space for it, stood behind the one that started, or in no line.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tessera.domain.entities import EndedJob, Job
from tessera.domain.state import State
from tessera.engine.explain.blockers import Viewer, describe_amount, describe_queue
from tessera_schemas.text.units import format_age
from tessera_schemas.work.placement import PASSED_MAX, WhyPassed

NAMED_MAX = 5
ENDED_MAX = 2_000  # ended jobs that are looked at, the latest ends first

WHY: dict[WhyPassed, str] = {
    "ends_before": "it was expected to end before the room kept for this job is needed",
    "beside": "it took nothing that is kept for this job or that this job could use",
    "unreserved": "it found room, and none was kept for this job",
}
HIGHER = "its priority class is higher"
AGAIN = "it had run before and began again"
ORDER = "by the order of that time it stood before this one, or this one was out of line"


@dataclass(frozen=True, slots=True)
class _Start:
    ts: int
    job: Job | EndedJob
    why: str


def describe_passing(state: State, job: Job, now: int, viewer: Viewer) -> Iterator[str]:
    """Number of jobs that passed it since it waits, and the last few of them: who, when and why that was allowed."""
    # A job that ran before waits anew; how long, only its last reason says.
    since = job.told_ts if job.attempt else job.submitted_ts
    found, is_all = _starts(state, job, since)
    if not found:
        return
    number = "1 job has" if len(found) == 1 else f"{len(found)} jobs have"
    least = "" if is_all else "At least "
    yield f"{least}{number} passed it since {format_age(now - since)} ago; the last ones:"
    named = [start for start in found if viewer.may_see(start.job.tenant)]
    for start in named[:NAMED_MAX]:
        other = start.job
        who = f"{other.name} ({other.job_id}) of {describe_queue(other.queue)}, with {describe_amount(other.amount)}"
        yield f"{who}, {format_age(now - start.ts)} ago" + (f": {start.why}." if start.why else ".")
    # Of others' jobs neither sizes nor times one by one, as of those who hold what it lacks.
    for why, count in sorted(Counter(start.why for start in found if not viewer.may_see(start.job.tenant)).items()):
        yield f"of other tenants {count}" + (f": {why}." if why else ".")


def _starts(state: State, job: Job, since: int) -> tuple[list[_Start], bool]:
    """The starts, the newest first, and whether these are all since then."""
    found = [
        _Start(run.allocated_ts, other, why)
        for run in state.runs.values()
        if run.allocated_ts >= since
        and (other := state.jobs.get(run.job_id)) is not None
        and (why := _why(state, job, other)) is not None
    ]
    looked_at = 0
    for ended in islice(state.remembered.newest_first(), ENDED_MAX):
        if ended.ended_ts < since:
            break
        looked_at += 1
        why = _why(state, job, ended) if ended.started_ts >= since else None
        if why is not None:
            found.append(_Start(ended.started_ts, ended, why))
    # By start and not by end: the question is who went first, and the last ones are those that still hold something.
    found.sort(key=lambda start: (-start.ts, start.job.job_id))
    return found, looked_at < ENDED_MAX


def _why(state: State, job: Job, other: Job | EndedJob) -> str | None:
    """Why the other one could start before the job, "" where nothing tells; None when it passed nobody."""
    tree = state.tree
    if other.job_id == job.job_id or tree.pool(other.queue) != tree.pool(job.queue):
        return None
    recorded = next((passed.why for passed in other.passed if passed.job_id == job.job_id), None)
    if recorded is not None:
        return WHY[recorded]
    # Without a record only what came later has passed it: an older job may have been before it in any order.
    if other.submitted_ts <= job.submitted_ts:
        return None
    if tree.priority(other.priority_class) > tree.priority_of(job):
        return HIGHER
    if other.attempt > 1:
        return AGAIN
    unlike = (other.queue, other.tenant, other.user) != (job.queue, job.tenant, job.user)
    # Among the jobs of one user the order goes by age, or by what is expected of them.
    moved = unlike or tree.queues[job.queue].order != "age"
    return ORDER if moved and len(other.passed) < PASSED_MAX else ""

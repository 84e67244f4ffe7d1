"""Why others stand before a job in line, counted by what puts them there. Pure."""

from collections import Counter
from collections.abc import Iterator

from tessera.domain.entities import Job
from tessera.domain.resources import NOTHING
from tessera.domain.state import State
from tessera.engine.explain.blockers import Eyes, said_amount
from tessera.engine.explain.what_if import Fork

HIGHER = "of a higher priority class"
QUEUES = "of queues that hold less for their weight, or stay within their own quota"
TENANTS = "of tenants that hold less for their weight"
USERS = "of users of its tenant that hold less"
OLDER = "older"
ORDER = (HIGHER, QUEUES, TENANTS, USERS, OLDER)


def said_before(fork: Fork, job: Job, eyes: Eyes) -> Iterator[str]:
    """One sentence, and what its tenant holds where that decides; nothing for the first job in line."""
    state = fork.state
    counts = Counter(_why(state, job, other) for other in state.jobs.found(fork.line[: max(0, fork.position - 1)]))
    if not counts:
        return
    parts = ", ".join(f"{counts[why]} {why}" for why in ORDER if counts[why])
    yield f"Before it in line: {parts}."
    if counts[TENANTS] and eyes.may_see(job.tenant):
        held = state.index.held.get((job.queue, job.tenant), NOTHING)
        tenant = state.tree.tenants.get(job.tenant)
        weight = 1 if tenant is None else tenant.weight
        what = said_amount(held) if held != NOTHING else "nothing"
        yield f"Its tenant holds {what} in queue {job.queue}, with weight {weight}."


def _why(state: State, job: Job, other: Job) -> str:
    priority = state.tree.priority_of
    if other.queue == job.queue and priority(other) == priority(job):
        return TENANTS if other.tenant != job.tenant else USERS if other.user != job.user else OLDER
    return HIGHER if priority(other) > priority(job) else QUEUES

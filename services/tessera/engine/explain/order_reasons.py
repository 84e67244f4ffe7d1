"""Why others stand before a job in line, counted by what puts them there. Pure."""

from collections import Counter
from collections.abc import Iterator

from tessera.domain.devices.resources import NOTHING
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.engine.explain.blockers import Viewer, describe_amount
from tessera.engine.explain.what_if import WhatIf
from tessera.engine.queueing.orders import ORDERS
from tessera_schemas.text.units import format_age, format_milli

HIGHER = "of a higher priority class"
QUEUES = "of queues that hold less for their weight, or stay within their own quota"
TENANTS = "of tenants that hold less for their weight"
USERS = "of users of its tenant that hold less"
SHARES = (HIGHER, QUEUES, TENANTS, USERS)


def describe_jobs_before(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[str]:
    """One sentence, and what its tenant holds where that decides; nothing for the first job in line."""
    state = what_if.state
    counts = Counter(
        _why(state, job, other) for other in state.jobs.found(what_if.order[: max(0, what_if.position - 1)])
    )
    if not counts:
        return
    order = ORDERS[state.tree.queues[job.queue].order]
    parts = ", ".join(f"{counts[why]} {why}" for why in (*SHARES, *order.before) if counts[why])
    yield f"Before it in line: {parts}."
    if counts[TENANTS] and viewer.may_see(job.tenant):
        held = state.index.held.get((job.queue, job.tenant), NOTHING)
        tenant = state.tree.tenants.get(job.tenant)
        weight = 1 if tenant is None else tenant.weight
        what = describe_amount(held) if held != NOTHING else "nothing"
        yield f"Its tenant holds {what} in queue {job.queue}, with weight {weight}."
    if (counts[TENANTS] or counts[USERS]) and viewer.may_see(job.tenant) and state.decay is not None:
        who, row = ("tenant", job.tenant) if counts[TENANTS] else ("user", f"{job.tenant}/{job.user}")
        used = state.decay.used(state.decayed.get(f"{job.queue}/{row}"), state.ts)
        average, half_life = format_milli(state.decay.average_of(used)), format_age(state.decay.half_life_ms)
        yield f"Its {who} has held {average} GPUs on average, which counts besides; half of it after {half_life}."


def _why(state: State, job: Job, other: Job) -> str:
    priority = state.tree.priority_of
    # From the outermost rule to the innermost: each one decides only among jobs that those before it leave equal.
    if other.queue != job.queue or priority(other) != priority(job):
        return HIGHER if priority(other) > priority(job) else QUEUES
    if other.tenant != job.tenant or other.user != job.user:
        return TENANTS if other.tenant != job.tenant else USERS
    return ORDERS[state.tree.queues[job.queue].order].why_before(state, job, other)


def describe_order(state: State, job: Job) -> Iterator[str]:
    """Sentences on what the order of the job's queue means for it."""
    return ORDERS[state.tree.queues[job.queue].order].describe(state, job)

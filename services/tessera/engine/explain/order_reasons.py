"""Why others stand before a job in line, counted by what puts them there. Pure."""

from collections import Counter
from collections.abc import Iterator

from tessera.domain.entities import Job
from tessera.domain.resources import NOTHING
from tessera.domain.runtimes import kind_of
from tessera.domain.state import State
from tessera.engine.explain.blockers import Viewer, describe_amount
from tessera.engine.explain.what_if import WhatIf
from tessera.engine.queueing.orders.expected import expected_runtime, index_of, is_due
from tessera_schemas.units import format_age

HIGHER = "of a higher priority class"
QUEUES = "of queues that hold less for their weight, or stay within their own quota"
TENANTS = "of tenants that hold less for their weight"
USERS = "of users of its tenant that hold less"
WAITED = "that have waited longer than the shard's patience"
SHORTER = "expected to take less GPU time, as waits are counted"
OLDER = "older"
ORDER = (HIGHER, QUEUES, TENANTS, USERS, WAITED, SHORTER, OLDER)


def describe_jobs_before(what_if: WhatIf, job: Job, viewer: Viewer) -> Iterator[str]:
    """One sentence, and what its tenant holds where that decides; nothing for the first job in line."""
    state = what_if.state
    counts = Counter(
        _why(state, job, other) for other in state.jobs.found(what_if.order[: max(0, what_if.position - 1)])
    )
    if not counts:
        return
    parts = ", ".join(f"{counts[why]} {why}" for why in ORDER if counts[why])
    yield f"Before it in line: {parts}."
    if counts[TENANTS] and viewer.may_see(job.tenant):
        held = state.index.held.get((job.queue, job.tenant), NOTHING)
        tenant = state.tree.tenants.get(job.tenant)
        weight = 1 if tenant is None else tenant.weight
        what = describe_amount(held) if held != NOTHING else "nothing"
        yield f"Its tenant holds {what} in queue {job.queue}, with weight {weight}."


def _why(state: State, job: Job, other: Job) -> str:
    priority = state.tree.priority_of
    if other.queue != job.queue or priority(other) != priority(job):
        return HIGHER if priority(other) > priority(job) else QUEUES
    if other.tenant != job.tenant or other.user != job.user:
        return TENANTS if other.tenant != job.tenant else USERS
    if state.tree.queues[job.queue].order != "expected" or is_due(state, job, state.ts):
        return OLDER
    if is_due(state, other, state.ts):
        return WAITED
    return SHORTER if index_of(state, other, state.ts) < index_of(state, job, state.ts) else OLDER


def describe_expected_order(state: State, job: Job) -> Iterator[str]:
    """Sentences on the job's expected run time, and until when shorter jobs pass it, where its queue orders by that."""
    if state.tree.queues[job.queue].order != "expected":
        return
    kind, limit = kind_of(job), job.time_limit_seconds * 1000
    runtime = expected_runtime(state.runtimes, kind, limit)
    learnt = any(state.runtimes.get(key) is not None for key in kind.row_keys())
    why = "its time limit" if runtime == limit else "how long such jobs ran" if learnt else "nothing known of such jobs"
    gpus = f" on {kind.gpus} GPU{'s' * (kind.gpus != 1)}" if kind.gpus else ""
    patience = format_age(state.tree.policy.order_patience_seconds * 1000)
    yield (
        f"It is expected to run for {format_age(runtime)}{gpus}, by {why}. Jobs of its class that are expected to take "
        f"less GPU time go before it; its own counts for less as it waits, half after a wait as long as it is "
        f"expected to run. Nobody younger passes it once it has waited for {patience}."
    )

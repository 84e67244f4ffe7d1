"""Needs of runs to start: time, and a namespace whose pods Kubernetes takes. Pure."""

from tessera.domain.entities import ClosedNamespace, Job, Run
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera_schemas.reasons import Code, Reason

REFUSED_AS_A_WHOLE = frozenset({403, 404})
"""HTTP statuses that are about a namespace more often than about a pod: rights, quota, webhooks, no namespace."""
CLOSED_FROM = 2
"""So many refusals close a namespace, of several jobs and without a success between: one job may be wrong itself."""
PAUSE_MAX_SECONDS = 60
LATER_BY_MS = 2000
TROUBLES_MAX = 5


def start_timeout_ms(state: State, job: Job | None) -> int:
    """Milliseconds within which all pods of the next run have to run: the job's own wish, else the policy's."""
    own = 0 if job is None else job.start_timeout_seconds
    return (own or state.tree.policy.start_timeout_seconds) * 1000


def find_awaited(run: Run) -> tuple[int, ...]:
    """Ranks of late pods that are not permitted yet; the run holds their room."""
    return tuple(rank for rank, uid in enumerate(run.uids) if not uid) if run.late else ()


def given_ms(state: State, run: Run) -> int:
    """Milliseconds that the run was given to start; a configuration that comes later is for runs that come after it."""
    return run.start_ms or start_timeout_ms(state, state.jobs.get(run.job_id))


def refuses_pods(state: State, tenant: str) -> bool:
    """Whether the tenant's namespace refuses pods, so that one of its jobs is tried at a time."""
    known = state.closed.get(tenant)
    return known is not None and known.refusals >= CLOSED_FROM


def closing(state: State, job: Job) -> ClosedNamespace | None:
    """
    The refusal that keeps the job from being tried: its namespace refuses pods, another job tries, or it is not time.

    Jobs that were refused before come a little later: one that never was may be what the namespace takes.
    """
    known = state.closed.get(job.tenant)
    if known is None or not refuses_pods(state, job.tenant):
        return None
    return known if known.probe or state.ts < tried_from(known, job) else None


def tried_from(known: ClosedNamespace, job: Job) -> int:
    """From when on (ledger milliseconds) the job may be the one that is tried."""
    return known.until + LATER_BY_MS * min(job.troubles, TROUBLES_MAX)


def explain_closing(state: State, known: ClosedNamespace, job: Job) -> Reason:
    """The reason of a job that waits for its namespace, with the last refusal."""
    left = max(0, tried_from(known, job) - state.ts + 999) // 1000
    numbers = {"refusals_in_a_row": known.refusals} | ({} if known.probe else {"seconds_left": left})
    detail = f"last: {known.reason.sentence()}"[:1024]
    return Reason(code=Code.NAMESPACE_REFUSES, field=f"namespaces.{job.tenant}", numbers=numbers, detail=detail)


def note_refusal(state: State, run: Run, reason: Reason) -> None:
    """Counts a run whose pods its namespace refused, and until when no other job of that namespace is tried."""
    known = state.closed.get(run.tenant)
    if known is not None and known.probe == run.run_id:
        known = replace(known, probe="")
        state.closed.put(run.tenant, known)
    if reason.code is not Code.BIND_REFUSED or reason.numbers.get("status") not in REFUSED_AS_A_WHOLE:
        return
    if known is None:
        state.closed.put(run.tenant, ClosedNamespace(run.tenant, reason, run.job_id, 1, state.ts))
        return
    closed = known.refusals >= CLOSED_FROM
    if (closed and run.allocated_ts <= known.since) or (not closed and run.job_id == known.job_id):
        return  # placed before that was known; or one job alone, which may be wrong itself
    refusals = known.refusals + 1
    pause = min(1 << min(refusals - CLOSED_FROM, 6), PAUSE_MAX_SECONDS) * 1000
    after = replace(known, reason=reason, job_id=run.job_id, refusals=refusals, since=state.ts, until=state.ts + pause)
    state.closed.put(run.tenant, after)


def note_try(state: State, run: Run) -> None:
    """Of a namespace that refuses pods one run is tried at a time."""
    known = state.closed.get(run.tenant)
    if known is not None and refuses_pods(state, run.tenant):
        state.closed.put(run.tenant, replace(known, probe=run.run_id))


def note_taken(state: State, run: Run) -> None:
    """The namespace took a run's pods: all its jobs may start again."""
    if state.closed.get(run.tenant) is not None:
        state.closed.drop(run.tenant)

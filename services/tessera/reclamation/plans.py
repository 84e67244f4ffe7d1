"""Lent quota taken back: what to propose for a job whose queue has a right to what others hold. Pure."""

from tessera.domain.entities import Job
from tessera.domain.resources import NOTHING
from tessera.domain.state import State
from tessera.engine.victims import Plan, plan
from tessera_schemas.reasons import Code, Reason


def reclaim_plan(state: State, job: Job, ts: int) -> Plan | Reason:
    """Whom of other queues to evict for `job`. What its own queue alone has to give is preemption's to propose."""
    if state.tree.policy.preset != "fair":
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="policy.preset", detail=state.tree.policy.preset)
    if not _others_hold_something(state, job):
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field=f"queues.{job.queue}", detail="nobody to take back from")
    found = plan(state, job, ts, "reclaim")
    if isinstance(found, Plan) and not found.takes_back:
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field=f"queues.{job.queue}", detail="nothing lent is in its way")
    return found


def _others_hold_something(state: State, job: Job) -> bool:
    """Whether another queue of its tree holds anything: else there is no need to search."""
    roots = state.tree.roots
    return any(
        root == roots[job.queue] and queue != job.queue and state.held_by_queue(queue) != NOTHING
        for queue, root in roots.items()
    )

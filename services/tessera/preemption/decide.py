"""Preemption plans for waiting jobs. Pure."""

from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.engine.preemption.plans import Plan, plan
from tessera_schemas.reasons import Code, Reason


def preemption_plan(state: State, job: Job, ts: int) -> Plan | Reason:
    """
    Runs of its own queue to evict for `job`, and elastic runs to shrink.

    Lent quota goes first: where its return would suffice, reclamation proposes the plan.
    """
    found = plan(state, job, ts, "preemption")
    if isinstance(found, Reason) or all(v.ranks for v in found.victims):
        return found
    lent = plan(state, job, ts, "reclaim")
    if isinstance(lent, Plan) and lent.takes_back:
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="policy.preset", detail="lent quota is taken back first")
    return found

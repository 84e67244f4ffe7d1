"""Preemption plans for waiting jobs. Pure."""

from tessera.domain.entities import Job
from tessera.domain.folding.spending import WHEN_SPENT, names_spent
from tessera.domain.state import State
from tessera.engine.preemption.plans import Plan, plan
from tessera.engine.queueing.ordering import stuck_heads
from tessera_schemas.reasons import Code, Reason

RUNS_ASKED = 2_048
"""Most runs whose classes are asked; of more, the order of a line costs less."""


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


def preemption_heads(state: State, ts: int, heads: int) -> list[Job]:
    """The jobs to plan for, at most `heads` of each pool; nobody, and no look at the lines, where no plan can exist."""
    return stuck_heads(state, ts, heads) if _may_make_room(state) else []


def _may_make_room(state: State) -> bool:
    """Whether a run may shrink, an earmark may yield, a budget is spent, or somebody waits behind a lower class."""
    # Necessary and not enough, from what the state has at hand: an order of a long line for each message of the ledger
    # costs more than folding it, and where all are of one class no order leads to a plan.
    if state.index.elastic or len(state.earmarks):
        return True
    if state.tree.policy.preset == "off":
        return False
    if len(state.runs) > RUNS_ASKED or names_spent(state, WHEN_SPENT) is not None:
        return True
    first = {queue: -line[0][0] for queue, line in state.index.waiting.items() if line}
    runs = (run for run in state.runs.values() if run.queue in first) if first else ()
    return any(state.tree.priority_of(state.jobs.get(run.job_id)) < first[run.queue] for run in runs)

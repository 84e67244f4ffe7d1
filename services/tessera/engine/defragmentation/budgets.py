"""
Calendar and budgets of moves: the hours in which runs are asked or moved, and what moves may cost a tenant in a week.

Proposer and committer ask the same rules; the search asks them before it looks, so that it finds no plan that would be
refused for a budget. Pure.
"""

from collections import Counter

from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.engine.defragmentation.relocations import GPU_SECOND
from tessera.engine.preemption.candidates import eviction_cost
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.lending import is_within, next_within, week_of


def outside_windows(state: State) -> Reason | None:
    """Why nobody is asked now, or moved unasked; None within the hours, or where any will do."""
    windows = state.tree.policy.moves.windows
    if not windows or is_within(windows, state.ts):
        return None
    begins = next_within(windows, state.ts)
    numbers = {"seconds_left": -(-(begins - state.ts) // 1000)}
    return Reason(code=Code.OUTSIDE_MOVE_WINDOW, numbers=numbers, detail=f"from {windows[0].clock(begins)} on")


class MovesLeft:
    """Budgets of tenants for the rest of the week, of which the runs of one plan for `owner` are taken one by one."""

    def __init__(self, state: State, owner: Job) -> None:
        self._state, self._policy = state, state.tree.policy.moves
        self._moves, self._lost = Counter[str](), Counter[str]()
        if not self._policy.has_budget:
            return
        week = week_of(state.ts)
        for row in state.moved.values():
            if row.week == week:
                self._moves[row.tenant] += row.moves
                self._lost[row.tenant] += row.lost_gpu_seconds * GPU_SECOND
        # Runs that are asked for other jobs may all agree: what they would cost is promised already.
        asked = (offer.run_id for offer in state.moves.values() if offer.owner != owner.job_id and not offer.is_refused)
        for run in state.runs.found(sorted(asked)):
            self._count(run)

    def take(self, run: Run) -> Reason | None:
        """Takes what moving the run costs its tenant; else why not, and nothing is taken."""
        policy, cost = self._policy, eviction_cost(self._state, run)
        most, lost = policy.per_tenant_week, policy.lost_gpu_seconds_per_tenant_week
        moved, gone = self._moves[run.tenant], self._lost[run.tenant]
        if most is not None and moved >= most:
            numbers = {"moves": moved, "moves_max": most}
            return Reason(code=Code.MOVE_BUDGET_SPENT, field="policy.moves.per_tenant_week", numbers=numbers)
        if lost is not None and gone + cost > lost * GPU_SECOND:
            numbers = {"lost_gpu_seconds": gone // GPU_SECOND, "lost_gpu_seconds_max": lost}
            field = "policy.moves.lost_gpu_seconds_per_tenant_week"
            return Reason(code=Code.MOVE_BUDGET_SPENT, field=field, numbers=numbers)
        self._count(run)
        return None

    def is_spent(self, tenant: str) -> bool:
        """Whether no run of the tenant may be moved any more, whatever it loses."""
        most, lost = self._policy.per_tenant_week, self._policy.lost_gpu_seconds_per_tenant_week
        of_moves = most is not None and self._moves[tenant] >= most
        return of_moves or (lost is not None and self._lost[tenant] >= lost * GPU_SECOND)

    def _count(self, run: Run) -> None:
        self._moves[run.tenant] += 1
        self._lost[run.tenant] += eviction_cost(self._state, run)

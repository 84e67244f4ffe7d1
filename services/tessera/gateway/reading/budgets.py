"""Budgets as their owners see them: spent, left, expected by the month's end; and whether a new job would pass one."""

from collections.abc import Collection, Iterator

from tessera.domain.devices.costs import most_micros
from tessera.domain.folding.spending import budget_names, counted, expected_micros, is_spent, limit_of, unit_of
from tessera.domain.state import State
from tessera.gateway.operations.models import BudgetStanding
from tessera_schemas.job import JobSpec
from tessera_schemas.work.budgets import MICROS, month_end, month_text
from tessera_schemas.work.money import GPU_HOUR, amount_text


def budget_standings(state: State, ts: int, tenant: str | None, queues: Collection[str]) -> tuple[BudgetStanding, ...]:
    """Budgets of the tenant and its projects, of these queues and those above them, of all for None; as configured."""
    above = {each for name in queues if name in state.tree.queues for each in state.tree.path(name)}
    return tuple(
        _standing(state, name, ts)
        for name, budget in state.budgets.items()
        if tenant is None or budget.tenant == tenant or budget.queue in above
    )


def _standing(state: State, name: str, ts: int) -> BudgetStanding:
    budget, row = state.budgets[name], state.spending.found((name,))[0]
    now = counted(state, row, max(ts, row.ts))
    limit = limit_of(budget, now)
    return BudgetStanding(
        budget=name,
        unit=unit_of(state, budget),
        month=month_text(now.ts),
        until_ts=month_end(now.ts),
        spent_micros=now.micros,
        limit_micros=limit,
        granted_micros=now.granted,
        expected_micros=expected_micros(state, now),
        before_micros=now.before_micros,
        percent=now.micros * 100 // limit,
        when_spent=budget.when_spent,
        is_spent=is_spent(state, budget),
    )


def budget_notes(state: State, tenant: str, spec: JobSpec, ts: int) -> Iterator[str]:
    """A sentence for each budget that is spent, or that one run of a job in its time limit may pass."""
    for name in budget_names(state.tree, spec.queue, tenant, spec.project) if spec.gpu_milli() else ():
        if (budget := state.budgets.get(name)) is None:
            continue
        row, unit = counted(state, state.spending.found((name,))[0], ts), unit_of(state, budget)
        left, limit_ms = limit_of(budget, row) - row.micros, (spec.time_limit_seconds or 3600) * 1000
        if is_spent(state, budget):
            yield f"budget {name} is spent until the month ends or more is granted ({budget.when_spent})"
            continue
        gpu_milli = sum(role.most * role.resources.total_gpu_milli for role in spec.roles)
        most = gpu_milli * limit_ms * MICROS // GPU_HOUR if budget.gpu_hours else most_micros(state.tree, spec, ts)
        if most > left:
            said = f"a run may spend {amount_text(most, unit)}, and budget {name} has {amount_text(max(0, left), unit)}"
            yield f"{said} left this month; then: {budget.when_spent}"

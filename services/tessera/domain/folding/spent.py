"""Fold of records about budgets: levels that were reached, and grants. Pure."""

from collections.abc import Sequence

from tessera.domain.errors import Contradiction
from tessera.domain.folding.spending import BudgetUse, counted, level_of
from tessera.domain.folding.steps import applies
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera_schemas.ledger import BudgetGranted, BudgetReached, BudgetReopened, TakenFact
from tessera_schemas.work.budgets import MICROS


def _row_of(state: State, name: str) -> BudgetUse:
    row = state.spending.get(name)
    if row is None:
        raise Contradiction(f"record {state.n} names budget {name}, which nobody has configured")
    return counted(state, row, state.ts)


@applies(BudgetReached, BudgetReopened)
def apply_level(state: State, record: BudgetReached | BudgetReopened, facts: Sequence[TakenFact]) -> None:
    """Notes the percent of a budget that is told; raises Contradiction unless just that is spent."""
    row = _row_of(state, record.budget)
    if level_of(state.budgets[row.name], row) != record.percent or row.level == record.percent:
        raise Contradiction(f"record {state.n}: budget {row.name} is not at {record.percent} percent")
    state.spending.put(row.name, replace(row, level=record.percent))


@applies(BudgetGranted)
def apply_granted(state: State, record: BudgetGranted, facts: Sequence[TakenFact]) -> None:
    """Adds to a budget for the month of the message."""
    row = _row_of(state, record.budget)
    state.spending.put(row.name, replace(row, granted=row.granted + record.amount * MICROS))

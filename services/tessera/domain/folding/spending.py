"""
Sums of what each budget has spent in this month and in the one before, to the last part. Pure.

A row is the sum until its `ts`; from there on counts what the budget's runs hold, at the price of each hour. Runs are
summed up by budget and flavor beside the rows (`Holdings`), so that a row costs the same however many runs there are.
A row is brought up to date whenever that sum, a price or a flavor changes; what lies over a month's end counts in each
month for its part. Nothing decays and nothing is rounded: a whole and a rest are kept, as of a job's cost.

Bounded: a row for each configured budget. The level that was told (0, 80 or 100 percent) is part of the row, so that
order and starts change by a record alone and never by the clock of whoever looks.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tessera.domain.devices.resources import Node
from tessera.domain.entities import Job, Run
from tessera.domain.queues import QueueTree
from tessera.domain.storing.fast import fast_init, replace
from tessera.domain.table import Table
from tessera_schemas.work.budgets import GPU_HOURS, MICROS, SPENT, WARNED, Budget, BudgetNames, month_end, month_start
from tessera_schemas.work.money import GPU_HOUR, CostRates, held_cost

KEPT_BY_BUDGETS = ("hold", "refuse")
"""What a spent budget is to mean where none of its work starts."""
WHEN_SPENT = ("last", *KEPT_BY_BUDGETS)
"""All that a spent budget may mean."""


@fast_init
@dataclass(frozen=True, slots=True)
class BudgetUse:
    """
    Spent until `ts` in its month: millionths of the currency's unit or of a GPU-hour, and a rest in `GPU_HOUR` parts.

    `granted` is what operators added for this month, `level` the percent that was told last. `before_micros` was spent
    in the month before, of which `before_granted` was added then.
    """

    name: str
    ts: int
    micros: int = 0
    rest: int = 0
    granted: int = 0
    level: int = 0
    before_micros: int = 0
    before_granted: int = 0


class Spending(Protocol):
    """Part of a state that budgets look at."""

    ts: int
    is_base: bool
    budgets: dict[str, Budget]
    spending: Table[BudgetUse]
    holdings: "Holdings"
    runs: Table[Run]
    nodes: Table[Node]

    @property
    def tree(self) -> QueueTree:
        """Configuration in force."""


class Holdings:
    """Sum of what runs hold by budget and flavor, in thousandths of a GPU; it follows from the state."""

    def __init__(self) -> None:
        self.of: dict[str, Counter[str]] = {}
        self.due: dict[str, tuple[BudgetUse, int]] = {}
        """By budget the row as it was looked at, and when the next level may be reached if it stays that row."""

    def follow(self, state: "Spending", old: Run | None, new: Run | None) -> None:
        """A run changes: budgets are counted until now by what it held, and from here on by what it holds."""
        if old is not None and new is not None and _same(old, new):
            return
        less, more = _held(state, old), _held(state, new)
        for name in dict.fromkeys((*less, *more)):
            count(state, name)
            held = self.of.setdefault(name, Counter())
            held.update(more.get(name, {}))
            held.subtract(less.get(name, {}))

    def rebuild(self, state: "Spending") -> None:
        """Sums up all runs anew, as after a restore, or by other flavors and budgets; rows stay as they are."""
        self.of, self.due = {}, {}
        for run in state.runs.values() if state.budgets else ():
            for name, held in _held(state, run).items():
                self.of.setdefault(name, Counter()).update(held)


def budget_names(tree: QueueTree, queue: str, tenant: str, project: str) -> Iterator[str]:
    """Names of all budgets that work of the tenant in the queue could be of, configured or not; "" for no project."""
    yield BudgetNames.for_tenant(tenant)
    if project:
        yield BudgetNames.for_project(tenant, project)
    yield from map(BudgetNames.for_queue, tree.path(queue) if queue in tree.queues else ())


def _same(old: Run, new: Run) -> bool:
    return (old.amount, old.queue, old.over) == (new.amount, new.queue, new.over)


def _held(state: "Spending", run: Run | None) -> dict[str, Counter[str]]:
    """Thousandths of a GPU that a run holds, by flavor, for each budget that it is of."""
    if run is None or run.over or not run.amount.gpu_milli:
        return {}
    names = [name for name in budget_names(state.tree, run.queue, run.tenant, run.project) if name in state.budgets]
    held = held_of(state, run) if names else Counter[str]()
    return dict.fromkeys(names, held)


def held_of(state: "Spending", run: Run) -> Counter[str]:
    """Thousandths of a GPU that a run holds, by the flavor of the nodes; "" for nodes of none."""
    held = Counter[str]()
    for place in run.places:
        node = state.nodes.get(place.node)
        held[state.tree.flavor_of(node) if node is not None else ""] += run.gang.amount_of((place,)).gpu_milli
    return held


def _rates(state: "Spending", budget: Budget, from_ts: int) -> CostRates:
    held, money = state.holdings.of.get(budget.name, Counter[str]()), state.tree.money
    if budget.gpu_hours is not None:
        return ((from_ts, sum(held.values()) * MICROS),)
    return () if money is None else money.rates(held, from_ts)


def counted(state: "Spending", row: BudgetUse, ts: int) -> BudgetUse:
    """The row at `ts`; in a new month what was spent since it began, and what the month before had in all."""
    rates, start = _rates(state, state.budgets[row.name], row.ts), month_start(ts)
    if row.ts >= start:
        whole, rest = divmod(row.rest + held_cost(rates, row.ts, ts), GPU_HOUR)
        return replace(row, ts=ts, micros=row.micros + whole, rest=rest)
    whole, rest = divmod(held_cost(rates, start, ts), GPU_HOUR)
    before = month_start(start - 1)
    last = row if row.ts >= before else BudgetUse(row.name, before)
    spent = last.micros + (last.rest + held_cost(rates, last.ts, start)) // GPU_HOUR
    return BudgetUse(row.name, ts, whole, rest, 0, row.level, spent, last.granted)


def count(state: "Spending", name: str) -> None:
    """Brings the row of a budget up to now."""
    row = state.spending.get(name)
    if row is not None:
        state.spending.put(name, counted(state, row, state.ts))


def charge(state: "Spending", name: str, gpu_milli_ms: int, micros: int) -> None:
    """
    Adds to what a budget has spent until now what no run holds: GPU time, or millionths of the currency's unit.

    Below nothing it gives back, down to nothing: what was spent in a month that is over stays spent.
    """
    budget, row = state.budgets[name], state.spending.get(name)
    if row is None:
        return
    now = counted(state, row, state.ts)
    more = gpu_milli_ms * MICROS // GPU_HOUR if budget.gpu_hours is not None else micros
    state.spending.put(name, replace(now, micros=max(0, now.micros + more)))


def count_all(state: "Spending") -> None:
    """Brings all rows up to now, as before a change of budgets or prices."""
    for name in state.budgets:
        count(state, name)


def count_anew(state: "Spending") -> None:
    """Brings all rows up to now, and sums up what runs hold anew, since a node has another flavor now."""
    count_all(state)
    if state.is_base:
        state.holdings.rebuild(state)


def limit_of(budget: Budget, row: BudgetUse) -> int:
    """Most of the row's month, in millionths, with what was granted."""
    return budget.limit_micros + row.granted


def level_of(budget: Budget, row: BudgetUse) -> int:
    """Percent that was reached: 0, 80 or 100."""
    limit = limit_of(budget, row)
    return next((percent for percent in (SPENT, WARNED) if row.micros * 100 >= limit * percent), 0)


def levels_due(state: "Spending") -> list[tuple[BudgetUse, int]]:
    """Rows at the state's time whose level is another one by now, by name, with that level."""
    found = []
    for name, budget in state.budgets.items():
        row = state.spending.get(name)
        if row is None:
            continue
        known = state.holdings.due.get(name)
        # A row is another object whenever anything changed of which its level follows, besides time.
        if known is None or known[0] is not row or state.ts >= known[1]:
            now = counted(state, row, state.ts)
            if (level := level_of(budget, now)) != row.level:
                found.append((now, level))  # until it is told: what asks may throw its message away
            else:
                state.holdings.due[name] = row, _next_level_ts(state, budget, now)
    return found


def _next_level_ts(state: "Spending", budget: Budget, row: BudgetUse) -> int:
    """Time at which the row may reach another level, if holdings stay as they are: the month's end at the latest."""
    level, end = level_of(budget, row), month_end(row.ts)
    if level == SPENT:
        return end
    percent = WARNED if level < WARNED else SPENT
    need = -(-limit_of(budget, row) * percent // 100) * GPU_HOUR - row.micros * GPU_HOUR - row.rest
    rates = _rates(state, budget, row.ts)
    for (at, rate), until in zip(rates, (*(at for at, _ in rates[1:]), end), strict=True):
        if rate and need <= rate * (until - at):
            return min(end, at - (-need // rate))
        need -= rate * (until - at)
    return end


def expected_micros(state: "Spending", row: BudgetUse) -> int:
    """Spent at the month's end if runs hold until then what they hold now."""
    more = held_cost(_rates(state, state.budgets[row.name], row.ts), row.ts, month_end(row.ts))
    return row.micros + (row.rest + more) // GPU_HOUR


def unit_of(state: "Spending", budget: Budget) -> str:
    """Word beside the budget's amounts."""
    return GPU_HOURS if budget.amount is None or state.tree.money is None else state.tree.money.currency


def put_budgets_in_force(state: "Spending", before: dict[str, str], renamed: dict[str, str]) -> None:
    """
    Rows for the budgets of the configuration now in force, those of before being counted until now.

    `before` has the units of the former budgets: in another unit a budget starts at nothing. One that is new starts at
    nothing, too, and that of a renamed queue goes on.
    """
    old = dict(state.spending.items())
    for name in old:
        state.spending.drop(name)
    came_from = {BudgetNames.for_queue(now): BudgetNames.for_queue(was) for was, now in renamed.items()}
    for name, budget in state.budgets.items():
        was = name if name in old else came_from.get(name, "")
        row = old.get(was) if before.get(was) == unit_of(state, budget) else None
        state.spending.put(name, BudgetUse(name, state.ts) if row is None else replace(row, name=name))
    if state.is_base:
        state.holdings.rebuild(state)


def spent_budgets(state: "Spending", queue: str, tenant: str, project: str, kinds: Collection[str]) -> list[Budget]:
    """Budgets that work of the tenant in the queue is of and that are spent, of which that means one of `kinds`."""
    found = (state.budgets.get(name) for name in budget_names(state.tree, queue, tenant, project))
    return [each for each in found if each is not None and each.when_spent in kinds and is_spent(state, each)]


class SpentNames(NamedTuple):
    """Tenants, projects by tenant and queues, those below them included, whose budget is spent."""

    tenants: frozenset[str]
    projects: frozenset[tuple[str, str]]
    queues: frozenset[str]


NO_NAMES = SpentNames(frozenset(), frozenset(), frozenset())


def names_spent(state: "Spending", kinds: Collection[str]) -> SpentNames | None:
    """Owners of budgets that are spent, of which that means one of `kinds`; None for nobody."""
    spent = [each for each in state.budgets.values() if each.when_spent in kinds and is_spent(state, each)]
    if not spent:
        return None
    tree, queues = state.tree, {each.queue for each in spent} - {None}
    return SpentNames(
        frozenset(each.tenant for each in spent if each.tenant is not None and each.project is None),
        frozenset((each.tenant, each.project) for each in spent if each.tenant and each.project),
        frozenset(name for name in tree.queues if not queues.isdisjoint(tree.path(name))),
    )


def is_of(names: SpentNames, job: Job) -> bool:
    """Whether a job is of one of these; one without GPUs spends nothing, and is of none."""
    return job.amount.gpu_milli > 0 and (
        job.tenant in names.tenants or job.queue in names.queues or (job.tenant, job.project) in names.projects
    )


def is_spent(state: "Spending", budget: Budget) -> bool:
    """Whether the budget was told to be spent, and nothing has changed that since."""
    row = state.spending.get(budget.name)
    return row is not None and row.level >= SPENT

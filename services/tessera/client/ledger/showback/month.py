"""A month of a stored ledger and the one before: GPU time and cost by tenant, queue, user and job, and its budgets."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.client.ledger.reading import LedgerBackup, LedgerFile, StoredLedger
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.live import progress_of
from tessera.domain.folding.spending import counted, limit_of, unit_of
from tessera.domain.state import State
from tessera.engine.accounts.account import Account
from tessera.engine.accounts.naming import name_by
from tessera.engine.accounts.owners import HELD, RUNNING, GpuCause, GpuOwner, OwnedAmounts, Resource
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.work.budgets import MICROS, day_text, month_end, month_start, month_text
from tessera_schemas.work.money import GPU_HOUR, Money, held_cost

PAID = (*RUNNING, *HELD)
"""What costs: GPUs that runs hold."""
KINDS = ("tenant", "queue", "user", "project", "job")


@dataclass(slots=True)
class MonthSums:
    """
    Sums of one month: `held` are thousandths of a GPU x ms and `cost` parts of a millionth of the currency, by kind of
    name; `days` is held by day and tenant; `free` and `out` are nobody's.
    """

    capacity: int = 0
    used: int = 0
    free: int = 0
    out: int = 0
    held: Mapping[str, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in KINDS})
    cost: Mapping[str, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in KINDS})
    days: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """A budget in that month, in millionths of `unit`."""

    name: str
    unit: str
    spent_micros: int
    limit_micros: int
    granted_micros: int


@dataclass(frozen=True, slots=True)
class Monthly:
    """Sums of the month that begins at `start_ts`, as far as `upto_ts`, and of the one `before`."""

    start_ts: int
    upto_ts: int
    now: MonthSums
    before: MonthSums
    currency: str
    budgets: tuple[SpentBudget, ...]
    names: Mapping[str, str]
    """Names of jobs by id."""


class MonthBooks:
    """Books of an account that keep two months; prices are those in force when the time was."""

    def __init__(self, start_ts: int, state: State) -> None:
        self._start, self._state = start_ts, state
        self.months = {start_ts: MonthSums(), month_start(start_ts - 1): MonthSums()}
        self.names: dict[str, str] = {}
        self.money: Money | None = None

    def add(self, owner: GpuOwner, amounts: OwnedAmounts, start_ts: int, end_ts: int) -> None:
        """See `AccountBooks`; what lies in one hour lies in one month, and has one price."""
        milli = owner.part(amounts, Resource.GPU)
        sums, amount = self.months.get(month_start(start_ts)), milli * (end_ts - start_ts)
        if sums is None or not amount:
            return
        if owner.cause is GpuCause.CAPACITY:
            sums.capacity += amount
        elif owner.cause in PAID:
            rates = () if self.money is None else self.money.rates({owner.flavor: milli}, start_ts)
            self._add_paid(sums, owner, amount, held_cost(rates, start_ts, end_ts))
            sums.days[day_text(start_ts), owner.tenant] += amount
        elif owner.cause in (GpuCause.OUT, GpuCause.OTHERS):
            sums.out += amount
        else:
            sums.free += amount

    def _add_paid(self, sums: MonthSums, owner: GpuOwner, amount: int, cost: int) -> None:
        sums.used += amount
        for kind in KINDS:
            name = name_by(kind)(owner)
            sums.held[kind][name] += amount
            sums.cost[kind][name] += cost
        if owner.job not in self.names:
            job = self._state.jobs.get(owner.job) or self._state.ended.get(owner.job)
            self.names[owner.job] = "" if job is None else f"{job.name} ({job.tenant})"


async def read_month(ledger: StoredLedger | LedgerFile | LedgerBackup, start_ts: int) -> Monthly:
    """Reads the ledger from where it begins to the month's end. Raises Failure where it has nothing of the month."""
    shard, count = await ledger.opened_shard() or Shard(), await ledger.count()
    books, until = MonthBooks(start_ts, shard.state), month_end(start_ts)
    account = Account(books, shard.state)
    with progress_of("showback", count - shard.state.n) as advance:
        async for seq, data in ledger.messages():
            entry = decode_entry(Message("", seq, data))
            shard.fold(entry)
            account.take(entry.message, shard.state)
            books.money = shard.state.tree.money
            advance()
            if account.upto >= until:
                break
    account.settle()
    now, before = books.months.values()
    if not now.capacity:
        raise Failure(Exit.NOT_FOUND, f"ledger: has nothing of {month_text(start_ts)}; ask for another month")
    currency = "" if books.money is None else books.money.currency
    budgets = tuple(_spent(shard.state, name, start_ts) for name in shard.state.budgets)
    return Monthly(start_ts, min(account.upto, until), now, before, currency, budgets, books.names)


def _spent(state: State, name: str, start_ts: int) -> SpentBudget:
    budget, row = state.budgets[name], counted(state, state.spending.found((name,))[0], state.ts)
    is_now = month_start(row.ts) == start_ts  # else the ledger goes on in the month after
    spent, granted = (row.micros, row.granted) if is_now else (row.before_micros, row.before_granted)
    limit = limit_of(budget, row) - row.granted + granted
    return SpentBudget(name, unit_of(state, budget), spent, limit, granted)


def gpu_hours(amount: int) -> str:
    """Thousandths of a GPU times milliseconds as GPU-hours with one digit behind the point, rounded down."""
    tenths = amount * 10 // GPU_HOUR
    return f"{tenths // 10:,}.{tenths % 10}"


def money_text(parts: int) -> str:
    """Parts of a millionth of the currency's unit as an amount to the hundredth, rounded down."""
    cents = parts // GPU_HOUR * 100 // MICROS
    return f"{cents // 100:,}.{cents % 100:02}"

"""
The checker's own arithmetic of budgets: what each has spent in its month, and that no run begins on a spent one.

By the configuration, the records and what nodes are, with nothing of the product's. Amounts are millionths of the
currency's unit, or of a GPU-hour, times `HOUR`. Prices that begin at a date are not computed: what was told counts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker.quotas import Quotas
from tessera.testkit.rules_checker.rows import JobRow, RunRow, amount_of
from tessera_schemas import ledger as m
from tessera_schemas.config import ConfigBody
from tessera_schemas.facts import NodeSeen
from tessera_schemas.work.budgets import Budget

HOUR = 1000 * 3_600_000
"""A GPU-hour in thousandths of a GPU times milliseconds."""
KEEPS = ("hold", "refuse")


@dataclass(slots=True)
class Spent:
    """Sum of one budget in this month; `told` is the percent that the ledger told last."""

    budget: Budget
    unit: str
    parts: int = 0
    granted: int = 0
    told: int = 0

    @property
    def limit(self) -> int:
        """Most of the month in the same parts."""
        return ((self.budget.amount or self.budget.gpu_hours or 0) + self.granted) * 10**6 * HOUR


class BudgetRules:
    """Follows what runs hold from message to message."""

    def __init__(self, report: Report, quotas: Quotas, nodes: Mapping[str, NodeSeen]) -> None:
        self._report, self._quotas, self._nodes = report, quotas, nodes
        self._rows: dict[str, Spent] = {}
        self._prices: dict[str, int] | None = {}
        self._promised: dict[str, tuple[int, int]] = {}
        self._ts = self._n = 0

    def configure(self, body: ConfigBody) -> None:
        """Takes a configuration as the one in force; a budget in the same unit goes on, also of a renamed queue."""
        was = {f"queue/{q.name}": f"queue/{q.was}" for q in body.queues if q.was}
        prices, rows = body.money.prices if body.money else (), {}
        for budget in body.budgets:
            unit = "GPU-hours" if budget.gpu_hours is not None or body.money is None else body.money.currency
            before = self._rows.get(budget.name) or self._rows.get(was.get(budget.name, ""))
            row = rows[budget.name] = Spent(budget, unit)
            if before is not None and before.unit == unit:
                row.parts, row.granted, row.told = before.parts, before.granted, before.told
        self._rows = rows
        self._prices = None if any(p.since for p in prices) else {p.flavor: p.gpu_hour_micros for p in prices}

    def pass_time(self, n: int, ts: int, runs: Iterable[RunRow]) -> None:
        """Adds what runs held since the message before, in a new month from its first millisecond on."""
        before, self._ts, self._n = self._ts or ts, ts, n
        if not self._rows:
            return
        start = _month(ts)
        for row in self._rows.values() if start > _month(before) else ():
            row.parts = row.granted = 0
        rates = Counter[str]()
        for run in runs:
            if not run.succeeded:
                for row in self._of(run.job):
                    rates[row.budget.name] += self._rate(row.budget, run)
        for name, rate in rates.items():
            self._rows[name].parts += rate * (ts - max(before, start))

    def begins(self, what: str, job: JobRow) -> None:
        """A run of the job begins, or grows: no budget of it is spent that keeps new work."""
        if not job.amount["gpu_milli"]:
            return
        for row in self._of(job):
            told = row.told == 100 or (self._computes(row) and row.parts >= row.limit)
            keeps = row.budget.when_spent in KEEPS
            self._demand(not (told and keeps), f"{what} begins, and {row.budget.name} is spent")

    def is_spent(self, job: JobRow) -> bool:
        """Whether a budget of the job's was told to be spent."""
        return job.amount["gpu_milli"] > 0 and any(row.told == 100 for row in self._of(job))

    def record(self, r: m.BudgetReached | m.BudgetReopened | m.BudgetGranted) -> None:
        """A level is told that was reached and no other, or an operator grants."""
        row = self._rows.get(r.budget)
        self._demand(row is not None, f"{r.kind}: there is no budget {r.budget}")
        if row is None:
            return
        if isinstance(r, m.BudgetGranted):
            row.granted += r.amount
            return
        row.told = r.percent
        upper = {0: 80, 80: 100}.get(r.percent)
        reached = row.parts * 100 >= row.limit * r.percent
        below = upper is None or row.parts * 100 < row.limit * upper
        right = not self._computes(row) or (reached and below)
        self._demand(right, f"{r.budget} is told at {r.percent} percent: {row.parts} of {row.limit}")

    def price(self, r: m.Booked | m.BookingEnded, job: JobRow | None) -> None:
        """A start is promised for its price, or the price of a broken promise is given back."""
        if isinstance(r, m.BookingEnded):
            gpu_ms, micros = self._promised.pop(r.name, (0, 0))
            sign = -1 if r.why == "broken" else 0
        else:
            gpu_ms, micros, sign = r.price_gpu_ms, r.price_micros, 1
            if r.job:
                self._promised[r.name] = gpu_ms, micros
                self._check_price(r, job)
        for row in self._of(job) if job is not None else ():
            more = gpu_ms * 10**6 // HOUR if row.budget.gpu_hours is not None else micros
            row.parts = max(0, row.parts + sign * more * HOUR)

    def _check_price(self, r: m.Booked, job: JobRow | None) -> None:
        """The price is the policy's part of what its nodes cost for as long as the job may run."""
        body = self._quotas.body
        if job is None or body is None:
            self._demand(False, f"{r.name} is promised to no job")
            return
        length, percent = (job.spec.time_limit_seconds or 0) * 1000, body.policy.promise_price_percent
        gpus = {node: self._nodes[node].gpus * 1000 for node in r.nodes if node in self._nodes}
        self._demand(r.price_gpu_ms == sum(gpus.values()) * length * percent // 100, f"{r.name} has another price")
        if self._prices is not None:
            cost = sum(held * self._prices.get(self._flavor(node), 0) for node, held in gpus.items()) * length
            self._demand(r.price_micros == cost * percent // 100 // HOUR, f"{r.name} costs another amount")

    def _computes(self, row: Spent) -> bool:
        return row.budget.gpu_hours is not None or self._prices is not None

    def _of(self, job: JobRow) -> Iterator[Spent]:
        names = [f"tenant/{job.tenant}", *(f"queue/{queue.name}" for queue in self._quotas.path(job.spec.queue))]
        names.append(f"project/{job.tenant}/{job.spec.project}")
        return (self._rows[name] for name in names if name in self._rows)

    def _rate(self, budget: Budget, run: RunRow) -> int:
        """Cost of an hour of what the run holds, in thousandths of the measure."""
        if budget.gpu_hours is not None:
            return run.amount["gpu_milli"] * 10**6
        of_pod = {role.name: amount_of(run.job, [(role.name, 1)])["gpu_milli"] for role in run.job.spec.roles}
        return sum(
            of_pod.get(place.role, 0) * (self._prices or {}).get(self._flavor(place.node), 0)
            for place in run.places.values()
        )

    def _flavor(self, node: str) -> str:
        body, known = self._quotas.body, self._nodes.get(node)
        names = [flavor.name for flavor in body.flavors] if body is not None and known is not None else []
        is_on: Callable[[NodeSeen, str], bool] = self._quotas.is_on
        return next((name for name in names if known is not None and is_on(known, name)), "")

    def _demand(self, holds: bool, text: str) -> None:
        self._report.demand(holds, "budget", self._n, text)


def _month(ts: int) -> int:
    at = datetime.fromtimestamp(ts / 1000, UTC)
    return int(datetime(at.year, at.month, 1, tzinfo=UTC).timestamp() * 1000)

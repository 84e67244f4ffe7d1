"""
Budgets: most that a tenant, a queue or a project is to spend in a calendar month (UTC), in money or in GPU-hours.
Integers alone.

One measure serves both: millionths of the currency's unit, or of a GPU-hour, which is as if each GPU-hour cost one.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tessera_schemas.base import Name, Positive, Strict, later

MICROS = 10**6
WARNED, SPENT = 80, 100
"""Percents of a budget at which its owner is told."""
GPU_HOURS = "GPU-hours"
BudgetName = Annotated[
    str,
    StringConstraints(
        pattern=r"^((tenant|queue)/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
        r"|project/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)$"
    ),
    Field(description="Kind and name of whose budget it is, as `tenant/vision`, `project/vision/vlm`"),
]
Month = Annotated[
    str, StringConstraints(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$"), Field(description="Month in UTC, as 2026-12")
]
ProjectName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
WholeUnits = Annotated[Positive, Field(le=10**12)]


class BudgetNames:
    """Name of the budget that each kind of owner has: the one key of a budget."""

    @staticmethod
    def for_tenant(tenant: str) -> str:
        """Of all that a tenant spends."""
        return f"tenant/{tenant}"

    @staticmethod
    def for_queue(queue: str) -> str:
        """Of a queue with all queues below it."""
        return f"queue/{queue}"

    @staticmethod
    def for_project(tenant: str, project: str) -> str:
        """Of what a tenant's jobs spend that name the project."""
        return f"project/{tenant}/{project}"


class Budget(Strict):
    """Budget of one tenant or its project, or of one queue with all queues below it, for each month."""

    tenant: Annotated[Name | None, Field(description="Tenant whose budget it is, or whose project")] = None
    project: Annotated[
        ProjectName | None, Field(description="Project of that tenant whose budget it is; null: all of the tenant")
    ] = later(None)
    queue: Annotated[Name | None, Field(description="Queue whose budget it is, those below it included")] = None
    amount: Annotated[WholeUnits | None, Field(description="Budget in whole units of `money.currency`")] = None
    gpu_hours: Annotated[WholeUnits | None, Field(description="Budget in GPU-hours")] = None
    when_spent: Annotated[
        Literal["last", "hold", "refuse"],
        Field(
            description="last: its jobs start behind all others. hold: none of them starts until the month ends or "
            "more is granted. refuse: hold, and new ones are refused at submit. Jobs without GPUs spend nothing"
        ),
    ] = "hold"

    @model_validator(mode="after")
    def _one_owner_one_unit(self) -> Self:
        if self.project is not None and self.tenant is None:
            raise ValueError(f"project {self.project}: say its tenant, too")
        if (self.tenant is None) is (self.queue is None):
            raise ValueError("say tenant or queue, one of them")
        if (self.amount is None) is (self.gpu_hours is None):
            raise ValueError(f"budget {self.name}: say amount or gpu_hours, one of them")
        return self

    @property
    def name(self) -> str:
        """Kind and name of whose it is."""
        if self.tenant is None:
            return BudgetNames.for_queue(self.queue or "")
        if self.project is None:
            return BudgetNames.for_tenant(self.tenant)
        return BudgetNames.for_project(self.tenant, self.project)

    @property
    def limit_micros(self) -> int:
        """Amount of a month, without grants."""
        return (self.amount or self.gpu_hours or 0) * MICROS


@lru_cache(maxsize=64)
def _month(year: int, month: int) -> int:
    return int(datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp()) * 1000


def month_start(ts: int) -> int:
    """First millisecond of the month that a time is in."""
    at = datetime.fromtimestamp(ts // 1000, UTC)
    return _month(at.year, at.month - 1)


def month_end(ts: int) -> int:
    """First millisecond of the month after."""
    at = datetime.fromtimestamp(ts // 1000, UTC)
    return _month(at.year, at.month)


def month_text(ts: int) -> str:
    """Month that a time is in, as `2026-12`."""
    return f"{datetime.fromtimestamp(ts // 1000, UTC):%Y-%m}"


def month_ts(month: str) -> int:
    """First millisecond of a month written as `2026-12`."""
    return _month(int(month[:4]), int(month[5:]) - 1)


def day_text(ts: int) -> str:
    """Day that a time is in, in UTC, as `2026-12-01`."""
    return f"{datetime.fromtimestamp(ts // 1000, UTC):%Y-%m-%d}"


def find_budget_faults(
    budgets: Sequence[Budget], tenants: Collection[str], queues: Collection[str], is_priced: bool
) -> Iterator[str]:
    """Names of tenants and queues in these budgets that are not configured, and amounts of what nothing costs."""
    for index, budget in enumerate(budgets):
        if budget.tenant is not None and budget.tenant not in tenants:
            yield f"budgets[{index}].tenant: no such tenant: {budget.tenant}"
        if budget.queue is not None and budget.queue not in queues:
            yield f"budgets[{index}].queue: no such queue: {budget.queue}"
        if budget.amount is not None and not is_priced:
            yield f"budgets[{index}].amount: nothing has a price; give money.currency and money.prices, or gpu_hours"

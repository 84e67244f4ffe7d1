"""
GPUs that runs held and what these cost, in the columns of the FinOps Open Cost and Usage Specification (FOCUS) 1.2.

A row is one job in one hour, flavor and cause. Amounts are exact integers until they are written; each is then the
difference of two sums that are rounded down, so that the rows sum to the whole, to the last digit.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from tessera.engine.accounts.account import HOUR_MS
from tessera.engine.accounts.owners import HELD, RUNNING, GpuOwner, OwnedAmounts, Resource
from tessera_schemas.work.money import GPU_HOUR, Money, held_cost

DIGITS = 9
"""Behind the point, of amounts of money and of GPU-hours."""
MICRO = 1_000_000
FocusRow = dict[str, str]
FIXED = {
    "ChargeCategory": "Usage",
    "ChargeClass": "",
    "ChargeDescription": "GPUs held by a job",
    "ChargeFrequency": "Usage-Based",
    "ConsumedUnit": "GPU-Hours",
    "InvoiceIssuerName": "Tessera",
    "PricingUnit": "GPU-Hours",
    "ProviderName": "Tessera",
    "PublisherName": "Tessera",
    "ResourceType": "Job",
    "ServiceCategory": "Compute",
    "ServiceName": "GPU",
}


class FocusBooks:
    """Books of an account that keep what runs hold, by hour and owner, with its cost by the `money` of its time."""

    def __init__(self, since_ts: int, until_ts: int) -> None:
        self.money: Money | None = None
        self.currency = ""
        self._since, self._until = since_ts, until_ts
        self._held: dict[tuple[int, GpuOwner], tuple[int, int]] = {}

    def price(self, money: Money | None) -> None:
        """Prices from now on."""
        self.money = money
        self.currency = self.currency if money is None else money.currency

    def add(self, owner: GpuOwner, amounts: OwnedAmounts, start_ts: int, end_ts: int) -> None:
        """See `AccountBooks`."""
        milli = owner.part(amounts, Resource.GPU)
        start, end = max(start_ts, self._since), min(end_ts, self._until or end_ts)
        if owner.cause not in (*RUNNING, *HELD) or not milli or start >= end:
            return
        key = start - start % HOUR_MS, owner
        amount, cost = self._held.get(key, (0, 0))
        rates = () if self.money is None else self.money.rates({owner.flavor: milli}, start)
        self._held[key] = amount + milli * (end - start), cost + held_cost(rates, start, end)

    def rows(self, shard: str) -> Iterator[FocusRow]:
        """Rows by time and owner."""
        amounts, costs = Rounded(GPU_HOUR), Rounded(GPU_HOUR * MICRO)
        for (hour, owner), (amount, cost) in sorted(self._held.items()):
            quantity, money = amounts.next(amount), costs.next(cost)
            yield _row(shard, hour, owner, quantity, money, self.currency)


class Rounded:
    """Parts of a sum as decimals: each is what the sum, rounded down, grew by."""

    def __init__(self, unit: int) -> None:
        self._unit, self._sum, self._said = unit, 0, 0

    def next(self, amount: int) -> str:
        """The next part, in units."""
        self._sum += amount
        whole = self._sum * 10**DIGITS // self._unit
        part, self._said = whole - self._said, whole
        return f"{part // 10**DIGITS}.{part % 10**DIGITS:0{DIGITS}}"


def _row(shard: str, hour: int, owner: GpuOwner, quantity: str, cost: str, currency: str) -> FocusRow:
    begin = datetime.fromtimestamp(hour / 1000, UTC)
    month = begin.replace(day=1, hour=0)
    tags = {"cause": owner.cause.value, "pool": owner.pool, "queue": owner.queue}
    tags |= {"user": owner.user, "project": owner.project}
    found = FIXED | {
        "BillingAccountId": shard,
        "BillingAccountName": shard,
        "BillingCurrency": currency,
        "BillingPeriodStart": _time(month),
        "BillingPeriodEnd": _time((month + timedelta(days=32)).replace(day=1)),
        "ChargePeriodStart": _time(begin),
        "ChargePeriodEnd": _time(begin + timedelta(hours=1)),
        "ConsumedQuantity": quantity,
        "PricingQuantity": quantity,
        "ResourceId": owner.job,
        "ResourceName": owner.job,
        "SkuId": owner.flavor,
        "SubAccountId": owner.tenant,
        "SubAccountName": owner.tenant,
        "Tags": json.dumps({name: value for name, value in tags.items() if value}),
    }
    costs = dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), cost)
    return dict(sorted((found | costs).items()))


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"

"""
Budget of commands and bytes per tenant, by its limits; bytes count since the ledger keeps them for good.

Each replica counts for itself and charges each command as many times over as there are replicas: together they let in
what one would, as far as the load is spread evenly.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tessera.kernel.messaging.rates import MILLION, TokenBucket
from tessera.kernel.ports import Clock
from tessera_schemas.config import Limits
from tessera_schemas.reasons import RETRY_NUMBER, Code, Reason
from tessera_schemas.text.units import format_memory

HOLDERS_MAX = 10_000  # as many tenants as a configuration has; beyond that all begin anew


@dataclass(frozen=True, slots=True)
class _Purse:
    """`count` and `size` are None where there is no limit."""

    limits: Limits
    count: TokenBucket | None
    size: TokenBucket | None


class Budgets:
    def __init__(self, clock: Clock, replicas: Callable[[], int] = lambda: 1) -> None:
        self._clock, self._replicas = clock, replicas
        self._purses: dict[str, _Purse] = {}

    def spend(self, tenant: str, limits: Limits, size: int, count: int = 1) -> Reason | None:
        """Charge `count` things of `size` bytes together. Or charge nothing, and say why and when they may come."""
        purse, now_us, shares = self._purse(tenant, limits), int(self._clock.monotonic() * MILLION), self._replicas()
        charges = [
            (bucket, amount * shares, field)
            for bucket, amount, field in ((purse.count, count, "submits"), (purse.size, size, "bytes"))
            if bucket is not None and amount
        ]
        wait_us, field = max(
            ((bucket.wait_us(now_us, amount), field) for bucket, amount, field in charges), default=(0, "")
        )
        if wait_us:
            return _exceeded(field, limits, -(-wait_us // MILLION))
        for bucket, amount, _ in charges:
            bucket.take(now_us, amount)
        return None

    def _purse(self, tenant: str, limits: Limits) -> _Purse:
        """Other limits than before begin anew."""
        purse = self._purses.get(tenant)
        if purse is None or purse.limits != limits:
            if len(self._purses) >= HOLDERS_MAX:
                self._purses.clear()
            count = _bucket(limits.submits_per_second, limits.submits_burst)
            purse = self._purses[tenant] = _Purse(limits, count, _bucket(limits.bytes_per_second, limits.bytes_burst))
        return purse


def _bucket(per_second: int | None, burst: int) -> TokenBucket | None:
    return None if per_second is None else TokenBucket(per_second, burst)


def _exceeded(what: str, limits: Limits, seconds: int) -> Reason:
    if what == "bytes":
        granted = f"{format_memory(limits.bytes_per_second or 0)} a second, {format_memory(limits.bytes_burst)} at once"
    else:
        granted = f"{limits.submits_per_second} a second, {limits.submits_burst} at once"
    numbers = {RETRY_NUMBER: seconds}
    return Reason(
        code=Code.TENANT_BUDGET_EXCEEDED,
        field=f"limits.{what}_per_second",
        numbers=numbers,
        detail=f"granted: {granted}",
    )

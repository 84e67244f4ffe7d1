"""
Money: prices of GPU-hours by flavor and date, and what held GPUs cost by them. Integers alone.

Prices are in millionths of the currency's unit, since a GPU's slice for a second may cost less than a cent. What is
held is counted in thousandths of a GPU times milliseconds, at the price of each hour; only a shown amount is rounded,
once and down, so that the sum over any parts of the time is the whole.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from tessera_schemas.base import Count, Name, Strict

GPU_HOUR = 1000 * 3_600_000
"""A GPU-hour in thousandths of a GPU times milliseconds."""
CostRates = tuple[tuple[int, int], ...]
"""From when on held GPUs cost how much an hour: millionths of the currency's unit times thousandths of a GPU."""


@lru_cache(maxsize=4096)
def hour_ts(text: str) -> int:
    """The hour, in UTC, in milliseconds since the Unix epoch; 0 for "". Raises ValueError for no such hour."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000 if text else 0


def _is_hour(text: str) -> str:
    hour_ts(text)
    return text


class FlavorPrice(Strict):
    """Price of a GPU-hour on nodes of one flavor, until another price of the flavor begins."""

    flavor: Annotated[Name, Field(description="Flavor of the nodes")]
    gpu_hour_micros: Annotated[
        Count, Field(le=10**12, description="Price of a GPU-hour in millionths of the currency's unit; 2.10 is 2100000")
    ]
    since: Annotated[
        str,
        StringConstraints(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2})?)?$"),
        AfterValidator(_is_hour),
        Field(description="Day or hour in UTC from which it holds, as 2026-12-01 or 2026-12-01T08; empty: always"),
    ] = ""


class Money(Strict):
    """Currency and prices; GPUs of a flavor without a price cost nothing."""

    currency: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Z]{3}$"),
        Field(description="Word beside amounts, such as EUR; another one converts nothing"),
    ]
    prices: Annotated[tuple[FlavorPrice, ...], Field(max_length=1000, description="Prices by flavor and hour")] = ()

    @model_validator(mode="after")
    def _one_price_at_a_time(self) -> Self:
        for at, count in Counter((each.flavor, hour_ts(each.since)) for each in self.prices).items():
            if count > 1:
                raise ValueError(f"prices: two prices of flavor {at[0]} begin in the same hour; say one")
        return self

    def rates(self, held: Mapping[str, int], from_ms: int) -> CostRates:
        """Cost from a time on of holding so many thousandths of GPUs of each flavor, by changes of prices."""
        of_held = sorted((hour_ts(each.since), each.flavor, each.gpu_hour_micros) for each in self.prices)
        found, now = {from_ms: 0}, dict.fromkeys(held, 0)
        for since, flavor, price in of_held:
            if flavor in held:
                now[flavor] = price
                found[max(since, from_ms)] = sum(held[name] * each for name, each in now.items())
        return tuple(sorted(found.items()))

    def weighed(self, held: Mapping[str, int], ts: int) -> int:
        """Thousandths of GPUs by flavor, as so many of the one that is dearest then; without a price it is as dear."""
        begun = [(hour_ts(each.since), each.flavor, each.gpu_hour_micros) for each in self.prices]
        prices = {flavor: price for since, flavor, price in sorted(begun) if since <= ts}
        dearest = max(prices.values(), default=0) or 1
        return sum(milli * prices.get(flavor, dearest) for flavor, milli in held.items()) // dearest


def held_cost(rates: CostRates, from_ms: int, to_ms: int) -> int:
    """Cost of the time between, in millionths of the currency's unit times `GPU_HOUR`."""
    ends = (*(at for at, _ in rates[1:]), to_ms)
    return sum(
        rate * max(0, min(end, to_ms) - max(at, from_ms)) for (at, rate), end in zip(rates, ends, strict=bool(rates))
    )


def amount_text(micros: int, currency: str) -> str:
    """An amount to the last digit that is not zero, with two at least: `4.20 EUR`."""
    part = f"{micros % 10**6:06}"
    return f"{micros // 10**6}.{part[:2]}{part[2:].rstrip('0')} {currency}"

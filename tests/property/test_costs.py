"""What jobs cost by prices that change at any hour: the parts of a cost are the whole, to the last digit."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tessera_schemas.work.money import GPU_HOUR, FlavorPrice, Money, held_cost, hour_ts

HOUR = 3_600_000
START = hour_ts("2026-11-28")
FLAVORS = ("a100", "spot")

held = st.dictionaries(st.sampled_from(FLAVORS), st.integers(1, 64_000), min_size=1)
times = st.integers(START - 3 * HOUR, START + 30 * HOUR)


def price(flavor: str, hour: int, micros: int) -> FlavorPrice:
    since = datetime.fromtimestamp(START / 1000 + hour * 3600, UTC).strftime("%Y-%m-%dT%H")
    return FlavorPrice(flavor=flavor, gpu_hour_micros=micros, since=since)


prices = st.lists(
    st.builds(price, st.sampled_from(FLAVORS), st.integers(0, 29), st.integers(0, 10**7)),
    max_size=12,
    unique_by=lambda each: (each.flavor, each.since),
)


def plain(known: Sequence[FlavorPrice], holds: dict[str, int], at: int) -> int:
    """What it costs to hold this for a millisecond at a time, by looking through the prices."""
    return sum(
        gpu_milli
        * max(
            (
                (hour_ts(each.since), each.gpu_hour_micros)
                for each in known
                if each.flavor == flavor and hour_ts(each.since) <= at
            ),
            default=(0, 0),
        )[1]
        for flavor, gpu_milli in holds.items()
    )


@given(prices, held, st.lists(times, min_size=2, max_size=6).map(sorted))
def test_the_parts_of_a_cost_are_the_whole_wherever_the_time_is_cut(
    known: list[FlavorPrice], holds: dict[str, int], cuts: list[int]
) -> None:
    money = Money(currency="EUR", prices=tuple(known))
    whole = held_cost(money.rates(holds, cuts[0]), cuts[0], cuts[-1])
    parts = [held_cost(money.rates(holds, a), a, b) for a, b in pairwise(cuts)]
    seen_ahead = [held_cost(money.rates(holds, cuts[0]), a, b) for a, b in pairwise(cuts)]
    assert sum(parts) == sum(seen_ahead) == whole


@given(prices, held, times, st.integers(0, 5 * HOUR))
def test_each_hour_has_the_price_that_holds_in_it(
    known: list[FlavorPrice], holds: dict[str, int], begin: int, ms: int
) -> None:
    bounds = [
        begin,
        *(hour for hour in range(START - 4 * HOUR, START + 40 * HOUR, HOUR) if begin < hour < begin + ms),
        begin + ms,
    ]
    expected = sum(plain(known, holds, a) * (b - a) for a, b in pairwise(bounds))
    money = Money(currency="EUR", prices=tuple(known))
    assert held_cost(money.rates(holds, begin), begin, begin + ms) == expected


def test_a_gpu_for_an_hour_costs_its_price() -> None:
    money = Money(currency="EUR", prices=(FlavorPrice(flavor="a100", gpu_hour_micros=2_100_000),))
    assert held_cost(money.rates({"a100": 1000, "other": 1000}, START), START, START + HOUR) == 2_100_000 * GPU_HOUR

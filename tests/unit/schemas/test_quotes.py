"""Quotes of starts as people read them."""

import pytest

from tessera_schemas.shard.quotes import StartQuote

NOW, MINUTE, DAY = 1_763_836_558_000, 60_000, 86_400_000


def quote(*ahead_ms: int) -> StartQuote:
    at_10, at_50, at_80, at_95 = (NOW + each for each in ahead_ms)
    return StartQuote(ts=NOW, by_10_ts=at_10, by_50_ts=at_50, by_80_ts=at_80, by_95_ts=at_95)


@pytest.mark.parametrize(
    ("ahead_ms", "later_ms", "said"),
    [
        ((0, 12 * MINUTE, 40 * MINUTE, 130 * MINUTE), 0, "in 12m (50 %), by 40m (80 %), by 2h10m (95 %)"),
        ((0, 12 * MINUTE, 40 * MINUTE, 130 * MINUTE), 20 * MINUTE, "now (50 %), by 20m (80 %), by 1h50m (95 %)"),
        ((0, 2 * DAY, 29 * DAY, 31 * DAY), 0, "in 2d (50 %), by 29d (80 %), not within 30 days (95 %)"),
        ((0, 0, 0, 0), 0, "now"),
        ((0, 0, 0, 999), 0, "now"),
        ((0, MINUTE, MINUTE, MINUTE), DAY, "now"),
    ],
)
def test_bounds_are_told_from_now_on(ahead_ms: tuple[int, ...], later_ms: int, said: str) -> None:
    assert quote(*ahead_ms).in_words(NOW + later_ms) == said

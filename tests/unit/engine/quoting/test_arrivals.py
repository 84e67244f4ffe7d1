"""Arrivals that are drawn from the past."""

from itertools import islice, takewhile

from tessera.engine.quoting.arrivals import BLOCK_MS, DAY_MS, PastArrivals
from tessera.engine.quoting.chance import Draws
from tests.unit.engine.quoting.pools import MINUTE, shape

NOON = 12 * 60 * MINUTE


def at_noon(days: int) -> PastArrivals:
    past = PastArrivals(0)
    for day in range(days):
        for at in range(10):
            past.note(day * DAY_MS + NOON + at, shape())
    return past


def test_nothing_comes_where_nothing_was_seen() -> None:
    assert list(islice(PastArrivals().drawn(NOON, Draws(1)), 1)) == []
    assert list(islice(PastArrivals(NOON - BLOCK_MS // 2).drawn(NOON, Draws(1)), 1)) == []


def test_jobs_come_at_the_time_of_day_at_which_they_came_and_all_of_a_burst_together() -> None:
    now = 5 * DAY_MS
    drawn = takewhile(lambda each: each[0] < now + 3 * DAY_MS, at_noon(5).drawn(now, Draws(1)))
    found = [ts for ts, _ in drawn]
    assert found == [now + day * DAY_MS + NOON + at for day in range(3) for at in range(10)]


def test_before_a_day_has_passed_hours_of_another_time_of_day_stand_in() -> None:
    past = PastArrivals(0)
    for at in range(60):
        past.note(at * 10 * MINUTE, shape())
    now = 600 * MINUTE
    assert len(list(takewhile(lambda each: each[0] <= now + BLOCK_MS, past.drawn(now, Draws(1))))) in range(20, 28)

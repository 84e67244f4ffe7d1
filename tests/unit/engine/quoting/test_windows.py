"""Futures keep nodes in the windows of bookings as decisions do: shut to others, open to their own."""

from tessera.engine.quoting import Quote, quote
from tessera.engine.quoting.pool_now import PoolNow, Terms, WindowNow
from tests.unit.engine.quoting.pools import MINUTE, NOW, outlook, pool, running, shape, waiting

TEN, THREE = shape(8), shape(8, limit_ms=3 * MINUTE)
OWN, PROMISED = Terms("demo", elsewhere=False), Terms("promise-1", elsewhere=True)


def window(*nodes: int, begins: int = 5, ends: int = 65, booking: str = "demo") -> WindowNow:
    return WindowNow(NOW + begins * MINUTE, NOW + ends * MINUTE, nodes, booking)


def quotes(now: PoolNow) -> dict[str, Quote]:
    return {found.job_id: found for found in quote(outlook(now), 7)}


def test_who_would_not_have_left_by_a_window_waits_for_its_end() -> None:
    jobs = (waiting(TEN, "long"), waiting(THREE, "short"))
    found = quotes(pool(1, (), jobs, windows=(window(0),)))
    assert set(found["short"].waits_ms) == {0}
    assert set(found["long"].waits_ms) == {65 * MINUTE}


def test_who_may_be_preempted_starts_for_as_long_as_is_worth_while() -> None:
    leaves = waiting(TEN, "leaves")._replace(terms=Terms(stay_ms=2 * MINUTE))
    assert set(quotes(pool(1, (), (leaves,), windows=(window(0),)))["leaves"].waits_ms) == {0}


def test_other_nodes_are_open_as_before() -> None:
    assert set(quotes(pool(2, (), (waiting(TEN),), windows=(window(0),)))["mine"].waits_ms) == {0}


def test_a_job_of_a_reservation_starts_in_its_window_alone_and_finds_its_nodes_empty() -> None:
    own = waiting(TEN, "own")._replace(terms=OWN)
    found = quotes(pool(2, (running(TEN, 0, since_ms=0),), (own,), windows=(window(0),)))
    assert set(found["own"].waits_ms) == {5 * MINUTE}


def test_a_job_of_a_reservation_that_would_outlast_the_window_waits_for_the_next() -> None:
    own = waiting(TEN, "own")._replace(terms=OWN)
    windows = (window(0, begins=-55, ends=5), window(0, begins=120, ends=180))
    assert set(quotes(pool(1, (), (own,), windows=windows))["own"].waits_ms) == {120 * MINUTE}


def test_a_promised_job_starts_by_its_window_at_the_latest_and_keeps_nothing_after() -> None:
    hour = shape(8, limit_ms=60 * MINUTE)
    promised = waiting(THREE, "promised", waited_ms=MINUTE)._replace(terms=PROMISED)
    behind = waiting(TEN, "behind")
    kept = window(0, booking="promise-1")
    found = quotes(pool(1, (running(hour, 0, since_ms=0),), (promised, behind), windows=(kept,)))
    assert found["promised"].waits_ms[-1] <= 5 * MINUTE
    assert found["behind"].waits_ms[-1] <= 8 * MINUTE


def test_a_window_of_now_is_shut_from_the_beginning_and_open_once_it_is_over() -> None:
    found = quotes(pool(1, (), (waiting(THREE),), windows=(window(0, begins=-5, ends=7),)))
    assert set(found["mine"].waits_ms) == {7 * MINUTE}

"""A queue that may reorder: who goes next, nobody is passed by for long, and nothing is dropped that fits."""

import numpy as np
import pytest

from tessera.engine.pricing.dual_prices import Terms
from tessera.engine.pricing.packer import Ask, NodeRoom, Packer, PoolSize
from tessera.lab.pack import replay as replaying
from tessera.lab.pack.replay import RefusedThoughItFits, replay, stage
from tessera.lab.pack.window import Window, empty_line, join, leave, next_due, next_to_go, prices_of
from tests.unit.lab.pack.small_trace import TRACE

SHORT = Terms(draws=1, sales=1, lots=4)
SMALL = Window(waiting=4, delay=6)
WHOLE, HALF = Ask(4000, 10, 1, 1000), Ask(2000, 10, 1, 500)


def pool() -> tuple[Packer, np.ndarray]:
    """A node of two devices, one of which is half taken: a half has a perfect place there."""
    packer = Packer(PoolSize(nodes=1, devices=2, models=1, largest_cpu=32_000))
    packer.set_node(0, NodeRoom(32_000, 1000, 100, 0, (1000, 500)))
    for ask in (WHOLE, HALF):
        packer.add_class(ask)
    packer.price(((HALF.kind, 500_000), (WHOLE.kind, 1_000_000)))
    return packer, prices_of(packer.asks, packer.prices, len(packer.core.classes.cpu))


def line_of(*classes: int):
    line = empty_line(Window(waiting=8))
    for arrival, t in enumerate(classes):
        join(line, t, arrival)
    return line


def test_a_class_has_the_price_of_its_kind_and_one_without_gpu_has_none():
    packer, _ = pool()
    packer.add_class(Ask(1000, 1))
    assert prices_of(packer.asks, packer.prices, 4).tolist() == [1_000_000, 500_000, 0, 0]


def test_of_equals_the_oldest_goes_first():
    packer, price = pool()
    assert next_to_go(packer.core, price, line_of(1, 1, 1)) == 0


def test_who_fits_nowhere_goes_at_once_and_keeps_no_place_in_line():
    packer, price = pool()
    packer.place(0)
    assert next_to_go(packer.core, price, line_of(1, 0)) == 1


def test_all_may_wait_until_there_are_as_many_as_may():
    packer, price = pool()
    assert next_due(packer.core, price, line_of(0, 1), waiting=3, delay=9, arrival=1) == -1
    assert next_due(packer.core, price, line_of(0, 1, 1), waiting=3, delay=9, arrival=2) >= 0


def test_who_was_passed_by_long_enough_goes_whatever_the_prices_say():
    packer, price = pool()
    line = line_of(0, 1, 1)
    price[0] = -(10**9)
    assert next_due(packer.core, price, line, waiting=3, delay=9, arrival=8) == 1
    assert next_due(packer.core, price, line, waiting=3, delay=9, arrival=9) == 0


def test_who_leaves_gives_the_others_their_order_back():
    line = line_of(4, 5, 6)
    leave(line, 1)
    assert (line.classes[:2].tolist(), line.arrival[:2].tolist(), line.length[0]) == ([4, 6], [0, 2], 2)


@pytest.fixture
def told(monkeypatch):
    """What each run decides: (number of the arrival decided, arrivals so far), in the order of decision."""
    decided, fill = [], replaying._fill_waiting

    def watched(core, measure, price, line, window, wanted, first, last, placed, *rest):
        for arrival in range(first, last):
            before = placed.copy()
            fill(core, measure, price, line, window, wanted, arrival, arrival + 1, placed, *rest)
            decided.extend((int(at), arrival) for at in np.flatnonzero(placed != before))

    monkeypatch.setattr(replaying, "_fill_waiting", watched)
    monkeypatch.setattr(replaying, "UNDECIDED", -9)
    return decided


@pytest.mark.parametrize("window", [SMALL, Window(waiting=3, delay=2), Window(waiting=1, delay=9)])
def test_everybody_is_decided_once_and_nobody_is_passed_by_more_than_so_many_arrivals(told, window):
    run = replay(stage(TRACE), "tessera", seed=2, terms=SHORT, window=window)
    assert sorted(at for at, _ in told) == list(range(run.arrivals))
    assert all(0 <= when - at <= window.delay for at, when in told)


def test_a_window_of_one_is_the_order_of_arrival():
    one = replay(stage(TRACE), "tessera", seed=3, terms=SHORT, window=Window(waiting=1))
    other = replay(stage(TRACE), "tessera", seed=3, terms=SHORT)
    assert np.array_equal(one.allocated, other.allocated)


def test_a_waiting_pod_that_is_dropped_although_it_fits_ends_the_run(monkeypatch):
    def wrong(*args):
        args[8].fill(-2)

    monkeypatch.setattr(replaying, "_fill_waiting", wrong)
    with pytest.raises(RefusedThoughItFits):
        replay(stage(TRACE), "tessera", seed=1, terms=SHORT, window=SMALL)

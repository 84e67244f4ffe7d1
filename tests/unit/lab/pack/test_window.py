"""A queue that may reorder: who goes next, nobody is passed by for long, and nothing is dropped that fits."""

import numpy as np
import pytest

from tessera.domain.devices.resources import Need
from tessera.domain.mix import kind_of
from tessera.engine.placement.gangs import FreeCapacity
from tessera_lab.pack.baselines import BASELINES
from tessera_lab.pack.cluster import RefusedThoughItFits, gang_for
from tessera_lab.pack.learning import CommitterPolicy, FixedScoring
from tessera_lab.pack.replay import Filling, replay
from tessera_lab.pack.window import WaitingPods, Window
from tessera_lab.traces.alibaba import TracePod
from tessera_schemas.reasons import Code, Reason
from tests.unit.lab.pack.one_node import node, share, trace_of, whole
from tests.unit.lab.pack.small_trace import TRACE

SMALL = Window(waiting=4, delay=6)
WHOLE, HALF = whole(), share(500)


class Placed:
    """One node of two devices, one of which is half taken: a half has a perfect place there."""

    def __init__(self, **prices: int) -> None:
        self.scoring, self.found = FixedScoring(BASELINES["fgd"](trace_of(pods=(WHOLE, HALF)), 1)), list[int]()
        self.capacity = FreeCapacity([node(1000, 500)], scoring=self.scoring.in_force())
        self.scoring.price = lambda need: prices["half" if need.gpu_milli else "whole"]

    def place(self, pod: TracePod, number: int) -> None:
        self.found.append(number)


def line_of(window: Window, *pods: TracePod, half: int = 500_000, whole: int = 1_000_000) -> WaitingPods:
    line = WaitingPods(window, Placed(half=half, whole=whole))
    line.waiting = [(pod, arrival) for arrival, pod in enumerate(pods)]
    return line


def found_by(line: WaitingPods) -> list[int]:
    """Who was placed, in order."""
    placed = line._filling
    assert isinstance(placed, Placed)
    return placed.found


def test_a_kind_is_worth_what_it_holds_while_nobody_has_priced_it():
    committer = CommitterPolicy("tessera", [])
    assert committer.price(gang_for(HALF)[0].need) == 500_000
    assert committer.price(Need(1000, 1)) == 0
    assert kind_of(gang_for(WHOLE)[0].need).gpus == 1


def test_of_equals_the_oldest_goes_first():
    assert line_of(SMALL, HALF, HALF, HALF).next_to_go() == 0


def test_who_fits_nowhere_goes_at_once_and_keeps_no_place_in_line():
    assert line_of(SMALL, HALF, whole(2)).next_to_go() == 1


def test_all_may_wait_until_there_are_as_many_as_may():
    line = line_of(Window(waiting=3, delay=9), WHOLE)
    line.join(HALF, 1, last=False)
    assert len(line.waiting) == 2
    line.join(HALF, 2, last=False)
    assert len(line.waiting) == 2


def test_who_was_passed_by_long_enough_goes_whatever_the_prices_say():
    for arrival, first in ((8, 1), (9, 0)):
        line = line_of(Window(waiting=3, delay=9), WHOLE, HALF, whole=-(10**9))
        line.join(HALF, arrival, last=False)
        assert found_by(line)[0] == first


def test_after_the_last_arrival_everybody_goes():
    line = line_of(SMALL, WHOLE)
    line.join(HALF, 1, last=True)
    assert (line.waiting, sorted(found_by(line))) == ([], [0, 1])


@pytest.mark.parametrize("window", [SMALL, Window(waiting=3, delay=2), Window(waiting=1, delay=9)])
def test_everybody_is_decided_once_and_nobody_is_passed_by_more_than_so_many_arrivals(monkeypatch, window):
    decided, now, see, place = [], [-1], Filling.see, Filling.place

    def seen(filling, pod):
        now[0] += 1
        see(filling, pod)

    def placed(filling, pod, number):
        decided.append((number, now[0]))
        place(filling, pod, number)

    monkeypatch.setattr(Filling, "see", seen)
    monkeypatch.setattr(Filling, "place", placed)
    run = replay(TRACE, "tessera", seed=2, window=window)
    assert sorted(at for at, _ in decided) == list(range(run.arrivals))
    assert all(0 <= when - at <= window.delay for at, when in decided)


def test_a_window_of_one_is_the_order_of_arrival():
    one, other = replay(TRACE, "tessera", seed=3, window=Window(waiting=1)), replay(TRACE, "tessera", seed=3)
    assert np.array_equal(one.allocated, other.allocated)


def test_a_waiting_pod_that_is_dropped_although_it_fits_ends_the_run(monkeypatch):
    monkeypatch.setattr(FreeCapacity, "place", lambda capacity, gang: Reason(code=Code.NO_FIT))
    with pytest.raises(RefusedThoughItFits):
        replay(TRACE, "tessera", seed=1, window=SMALL)

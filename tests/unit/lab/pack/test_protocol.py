"""The published protocol: arrivals, node order and how a run is read."""

from collections import Counter

import numpy as np
import pytest

from tessera_lab.pack.cluster import RefusedThoughItFits
from tessera_lab.pack.protocol import arrivals, curve, load_percent, node_order
from tessera_lab.pack.replay import FreeCapacity, replay
from tessera_lab.pack.summary import figures, lines
from tessera_schemas.reasons import Code, Reason
from tests.unit.lab.pack.small_trace import TRACE


def test_every_pod_of_the_trace_arrives_once_before_any_comes_again():
    order = arrivals([100] * 50, seed=1, cluster_gpu_milli=10_000)
    assert Counter(order[:50].tolist()) == Counter(range(50))
    assert len(order) == 130


def test_arrivals_end_before_the_one_that_would_pass_130_percent():
    asked = [300, 700, 1000]
    total = sum(asked[n] for n in arrivals(asked, seed=3, cluster_gpu_milli=10_000).tolist())
    assert 12_000 < total <= 13_000


def test_arrivals_and_node_order_are_functions_of_the_seed():
    assert arrivals([1] * 9, 5, 90).tolist() == arrivals([1] * 9, 5, 90).tolist() != arrivals([1] * 9, 6, 90).tolist()
    assert node_order(9, 5).tolist() == node_order(9, 5).tolist() != node_order(9, 6).tolist()
    assert sorted(node_order(9, 5).tolist()) == list(range(9))


def test_load_is_rounded_to_whole_percent_half_of_one_upwards():
    assert load_percent(np.array([4, 1, 9, 1, 5]), 1000).tolist() == [0, 1, 1, 2, 2]


def test_the_curve_is_the_mean_over_the_arrivals_of_each_percent_or_the_one_before():
    read = curve(np.array([1, 1, 3]), np.array([2.0, 4.0, 9.0]))
    assert read[1] == 3.0
    assert (read[0], read[2], read[3], read[130]) == (0.0, 3.0, 9.0, 9.0)
    assert len(read) == 131


@pytest.mark.parametrize("policy", ["random", "fgd", "tessera"])
def test_a_run_allocates_what_arrives_until_the_cluster_is_full(policy):
    run = replay(TRACE, policy, seed=1, causes=True)
    assert 50 < run.allocated[130] <= 100
    assert (np.diff(run.allocated) >= -1e-9).all()
    last = run.causes[run.causes.sum(axis=1) > 0][-1]
    assert last.sum() == pytest.approx((100 - run.allocated[130]) * 16 / 100, abs=0.01)


def test_equal_runs_are_equal():
    one, two = (replay(TRACE, "tessera", seed=4) for _ in range(2))
    assert np.array_equal(one.allocated, two.allocated)


def test_a_pod_that_is_dropped_although_it_fits_ends_the_run(monkeypatch):
    monkeypatch.setattr(FreeCapacity, "place", lambda capacity, gang: Reason(code=Code.NO_FIT))
    with pytest.raises(RefusedThoughItFits, match="bestfit, seed 1, arrival 0"):
        replay(TRACE, "bestfit", seed=1)


def test_the_table_shows_the_difference_to_what_was_published():
    runs = [replay(TRACE, "fgd", seed) for seed in (1, 2)]
    rows = figures("small", runs, {("small", "FGD", "alloc_pct", 130): (90.0, 0.1)})
    at_130 = next(row for row in rows if row.metric == "alloc_pct" and row.arrived_load_pct == 130)
    assert at_130.difference == pytest.approx(at_130.mean - 90, abs=1e-3)
    assert f"({at_130.difference:+.2f})" in lines(rows)[1]

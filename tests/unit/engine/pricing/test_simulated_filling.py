"""Prices chosen by filling the cluster on paper."""

import numpy as np
import pytest

from tessera.engine.pricing import simulated_filling as rehearsal
from tessera.engine.pricing.dual_prices import SolverTerms, draw_tables, learn_prices
from tessera.engine.pricing.fragmentation import TypicalPod
from tessera.engine.pricing.packer import Packer
from tessera.engine.pricing.simulated_filling import (
    FillingTerms,
    _arrivals,
    _groups,
    _order,
    _scaled,
    _used,
    choose_prices,
)
from tessera.engine.pricing.worth_tables import Shape

BOUND, FREE, LONELY = TypicalPod(4000, 1000, 1, 0b10), TypicalPod(4000, 1000, 1, 0), TypicalPod(2000, 0, 0, 0)
MIX = {BOUND: 20, FREE: 80, LONELY: 10}
SHAPES = (Shape(0, 8, 96_000, 9), Shape(1, 8, 96_000, 3))
SHORT = FillingTerms(rounds=1, tries=12, kept=1, first_group=1, next_group=1)
KEEPS = ((FREE, 900_000), (BOUND, 1_400_000))  # the scarce model stays free for those bound to it
SPOILS = ((FREE, 1_400_000), (BOUND, 100_000))


def test_prices_that_fill_the_cluster_better_are_kept(monkeypatch):
    monkeypatch.setattr(rehearsal, "_used", lambda packer, prices, wanted, asked: dict(prices)[BOUND])
    assert choose_prices(MIX, SHAPES, 2, [SPOILS, KEEPS, SPOILS, SPOILS], SHORT) == KEEPS


def test_use_is_measured_once_arrivals_equal_the_capacity_and_again_at_the_end():
    packer = Packer([Shape(0, 8, 96_000, 2)], 1, {FREE: 1}, 10_000)
    for arrivals, used in ((12, 12_000 + 12_000), (20, 16_000 + 16_000)):
        wanted = np.zeros(arrivals, np.int64)
        assert _used(packer, ((FREE, 1_000_000),), wanted, wanted + 1000) == used


def test_a_node_of_more_gpus_than_bits_are_kept_for_is_refused():
    with pytest.raises(ValueError, match="no cluster of this size"):
        Packer([Shape(0, 33, 96_000, 1)], 1, {FREE: 1}, 10_000)


def test_equal_questions_have_equal_answers_whatever_the_order_of_the_mix():
    tables = draw_tables(MIX, SHAPES, 2, SolverTerms(draws=4, repeats=1, batches=4))
    backwards = dict(reversed(MIX.items()))
    assert choose_prices(MIX, SHAPES, 2, tables, SHORT) == choose_prices(backwards, SHAPES, 2, tables, SHORT)


def test_the_mean_of_all_draws_is_what_is_learnt_without_a_rehearsal():
    terms = SolverTerms(draws=4, repeats=1, batches=4)
    tables = draw_tables(MIX, SHAPES, 2, terms)
    assert len(tables) == 4
    for at, (kind, price) in enumerate(learn_prices(MIX, SHAPES, 2, terms)):
        assert all(table[at][0] == kind for table in tables)
        assert price == pytest.approx(sum(table[at][1] for table in tables) / 4, rel=0.05)


def test_the_mean_of_all_is_always_among_those_tried():
    found = np.array([[0, 8], [4, 0]])
    assert _groups(found, 0, SHORT)[0].tolist() == [2, 4]
    assert {tuple(row) for row in _groups(found, 0, SHORT)[1:].tolist()} <= {(0, 8), (4, 0)}


def test_arrivals_come_by_their_shares_and_end_before_they_ask_for_too_much():
    asked = np.array([1000, 500, 250])
    drawn = _arrivals(np.array([10, 10, 40]), asked, 0, 1_000_000)
    assert set(drawn.tolist()) == {0, 2}
    assert 995_000 < asked[drawn].sum() <= 1_000_000
    assert 2 < (drawn == 2).sum() / (drawn == 0).sum() < 4.5
    assert drawn.tolist() != _arrivals(np.array([10, 10, 40]), asked, 1, 1_000_000).tolist()


def test_a_mix_without_gpus_never_arrives():
    assert len(_arrivals(np.array([5]), np.array([0]), 0, 1000)) == 0


def test_the_order_of_nodes_is_a_permutation_of_its_own_each_time():
    assert sorted(_order(50, 1).tolist()) == list(range(50))
    assert _order(50, 1).tolist() != _order(50, 2).tolist()


def test_a_large_cluster_is_rehearsed_on_a_smaller_one_with_every_shape():
    small = _scaled((Shape(0, 8, 1, 90_000), Shape(1, 8, 1, 9_999), Shape(2, 8, 1, 1)), 1000)
    assert [shape.nodes for shape in small] == [900, 99, 1]
    assert _scaled(SHAPES, 1000) == list(SHAPES)


def test_weights_of_a_very_long_history_do_not_overflow():
    many = {kind: weight << 26 for kind, weight in MIX.items()}
    assert choose_prices(many, SHAPES, 2, [KEEPS], SHORT) == KEEPS

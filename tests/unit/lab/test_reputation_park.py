"""Bad nodes of a simulated park are found by the runs that they fail, and programs' own faults take no good node."""

import pytest

from tessera_lab.reputation import SimulatedPark, Simulation, report

SMALL = SimulatedPark(nodes=300, bad=4, days=4)


@pytest.mark.parametrize("seed", [101, 102])
def test_each_bad_node_is_found_within_few_failures_and_hardly_any_good_one_is_taken(seed: int):
    found = Simulation(SMALL, seed).run()
    assert (len(found.after_failures), found.missed) == (4, 0)
    assert max(found.suspected_after) <= 3
    assert max(found.after_failures) <= 4
    assert found.good_taken <= 3  # of 296: 1 %


def test_a_park_without_bad_nodes_loses_hardly_any():
    found = Simulation(SimulatedPark(nodes=300, bad=0, days=4), 103).run()
    assert (found.after_failures, found.missed) == ((), 0)
    assert found.good_taken <= 3


def test_the_same_seed_finds_the_same():
    assert report(SMALL, [101])[0] == report(SMALL, [101])[0]


def test_tests_of_suspects_find_them_no_later_and_take_hardly_any_good_one():
    found = Simulation(SimulatedPark(nodes=300, bad=4, days=4, test_minutes=15), 101).run()
    assert (len(found.after_failures), found.missed) == (4, 0)
    assert sum(found.after_failures) <= sum(Simulation(SMALL, 101).run().after_failures)
    assert found.good_taken <= 3

"""How many nodes of each model are priced once some models are fuller than others."""

import pytest

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Node
from tessera.domain.mix import Mix, MixKind, Seen
from tessera.domain.storing.fast import replace
from tessera.engine.pricing.pricing_problem import LEFT_FROM, Occupancy, make_pricing_problem, occupancy_of
from tests.builders import node_seen

ANY, BOUND = MixKind(1000, 1000, 1), MixKind(1000, 1000, 1, ("l40",))
LASTING = 0


def nodes(model: str, free: int, count: int = 10) -> list[Node]:
    """So many nodes of four GPUs, of which so many thousandths are free."""
    made = [empty_node(node_seen(f"{model}-{number}", 4, gpu_model=model)) for number in range(count)]
    return [replace(node, gpu_free=(free,) * 4) for node in made]


def mix(arrivals: int = LEFT_FROM) -> Mix:
    return Mix("default", arrivals=arrivals, settled=1, known=((ANY, 1000), (BOUND, 1000)))


def priced(there: list[Node], asked: tuple[MixKind, ...], turnover: int, arrivals: int = LEFT_FROM) -> list[int]:
    """Number of nodes of each model in the problem."""
    found = make_pricing_problem(mix(arrivals), there, rehearsed=False, occupancy=Occupancy(asked, turnover))
    assert found is not None
    return [count for *_, count in found.shapes]


def test_of_a_model_that_is_fuller_fewer_nodes_are_left_to_price():
    there = nodes("a100", free=800) + nodes("l40", free=200)
    assert priced(there, (ANY, BOUND), LASTING) == [10, 2]


def test_models_that_no_job_tells_apart_are_priced_as_if_empty():
    there = nodes("a100", free=800) + nodes("l40", free=200)
    assert priced(there, (ANY,), LASTING) == [10, 10]


def test_models_that_fill_up_alike_are_priced_as_if_empty():
    there = nodes("a100", free=300) + nodes("l40", free=300)
    assert priced(there, (ANY, BOUND), LASTING) == [10, 10]


@pytest.mark.parametrize(("turnover", "left"), [(0, 2), (500, 6), (1000, 10)])
def test_what_comes_free_again_counts_as_left(turnover, left):
    there = nodes("a100", free=1000) + nodes("l40", free=200)
    assert priced(there, (ANY, BOUND), turnover) == [10, left]


def test_a_full_model_keeps_a_node_and_the_last_few_gpus_decide_nothing():
    assert priced(nodes("a100", free=1000) + nodes("l40", free=0), (ANY, BOUND), LASTING) == [10, 1]
    assert priced(nodes("a100", free=25) + nodes("l40", free=0), (ANY, BOUND), LASTING) == [10, 10]


def test_before_enough_has_come_the_pool_is_priced_as_if_empty():
    there = nodes("a100", free=800) + nodes("l40", free=200)
    assert priced(there, (ANY, BOUND), LASTING, arrivals=LEFT_FROM - 1) == [10, 10]


def test_turnover_is_the_part_of_the_pods_that_came_and_do_not_run():
    rows = [Seen("a", "default", ANY, 3), Seen("b", "other", BOUND, 3), Seen("c", "default", MixKind(1000, 0, 0), 3)]
    assert occupancy_of(mix(400), rows, running=100) == Occupancy([ANY], 750)
    assert occupancy_of(mix(400), rows, running=900).turnover == 0
    assert occupancy_of(mix(0), rows, running=0).turnover == 1000

"""What the free part of a node could earn, against trying every way to fill it."""

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.engine.pricing.worth import (
    _best_split_loop,
    _best_split_numpy,
    forget,
)
from tests.unit.engine.pricing.worth_builders import PRICES, priced, worth_of


def most(free, cpu, model):
    """The most that fits by trying all: each kind on each device it could take."""

    @cache
    def best(free, cpu):
        found = 0
        for kind, price in PRICES:
            if kind.cpu_milli > cpu or (kind.models and not kind.models >> model & 1):
                continue
            if kind.gpus > 1:
                holds = [at for at, left in enumerate(free) if left == 1000]
                options = [tuple(holds[: kind.gpus])] if len(holds) >= kind.gpus else []
            else:
                options = [(at,) for at, left in enumerate(free) if left >= kind.gpu_milli]
            for taken in options:
                left = tuple(sorted(have - kind.gpu_milli * (at in taken) for at, have in enumerate(free)))
                found = max(found, price + best(left, cpu - kind.cpu_milli))
        return found

    return best(tuple(sorted(free)), cpu)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0, 200, 300, 500, 600, 800, 1000]), min_size=1, max_size=3),
    st.integers(0, 14).map(lambda n: n * 1000),
    st.integers(0, 1),
)
def test_the_worth_of_a_node_is_the_most_that_could_be_earned_there(free, cpu, model):
    assert worth_of(priced(free, cpu, model), 0) == most(free, cpu, model)


def test_forgetting_all_states_changes_no_worth():
    packer = priced((300, 1000, 500), 9000, 0)
    before = worth_of(packer, 0)
    forget(packer.core.worth)
    assert worth_of(packer, 0) == before > 0


tables = st.lists(st.integers(0, 2**27), min_size=5, max_size=5).map(lambda row: np.array(sorted(row), np.int32))


@settings(deadline=None)
@given(tables, tables, st.integers(0, 4))
def test_both_ways_to_split_cpu_between_two_parts_agree(one, other, cpu):
    assert _best_split_loop(one, other, cpu) == _best_split_numpy(one, other, cpu)
    assert _best_split_numpy(one, other, cpu) == max(int(one[x]) + int(other[cpu - x]) for x in range(cpu + 1))

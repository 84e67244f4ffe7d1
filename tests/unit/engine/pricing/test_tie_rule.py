"""Among equal nodes the order decides, on a node the device number: published figures rest on it."""

import pytest

from tessera.engine.pricing.packer import Place
from tessera.engine.pricing.policies import POLICIES
from tests.unit.engine.pricing.pools import pool, room, share, whole

SCORED = [name for name in POLICIES if name != "random"]


@pytest.mark.parametrize("policy", SCORED)
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_among_equal_nodes_the_first_in_the_given_order_wins(policy, order):
    packer = pool(*[room(1000, 1000)] * 3, policy=policy, order=order)
    placed = packer.place(packer.add_class(whole()))
    assert placed == Place(order.index(0), 0b01)


@pytest.mark.parametrize("policy", POLICIES)
def test_whole_gpus_take_the_lowest_free_devices(policy):
    packer = pool(room(1000, 400, 1000, 1000), policy=policy)
    assert packer.place(packer.add_class(whole(2))) == Place(0, 0b0101)


@pytest.mark.parametrize("policy", ["bestfit", "dotprod", "gpu-packing", "gpu-clustering"])
def test_a_share_takes_the_tightest_device_and_then_the_lowest(policy):
    packer = pool(room(1000, 500, 400, 400), policy=policy)
    assert packer.place(packer.add_class(share(300))) == Place(0, 0b0100)


@pytest.mark.parametrize("policy", ["fgd", "tessera"])
def test_equal_devices_are_taken_from_the_lowest_on(policy):
    packer = pool(room(500, 500, 500), policy=policy)
    assert packer.place(packer.add_class(share(500))) == Place(0, 0b001)


def test_an_order_that_names_a_place_twice_is_refused():
    with pytest.raises(ValueError, match="permutation"):
        pool(room(1000), room(1000), order=[0, 0])


def test_chance_is_a_function_of_the_seed():
    def drawn(seed):
        packer = pool(*[room(*[1000] * 8)] * 16, policy="random", seed=seed)
        return packer.place_all([packer.add_class(whole())] * 12)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len({place.node for place in drawn(1)}) > 4

"""Nodes and classes that come, change and go; and input that is refused."""

import numpy as np
import pytest

from tessera.engine.pricing.packer import Ask, Packer, Place, PoolSize
from tests.unit.engine.pricing.pools import pool, room, share, whole


def test_a_pod_that_fits_nowhere_gets_no_place():
    packer = pool(room(1000, 400))
    assert packer.place(packer.add_class(whole(2))) is None


def test_a_node_that_was_removed_gets_nothing_more_and_takes_back_what_ran_there():
    packer = pool(room(1000))
    one = packer.add_class(whole())
    placed = packer.place(one)
    packer.remove_node(0)
    packer.release(one, placed)
    assert packer.place(one) is None
    assert packer.room(0).free == (1000,)


def test_a_node_that_is_set_anew_counts_as_it_is_now():
    packer = pool(room(0), room(0))
    one = packer.add_class(whole())
    assert packer.place(one) is None
    packer.set_node(1, room(1000, 1000))
    assert packer.place(one) == Place(1, 0b01)


def test_a_mask_rules_nodes_out_for_one_class_only():
    packer = pool(room(1000), room(1000))
    masked = packer.add_class(whole(), np.array([0, 1], np.uint8))
    free = packer.add_class(whole())
    assert packer.place(masked).node == 1
    assert packer.place(free).node == 0
    packer.allow(masked, None)
    assert packer.place(masked) is None


def test_models_are_bits_of_the_nodes_that_may_be_taken():
    packer = pool(room(1000, model=0), room(1000, model=2))
    assert packer.place(packer.add_class(whole(models=0b100))).node == 1
    assert packer.place(packer.add_class(whole(models=0b010))) is None


def test_more_classes_than_were_planned_for_keep_what_is_known():
    packer = pool(*[room(*[1000] * 8)] * 20)
    first = packer.add_class(whole())
    packer.place(first)
    classes = [packer.add_class(share(10 + n)) for n in range(40)]
    assert packer.place(first).node == 0
    assert None not in packer.place_all(classes)


@pytest.mark.parametrize(
    "ask", [Ask(1, 1, 2, 500), Ask(1, 1, 1, 0), Ask(1, 1, 1, 1001)], ids=["a share of two", "nothing", "more than all"]
)
def test_a_share_that_cannot_be_is_refused(ask):
    with pytest.raises(ValueError, match="share"):
        pool(room(1000)).add_class(ask)


def test_a_node_with_more_devices_than_the_pool_was_made_for_is_refused():
    with pytest.raises(ValueError, match="pool's size"):
        pool(room(1000)).set_node(0, room(*[1000] * 9))


def test_a_pool_of_no_nodes_is_refused():
    with pytest.raises(ValueError, match="no pool"):
        Packer(PoolSize(nodes=0, devices=8, models=1, largest_cpu=1000))

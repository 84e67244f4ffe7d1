"""Why free GPUs are not used: one cause each, and all together exactly what is free."""

from tessera.engine.pricing.stranding import Cause, slots, stranded
from tests.unit.engine.pricing.pools import pool, room, share, whole, without_gpu


def causes(node, asks):
    row = stranded(pool(node).core.nodes, asks)[0]
    return {cause: int(row[cause]) for cause in Cause if row[cause]}


def test_each_cause_is_named_in_the_order_of_the_tests():
    one = {whole(cpu=4000, memory=10, models=0b01): 1}
    assert causes(room(1000, model=1), one) == {Cause.MODEL: 1000}
    assert causes(room(500, cpu=0), one) == {Cause.SHAPE: 500}
    assert causes(room(1000, cpu=0), one) == {Cause.CPU: 1000}
    assert causes(room(1000, memory=9), one) == {Cause.MEMORY: 1000}
    assert causes(room(1000, pods=0), one) == {Cause.PODS: 1000}
    assert causes(room(1000, 300), one) == {Cause.USABLE: 1000, Cause.SHAPE: 300}


def test_kinds_share_a_node_by_how_often_they_come():
    assert causes(room(400), {share(400): 3, whole(): 1}) == {Cause.USABLE: 300, Cause.SHAPE: 100}


def test_what_does_not_divide_goes_to_the_largest_remainder():
    assert causes(room(100), {share(100): 2, whole(): 1}) == {Cause.USABLE: 67, Cause.SHAPE: 33}


def test_pods_without_gpu_say_nothing_about_gpus():
    assert causes(room(1000), {without_gpu(): 9}) == {Cause.USABLE: 1000}


def test_slots_are_counted_node_by_node():
    nodes = pool(room(1000, 1000, 1000), room(1000, 900), room(*[1000] * 8)).core.nodes
    assert slots(nodes) == {1: 12, 2: 5, 4: 2, 8: 1}

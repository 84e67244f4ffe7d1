"""Devices that drivers publish are drawn for claims: which are chosen, and what is told where there are none."""

from typing import Any

import pytest

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.offers import DeviceClass, Offer, amounts_of
from tessera.domain.devices.resources import Need, Node
from tessera.domain.storing.fast import replace
from tessera.engine.claims.drawing import (
    Drawn,
    FreeOffer,
    count_sets,
    draw,
    free_devices,
    is_answer,
    named,
    why_never,
)
from tessera.engine.claims.solving import Solver
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import kind_of
from tessera.engine.placement.rows.table import NodeTable
from tessera.engine.scoring.protocol import BEST_FIT
from tessera_schemas.cluster.device_layouts import DeviceCapacity
from tests.builders import node_seen
from tests.unit.engine.device_builders import (
    MEMORY,
    by_part,
    choice,
    claim,
    cut_gpus,
    device,
    drawn,
    had,
    match,
    offer,
    shortage,
)

SICK = ("XidError", "79", "NoExecute")


def node(name: str, **more: Any) -> Node:
    return replace(empty_node(node_seen(name, 0)), **more)


def test_an_instance_goes_into_the_gpu_that_is_cut_already() -> None:
    devices, counters = cut_gpus(3)
    parts = by_part(devices)
    free = FreeOffer(offer(devices, counters, parts), taken=had(parts["1g"][7]))
    assert devices[drawn(free, claim(choice("1g")))[0].index].name.startswith("gpu1-1g")
    assert devices[drawn(free, claim(choice("7g")))[0].index].name == "gpu0-7g-0"


def test_an_instance_lies_where_it_rules_out_the_fewest_others() -> None:
    devices, counters = cut_gpus(1)
    parts = by_part(devices)
    free = FreeOffer(offer(devices, counters, parts))
    # Slice 6 alone is in no place of two slices.
    assert devices[drawn(free, claim(choice("1g")))[0].index].name == "gpu0-1g-6"


def test_as_many_sets_are_counted_as_fit_one_after_the_other() -> None:
    devices, counters = cut_gpus(8)
    free = FreeOffer(offer(devices, counters, by_part(devices)))
    assert [count_sets(free, (claim(choice(part)),), 100) for part in ("7g", "3g", "2g", "1g")] == [8, 16, 24, 56]
    assert count_sets(free, (claim(choice("1g")),), 5) == 5
    assert count_sets(free, (claim(choice("7g", 9)),), 5) == 0


def test_administrators_take_nothing() -> None:
    free = FreeOffer(offer([device("a"), device("b")]), taken=had(0, 1))
    look = claim(choice(count=0, admin=True))
    assert [(each.index, each.admin) for each in drawn(free, look)] == [(0, True), (1, True)]
    assert count_sets(free, (look,), 40) == 40


def test_of_many_nodes_only_the_one_that_changed_is_asked_again_for_room() -> None:
    devices, counters = cut_gpus(2)
    offered = offer(devices, counters, by_part(devices))
    nodes = {f"n{at:03}": node(f"n{at:03}", offer=offered) for at in range(100)}
    table = NodeTable(nodes, FeasibleNodes(nodes, BEST_FIT))
    kind = kind_of((Need(0, 0, claims=(claim(choice("7g")),)),))
    assert not table.misses(kind).any()
    before = asked_for_room()
    nodes["n042"] = replace(nodes["n042"], drawn=tuple((f"gpu.example.com/n042/gpu{at}-1g-0", ()) for at in (0, 1)))
    table.changed("n042")
    table.refresh()
    assert table.misses(kind).nonzero()[0].tolist() == [42]
    assert asked_for_room() - before == 1


def asked_for_room() -> int:
    """Number of questions so far of how many pods a node takes, whether the answer was known or not."""
    known = count_sets.cache_info()
    return known.hits + known.misses


def test_what_is_free_of_a_node_is_made_once_until_it_changes() -> None:
    offered = offer([device("a"), device("b")])
    first = node("n1", offer=offered)
    assert free_devices(first) is free_devices(first)
    second = replace(first, drawn=(("gpu.example.com/n1/b", ()),))
    assert free_devices(second) == FreeOffer(offered, taken=had(1))
    assert free_devices(first) == FreeOffer(offered)


def test_nodes_of_one_make_in_one_state_are_one_question() -> None:
    offered = offer([device("a"), device("b")])
    one, other = (
        node(
            name,
            offer=offered,
            drawn=((f"gpu.example.com/{name}/b", ()),),
            tainted=((f"gpu.example.com/{name}/a", *SICK),),
        )
        for name in ("n1", "n2")
    )
    assert free_devices(one) == free_devices(other) == FreeOffer(offered, ((0, *SICK),), had(1))
    draw(free_devices(one), (claim(choice()),))
    before = draw.cache_info().misses
    draw(free_devices(other), (claim(choice()),))
    assert draw.cache_info().misses == before


def test_a_device_that_the_offer_does_not_have_is_left_out() -> None:
    known = node("n1", offer=offer([device("a")]), drawn_by_others=(("gpu.example.com/n1/gone", ()),))
    assert free_devices(known) == FreeOffer(known.offer)
    assert free_devices(node("n1")) == FreeOffer(Offer(""))


def test_drawn_devices_are_named_as_their_driver_names_them_on_the_node() -> None:
    free = FreeOffer(offer([device("a", capacity={MEMORY: DeviceCapacity(value=8)}, shared=True)]))
    wanted = claim([choice(name="best", capacity=((MEMORY, 3),))])
    (each,) = named(tuple(drawn(free, wanted)), free.offer, "n7")
    assert (each.id, each.claim, each.request, each.capacity) == (
        "gpu.example.com/n7/a",
        "c",
        "r0/best",
        ((MEMORY, 3),),
    )


def test_a_shortage_says_how_many_match_and_what_hinders_them() -> None:
    free = FreeOffer(
        offer([device(name) for name in "abcdef"], selected={"large": range(5)}),
        tuple((at, *SICK) for at in (3, 4)),
        had(0, 1, 2),
    )
    told = shortage(free, claim(choice("large")))
    assert (told.claim, told.request, told.device_class, told.count) == ("c", "r0", "large", 1)
    assert (told.matching, told.taken, told.tainted, told.unfit) == (5, 3, (("XidError", 2),), 0)


def test_a_shortage_names_the_request_that_cannot_be_answered_by_itself() -> None:
    free = FreeOffer(offer([device("a"), device("b")], selected={"small": [0, 1], "large": []}))
    assert shortage(free, claim(choice("small")), claim(choice("large"), name="d")).claim == "d"


def test_a_shortage_of_devices_together_has_enough_of_each() -> None:
    free = FreeOffer(offer([device("a", numa=0), device("b", numa=1)]))
    told = shortage(free, claim(choice(count=2), constraints=match("numa")))
    assert (told.matching, told.taken, told.tainted, told.gave_up) == (2, 0, (), False)


@pytest.mark.parametrize("count", [1, 0], ids=["one device", "every device"])
def test_a_choice_of_which_nobody_knows_what_it_takes_is_not_passed_over(count: int) -> None:
    free = FreeOffer(offer([device("a")], errors={"broken": "no such key: memory"}))
    second = choice(name="second")
    assert shortage(free, claim([choice("unseen", count, "first"), second])).unknown
    assert shortage(free, claim([choice("broken", count, "first"), second])).error == "no such key: memory"
    assert "no DeviceClass none" in shortage(free, claim([choice("none", count, "first"), second])).error
    assert drawn(free, claim([second, choice("unseen", count, "first")]))


def test_nothing_is_known_of_a_layout_whose_devices_the_ledger_has_not_seen() -> None:
    free = FreeOffer(Offer("f" * 64, classes={"any": DeviceClass("any")}))
    assert shortage(free, claim(choice())).unknown
    assert why_never(free, (claim(choice()),)).unknown


def test_every_device_is_not_known_while_a_pool_cannot_be_read() -> None:
    free = FreeOffer(offer([device("a")]), incomplete=True)
    assert shortage(free, claim(choice(count=0))).incomplete
    assert drawn(free, claim(choice()))


def test_a_pod_could_run_ever_where_devices_are_taken_and_not_where_they_are_tainted() -> None:
    offered = offer([device("a"), device("b")])
    assert why_never(FreeOffer(offered, taken=had(0, 1)), (claim(choice(count=2)),)) is None
    assert why_never(FreeOffer(offered, ((0, *SICK),)), (claim(choice(count=2)),))
    assert why_never(FreeOffer(offered), (claim(choice(count=3)),))


def test_every_device_may_be_had_once_others_have_shares_though_not_of_an_empty_node() -> None:
    """On the empty node every device is both, and the second request finds nothing; later b is left out of them."""
    whole = {MEMORY: DeviceCapacity(value=8)}
    offered = offer([device("a"), device("b", capacity=whole, shared=True)], selected={"b": [1]})
    wanted = claim(choice(count=0), choice("b", capacity=((MEMORY, 4),)))
    assert shortage(FreeOffer(offered), wanted)
    assert len(drawn(FreeOffer(offered, taken=((1, ((MEMORY, 4),)),)), wanted)) == 2
    assert why_never(FreeOffer(offered), (wanted,)) is None


def test_an_earlier_choice_is_had_by_other_devices_for_those_before_it() -> None:
    """A depth-first search would give b to the first request, and fall back on the second choice for the other."""
    free = FreeOffer(offer([device("b"), device("a")], selected={"both": [0, 1], "b": [0], "a": [1]}))
    wanted = claim(choice("both"), [choice("b", name="best"), choice("a", name="other")])
    assert [(each.request, each.index) for each in drawn(free, wanted)] == [("r0", 1), ("r1/best", 0)]


@pytest.mark.parametrize(
    ("policy", "asked", "amount"),
    [
        (DeviceCapacity(value=8), None, 8),
        (DeviceCapacity(value=8), 3, 3),
        (DeviceCapacity(value=8), 9, None),
        (DeviceCapacity(value=8, default=2, least=1, most=6, step=2), None, 2),
        (DeviceCapacity(value=8, default=1, least=1, most=6, step=2), 0, 1),
        (DeviceCapacity(value=8, default=1, least=1, most=6, step=2), 4, 5),
        (DeviceCapacity(value=8, default=1, least=1, most=6, step=2), 6, None),
        (DeviceCapacity(value=8, default=1, valid=(1, 4)), 2, 4),
        (DeviceCapacity(value=8, default=1, valid=(1, 4)), 5, None),
        (DeviceCapacity(value=8, default=0), None, 0),
    ],
    ids=[
        "all of it by default",
        "exactly what is asked for",
        "more than there is",
        "the default",
        "at least the least",
        "rounded up to a step",
        "rounded up beyond the most",
        "rounded up to a valid one",
        "beyond the valid ones",
        "a default of nothing",
    ],
)
def test_a_share_is_rounded_up_as_the_policy_says(
    policy: DeviceCapacity, asked: int | None, amount: int | None
) -> None:
    taken = amounts_of({MEMORY: policy}, {} if asked is None else {MEMORY: asked})
    assert taken == (None if amount is None else (amount,))


def test_a_search_that_is_too_long_says_so() -> None:
    """Any eight devices take 800 of two counters that have 799 together: only all sets of eight would show it."""
    devices = [device(f"d{at}", ((0, 38 + at), (1, 62 - at))) for at in range(24)]
    free = FreeOffer(offer(devices, (400, 399)))
    wanted = claim(choice(count=8))
    told = shortage(free, wanted)
    assert (told.matching, told.taken, told.gave_up) == (24, 0, True)
    assert why_never(free, (wanted,)) is None
    assert len(drawn(free, claim(choice(count=7)))) == 7


def test_as_many_of_one_request_as_there_are_values_are_not_searched_for() -> None:
    devices, counters = cut_gpus(8)
    free = FreeOffer(offer(devices, counters, by_part(devices)))
    assert len(drawn(free, claim(choice("1g", 8), constraints=match("gpu", distinct=True)))) == 8
    assert not shortage(free, claim(choice("1g", 9), constraints=match("gpu", distinct=True))).gave_up


def test_devices_that_somebody_drew_are_answers_where_each_request_may_have_its_own() -> None:
    devices, counters = cut_gpus(2)
    parts = by_part(devices)
    free = FreeOffer(offer(devices, counters, parts), taken=had(parts["1g"][0]))
    wanted = (claim([choice("7g", name="best"), choice("3g", name="other")]), claim(choice("1g"), name="d"))

    def answers(*found: tuple[str, str, int], **more: Any) -> bool:
        return is_answer(free, wanted, tuple(Drawn(*each, **more) for each in found))

    # Each is a part of a GPU that is cut already, and not the one that would be drawn.
    assert answers(("c", "r0/other", parts["3g"][2]), ("d", "r0", parts["1g"][6]))
    assert not answers(("c", "r0/other", parts["3g"][0]), ("d", "r0", parts["1g"][6]))  # slices that are taken
    assert not answers(("c", "r0/other", parts["3g"][1]), ("d", "r0", parts["1g"][6]))  # of each other
    assert not answers(("c", "r0/best", parts["3g"][2]), ("d", "r0", parts["1g"][6]))  # of another choice
    assert not answers(("c", "r0/other", parts["3g"][2]))
    assert not answers(("c", "r0/other", parts["3g"][2]), ("d", "r0", parts["1g"][6]), ("d", "r0", parts["1g"][7]))
    assert not answers(("c", "r0/other", parts["3g"][2]), ("d", "r0", parts["1g"][6]), admin=True)


def test_requests_apart_on_too_few_gpus_are_not_searched_for() -> None:
    devices, counters = cut_gpus(4)
    free = FreeOffer(offer(devices, counters, by_part(devices)))
    apart = match("gpu", distinct=True)
    assert not shortage(free, claim(*[choice("1g")] * 5, constraints=apart)).gave_up
    assert len(drawn(free, claim(*[choice("1g")] * 4, constraints=apart))) == 4


@pytest.mark.parametrize("part", ["1g", "7g"])
def test_a_draw_takes_no_more_steps_on_more_gpus(part: str) -> None:
    steps = []
    for gpus in (2, 64):
        devices, counters = cut_gpus(gpus)
        solver = Solver(offer(devices, counters, by_part(devices)), (), False, (claim(choice(part, 2)),))
        solver.solve(solver.start(()))
        steps.append(solver.steps)
    assert steps[0] == steps[1] <= 4


def test_equal_gpus_are_tried_once() -> None:
    """Pairs of a GPU and a NIC on one root: with one NIC too few, eight pairs would be 40,320 ways to fail."""
    devices = [device(f"gpu{at}", root=at) for at in range(8)] + [device(f"nic{at}", root=at) for at in range(7)]
    free = FreeOffer(offer(devices, selected={"gpu": range(8), "nic": range(8, 15)}))
    pairs = [claim(choice("gpu"), choice("nic"), name=f"c{at}", constraints=match("root")) for at in range(8)]
    assert not shortage(free, *pairs).gave_up
    assert len(drawn(free, *pairs[:7])) == 14

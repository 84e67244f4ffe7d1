"""MIG instances begin only where their profile may: where they go, and what a badly cut GPU cannot hold any more."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.resources import Node
from tessera.domain.work.evidence import FitFailure
from tessera.engine.placement.faults import placement_faults
from tessera.engine.placement.fits import count_bundles, fits, kind_of, placed_on
from tessera.engine.placement.gangs import place_gang
from tessera.engine.placement.inadmissible import inadmissible
from tessera_schemas.cluster.mig import GEOMETRIES, PROFILES
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement
from tests.unit.engine.engine_builders import cluster, cut, need, node, roles

COMPUTE = {"24gb": 4}


def place(node: Node, profile: str) -> tuple[Node, Placement]:
    wanted = need(mig_profile=profile)
    assert fits(wanted, node) is None
    placement = placed_on(node, wanted, 0, "worker")
    return node.taking(wanted, placement, 1), placement


def positions(node: Node, *profiles: str) -> list[tuple[int, int, int]]:
    """Slot, first slice and size of each in turn."""
    found = []
    for profile in profiles:
        node, placement = place(node, profile)
        assert placement.mig is not None
        found.append((placement.devices[0], *placement.mig))
    return found


def test_an_empty_gpu_holds_as_many_instances_as_the_vendor_says() -> None:
    most = {"1g.5gb": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1}
    assert {name: count_bundles(kind_of((need(mig_profile=name),)), cut()) for name in most} == most
    a30 = {"1g.6gb": 4, "2g.12gb": 2, "4g.24gb": 1}
    assert {name: count_bundles(kind_of((need(mig_profile=name),)), cut(geometry="24gb")) for name in a30} == a30


def test_small_instances_go_to_the_end_that_large_ones_cannot_use() -> None:
    assert positions(cut(), "1g.5gb", "1g.5gb", "1g.5gb", "4g.20gb") == [(0, 6, 1), (0, 4, 1), (0, 5, 1), (0, 0, 4)]


def test_an_instance_of_half_a_gpu_leaves_the_half_that_four_slices_of_compute_can_have() -> None:
    assert positions(cut(), "3g.20gb", "4g.20gb") == [(0, 4, 4), (0, 0, 4)]


def test_a_gpu_that_is_cut_already_comes_before_a_whole_one() -> None:
    assert positions(cut(gpus=2, taken=["00000000", "00000010"]), "1g.5gb")[0][0] == 1


def test_enough_free_slices_at_no_legal_position_are_not_enough() -> None:
    """What is left when others ended out of order: six slices are free, and no half."""
    left = cut(taken=["01000100"])
    assert fits(need(mig_profile="3g.20gb"), left) is FitFailure.GPU
    assert fits(need(mig_profile="2g.10gb"), left) is None
    reason = place_gang(roles((1, need(mig_profile="3g.20gb"))), cluster(left))
    assert isinstance(reason, Reason)
    assert (reason.numbers["most_slices_free_on_a_device"], reason.numbers["gpus_cut_so_that_none_fits"]) == (6, 1)


def test_what_an_instance_held_is_free_again_and_nothing_else() -> None:
    node, first = place(cut(), "1g.5gb")
    both, second = place(node, "2g.10gb")
    assert both.taking(need(mig_profile="1g.5gb"), first, -1).taking(need(mig_profile="2g.10gb"), second, -1) == cut()
    assert both.taking(need(mig_profile="2g.10gb"), second, -1) == node


def test_slices_of_an_earmark_and_a_stopping_run_are_free_only_when_both_are_gone() -> None:
    wanted = need(mig_profile="7g.40gb")
    node, placement = place(cut(), "7g.40gb")
    twice = node.taking(wanted, placement, 1)
    assert fits(wanted, twice.taking(wanted, placement, -1)) is FitFailure.GPU


def test_a_gpu_that_is_held_otherwise_is_not_cut() -> None:
    """A node may begin to serve instances while a whole GPU, or instances of other sizes, are still held on it."""
    before = node(gpus=2, device_profile="plugin")
    whole = placed_on(before, need(gpus=1), 0, "worker")
    after = cut(gpus=2).taking(need(gpus=1), whole, 1)
    assert positions(after, "1g.5gb")[0][0] == 1
    assert count_bundles(kind_of((need(mig_profile="7g.40gb"),)), after) == 1
    other = Placement(0, "worker", "a", (0,), 250, (0, 1))  # of four slices
    assert fits(need(mig_profile="1g.5gb"), cut().taking(need(mig_profile="1g.6gb"), other, 1)) is FitFailure.GPU


def test_a_profile_that_no_gpu_of_the_pool_has_is_inadmissible() -> None:
    reason = inadmissible(roles((1, need(mig_profile="1g.18gb"))), [cut()])
    assert reason is not None
    assert "MIG profile" in reason.detail
    assert inadmissible(roles((7, need(mig_profile="1g.5gb"))), [cut(taken=["11111111"])]) is None


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_legal_position_lies_inside_its_gpu_and_those_of_one_profile_are_disjoint(name: str) -> None:
    geometry = GEOMETRIES[name]
    for profile in geometry.profiles.values():
        slices = [at for start in profile.starts for at in range(start, start + profile.size)]
        assert len(slices) == len(set(slices))
        assert set(slices) <= set(range(geometry.slices))


@given(st.sampled_from(sorted(GEOMETRIES)), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20))
def test_whatever_comes_and_goes_no_slice_is_held_twice_and_compute_is_never_short(
    geometry: str, steps: list[tuple[int, bool]]
) -> None:
    names = list(GEOMETRIES[geometry].profiles)
    node, held = cut(gpus=2, geometry=geometry), list[tuple[str, Placement]]()
    for number, comes in steps:
        if not comes and held:
            profile, placement = held.pop(number % len(held))
            node = node.taking(need(mig_profile=profile), placement, -1)
        elif fits(need(mig_profile=names[number % len(names)]), node) is None:
            profile = names[number % len(names)]
            node, placement = place(node, profile)
            held.append((profile, placement))
        assert all(count in (0, 1) for taken in node.mig_taken for count in taken)
        for slot in range(2):
            compute = sum(int(profile[0]) for profile, placement in held if placement.devices == (slot,))
            assert compute <= COMPUTE.get(geometry, 7)
            assert node.gpu_free[slot] == node.mig_taken[slot].count(0) * GEOMETRIES[geometry].milli_per_slice


def test_a_profile_counts_against_quotas_what_it_takes_of_a_gpu_at_most() -> None:
    assert (PROFILES["7g.40gb"], PROFILES["3g.20gb"], PROFILES["1g.5gb"], PROFILES["1g.6gb"]) == (1000, 500, 125, 250)
    assert PROFILES["1g.10gb"] == 250  # of 40 GB; of 80 GB it takes half as much


# -- instances that an operator made ------------------------------------------------------------------------------


def made(**more: Any) -> Node:
    """Two GPUs, one cut into seven and one into two halves."""
    instances = more.pop("instances", {"1g.5gb": 7, "3g.20gb": 2})
    return cut(gpus=2, mig_instances=instances, **more)


def test_a_node_whose_instances_were_made_has_those_and_no_others() -> None:
    profiles = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")
    assert {name: count_bundles(kind_of((need(mig_profile=name),)), made()) for name in profiles} == {
        "1g.5gb": 7,
        "2g.10gb": 0,
        "3g.20gb": 2,
        "7g.40gb": 0,
    }
    assert fits(need(mig_profile="2g.10gb"), made()) is FitFailure.MIG_PROFILE


def test_an_instance_that_is_held_leaves_the_others_and_comes_back() -> None:
    node, first = place(made(), "3g.20gb")
    node, second = place(node, "3g.20gb")
    assert fits(need(mig_profile="3g.20gb"), node) is FitFailure.GPU
    assert count_bundles(kind_of((need(mig_profile="1g.5gb"),)), node) == 7
    back = node.taking(need(mig_profile="3g.20gb"), first, -1).taking(need(mig_profile="3g.20gb"), second, -1)
    assert back == made()


def test_instances_that_pods_of_others_have_are_not_to_be_had() -> None:
    node = made(others={"devices": {"nvidia.com/mig-3g.20gb": 1, "nvidia.com/mig-1g.5gb": 9}})
    assert count_bundles(kind_of((need(mig_profile="3g.20gb"),)), node) == 1
    assert count_bundles(kind_of((need(mig_profile="1g.5gb"),)), node) == 0
    node, _ = place(node, "3g.20gb")
    assert fits(need(mig_profile="3g.20gb"), node) is FitFailure.GPU


def test_a_refusal_says_how_many_instances_there_are() -> None:
    reason = place_gang(roles((3, need(mig_profile="3g.20gb"))), cluster(made()))
    assert isinstance(reason, Reason)
    assert reason.numbers["instances_made"] == 2
    assert reason.numbers["gpus_cut_so_that_none_fits"] == 0
    never = inadmissible(roles((3, need(mig_profile="3g.20gb"))), [made()])
    assert never is not None
    assert never.numbers["pods_placed"] == 2


def test_a_gang_of_all_existing_instances_is_not_too_large() -> None:
    """On a GPU of 40 GB a 1g.10gb is two slices, and that is what it counts; of 80 GB it is one of seven."""
    seven = roles((7, need(mig_profile="1g.10gb")))
    assert inadmissible(seven, [cut(geometry="80gb")]) is None
    assert inadmissible(seven, [cut(geometry="80gb", mig_instances={"1g.10gb": 7})]) is None
    assert inadmissible(roles((8, need(mig_profile="1g.10gb"))), [cut(geometry="80gb")]) is not None


# -- pods of several instances ------------------------------------------------------------------------------------


def test_a_pod_of_several_instances_has_each_at_a_place_of_its_own_and_gives_all_back() -> None:
    before, three = made(), need(mig_profile="1g.5gb", gpu_parts=3)
    placement = placed_on(before, three, 0, "worker")
    assert (placement.gpu_milli, len(placement.devices), len(set(placement.instances))) == (125, 3, 3)
    after = before.taking(three, placement, 1)
    assert count_bundles(kind_of((need(mig_profile="1g.5gb"),)), after) == 4
    assert [count_bundles(kind_of((three,)), at) for at in (before, after)] == [2, 1]
    assert after.taking(three, placement, -1) == before
    assert three.total_gpu_milli == 375


def test_instances_of_one_pod_are_of_several_gpus_where_one_has_too_few() -> None:
    placement = placed_on(cut(gpus=2), need(mig_profile="3g.20gb", gpu_parts=3), 0, "worker")
    assert sorted(placement.devices) in ([0, 0, 1], [0, 1, 1])


def test_a_refusal_of_several_instances_says_how_many_a_node_has() -> None:
    two = cluster(made(), replace(made(), name="b"))
    reason = place_gang(roles((1, need(mig_profile="3g.20gb", gpu_parts=3))), two)
    assert isinstance(reason, Reason)
    assert (reason.numbers["instances_wanted"], reason.numbers["most_instances_free_on_a_node"]) == (3, 2)
    never = inadmissible(roles((1, need(mig_profile="3g.20gb", gpu_parts=3))), two.values())
    assert never is not None
    assert "2 instances of 3g.20gb" in never.detail


def test_instances_of_one_pod_are_of_one_numa_zone_where_the_kubelet_keeps_pods_within_one() -> None:
    zone = (("nvidia.com/mig-3g.20gb", 2),)
    there, kinds = replace(cut(gpus=2), zones=(zone, zone)), [need(mig_profile="3g.20gb", gpu_parts=n) for n in (2, 3)]
    assert [fits(kind, there) for kind in kinds] == [None, FitFailure.ZONES]
    one = need(mig_profile="3g.20gb")
    after = there.taking(one, placed_on(there, one, 0, "worker"), 1)
    assert [count_bundles(kind_of((kind,)), after) for kind in (one, kinds[0])] == [3, 1]


@pytest.mark.parametrize(
    ("starts", "devices"),
    [((0, 0), (1, 1)), ((0,), (1,)), ((0, 4, 4), (1, 1, 1)), ((0, 2), (1, 1)), ((), (1, 1))],
    ids=["twice one", "too few", "too many", "no position", "no starts"],
)
def test_placements_that_are_not_the_instances_of_the_pod_are_faults(
    starts: tuple[int, ...], devices: tuple[int, ...]
) -> None:
    wanted, there = roles((1, need(mig_profile="3g.20gb", gpu_parts=2))), made()
    right = renamed(placed_on(there, wanted[0].need, 0, "role-0"))
    assert list(placement_faults(wanted, (right,), cluster(there))) == []
    wrong = replace(right, mig_starts=starts, devices=devices)
    assert list(placement_faults(wanted, (wrong,), cluster(there))) != []


def renamed(placement: Placement) -> Placement:
    return replace(placement, role="role-0")

"""Nodes whose kubelet keeps each pod within one NUMA zone: which pods they take, and how many."""

from typing import Any

import pytest

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node, RoleNeed
from tessera.domain.devices.zones import free_in_zones
from tessera.domain.storing.fast import replace
from tessera.domain.work.evidence import FitFailure
from tessera.engine.placement.faults import placement_faults
from tessera.engine.placement.fits import count_bundles, fits, kind_of, placed_on
from tessera.engine.placement.gangs import FreeCapacity
from tessera_schemas.facts import Others
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement
from tests.builders import GIB, node_seen

GPU, NIC = "nvidia.com/gpu", "rdma/hca"
ZONE = {"cpu": 32_000, GPU: 4, NIC: 4}


def node(*zones: dict[str, int], **more: Any) -> Node:
    """A node of 64 CPUs, eight GPUs and eight NICs, in two NUMA zones unless others are said."""
    return empty_node(node_seen(devices={NIC: 8}, zones=zones or (ZONE, ZONE), **more))


def need(gpus: int = 0, nics: int = 0, cpu_milli: int = 1500, **more: Any) -> Need:
    return Need(cpu_milli, GIB, gpus, devices=((NIC, nics),) if nics else (), **more)


def holding(*pods: Need, on: Node | None = None) -> Node:
    """The node after these pods were placed there, one after the other."""
    found = node() if on is None else on
    for rank, pod in enumerate(pods):
        found = found.taking(pod, placed_on(found, pod, rank, "worker"), 1)
    return found


@pytest.mark.parametrize(
    ("pod", "there", "miss"),
    [
        pytest.param(need(4, 4), node(), None, id="a zone has both"),
        pytest.param(need(8), node(), FitFailure.ZONES, id="no zone has eight GPUs"),
        pytest.param(
            need(4, 4),
            node({**ZONE, NIC: 0}, {**ZONE, GPU: 0, NIC: 8}),
            FitFailure.ZONES,
            id="the GPUs are in one zone and the NICs in the other",
        ),
        pytest.param(need(4, cpu_milli=40_000), node(), FitFailure.ZONES, id="no zone has the CPUs"),
        pytest.param(need(4, cpu_milli=40_500), node(), None, id="parts of CPUs are of no zone"),
        pytest.param(need(4, cpu_milli=40_000, shared_cpus=True), node(), None, id="CPUs of a pod that may burst"),
        pytest.param(need(4, cpu_milli=40_000, as_made=True), node(), None, id="CPUs of users' pods"),
        pytest.param(need(8, as_made=True), node(), FitFailure.ZONES, id="GPUs of users' pods"),
        pytest.param(need(4, 8), node({GPU: 4}, {GPU: 4}), None, id="of NICs in no zone nothing is known"),
        pytest.param(need(2, 2), holding(need(3, 3), need(3, 3)), FitFailure.ZONES, id="one is left in each"),
        pytest.param(need(2, 2), holding(need(3, 3)), None, id="the other zone is free"),
        pytest.param(need(1, single_numa=True), node(), None, id="asked for, and kept"),
        pytest.param(need(3), holding(need(3), on=node(others=Others(gpus=2))), FitFailure.ZONES, id="others have two"),
        pytest.param(need(2, 2), holding(need(3), on=node(others=Others(gpus=2))), None, id="beside two of others"),
        pytest.param(need(3, 3), node(others=Others(gpus=2, devices={NIC: 6})), FitFailure.DEVICES, id="few are left"),
        pytest.param(need(2, 2), node(others=Others(gpus=2, devices={NIC: 6})), None, id="others in several zones"),
    ],
)
def test_a_pod_fits_where_one_zone_has_all_that_it_asks_for(pod: Need, there: Node, miss: FitFailure | None) -> None:
    assert fits(pod, there) is miss
    assert bool(count_bundles(kind_of((pod,)), there)) is (miss is None)


def test_a_pod_that_asks_for_one_zone_goes_to_no_node_whose_kubelet_keeps_none() -> None:
    plain = empty_node(node_seen(devices={NIC: 8}))
    assert fits(need(8, 8), plain) is None
    assert fits(need(1, single_numa=True), plain) is FitFailure.NO_ZONES


@pytest.mark.parametrize(("pod", "count"), [(need(2, 2), 4), (need(3), 2), (need(1, cpu_milli=20_000), 2)])
def test_as_many_are_counted_as_can_be_placed_one_by_one(pod: Need, count: int) -> None:
    assert count_bundles(kind_of((pod,)), node()) == count
    full = holding(*[pod] * count)
    assert fits(pod, full) is not None


@pytest.mark.parametrize(("pods", "count"), [((need(4, 4), need(3)), 1), ((need(1), need(5)), 0)])
def test_of_a_bundle_each_pod_finds_a_zone_for_itself(pods: tuple[Need, ...], count: int) -> None:
    assert count_bundles(kind_of(pods), node()) == count


@pytest.mark.parametrize(("gpus", "miss"), [(4, None), (6, FitFailure.ZONES)])
def test_gpus_of_a_node_are_in_its_zones_by_the_resource_that_offers_them(gpus: int, miss: FitFailure | None) -> None:
    amd = node({"amd.com/gpu": 4}, {"amd.com/gpu": 4}, gpu_resource="amd.com/gpu")
    assert fits(need(gpus, gpu_resource="amd.com/gpu"), amd) is miss


def test_a_placement_stands_where_an_empty_zone_holds_the_pod_whatever_others_are_taken_to_hold() -> None:
    held = holding(need(3, 3), need(3, 3))
    role = RoleNeed("worker", 1, need(2, 2))
    placed = Placement(0, "worker", held.name, (6, 7), WHOLE_GPU)
    assert fits(role.need, held) is FitFailure.ZONES
    assert not list(placement_faults((role,), (placed,), {held.name: held}))
    wide = Placement(0, "worker", held.name, tuple(range(6)), WHOLE_GPU)
    assert list(placement_faults((RoleNeed("worker", 1, need(6, 2)),), (wide,), {held.name: node()}))


def test_what_a_pod_had_of_its_zone_is_free_again() -> None:
    first, second = need(3, 3), need(3, 3)
    one = placed_on(node(), first, 0, "worker")
    both = holding(first, second)
    assert fits(first, both.taking(first, one, -1)) is None
    assert both.taking(first, one, -1).taking(second, placed_on(holding(first), second, 1, "worker"), -1) == node()


def test_a_node_without_zones_keeps_no_books_of_them() -> None:
    assert holding(need(4, 4), on=empty_node(node_seen(devices={NIC: 8}))).in_zones == ()


def test_pods_are_taken_to_be_in_the_first_zone_that_has_all_and_else_in_what_is_left() -> None:
    zones = (((GPU, 4),), ((GPU, 4),))
    assert [dict(zone) for zone in free_in_zones(zones, (((GPU, 1),), ((GPU, 4),)))] == [{GPU: 0}, {GPU: 3}]
    assert [dict(zone) for zone in free_in_zones(zones, (((GPU, 6),),))] == [{GPU: 0}, {GPU: 2}]


def test_zones_that_go_take_their_books_along() -> None:
    held = holding(need(4, 4))
    assert replace(held, zones=(), in_zones=()) == holding(need(4, 4), on=empty_node(node_seen(devices={NIC: 8})))


@pytest.mark.parametrize(("first", "then"), [(3_000, 3_500), (4_000, 3_000), (3_000, 2_000)])
def test_a_kind_that_no_zone_holds_hides_no_node_from_another_one(first: int, then: int) -> None:
    """What fits is looked up beside a kind that asks for less; zones may hold the one that asks for more."""
    there = [node({"cpu": 3_000 if first == 4_000 else 2_000})]
    room = FreeCapacity(there)
    for asked in (first, then):
        gang = (RoleNeed("worker", 1, need(cpu_milli=asked)),)
        found = room.find(gang)
        assert found == FreeCapacity(there).find(gang)
    assert not isinstance(found, Reason)

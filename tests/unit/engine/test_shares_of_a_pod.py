"""Pods of several shares, each of a GPU of its own: how many fit, which GPUs they take, and who refuses what."""

from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.resources import Need, Node
from tessera.domain.mix import kind_of as mix_kind_of
from tessera.domain.work.evidence import FitFailure
from tessera.engine.placement.faults import placement_faults
from tessera.engine.placement.fits import closed, count_bundles, count_sharing, fits, kind_of, placed_on
from tessera.engine.placement.gangs import FreeCapacity, place_gang
from tessera.engine.placement.inadmissible import inadmissible
from tessera.engine.placement.rows.room_counts import count_sharing_by_row
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement
from tests.unit.engine.engine_builders import cluster, need, node, roles

TWO = need(gpu_milli=500, gpu_parts=2)


def sharing(*free: int, profile: str = "hami", **given: Any) -> Node:
    """A node that shares its GPUs, with so many thousandths free of each."""
    return replace(node(gpus=len(free), device_profile=profile, **given), gpu_free=free)


@cache
def most_by_force(shares: tuple[int, ...], parts: int) -> int:
    """The most pods by trying every choice of GPUs for each."""
    there = [at for at, count in enumerate(shares) if count]
    ways = (tuple(sorted(n - (at in taken) for at, n in enumerate(shares))) for taken in combinations(there, parts))
    return max((1 + most_by_force(way, parts) for way in set(ways)), default=0)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 4))
def test_the_count_is_what_trying_every_choice_reaches(shares: list[int], parts: int) -> None:
    assert count_sharing(shares, parts) == most_by_force(tuple(sorted(shares)), parts)


free_gpus = st.lists(st.integers(-3, 10).map(lambda tenths: tenths * 100), min_size=1, max_size=8)
wanted_shares = st.builds(
    lambda milli, parts, apart: Need(0, 0, gpu_milli=milli, gpu_parts=parts, apart=apart),
    st.sampled_from((100, 200, 300, 500, 999)),
    st.integers(2, 5),
    st.booleans(),
)


@given(free_gpus, wanted_shares)
def test_pods_placed_one_by_one_are_as_many_as_were_counted(free: list[int], wanted: Need) -> None:
    at, kind = sharing(*free), kind_of((wanted,))
    counted = count_bundles(kind, at)
    for rank in range(counted):
        assert fits(wanted, at) is None
        placement = placed_on(at, wanted, rank, "worker")
        assert len(set(placement.devices)) == len(placement.devices) == wanted.gpu_parts
        at = at.taking(wanted, placement, 1)
        at = closed(at, placement.devices) if wanted.apart else at
        assert count_bundles(kind, at) == counted - rank - 1
    assert fits(wanted, at) is FitFailure.GPU


@given(st.lists(free_gpus.map(lambda free: (*free, *[0] * (8 - len(free)))), min_size=1, max_size=5), wanted_shares)
def test_columns_count_as_single_nodes_do(rows: list[tuple[int, ...]], wanted: Need) -> None:
    found = count_sharing_by_row(np.array(rows, np.int64), wanted.gpu_milli, wanted.apart, wanted.gpu_parts)
    assert found.tolist() == [count_bundles(kind_of((wanted,)), sharing(*row)) for row in rows]


def test_the_tightest_gpus_are_taken_but_for_those_that_further_pods_need() -> None:
    assert placed_on(sharing(1000, 500, 500), TWO, 0, "worker").devices == (0, 1), "tightest alone leave one GPU"
    assert placed_on(sharing(1000, 500, 500, 500), TWO, 0, "worker").devices == (1, 2)
    assert placed_on(sharing(1000, 1000, 500, 500), TWO, 0, "worker").devices == (2, 3), "two whole ones take two more"


def test_one_gpu_never_serves_a_pod_twice() -> None:
    assert fits(TWO, sharing(1000)) is FitFailure.GPU
    assert count_bundles(kind_of((TWO,)), sharing(1000, 400)) == 0
    assert count_bundles(kind_of((TWO,)), sharing(1000, 1000)) == 2


@pytest.mark.parametrize("profile", ["hami", "visible-devices", "shares", "plugin"])
def test_profiles_that_place_each_share_serve_several(profile: str) -> None:
    assert fits(TWO, sharing(1000, 1000, profile=profile)) is None


@pytest.mark.parametrize("profile", ["time-slicing", "mps"])
def test_replicas_of_a_plugin_serve_one_share_a_pod(profile: str) -> None:
    there = replace(sharing(1000, 1000, profile=profile), share_milli=500)
    assert fits(replace(TWO, gpu_parts=1), there) is None
    assert fits(TWO, there) is FitFailure.DEVICE_PROFILE


def test_amounts_count_each_share() -> None:
    before = sharing(1000, 1000, 1000)
    after = before.taking(TWO, placed_on(before, TWO, 0, "worker"), 1)
    assert (TWO.total_gpu_milli, TWO.amount.gpu_milli, sum(after.gpu_free)) == (1000, 1000, 2000)
    assert mix_kind_of(replace(TWO, cpu_milli=3000)) == mix_kind_of(need(cpu_milli=1500, gpu_milli=500))


def test_memory_is_that_of_each_share() -> None:
    there = sharing(1000, 1000, gpu_memory_bytes=80)
    assert fits(replace(TWO, gpu_memory_bytes=40), there) is None
    assert fits(replace(TWO, gpu_memory_bytes=41), there) is FitFailure.GPU_MEMORY


@pytest.mark.parametrize("devices", [(0,), (0, 0), (0, 1, 2), (0, 3)], ids=["one", "twice one", "three", "too full"])
def test_placements_that_are_not_the_shares_of_the_pod_are_faults(devices: tuple[int, ...]) -> None:
    there, wanted = sharing(1000, 1000, 1000, 400), roles((1, TWO))
    right = Placement(0, wanted[0].name, there.name, (0, 1), 500)
    assert list(placement_faults(wanted, (right,), cluster(there))) == []
    assert list(placement_faults(wanted, (replace(right, devices=devices),), cluster(there))) != []


def test_shares_of_a_launched_gang_are_on_gpus_of_their_own() -> None:
    apart = roles((2, replace(TWO, apart=True)))
    assert isinstance(place_gang(apart, cluster(sharing(1000, 1000, 1000))), Reason)
    placed = FreeCapacity([sharing(1000, 1000, 1000, 1000)]).place(apart)
    assert not isinstance(placed, Reason)
    assert sorted(device for place in placed for device in place.devices) == [0, 1, 2, 3]


def test_a_refusal_says_how_many_gpus_of_a_node_have_a_share_left() -> None:
    three = roles((1, need(gpu_milli=500, gpu_parts=3)))
    reason = place_gang(three, cluster(sharing(1000, 500, 400)))
    assert isinstance(reason, Reason)
    assert (reason.numbers["shares_wanted"], reason.numbers["most_gpus_with_a_share_free_on_a_node"]) == (3, 2)
    never = inadmissible(three, [sharing(1000, 1000)])
    assert never is not None
    assert "the largest suitable node has 2 GPUs" in never.detail
    assert inadmissible(three, [sharing(0, 0, 0)]) is None

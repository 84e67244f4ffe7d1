"""Scores of the published policies on single nodes, worked out by hand from the published formulas; and their ties."""

from collections import Counter
from itertools import pairwise

import pytest

from tessera.domain.mix import Mix, MixKind
from tessera.domain.storing.fast import replace
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.scoring.price_aware import PriceAware
from tessera_lab.pack.baselines import BASELINES, Chance, gang_of_pod, nodes_for
from tessera_lab.traces.alibaba import TraceNode
from tests.unit.lab.pack.one_node import node, share, trace_of, whole, without_gpu


def policy_of(name, *pods):
    if name == "tessera":
        return PriceAware(Mix("", known=((MixKind(1000, 1000, 1), 9),), largest_cpu_milli=96_000))
    return BASELINES[name](trace_of(pods=pods), 1)


def score(name, pod, there, run_before=()):
    capacity = FreeCapacity([there], scoring=policy_of(name, pod))
    for earlier in run_before:
        capacity.place(gang_of_pod(name, earlier))
    return policy_of(name, pod).score(gang_of_pod(name, pod)[0].need, capacity.nodes[there.name])


EXAMPLES = [
    # 100 (1 - (cpu left / 128,000 + gpu left / 8,000) / 2)
    pytest.param("bestfit", whole(1, cpu=32_000), node(1000, 1000), 68, id="best fit, half the CPU left"),
    pytest.param("bestfit", whole(2, cpu=96_000), node(1000, 1000), 100, id="best fit, nothing left"),
    # 100 (1 - (cpu free x asked / 128,000^2 + gpu free x asked / 8,000^2) / 2)
    pytest.param("dotprod", whole(8, cpu=128_000), node(*[1000] * 8, cpu=128_000), 0, id="dot product, all of all"),
    pytest.param("dotprod", whole(4, cpu=64_000), node(*[1000] * 8, cpu=128_000), 50, id="dot product, half of all"),
    pytest.param("gpu-packing", without_gpu(), node(1000, 500), 0, id="packing, no GPU asked for"),
    pytest.param("gpu-packing", share(300), node(1000, 500), 95, id="packing, a device in use, half of it free"),
    pytest.param("gpu-packing", share(600), node(1000, 500), 49, id="packing, a free device of a node in use"),
    pytest.param("gpu-packing", whole(2), node(1000, 1000, 500), 48, id="packing, two free devices of a node in use"),
    pytest.param("gpu-packing", whole(2), node(1000, 1000), 31, id="packing, an empty node of two devices"),
    pytest.param("gpu-clustering", without_gpu(), node(1000, policy="gpu-clustering"), 0, id="clustering, no GPU"),
    pytest.param("gpu-clustering", whole(), node(1000, 1000, policy="gpu-clustering"), 43, id="clustering, empty"),
]


@pytest.mark.parametrize(("policy", "pod", "there", "expected"), EXAMPLES)
def test_the_score_of_a_node_is_the_published_one(policy, pod, there, expected):
    assert score(policy, pod, there) == expected


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        pytest.param([whole()], 75 + 21, id="only this kind"),
        pytest.param([whole(), share(500)], 50 + 23, id="this kind among others"),
        pytest.param([whole(2)], 0 + 25, id="other kinds only"),
    ],
)
def test_clustering_prefers_nodes_with_the_same_kind_of_pod(earlier, expected):
    assert score("gpu-clustering", whole(), node(1000, 1000, policy="gpu-clustering"), earlier) == expected


@pytest.mark.parametrize("policy", [name for name in (*BASELINES, "tessera") if name != "random"])
def test_among_equal_nodes_the_first_name_wins(policy):
    there = node(1000, 1000, policy=policy)
    capacity = FreeCapacity([replace(there, name=name) for name in "cab"], scoring=policy_of(policy, whole()))
    assert [capacity.place(gang_of_pod(policy, whole(2)))[0].node for _ in "abc"] == ["a", "b", "c"]


@pytest.mark.parametrize("policy", [*BASELINES, "tessera"])
def test_whole_gpus_take_the_lowest_free_devices(policy):
    capacity = FreeCapacity([node(1000, 400, 1000, 1000, policy=policy)], scoring=policy_of(policy, whole(2)))
    assert capacity.place(gang_of_pod(policy, whole(2)))[0].devices == (0, 2)


@pytest.mark.parametrize("policy", ["bestfit", "dotprod", "gpu-packing", "gpu-clustering"])
def test_a_share_takes_the_tightest_device_and_then_the_lowest(policy):
    capacity = FreeCapacity([node(1000, 500, 400, 400, policy=policy)], scoring=policy_of(policy, share(300)))
    assert capacity.place(gang_of_pod(policy, share(300)))[0].devices == (2,)


@pytest.mark.parametrize("policy", ["fgd", "tessera"])
def test_equal_devices_are_taken_from_the_lowest_on(policy):
    capacity = FreeCapacity([node(500, 500, 500)], scoring=policy_of(policy, share(500)))
    assert capacity.place(gang_of_pod(policy, share(500)))[0].devices == (0,)


def drawn(seed, times):
    trace = trace_of(*[TraceNode(96_000, 10_000, 8, "A")] * 8)
    policy, gang, found = Chance(seed), gang_of_pod("random", share(1, cpu=1)), list[str]()
    capacity = FreeCapacity(nodes_for("random", trace, 1), scoring=policy)
    for _ in range(times):
        found.append(capacity.place(gang)[0].node)
    return found


def test_chance_is_a_function_of_the_seed_and_gives_every_node_its_share():
    assert drawn(1, 50) == drawn(1, 50) != drawn(2, 50)
    taken = Counter(drawn(3, 4000))
    assert len(taken) == 8
    assert all(400 < count < 600 for count in taken.values())
    # As independent draws do, a node follows itself as often as any other follows it.
    places = drawn(4, 4000)
    assert 400 < sum(one == other for one, other in pairwise(places)) < 600

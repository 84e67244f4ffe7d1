"""A pool in which some nodes offer every GPU as replicas of one size: what is free there serves only such shares."""

from typing import Any

import pytest

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.domain.mix import Mix, kind_of
from tessera.domain.storing.fast import replace
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.pricing.pricing_problem import make_pricing_problem
from tessera.engine.scoring.fgd import FragmentationGradient
from tessera.engine.scoring.price_aware import PriceAware
from tessera.engine.scoring.protocol import ScoringPolicy
from tessera.engine.scoring.workload import PodWorkload
from tessera_schemas.reasons import Reason
from tests.builders import node_seen

QUARTER, HALF, WHOLE = Need(1000, 1, gpu_milli=250), Need(2000, 1, gpu_milli=500), Need(4000, 1, gpus=1)
MIX = Mix(
    "default",
    settled=1,
    known=tuple(sorted((kind_of(need), weight) for need, weight in ((QUARTER, 300), (HALF, 300), (WHOLE, 400)))),
    largest_cpu_milli=64_000,
)


def node(name: str, *free: int, **seen: Any) -> Node:
    there = empty_node(node_seen(name, len(free), **({"device_profile": "plugin"} | seen)))
    return replace(there, gpu_free=free)


def replicas(name: str, size: int, *free: int) -> Node:
    return node(name, *free, device_profile="time-slicing", share_milli=size)


def chosen(scoring: ScoringPolicy, need: Need, *nodes: Node) -> str:
    found = FreeCapacity(nodes, scoring=scoring).place((RoleNeed("w", 1, need),))
    assert not isinstance(found, Reason)
    return found[0].node


@pytest.mark.parametrize("policy", [PriceAware, FragmentationGradient])
@pytest.mark.parametrize("rest", [1000, 750, 500])
def test_a_share_leaves_alone_what_others_could_use_where_replicas_of_its_size_are_free(
    policy: type[PriceAware | FragmentationGradient], rest: int
) -> None:
    free = (1000,) * 4
    for names in (("a", "b"), ("b", "a")):
        there = node(names[0], 0, 0, 0, rest), replicas(names[1], 250, *free)
        assert chosen(policy(MIX), QUARTER, *there) == names[1]
        assert chosen(policy(MIX), HALF, *there) == names[0]


@pytest.mark.parametrize("rest", [500, 250])
def test_no_share_shuns_replicas_because_their_node_is_emptier(rest: int) -> None:
    """Where nearly all that comes are quarters, the rest of a GPU is as good as usable to nobody else."""
    known = tuple((kind, 9000 if kind.gpu_milli == 250 else weight) for kind, weight in MIX.known)
    scoring, full = PriceAware(replace(MIX, known=known)), replace(node("a", 0, 0, 0, rest), cpu_free=8000)
    assert chosen(scoring, QUARTER, full, replicas("b", 250, *(1000,) * 8)) == "b"


def test_of_nodes_with_replicas_a_share_goes_to_the_fuller_one() -> None:
    there = [replicas("a", 250, *(1000,) * 4), replicas("b", 250, 1000, 1000, 1000, 750)]
    assert chosen(PriceAware(MIX), QUARTER, *there) == "b"


def test_the_pull_to_fuller_nodes_stays_where_a_pod_takes_no_share() -> None:
    scoring, cpu, free = PriceAware(MIX), Need(1000, 1), (1000,) * 4
    assert scoring.score(cpu, replicas("a", 250, *free)) < scoring.score(cpu, replicas("b", 250, 0, 0, 0, 0))


def test_free_replicas_are_usable_to_shares_of_their_size_alone() -> None:
    workload, free = PodWorkload(MIX.known), (1000, 750)
    assert workload.usable(replicas("a", 250, *free), 64_000, free) == 1750 * 300
    assert workload.usable(replicas("b", 500, *free), 64_000, free) == 1750 * 300
    assert workload.usable(replicas("c", 200, *free), 64_000, free) == 0, "no usual job takes a fifth"


def test_nodes_of_two_sizes_do_not_take_each_other_s_worth() -> None:
    """One device of each is free by a quarter: of halves' replicas nothing of the mix could use it."""
    scoring, cpu = PriceAware(MIX), Need(1000, 1)
    quarters, halves = (replace(replicas("a", size, 250), cpu_free=1000) for size in (250, 500))
    assert scoring.score(cpu, halves) > scoring.score(cpu, quarters), "its last CPU earns nothing there"


def test_each_size_is_a_model_of_its_own_to_prices() -> None:
    free = (1000,) * 4
    there = [node("a", *free), replicas("b", 250, *free), replicas("c", 500, *free)]
    found = make_pricing_problem(MIX, there, rehearsed=False)
    assert found is not None
    by_size = {milli: models.bit_count() for _, milli, _, models, _ in found.kinds}
    assert (found.models, by_size) == (3, {250: 2, 500: 2, 1000: 1})

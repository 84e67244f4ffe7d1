"""A trace's pods as gangs on racks: what arrives, what is counted, and what the policy changes."""

import pytest

from tessera_lab.pack.near import GANG_TOPOLOGIES, LEVELS, arriving, fill_near, gang_in, lines_of
from tessera_lab.traces.alibaba import Trace, TraceNode, TracePod

POD = TracePod(4_000, 16_384, 4, 1_000)
TRACE = Trace(
    "made", (TraceNode(96_000, 786_432, 8, "A100"),) * 64, (POD,) * 40 + (TracePod(1_000, 1_024, 1, 500),) * 40
)


def test_pods_of_whole_gpus_come_as_gangs_up_to_130_per_cent_and_shares_alone() -> None:
    found = arriving(TRACE, 1)
    asked = sum(pod.total_gpu_milli * count for pod, count in found)
    assert 1.2 * TRACE.gpu_milli < asked <= 1.3 * TRACE.gpu_milli
    assert {count for pod, count in found if pod.gpu_milli < 1_000} == {1}
    assert {count for pod, count in found if pod == POD} > {1, 2, 4}
    assert found == arriving(TRACE, 1) != arriving(TRACE, 2)


@pytest.mark.parametrize(("value", "levels"), [("unconstrained", ()), ("preferred", tuple(LEVELS.values())[::-1])])
def test_a_gang_says_nothing_of_its_place_and_the_policy_does(value: str, levels: tuple[str, ...]) -> None:
    (role,) = gang_in(POD, 4, value)
    assert (role.replicas, role.levels, role.bound, role.one_model) == (4, levels, False, "pod")
    assert gang_in(POD, 1, value)[0].levels == ()


def test_gangs_are_on_fewer_racks_with_the_policy_and_what_is_full_is_full_either_way() -> None:
    apart, near = (fill_near(TRACE, value, 1, "nobody") for value in GANG_TOPOLOGIES)
    assert near == fill_near(TRACE, "preferred", 1, "nobody")
    assert (apart.arrivals, apart.gangs > 5) == (near.arrivals, True)
    assert near.zones == apart.zones == 1  # there is one
    assert 1 <= near.racks < apart.racks <= apart.nodes
    assert near.racks_apart < apart.racks_apart
    assert min(apart.allocated_130, near.allocated_130) > 95
    assert len(lines_of([apart, near])) == 3

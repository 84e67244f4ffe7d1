"""Kinds of pods that differ in CPU, memory and devices rank the nodes by what lighter ones found: as if each had judged
all nodes itself."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.domain.mix import Mix
from tessera.engine.placement.fits import fits
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.scoring.policies import POLICIES
from tessera.engine.scoring.price_aware import PriceAware
from tessera_schemas.reasons import Reason
from tests.property.plain_rule import MIX, TASTES, by_the_rule, policies
from tests.property.shapes import clusters, needs, roomy_clusters

price_lists = st.tuples(*[st.integers(0, 3_000_000)] * len(MIX.known))


def priced(prices: tuple[int, ...]) -> PriceAware:
    mix = Mix("default", known=MIX.known, largest_cpu_milli=MIX.largest_cpu_milli, prices=prices)
    assert mix.prices == prices
    return PriceAware(mix)


@st.composite
def families(draw: st.DrawFn) -> list[Need]:
    """Needs of equal GPUs, whatever else they ask for."""
    first = replace(draw(needs()), devices=())
    more = st.tuples(
        st.sampled_from((0, 1, 500, 999, 1000, 1001, 2000, 4000)), st.integers(1, 4), st.sampled_from((0, 0, 0, 1))
    )
    return [first] + [
        replace(first, cpu_milli=cpu, memory_bytes=memory, devices=(("rdma/hca", hcas),) if hcas else ())
        for cpu, memory, hcas in draw(st.lists(more, min_size=1, max_size=5))
    ]


@given(st.sampled_from(sorted(TASTES)), price_lists, needs(), st.integers(1, 4000), clusters())
def test_a_pod_that_asks_for_more_cpu_gets_no_higher_score_and_memory_changes_none(
    policy: str, prices: tuple[int, ...], light: Need, more: int, there: list[Node]
) -> None:
    heavy = replace(light, cpu_milli=light.cpu_milli + more, memory_bytes=light.memory_bytes + 1)
    for scoring in (TASTES[policy], priced(prices)):
        for node in there:
            if fits(heavy, node) is None:
                assert scoring.score(heavy, node) <= scoring.score(light, node)
                assert scoring.score(light, node) == scoring.score(replace(light, memory_bytes=0, devices=()), node)


def test_every_policy_is_asked() -> None:
    assert set(TASTES) == set(POLICIES)


@given(policies, price_lists, families(), st.one_of(clusters(), roomy_clusters()), st.data())
def test_kinds_of_one_family_choose_as_by_the_rule(
    policy: str, prices: tuple[int, ...], family: list[Need], there: list[Node], data: st.DataObject
) -> None:
    scoring = data.draw(st.sampled_from((TASTES[policy], priced(prices))))
    room, nodes = FreeCapacity(there, scoring=scoring), {node.name: node for node in there}
    for _ in range(data.draw(st.integers(1, 8))):
        need, pods = data.draw(st.sampled_from(family)), data.draw(st.integers(1, 3))
        gang = (RoleNeed("worker", pods, need),)
        expected = by_the_rule(gang, room.nodes, scoring)
        verdict = room.place(gang)
        assert isinstance(verdict, Reason) == (len(expected) < pods)
        if not isinstance(verdict, Reason):
            assert list(verdict) == expected
        if nodes and data.draw(st.booleans()):
            left = data.draw(st.sampled_from(there))  # it is empty again: its room is renewed
            room.put(left)
            assert room.renewed(list(room.nodes.values()), scoring)

"""Filling ranked nodes one after another gives what the rule says: each pod in turn to the best node."""

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.engine.placement.fits import fits, placed_on
from tessera.engine.placement.gangs import place_gang
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement
from tests.property.plain_rule import gained, spared
from tests.property.shapes import clusters, gangs, roomy_clusters, small_gangs


def best_node(need: Need, nodes: Iterable[Node]) -> Node | None:
    able = [node for node in nodes if fits(need, node) is None]
    full = {n.name: (sum(n.gpu_free), n.cpu_free, n.memory_free) for n in able}
    return min(able, key=lambda n: (-gained(need, n), *full[n.name], *spared(need, n), n.name), default=None)


def by_the_rule(gang: tuple[RoleNeed, ...], nodes: dict[str, Node]) -> list[Placement]:
    """The placements up to the first pod that fits nowhere."""
    left, placed = dict(nodes), list[Placement]()
    for role in gang:
        for _ in range(role.replicas):
            node = best_node(role.need, left.values())
            if node is None:
                return placed
            placement = placed_on(node, role.need, len(placed), role.name)
            left[node.name] = node.taking(role.need, placement, 1)
            placed.append(placement)
    return placed


@settings(max_examples=300)
@given(st.one_of(gangs(), small_gangs()), st.one_of(clusters(), roomy_clusters()))
def test_a_gang_lies_where_the_simple_rule_puts_it_pod_by_pod(gang: tuple[RoleNeed, ...], there: list[Node]) -> None:
    nodes = {node.name: node for node in there}
    verdict, expected = place_gang(gang, nodes), by_the_rule(gang, nodes)
    if isinstance(verdict, Reason):
        assert verdict.numbers.get("pods_placed", 0) == len(expected)
        assert len(expected) < sum(role.replicas for role in gang)
    else:
        assert list(verdict) == expected

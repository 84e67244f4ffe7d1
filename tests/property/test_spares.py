"""Spares of a pool, whatever its nodes are: so many, empty, the same in any order, and untouched by other starts."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.resources import Node
from tessera.domain.health.spares import find_spares
from tessera.domain.state import State
from tessera_schemas.cluster.pools import Pool
from tessera_schemas.config import Config
from tests.builders import config_body
from tests.unit.engine import engine_builders as build


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    gpus = draw(st.sampled_from((0, 4, 8)))
    ready, pool = draw(st.booleans()), draw(st.sampled_from(("default", "default", "other")))
    free = 109 if draw(st.booleans()) else 110
    return build.node(f"n-{draw(st.integers(0, 30)):02}", gpus, pool=pool, ready=ready, pods_free=free)


PARKS = st.lists(nodes(), max_size=12, unique_by=lambda node: node.name)


def state_of(park: list[Node], count: int) -> State:
    state = State()
    state.set_config(Config(version=1, body=config_body(pools=(Pool(name="default", spare_nodes=count),))))
    for node in park:
        state.put_node(node)
    return state


def able(node: Node) -> bool:
    return node.pool == "default" and node.ready and not node.is_held


@given(PARKS, st.integers(0, 4), st.randoms())
def test_spares_are_so_many_empty_nodes_of_the_pool_in_whatever_order_these_came(
    park: list[Node], count: int, random: Random
) -> None:
    found = find_spares(state_of(park, count), "default")
    there = [node for node in park if able(node)]
    assert len(found) == min(count, len(there))
    assert found <= {node.name for node in there}
    random.shuffle(park)
    assert find_spares(state_of(park, count), "default") == found


@given(PARKS, st.integers(0, 4), st.data())
def test_a_start_elsewhere_leaves_the_spares_and_one_on_a_spare_costs_the_next_node(
    park: list[Node], count: int, data: st.DataObject
) -> None:
    found = find_spares(state_of(park, count), "default")
    there = [node for node in park if able(node)]
    if not there:
        return
    used = data.draw(st.sampled_from(there))
    after = find_spares(
        state_of([replace(node, pods_free=109) if node is used else node for node in park], count), "default"
    )
    assert found - {used.name} <= after
    assert len(after) == min(count, len(there) - 1)
    assert used.name in found or after == found

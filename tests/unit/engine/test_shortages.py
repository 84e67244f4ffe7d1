"""What is short for claims, by row of the table: asked anew of nodes that changed, and of no others."""

from dataclasses import replace

from tessera.domain.devices.claims import claim_needs
from tessera.domain.devices.offers import DeviceClass, Offer
from tessera.domain.devices.resources import Node
from tessera.engine.claims.extended import shortage_on
from tessera.engine.claims.solving import Shortage
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.rows.table import NodeTable
from tests.published_devices import DRIVER, claim, whole_gpus
from tests.unit.engine.engine_builders import need, node

OFFER = Offer("ab", whole_gpus(2), {DRIVER: DeviceClass(DRIVER)})
BOTH = need(claims=claim_needs((claim(count=2),)))


def having(name: str, *taken: int) -> Node:
    """A node of two GPUs, of which claims have some."""
    drawn = tuple((f"{DRIVER}/{name}/gpu-{at}", ()) for at in taken)
    return replace(node(name, 2, device_profile="dra"), offer=OFFER, drawn=drawn)


def test_a_row_says_what_is_short_as_its_node_is_now() -> None:
    nodes = {each.name: each for each in (having("a", 0), having("b"), having("c", 0, 1), node("d"))}
    table = NodeTable(nodes, FeasibleNodes(nodes))
    told = table.shortages(BOTH)
    assert [isinstance(each, Shortage) and each.taken for each in told] == [1, False, 2, False]
    nodes |= {"a": having("a"), "b": having("b", 0, 1)}
    for name in ("a", "b"):
        table.changed(name)
    table.refresh()
    anew = [shortage_on(BOTH, nodes[name]) for name in sorted(nodes)]
    assert table.shortages(BOTH) == anew
    assert [each and each.taken for each in anew] == [None, 2, 2, None]

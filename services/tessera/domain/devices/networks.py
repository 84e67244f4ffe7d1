"""
Devices of no single node (network-attached): what a pod on one node has of them is gone for each node that they reach.

A node says so itself: `Node.drawn_elsewhere` is what runs and earmarks on other nodes have of the networks of its
layout. So whatever compares nodes, searches them or remembers what it found there sees another node where another pod
took such a device. The price is a step for each node that the network reaches; where there is none nothing is paid.
"""

from collections.abc import Iterable, Iterator, MutableMapping, Sequence

from tessera.domain.devices.offers import Networks, Taken
from tessera.domain.devices.resources import Node, taken_after
from tessera.domain.storing.fast import replace, replacer
from tessera_schemas.work.placement import Placement

_told = replacer(Node, ("drawn_elsewhere",))
DrawnOn = tuple[str, tuple[str, tuple[tuple[str, int], ...]]]
"""A node, and a device with its part that a pod there has."""


def pools_drawn(placements: Iterable[Placement]) -> Networks:
    """Pools of devices that these pods have, but for those called as the pod's node: these are the node's own."""
    drawn = ((place.node, each) for place in placements for each in place.drawn if not each.admin)
    return frozenset((each.driver, each.pool) for node, each in drawn if each.pool != node)


def reached(nodes: Iterable[Node], pools: Networks) -> list[Node]:
    """Nodes that one of these pools reaches as a network."""
    return [node for node in nodes if node.offer is not None and not pools.isdisjoint(node.offer.networks)]


def spread(nodes: MutableMapping[str, Node], placements: Sequence[Placement], sign: int) -> None:
    """Let the other nodes know what pods took (1) or gave back (-1) of networks that reach them."""
    # Nearly all pods have devices of their own node alone: then nobody need be asked.
    if pools := pools_drawn(placements):
        nodes.update({node.name: node for node in spreading(reached(nodes.values(), pools), placements, sign)})


def spreading(nodes: Iterable[Node], placements: Sequence[Placement], sign: int) -> Iterator[Node]:
    """As `spread`: those of `nodes`, which networks reach, that hear of the pods, as they are after it."""
    drawn = [(place.node, each) for place in placements for each in place.drawn if each.pool != place.node]
    homes = {name for name, _ in drawn}
    # Nodes of one network know the same, but for what each has itself. So an answer serves many of them, and is one
    # object for them all.
    known: dict[tuple[int, Networks, str], tuple[Taken, Taken]] = {}
    for node in nodes:
        if node.offer is None:
            continue
        key = id(node.drawn_elsewhere), node.offer.networks, node.name if node.name in homes else ""
        if key not in known:
            heard = (each for home, each in drawn if home != node.name)
            devices = [each for each in heard if (each.driver, each.pool) in node.offer.networks]
            # What was had stands beside what is: so no other object gets its identity meanwhile.
            after = taken_after(node.drawn_elsewhere, devices, sign) if devices else node.drawn_elsewhere
            known[key] = node.drawn_elsewhere, after
        if known[key][1] is not node.drawn_elsewhere:
            yield _told(node, known[key][1])


def list_drawn(nodes: Iterable[Node], networks: Networks) -> list[DrawnOn]:
    """Devices of the networks that pods on these nodes have."""
    return [(node.name, each) for node in nodes for each in node.drawn if _pool_of(each[0]) in networks]


def knowing(node: Node, drawn: Sequence[DrawnOn]) -> Node:
    """The node where pods have these devices, its own among them, of the networks that reach it."""
    elsewhere = tuple(sorted(each for name, each in drawn if name != node.name))
    return node if elsewhere == node.drawn_elsewhere else replace(node, drawn_elsewhere=elsewhere)


def _pool_of(device: str) -> tuple[str, str]:
    """Driver and pool of `driver/pool/device`; a pool's name may have slashes."""
    driver, _, rest = device.partition("/")
    return driver, rest.rpartition("/")[0]

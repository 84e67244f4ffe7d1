"""Devices of no single node: whatever comes and goes, no two pods have one, and each node knows what is taken."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.networks import knowing, list_drawn
from tessera.testkit.checker import check
from tessera_schemas.cluster.device_layouts import DeviceLayout
from tessera_schemas.facts import AnyFact
from tests.builders import admitted, job_spec
from tests.published_devices import (
    DRIVER,
    NIC_DRIVER,
    claim,
    claiming,
    class_seen,
    layout_seen,
    offering,
    selected,
    whole_gpus,
    with_network,
)
from tests.rounds import Rounds, share

SEEDS = st.integers(0, 2**32 - 1)
LINKS, NODES = 4, 4
BARE = whole_gpus(2)
LAYOUTS = (
    (BARE, with_network(BARE, LINKS), with_network(BARE, LINKS, beyond=1)),
    (BARE, with_network(BARE, LINKS, counters=3), with_network(BARE, LINKS, beyond=2, counters=3)),
)
"""From where links can be had may change; a pool that has counters has them for all nodes."""


def known(layout: DeviceLayout) -> list[AnyFact]:
    """The layout with what the classes take of it."""
    links = (1 << len(layout.devices)) - 4
    return [layout_seen(layout), selected(layout, 0b11, "gpu"), selected(layout, links, "link")]


def begin(random: Random, layouts: tuple[DeviceLayout, ...]) -> Rounds:
    classes = [class_seen(DRIVER, "gpu"), class_seen(NIC_DRIVER, "link")]
    facts = [fact for layout in layouts for fact in known(layout)]
    nodes = [offering(f"node-{at}", random.choice(layouts), 2) for at in range(NODES)]
    return Rounds(share("research", 64, None), nodes=[*classes, *facts, *nodes], preset="priority")


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_no_device_of_a_network_is_had_twice_and_all_nodes_know(seed: int) -> None:
    random = Random(seed)
    layouts = random.choice(LAYOUTS)
    world, keys = begin(random, layouts), list[str]()
    for step in range(14):
        match random.randrange(4):
            case 0 if any(map(world.running, keys)):
                world.finish(random.choice([key for key in keys if world.running(key)]))
            case 1:
                world.commit(offering(f"node-{random.randrange(NODES)}", random.choice(layouts), 2))
            case _:
                wanted = [claim("link", random.randint(1, 2), NIC_DRIVER), claim("gpu", 1, DRIVER)]
                role = claiming(*wanted[: random.randint(1, 2)], replicas=random.choice((1, 1, 2, 3)))
                keys.append(f"k{step}")
                spec = job_spec(role, name=keys[-1], priority_class=random.choice(("low", "normal", "high")))
                world.commit(admitted(keys[-1], spec))
        world.settle()
        nodes = list(world.state.nodes.values())
        for node in nodes:
            assert knowing(node, list_drawn(nodes, node.offer.networks)) == node, seed
    report = check(world.stored)
    assert report.violations == [], seed
    assert "I1" in report.examined

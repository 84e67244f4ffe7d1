"""Gangs whose pods share claims: whole on one node, each device drawn once, and placed wherever a draw for all is."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.claims import ClaimNeed
from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.domain.work.gang import gang_of
from tessera.engine.claims.drawing import as_of_one_pod, draw, free_devices
from tessera.engine.claims.solving import Shortage
from tessera.engine.placement.faults import placement_faults
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.gangs import place_gang
from tessera.engine.placement.rows.room_counts import RoomTable
from tessera_schemas.reasons import Reason
from tests.property.device_worlds import DeviceWorld, random_claims, random_world
from tests.unit.engine.engine_builders import node

NODES = ("a", "b")


def _nodes(random: Random, world: DeviceWorld) -> dict[str, Node]:
    """Nodes of one make, of which other claims have other devices."""
    found = {}
    for name in NODES:
        had = [device for device in world.layout.devices if random.random() < 0.15 and not device.is_shared]
        taken = tuple(sorted((f"gpu.example.com/{name}/{device.name}", ()) for device in had))
        found[name] = replace(node(name, 0), offer=world.offer, drawn=taken)
    return found


def _roles(random: Random) -> tuple[RoleNeed, ...]:
    """One or two roles that share a claim, each pod with claims of its own beside it or without."""
    shared = replace(random_claims(random)[0], name="shared", shared_as="fabric")
    return tuple(
        RoleNeed(name, random.choice((1, 2)), Need(1, 1, claims=(*_own(random), shared)))
        for name in ("first", "second")[: random.choice((1, 2))]
    )


def _own(random: Random) -> tuple[ClaimNeed, ...]:
    return random_claims(random)[:1] if random.random() < 0.5 else ()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_pods_that_share_a_claim_are_on_one_node_which_has_devices_for_all_of_them(seed: int) -> None:
    random = Random(seed)
    nodes, roles = _nodes(random, random_world(random)), _roles(random)
    gang, places = gang_of(roles), FeasibleNodes(nodes)
    found, by_table = place_gang(roles, nodes), place_gang(roles, nodes, places, RoomTable(nodes, places))
    if isinstance(found, Reason):
        assert isinstance(by_table, Reason)
        claims = as_of_one_pod(need.claims for need in gang.needs)
        assert all(isinstance(draw(free_devices(each), claims), Shortage) for each in nodes.values())
        return
    assert by_table == found
    assert [*placement_faults(roles, found, nodes)] == []
    assert len({place.node for place in found}) == 1
    assert sum(any(each.claim == "shared" for each in place.drawn) for place in found) == 1

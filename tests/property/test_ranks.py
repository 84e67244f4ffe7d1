"""Whatever was placed and given back before, a room chooses as one that judges all nodes anew."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.empty_nodes import emptied, empty_node
from tessera.domain.devices.resources import Node, RoleNeed, role_need
from tessera.domain.work.gang import gang_of
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.gangs import FreeCapacity, place_gang
from tessera.engine.scoring.protocol import BEST_FIT
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement
from tests.builders import node_seen
from tests.builders import role as role_of
from tests.property.plain_rule import TASTES, by_the_rule, policies
from tests.property.shapes import clusters, gangs, roomy_clusters, small_gangs


@given(policies, st.one_of(gangs(), small_gangs()), st.one_of(clusters(), roomy_clusters()))
def test_a_gang_lies_where_the_simple_rule_puts_it(policy: str, gang: tuple[RoleNeed, ...], there: list[Node]) -> None:
    nodes, scoring = {node.name: node for node in there}, TASTES[policy]
    verdict, expected = place_gang(gang, nodes, FeasibleNodes(nodes, scoring)), by_the_rule(gang, nodes, scoring)
    if isinstance(verdict, Reason):
        assert verdict.numbers.get("pods_placed", 0) == len(expected)
    else:
        assert list(verdict) == expected


@given(policies, st.one_of(gangs(), small_gangs()), st.one_of(clusters(), roomy_clusters()), st.randoms())
def test_the_order_in_which_nodes_are_given_does_not_matter(
    policy: str, gang: tuple[RoleNeed, ...], there: list[Node], chance: random.Random
) -> None:
    shuffled = chance.sample(there, len(there))
    one, other = (FreeCapacity(nodes, scoring=TASTES[policy]).find(gang) for nodes in (there, shuffled))
    assert one == other


@given(policies, st.lists(small_gangs(), min_size=1, max_size=4), roomy_clusters(), st.data())
def test_what_was_ranked_before_follows_every_place_and_release(
    policy: str, kinds: list[tuple[RoleNeed, ...]], there: list[Node], data: st.DataObject
) -> None:
    room, scoring = FreeCapacity(there, scoring=TASTES[policy]), TASTES[policy]
    running: list[tuple[tuple[RoleNeed, ...], Placement]] = []
    for _ in range(data.draw(st.integers(1, 10))):
        leaves = data.draw(st.booleans())
        if running and leaves:
            roles, gone = running.pop(data.draw(st.integers(0, len(running) - 1)))
            need = next(role.need for role in roles if role.name == gone.role)
            room.put(room.nodes[gone.node].taking(need, gone, -1))
            continue
        gang = data.draw(st.sampled_from(kinds))
        afresh = FreeCapacity([replace(node) for node in room.nodes.values()], scoring=scoring)
        verdict = place_gang(gang, room.nodes, room.places, room.table)
        assert verdict == afresh.find(gang)
        if not isinstance(verdict, Reason):
            room.take(gang, verdict)
            running += [(gang, placement) for placement in verdict]


@given(policies, st.lists(small_gangs(), min_size=1, max_size=4), roomy_clusters(), st.data())
def test_a_room_that_is_renewed_for_another_pass_chooses_as_a_new_one(
    policy: str, kinds: list[tuple[RoleNeed, ...]], there: list[Node], data: st.DataObject
) -> None:
    scoring, nodes = TASTES[policy], {node.name: node for node in there}
    room = FreeCapacity(nodes.values(), scoring=scoring)
    for _ in range(data.draw(st.integers(1, 6))):
        for name in data.draw(st.sets(st.sampled_from(sorted(nodes)), max_size=2)):
            nodes[name] = data.draw(st.sampled_from(changes(nodes[name])))
        has_taken = False
        if not room.renewed(nodes.values(), scoring):
            room = FreeCapacity(nodes.values(), scoring=scoring)
        for _ in range(data.draw(st.integers(1, 3))):
            gang = data.draw(st.sampled_from(kinds))
            afresh = FreeCapacity([replace(node) for node in room.nodes.values()], scoring=scoring)
            verdict, expected = room.place(gang), afresh.find(gang)
            if isinstance(verdict, Reason) and has_taken:  # its numbers are those of the first time in the pass
                assert isinstance(expected, Reason)
                continue
            assert verdict == expected
            if isinstance(verdict, Reason):
                continue
            has_taken = True
            if data.draw(st.booleans()):  # else the append was in vain
                gang_of(gang).take(nodes, verdict)


def test_a_refusal_has_in_each_pass_the_numbers_of_the_nodes_then() -> None:
    nodes = {name: empty_node(node_seen(name)) for name in ("a", "b")}
    room, refusals = FreeCapacity(nodes.values()), list[object]()
    large, small = ((role_need(role_of(gpus=number)),) for number in (64, 1))
    for change in (None, None, "a", None):
        if change is not None:
            nodes[change] = replace(nodes[change])
        assert room.renewed(nodes.values(), BEST_FIT)
        refusals.append(room.find(large))
    assert all(refusal == refusals[0] for refusal in refusals)
    assert room.renewed(nodes.values(), BEST_FIT)
    assert not isinstance(room.place(small), Reason)
    assert room.renewed(nodes.values(), BEST_FIT)
    assert room.find(large) == FreeCapacity(nodes.values()).find(large)


def changes(node: Node) -> list[Node]:
    """The same in another object, with less free, with all of it, with another label, or not ready."""
    return [
        replace(node),
        replace(node, cpu_free=node.cpu_free // 2, pods_free=max(0, node.pods_free - 1)),
        emptied(node),
        replace(node, labels=tuple((key, "b" if key == "zone" else value) for key, value in node.labels)),
        replace(node, ready=not node.ready),
    ]


def test_a_room_is_not_renewed_for_other_nodes_or_another_policy() -> None:
    one, two = (empty_node(node_seen(name)) for name in ("a", "b"))
    room = FreeCapacity([one])
    assert room.renewed([one], BEST_FIT)
    assert not room.renewed([one, two], BEST_FIT)
    assert not room.renewed([], BEST_FIT)
    assert not room.renewed([two], BEST_FIT)
    assert not room.renewed([one], TASTES["tessera"])

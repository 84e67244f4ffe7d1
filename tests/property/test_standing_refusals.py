"""A refusal that stands from pass to pass is the one that a search of all nodes gives, code and numbers, as of then."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.empty_nodes import emptied
from tessera.domain.devices.resources import WHOLE_GPU, Node, RoleNeed
from tessera.domain.work.gang import gang_of
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import fits, never_fits
from tessera.engine.placement.gangs import FreeCapacity, place_gang
from tessera.engine.placement.inadmissible import EmptyNodes, inadmissible
from tessera.engine.placement.refusals import OWN
from tessera.engine.scoring.protocol import BEST_FIT
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement
from tests.property.shapes import clusters, gangs, related_gangs, roomy_clusters, small_gangs
from tests.unit.engine import engine_builders as build

GANGS = st.one_of(related_gangs(), gangs(), small_gangs())


def plainly(gang: tuple[RoleNeed, ...], nodes: dict[str, Node]) -> tuple[Placement, ...] | Reason:
    """Verdict of a search that knows nothing from before."""
    return place_gang(gang, nodes, FeasibleNodes(nodes, BEST_FIT))


@given(st.lists(GANGS, min_size=1, max_size=5), st.one_of(clusters(), roomy_clusters()), st.data())
def test_a_standing_refusal_is_that_of_a_search_of_all_nodes(
    kinds: list[tuple[RoleNeed, ...]], there: list[Node], data: st.DataObject
) -> None:
    nodes = {node.name: node for node in there}
    room = FreeCapacity(there)
    running: list[tuple[tuple[RoleNeed, ...], tuple[Placement, ...]]] = []
    for _ in range(data.draw(st.integers(1, 5))):
        for name in data.draw(st.sets(st.sampled_from(sorted(nodes)), max_size=2)) if nodes else ():
            nodes[name] = data.draw(st.sampled_from((replace(nodes[name]), emptied(nodes[name]))))
        if running and data.draw(st.booleans()):
            gang_of(running[-1][0]).take(nodes, running.pop()[1], -1)
        if not room.renewed(nodes.values(), BEST_FIT):
            room = FreeCapacity(nodes.values())
        first: dict[tuple[RoleNeed, ...], Reason] = {}
        for gang in data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6)):
            expected = first.get(gang) or plainly(gang, nodes)
            code = room.refusal(gang) if data.draw(st.booleans()) else None
            if isinstance(expected, Reason):
                first[gang] = expected
                assert code in (None, expected.code)
            else:
                assert code is None
            if code is not None and data.draw(st.booleans()):
                continue  # nobody asks for its numbers yet
            verdict = room.find(gang)
            assert verdict == expected
            if not isinstance(verdict, Reason):
                room.take(gang, verdict)
                gang_of(gang).take(nodes, verdict)
                running.append((gang, verdict))


@given(st.lists(GANGS, min_size=1, max_size=5), st.one_of(clusters(), roomy_clusters()), st.data())
def test_a_lack_of_room_that_is_remembered_is_that_of_counts_made_anew(
    kinds: list[tuple[RoleNeed, ...]], there: list[Node], data: st.DataObject
) -> None:
    room = FreeCapacity(there)
    running: list[tuple[tuple[RoleNeed, ...], tuple[Placement, ...]]] = []
    for step in data.draw(st.lists(st.sampled_from(("refuse", "take", "end", "change", "again")), max_size=10)):
        gang = data.draw(st.sampled_from(kinds))
        if step == "refuse":
            room.refusal(gang)
        elif step == "take" and not isinstance(placed := room.place(gang), Reason):
            running.append((gang, placed))
        elif step == "end" and running:
            room.give_back(*running.pop())
        elif step == "change" and room.nodes:
            name = data.draw(st.sampled_from(sorted(room.nodes)))
            changed = room.nodes | {name: emptied(room.nodes[name])}
            running = [run for run in running if all(place.node != name for place in run[1])]
            room = room if room.renewed(list(changed.values()), BEST_FIT) else FreeCapacity(changed.values())
        elif step == "again":
            assert room.renewed(list(room.nodes.values()), BEST_FIT)
        asked = data.draw(st.sampled_from(kinds))
        assert room.is_short(asked) == FreeCapacity(room.nodes.values()).is_short(asked)


def test_a_gang_lacks_room_no_longer_once_pods_have_left_or_a_node_gained_some() -> None:
    empty = build.node(gpus=4)
    gang, first = build.roles((1, build.need(gpus=4))), FreeCapacity([empty])
    placed = first.place(gang)
    assert not isinstance(placed, Reason)
    room = refused_before(gang, list(first.nodes.values()))
    room.give_back(gang, placed)
    assert not room.is_short(gang)
    room = refused_before(gang, list(first.nodes.values()))
    assert room.renewed([empty], BEST_FIT)
    assert not room.is_short(gang)


def refused_before(gang: tuple[RoleNeed, ...], nodes: list[Node]) -> FreeCapacity:
    """Free capacity that remembers from a later pass that the gang lacks room."""
    room = FreeCapacity(nodes)
    for _ in range(2):
        assert room.is_short(gang)
        assert room.renewed(nodes, BEST_FIT)
    assert room.is_short(gang)
    return room


@given(st.one_of(gangs(), small_gangs()), st.one_of(clusters(), roomy_clusters()))
def test_a_lone_role_without_room_is_known_without_a_search(gang: tuple[RoleNeed, ...], there: list[Node]) -> None:
    (lone,) = (replace(role, replicas=2 * role.replicas) for role in gang[:1])
    room = FreeCapacity(there)
    verdict = plainly((lone,), room.nodes)
    assert room.refusal((lone,)) == (verdict.code if isinstance(verdict, Reason) else None)


@given(st.one_of(gangs(), small_gangs()), st.one_of(clusters(), roomy_clusters()))
def test_every_node_is_counted_once_by_the_test_it_fails(gang: tuple[RoleNeed, ...], there: list[Node]) -> None:
    (lone,) = (replace(role, replicas=4 * role.replicas) for role in gang[:1])
    room = FreeCapacity(there)
    verdict = room.find((lone,))
    if not isinstance(verdict, Reason) or verdict.code is Code.NO_NODES:
        return
    misses = Counter[str]()
    for node in there:  # a node with room for one is full of the role's own pods once no more fit
        miss = fits(lone.need, node)
        misses[OWN if miss is None else miss.value] += 1
    assert {name: n for name, n in verdict.numbers.items() if name.startswith("nodes_")} == dict(misses)
    suited = [node for node in there if never_fits(lone.need, node) is None]
    if lone.need.gpus:
        most = max((node.gpu_free.count(WHOLE_GPU) for node in suited), default=0)
        assert verdict.numbers["most_gpus_free_on_a_node"] == most
        theirs = sum(len(node.gpu_others) for node in suited)
        assert verdict.numbers.get("gpus_held_by_pods_not_of_tessera", 0) == theirs


@given(st.lists(GANGS, min_size=2, max_size=5), st.one_of(clusters(), roomy_clusters()))
def test_what_empty_nodes_could_hold_does_not_depend_on_who_asked_before(
    kinds: list[tuple[RoleNeed, ...]], there: list[Node]
) -> None:
    known = EmptyNodes(there)
    for gang in kinds:
        assert inadmissible(gang, known) == inadmissible(gang, there)


def test_a_refusal_of_the_pass_before_has_the_numbers_of_now_when_somebody_was_placed_first() -> None:
    """Else a committer that has just begun would tell others than one that remembers, and a replay find it."""
    there = [build.node(f"n{at}", gpus=8) for at in range(2)]
    room, nodes = FreeCapacity(there), {node.name: node for node in there}
    large, small = build.roles((5, build.need(gpus=4))), build.roles((1, build.need(gpus=8)))
    before = room.find(large)
    assert before == plainly(large, nodes)
    assert room.renewed(there, BEST_FIT)
    placed = room.place(small)
    assert not isinstance(placed, Reason)
    gang_of(small).take(nodes, placed)
    assert room.find(large) == plainly(large, nodes) != before

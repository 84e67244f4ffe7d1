"""Pods that must lie together or apart: placed exactly when they can be, against brute force on small clusters."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.empty_nodes import emptied
from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.engine.placement.fits import count_bundles, fits, kind_of, never_fits, placed_on, short_of
from tessera.engine.placement.gangs import place_gang
from tessera.engine.placement.inadmissible import inadmissible
from tessera.engine.placement.placement_groups import placement_groups
from tessera.engine.placement.relations import broken
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement
from tests.property.plain_rule import spared
from tests.property.shapes import needs, related_gangs, roomy_clusters, small_gangs, small_needs

ROLES = st.builds(RoleNeed, name=st.just("role"), replicas=st.integers(1, 6), need=small_needs())
LEVELS = st.sampled_from(("rack", "zone"))


@st.composite
def used(draw: st.DrawFn) -> list[Node]:
    """A cluster on which some gangs hold something already."""
    there = {node.name: node for node in draw(roomy_clusters())}
    for gang in draw(st.lists(small_gangs(), max_size=3)):
        verdict = place_gang(gang, there)
        if not isinstance(verdict, Reason):
            named = {role.name: role.need for role in gang}
            for placement in verdict:
                there[placement.node] = there[placement.node].taking(named[placement.role], placement, 1)
    return list(there.values())


def by_name(nodes: Iterable[Node]) -> dict[str, Node]:
    return {node.name: node for node in nodes}


def taken_one_by_one(need: Need, node: Node) -> int:
    """How many pods the node takes, by putting one after the other on it."""
    return sum(1 for _ in one_by_one((need,), node))


def one_by_one(needs: Sequence[Need], node: Node) -> Iterator[Node]:
    """The node after each further bundle of pods that it takes whole."""
    while True:
        for need in needs:
            if fits(need, node) is not None:
                return
            node = node.taking(need, placed_on(node, need, 0, ""), 1)
        yield node


def domains(nodes: Iterable[Node], level: str) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in nodes:
        value = dict(node.labels).get(level)
        if value is not None:
            found.setdefault(value, []).append(node)
    return found


def capacities(need: Need, nodes: Iterable[Node], level: str) -> dict[str, int]:
    return {v: sum(taken_one_by_one(need, n) for n in members) for v, members in domains(nodes, level).items()}


def where(placements: Iterable[Placement], nodes: Iterable[Node], level: str) -> Counter[str | None]:
    named = by_name(nodes)
    return Counter(dict(named[p.node].labels).get(level) for p in placements)


# -- one domain -----------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(ROLES, used(), LEVELS)
def test_a_role_bound_to_a_domain_is_placed_exactly_when_one_holds_it_and_then_in_the_tightest(
    role: RoleNeed, there: list[Node], level: str
) -> None:
    room = capacities(role.need, there, level)
    verdict = place_gang((replace(role, levels=(level,), bound=True),), by_name(there))
    holding = [value for value, most in room.items() if most >= role.replicas]
    if isinstance(verdict, Reason):
        assert not holding
        if verdict.numbers:
            assert verdict.numbers["most_pods_that_fit_one_domain"] == max(room.values(), default=0)
            assert verdict.numbers["domains"] == len(room)
            every = sum(taken_one_by_one(role.need, node) for node in there)
            assert verdict.numbers["pods_that_fit_all_nodes"] == every
        return
    (value,) = where(verdict, there, level)
    assert value is not None
    free = {v: sum(sum(n.gpu_free) for n in members) for v, members in domains(there, level).items()}
    rare = {v: [spared(role.need, n) for n in members] for v, members in domains(there, level).items()}
    least = {v: tuple(map(sum, zip(*found, strict=True))) for v, found in rare.items()}
    assert value == min(holding, key=lambda v: (room[v], free[v], least[v], v))


@given(ROLES, used(), st.booleans())
def test_the_narrowest_level_that_holds_the_pods_is_taken(role: RoleNeed, there: list[Node], bound: bool) -> None:
    verdict = place_gang((replace(role, levels=("rack", "zone"), bound=bound),), by_name(there))
    held = {level: max(capacities(role.need, there, level).values(), default=0) for level in ("rack", "zone")}
    if isinstance(verdict, Reason):
        assert max(held.values()) < role.replicas
    elif held["rack"] >= role.replicas:
        assert len(where(verdict, there, "rack")) == 1
    elif held["zone"] >= role.replicas:
        assert len(where(verdict, there, "zone")) == 1
    else:
        assert not bound


@settings(max_examples=200)
@given(ROLES, used())
def test_a_preferred_domain_never_keeps_a_role_from_being_placed_and_few_domains_are_used(
    role: RoleNeed, there: list[Node]
) -> None:
    there = [node for node in there if dict(node.labels).get("rack")]
    verdict = place_gang((replace(role, levels=("rack",)),), by_name(there))
    assert isinstance(verdict, Reason) == isinstance(place_gang((role,), by_name(there)), Reason)
    if isinstance(verdict, Reason):
        return
    room = capacities(role.need, there, "rack")
    fewest = min(
        count
        for count in range(1, len(room) + 1)
        for some in combinations(room, count)
        if sum(room[value] for value in some) >= role.replicas
    )
    assert len(where(verdict, there, "rack")) == fewest


# -- evenly apart ---------------------------------------------------------------------------------------------------


def ways(count: int, values: list[str]) -> Iterator[dict[str, int]]:
    """Every way to put `count` pods on the values."""
    if len(values) == 1:
        yield {values[0]: count}
        return
    for here in range(count + 1):
        yield from ({values[0]: here} | rest for rest in ways(count - here, values[1:]))


@settings(max_examples=200)
@given(ROLES, used(), LEVELS, st.sampled_from((1, 1, 2, 3)))
def test_pods_are_spread_evenly_exactly_when_they_can_be(
    role: RoleNeed, there: list[Node], label: str, skew: int
) -> None:
    room = {
        value: sum(taken_one_by_one(role.need, node) for node in members)
        for value, members in domains(there, label).items()
        if any(never_fits(role.need, n) is None and count_bundles(kind_of((role.need,)), emptied(n)) for n in members)
    }
    verdict = place_gang((replace(role, spread=label, max_skew=skew),), by_name(there))
    even = [
        (skewed, way)
        for way in (ways(role.replicas, sorted(room)) if room else ())
        if all(way[value] <= room[value] for value in room)
        and (skewed := max(way.values()) - min(way.values())) <= skew
    ]
    if isinstance(verdict, Reason):
        assert not even
        return
    found, least = where(verdict, there, label), min(skewed for skewed, _ in even)
    assert (least, {value: found.get(value, 0) for value in room}) in even
    assert found.total() == role.replicas


# -- whatever they ask ----------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(related_gangs(), used())
def test_what_is_placed_lies_as_it_was_asked(gang: tuple[RoleNeed, ...], there: list[Node]) -> None:
    verdict = place_gang(gang, by_name(there))
    if isinstance(verdict, Reason):
        return
    assert not list(broken(gang, verdict, by_name(there)))
    at = {role.name: [p.node for p in verdict if p.role == role.name] for role in gang}
    for role in gang:
        if role.beside:
            assert at[role.name] == at[role.beside][: role.replicas]
        if role.bound:
            grouped = [other for other in gang if other is role or (role.group and other.group == role.group)]
            placed = [p for p in verdict if p.role in {other.name for other in grouped}]
            assert any(len(where(placed, there, level)) == 1 for level in role.levels)
        if role.spread:
            found = where((p for p in verdict if p.role == role.name), there, role.spread)
            assert None not in found
            assert max(found.values()) - min(found.values()) <= 1


@given(related_gangs(), used())
def test_what_a_gang_asks_for_its_pods_never_makes_more_of_it_fit(
    gang: tuple[RoleNeed, ...], there: list[Node]
) -> None:
    """With one role, where best fit is exact: all relations only forbid."""
    for role in gang:
        alone = RoleNeed(role.name, role.replicas, role.need)
        if isinstance(place_gang((alone,), by_name(there)), Reason):
            assert isinstance(place_gang((replace(role, beside=""),), by_name(there)), Reason)


@settings(max_examples=200)
@given(ROLES, roomy_clusters(), LEVELS)
def test_a_role_bound_to_a_domain_is_inadmissible_exactly_when_no_empty_domain_could_hold_it(
    role: RoleNeed, there: list[Node], level: str
) -> None:
    empty = [emptied(node) for node in there]
    holds = max(capacities(role.need, empty, level).values(), default=0) >= role.replicas
    assert (inadmissible((replace(role, levels=(level,), bound=True),), there) is None) == (holds or not there)


@settings(max_examples=200)
@given(related_gangs(), used())
def test_the_room_for_pods_that_share_a_node_is_what_it_takes_one_by_one(
    gang: tuple[RoleNeed, ...], there: list[Node]
) -> None:
    for bundles in (bundles for group in placement_groups(gang) for bundles in group.bundle_sets):
        for node in there:
            if any(never_fits(need, node) for need in bundles.needs):
                continue
            count = sum(1 for _ in one_by_one(bundles.needs, node))
            assert count_bundles(bundles.kind, node) == count
            assert (short_of(bundles.kind, node) is None) == (count > 0)


@settings(max_examples=200)
@given(st.one_of(needs(), small_needs()), used())
def test_the_room_on_a_node_is_what_it_takes_one_by_one(need: Need, there: list[Node]) -> None:
    for node in there:
        if never_fits(need, node) is None:
            assert count_bundles(kind_of((need,)), node) == taken_one_by_one(need, node)

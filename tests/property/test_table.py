"""The table of nodes and kinds answers as one that was made just now, also where it remembers next to nothing."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.empty_nodes import emptied
from tessera.domain.devices.resources import Node, RoleNeed
from tessera.domain.work.gang import gang_of
from tessera.engine.placement import gangs as gangs_module
from tessera.engine.placement.fits import count_bundles, never_fits
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.placement.placement_groups import placement_groups
from tessera.engine.placement.rows import room_counts, search_looks, table
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import Placement
from tests.property.plain_rule import TASTES, policies
from tests.property.shapes import clusters, gangs, related_gangs, roomy_clusters, small_gangs, zoned

KINDS = st.lists(st.one_of(related_gangs(), gangs(), small_gangs()), min_size=2, max_size=5)


@pytest.fixture(params=["usual bounds", "next to no memory"], scope="module", autouse=True)
def bounds(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the small bounds, kinds, costs, changes and refused gangs are forgotten all the time."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "next to no memory":
            patch.setattr(room_counts, "KINDS_MAX", 1)
            patch.setattr(table, "COSTS_MAX", 8)
            patch.setattr(table, "LOG_MIN", 0)
            patch.setattr(table, "FEW", 0)
            patch.setattr(search_looks, "STATES_PER_ROW", 0)
            patch.setattr(gangs_module, "GANGS_MAX", 3)
        yield


def heavier(gang: tuple[RoleNeed, ...]) -> tuple[RoleNeed, ...]:
    """The gang with more CPU for each pod, whose ranking begins with that of the other."""
    return tuple(replace(role, need=replace(role.need, cpu_milli=role.need.cpu_milli + 1000)) for role in gang)


@given(policies, KINDS, zoned(st.one_of(clusters(), roomy_clusters())), st.data())
def test_what_the_table_answers_is_what_a_new_one_answers(
    policy: str, kinds: list[tuple[RoleNeed, ...]], there: list[Node], data: st.DataObject
) -> None:
    scoring, kinds = TASTES[policy], [*kinds, *map(heavier, kinds)]
    room = FreeCapacity(there, scoring=scoring)
    running: list[tuple[tuple[RoleNeed, ...], tuple[Placement, ...]]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        gang = data.draw(st.sampled_from(kinds))
        step = data.draw(st.sampled_from(("place", "place", "end", "change")))
        if step == "place" and not isinstance(placed := room.place(gang), Reason):
            running.append((gang, placed))
        elif step == "end" and running:
            room.give_back(*running.pop())
        elif step == "change" and room.nodes:
            running.clear()
            for name in data.draw(st.sets(st.sampled_from(sorted(room.nodes)))):
                node = room.nodes[name]
                room.put(data.draw(st.sampled_from((replace(node), emptied(node) if node.ready else node))))
        assert room.renewed(list(room.nodes.values()), scoring)
        asked = data.draw(st.sampled_from(kinds))
        afresh = FreeCapacity([replace(node) for node in room.nodes.values()], scoring=scoring)
        assert room.is_short(asked) == afresh.is_short(asked)
        assert room.is_short_in_all(asked) == afresh.is_short_in_all(asked)
        assert room.looks(asked) == afresh.looks(asked)
        assert room.find(asked) == afresh.find(asked)
        if isinstance(room.find(asked), Reason) or room.refusal(asked) is None:
            continue
        raise AssertionError("it was refused without a search, and has a place")


@given(KINDS, zoned(st.one_of(clusters(), roomy_clusters())), st.data())
def test_the_room_of_every_kind_is_that_of_counting_node_by_node(
    kinds: list[tuple[RoleNeed, ...]], there: list[Node], data: st.DataObject
) -> None:
    room = FreeCapacity(there)
    for _ in range(data.draw(st.integers(1, 4))):
        gang = data.draw(st.sampled_from(kinds))
        if not isinstance(placed := room.find(gang), Reason):
            room.take(gang_of(gang), placed)
        for bundles in (each for other in kinds for group in placement_groups(other) for each in group.bundle_sets):
            kind, counted = bundles.kind, dict[str, int]()
            for name, node in room.nodes.items():
                if all(never_fits(need, node) is None for need in kind.needs) and (many := count_bundles(kind, node)):
                    counted[name] = many
            assert room.table.total(kind) == sum(counted.values())
            for level in ("rack", "zone"):
                by_domain: dict[str, int] = {}
                for name, many in counted.items():
                    if (value := room.nodes[name].label(level)) is not None:
                        by_domain[value] = by_domain.get(value, 0) + many
                assert room.table.by_domain(kind, level) == by_domain
                assert room.table.most_in_a_domain(kind, level) == max(by_domain.values(), default=0)

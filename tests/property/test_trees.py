"""Gangs of groups within each other: placed as each level asks, and exactly when some way exists, by brute force."""

from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import GroupNeed, Need, Node, RoleNeed
from tessera.domain.storing.fast import replace
from tessera.engine.placement.gangs import FreeCapacity, place_gang
from tessera.engine.placement.inadmissible import inadmissible
from tessera.engine.placement.relations import broken
from tessera_schemas.facts import NodeSeen
from tessera_schemas.reasons import Reason

HOST = "host"


@st.composite
def racks(draw: st.DrawFn) -> dict[str, Node]:
    """At most five nodes of at most four GPUs, in racks and zones that need not nest, some in none."""
    there = {}
    for number in range(draw(st.integers(1, 5))):
        labels = {"rack": draw(st.sampled_from("abc")), "zone": draw(st.sampled_from("yz")), HOST: f"n{number}"}
        labels = {key: value for key, value in labels.items() if key == HOST or draw(st.integers(0, 9))}
        size = {"cpu_milli": 64_000, "memory_bytes": 2**40, "pods": 110, "gpus": draw(st.integers(0, 4))}
        seen = NodeSeen.model_validate({"kind": "node_seen", "name": f"n{number}", "labels": labels, **size})
        there[seen.name] = empty_node(seen)
    return there


@st.composite
def trees(draw: st.DrawFn) -> tuple[RoleNeed, ...]:
    """A gang of at most eight pods of one or two roles, in up to three levels of groups."""

    def level(name: str, labels: Sequence[str], pods: int) -> GroupNeed:
        label = draw(st.sampled_from((*labels, "")))
        return (name, pods, (label,) if label else (), bool(label) and draw(st.integers(0, 3)) > 0)

    copies, size = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    every, team = level("all", ("zone", "rack"), 0), level("team", ("rack", "zone"), size)
    gpus = draw(st.integers(1, 2))
    pair = (level("pair", (HOST, "rack"), draw(st.sampled_from((1, size)))),) if draw(st.booleans()) else ()
    workers = RoleNeed("worker", copies * size, Need(1000, 1, gpus), groups=(every, team, *pair))
    if not draw(st.booleans()):
        return (workers,)
    heads = RoleNeed("head", copies, Need(1000, 1, draw(st.integers(0, 2))), groups=(every, (*team[:1], 1, *team[2:])))
    return (heads, workers) if draw(st.booleans()) else (workers, heads)


def ways(gang: tuple[RoleNeed, ...], nodes: dict[str, Node]) -> Iterator[tuple[str, ...]]:
    """Every choice of a node for each pod for which the GPUs suffice."""
    pods = [role.need.gpus for role in gang for _ in range(role.replicas)]

    def further(at: int, left: dict[str, int]) -> Iterator[tuple[str, ...]]:
        if at == len(pods):
            yield ()
            return
        for name, free in left.items():
            if free >= pods[at]:
                yield from ((name, *rest) for rest in further(at + 1, left | {name: free - pods[at]}))

    yield from further(0, {name: node.gpus for name, node in nodes.items()})


def holds(gang: tuple[RoleNeed, ...], names: tuple[str, ...], nodes: dict[str, Node]) -> bool:
    """Whether the pods on these nodes are as each level of each group asks, by the names of its copies alone."""
    found: dict[tuple[object, ...], set[str | None]] = {}
    at = 0
    for role in gang:
        for number in range(role.replicas):
            path: tuple[object, ...] = ()
            for name, size, levels, bound in role.groups:
                path = (*path, name, number // (size or role.replicas))
                if bound:
                    found.setdefault((*path, levels[-1]), set()).add(nodes[names[at]].label(levels[-1]))
            at += 1
    return all(len(values) == 1 and None not in values for values in found.values())


@settings(max_examples=400)
@given(trees(), racks())
def test_a_tree_is_placed_exactly_when_some_way_exists_and_then_as_each_level_asks(
    gang: tuple[RoleNeed, ...], nodes: dict[str, Node]
) -> None:
    verdict = place_gang(gang, nodes)
    if not isinstance(verdict, Reason):
        assert holds(gang, tuple(place.node for place in verdict), nodes)
        assert list(broken(gang, verdict, nodes)) == []
        return
    assert not any(holds(gang, names, nodes) for names in ways(gang, nodes))


@settings(max_examples=200)
@given(trees(), racks())
def test_the_table_and_the_counts_change_no_verdict_about_a_tree(
    gang: tuple[RoleNeed, ...], nodes: dict[str, Node]
) -> None:
    plain, capacity = place_gang(gang, nodes), FreeCapacity(nodes.values())
    refused = capacity.refusal(gang)
    assert capacity.find(gang) == plain
    assert isinstance(plain, Reason) or (refused is None and inadmissible(gang, nodes.values()) is None)


@given(trees(), racks(), st.data())
def test_a_tree_with_two_pods_exchanged_is_told_by_the_judge_exactly_when_a_level_is_broken(
    gang: tuple[RoleNeed, ...], nodes: dict[str, Node], data: st.DataObject
) -> None:
    verdict = place_gang(gang, nodes)
    if isinstance(verdict, Reason):
        return
    node = data.draw(st.sampled_from(sorted(nodes)))
    at = data.draw(st.integers(0, len(verdict) - 1))
    moved = (*verdict[:at], replace(verdict[at], node=node), *verdict[at + 1 :])
    assert (list(broken(gang, moved, nodes)) == []) == holds(gang, tuple(p.node for p in moved), nodes)

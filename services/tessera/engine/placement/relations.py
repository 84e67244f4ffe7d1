"""
Whether the pods of a gang are placed relative to each other as their roles ask, whoever placed them: asked of plans and
of records of any age.

The check looks at the pods' own nodes and not at how they were found. Which values a spread has to count was known only
when it was placed, so here the values that have pods are compared.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tessera.domain.devices.resources import Node, RoleNeed
from tessera.domain.work.gang import gang_of
from tessera.engine.placement.placement_groups import BundleSet, PlacementGroup, placement_groups
from tessera_schemas.work.placement import Placement


def broken(roles: tuple[RoleNeed, ...], placements: Sequence[Placement], nodes: Mapping[str, Node]) -> Iterator[str]:
    """Relations that are not as asked; the gang is whole, its ranks are in order and its nodes are among `nodes`."""
    at = {role.name: [nodes[p.node] for p in placements if p.role == role.name] for role in roles}
    for group in placement_groups(roles):
        yield from _find_scattered(group, at)
        there = [node for bundles in group.bundle_sets for node in at[bundles.role.name]]
        if group.bound and not any(_in_one_domain(there, level) for level in group.levels):
            yield f"role {group.bundle_sets[0].role.name}: its pods are not in one domain of {group.levels[-1]}"
        for bundles in group.bundle_sets:
            yield from _find_separated(bundles, at)
            if bundles.role.spread and not _even(at[bundles.role.name], bundles.role):
                yield f"role {bundles.role.name}: its pods are not evenly spread over {bundles.role.spread}"
    for name, alike in gang_of(roles).one_model.items():
        models = {node.gpu_model for role in alike for node in at[role.name]}
        if len(models) > 1:
            yield f"role {name}: pods that are on one GPU model are on {sorted(models)}"
    yield from shared_devices(roles, placements)


def shared_devices(roles: tuple[RoleNeed, ...], placements: Iterable[Placement]) -> Iterator[str]:
    """Devices that several shares of a gang are on, each of which has one of its own."""
    # Pods of other gangs may be on the same devices: only ranks of one run meet there in NCCL.
    needs = gang_of(roles).need_of
    used = Counter((p.node, device) for p in placements if needs[p.role].apart for device in p.devices)
    yield from (f"several of its shares are on device {at} of node {node}" for (node, at), n in used.items() if n > 1)


def _find_scattered(group: PlacementGroup, at: dict[str, list[Node]]) -> Iterator[str]:
    """Copies of groups of pods within a group that are not in the domain which they are bound to."""
    for copy in group.inside:
        there = [node for b in copy.bundle_sets for node in at[b.role.name][b.first : b.first + b.count]]
        if copy.bound and not any(_in_one_domain(there, level) for level in copy.levels):
            yield f"group {copy.name}: the pods of copy {copy.copy} are not in one domain of {copy.levels[-1]}"
        yield from _find_scattered(copy, at)


def _in_one_domain(nodes: Sequence[Node], level: str) -> bool:
    values = {dict(node.labels).get(level) for node in nodes}
    return len(values) == 1 and None not in values


def _find_separated(bundles: BundleSet, at: dict[str, list[Node]]) -> Iterator[str]:
    if bundles.undivided:
        if len({node.name for role in bundles.roles for node in at[role.name]}) > 1:
            names = ", ".join(role.name for role in bundles.roles)
            yield f"roles {names}: pods that share a claim are on several nodes"
        return
    here = [node.name for node in at[bundles.role.name][bundles.first : bundles.first + bundles.count]]
    for role in bundles.roles[1:]:
        if [node.name for node in at[role.name][bundles.first : bundles.first + bundles.count]] != here:
            yield f"role {role.name}: its pods are not on the nodes of those of {bundles.role.name}"


def _even(nodes: Sequence[Node], role: RoleNeed) -> bool:
    pods = Counter(dict(node.labels).get(role.spread) for node in nodes)
    return None not in pods and max(pods.values()) - min(pods.values()) <= role.max_skew

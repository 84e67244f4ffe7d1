"""
Groups of a job's pods within each other: a gang as a tree, each level with its size and the domain that holds it.

Pods of a role go to the copies of its groups in rank order: the first `pods` of them to the first copy, and so on.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Protocol

from pydantic import Field

from tessera_schemas.base import Name, Positive, Strict, later
from tessera_schemas.cluster.node_terms import Topology

GROUPS_MAX, DEPTH_MAX, COPIES_MAX = 16, 4, 256
RESTARTS_MAX = 1000
GROWN_MAX = 64
"""Pods of a copy by which a job grows at once."""


class GroupRestart(Strict):
    """Rule by which a copy of a group starts again by itself when a pod of it fails, while the others go on."""

    max_restarts: Annotated[
        Positive,
        Field(le=RESTARTS_MAX, description="Restarts of one copy, after which its failure is that of the level above"),
    ] = 3
    backoff_seconds: Annotated[
        int,
        Field(ge=0, le=3600, strict=True, description="Pause in seconds before the first restart, doubled each time"),
    ] = 10


class RoleGroup(Strict):
    """
    A group of pods that comes in equal copies, each in a domain of its own choice; groups may be within each other.

    The number of copies follows from the roles' replicas: eight workers in groups of two are four copies. Where the
    roles of a group are elastic it grows and shrinks by whole copies.
    """

    name: Annotated[Name, Field(description="Name of the group")]
    within: Annotated[
        Name | None, Field(description="Group, named before this one, of which each copy holds copies of this one")
    ] = None
    pods: Annotated[
        dict[Name, Positive],
        Field(max_length=16, description="Pods of each role in one copy; left out: all pods of the job, in one copy"),
    ] = Field(default_factory=dict)
    topology: Annotated[Topology | None, Field(description="Domain, such as a rack, that holds all pods of a copy")] = (
        None
    )
    restart: Annotated[
        GroupRestart | None,
        Field(description="How a copy of which a pod fails starts again by itself; null: the level above starts again"),
    ] = later(None)


class AskedDevices(Protocol):
    """Resources of a role, as far as groups ask of them."""

    @property
    def claims(self) -> Sequence[object]: ...


class GroupedRole(Protocol):
    """A role, as far as groups ask of it."""

    @property
    def name(self) -> str: ...
    @property
    def gang(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def topology(self) -> Topology | None: ...
    @property
    def is_tied(self) -> bool: ...
    @property
    def same_node_as(self) -> str | None: ...
    @property
    def resources(self) -> AskedDevices: ...


def find_parents(groups: Sequence[RoleGroup]) -> dict[str, tuple[RoleGroup, ...]]:
    """The groups that each group is within, widest first and itself last, by its name."""
    found: dict[str, tuple[RoleGroup, ...]] = {}
    for group in groups:
        found[group.name] = (*found.get(group.within or "", ()), group)
    return found


def groups_of_role(groups: Sequence[RoleGroup], role: str) -> tuple[RoleGroup, ...]:
    """The groups that the role's pods are in, widest first."""
    return tuple(group for group in groups if role in group.pods or not group.pods)


def find_growing(groups: Sequence[RoleGroup], roles: Sequence[GroupedRole]) -> RoleGroup | None:
    """The group by whose copies the job grows: the widest of named pods with an elastic role; None for none."""
    elastic = {role.name for role in roles if role.gang < role.most}
    return next((group for group in groups if elastic & group.pods.keys()), None)


def wrong_shared_domains(roles: Sequence[GroupedRole]) -> Iterator[str]:
    """Roles that share a domain by the group in their topology, and ask for another one."""
    first: dict[str, Topology] = {}
    for index, role in enumerate(roles):
        if role.topology is not None and role.topology.group is not None:
            topology = first.setdefault(role.topology.group, role.topology)
            if topology != role.topology:
                yield f"roles[{index}].topology: differs from the one of the group's first role"


def wrong_role_groups(groups: Sequence[RoleGroup], roles: Sequence[GroupedRole]) -> Iterator[str]:
    """Faults of the groups."""
    tied = {role.name for role in roles if role.is_tied} | {role.same_node_as for role in roles if role.same_node_as}
    if len({group.name for group in groups}) < len(groups):
        yield "groups: two groups have the same name"
        return
    known, by_name = dict[str, RoleGroup](), {role.name: role for role in roles}
    claiming = {role.name for role in roles if role.resources.claims}
    for index, group in enumerate(groups):
        path = f"groups[{index}]"
        parent = known.get(group.within or "")
        known[group.name] = group
        wrong = [*_wrong_names(group, parent, known, by_name)]
        if group.topology is not None and group.topology.group is not None:
            wrong.append(".topology.group: a group has a domain for itself")
        for name in sorted((group.pods.keys() or by_name.keys()) & tied):
            wrong.append(f": pods of {name} are placed by its own topology, spread, same_node_as or shared claims")
        # A claim is called as its pod, and outlives that for a while: the next pod of the name would get the old one.
        for name in sorted((group.pods.keys() or by_name.keys()) & claiming) if group.restart is not None else ():
            wrong.append(f".restart: pods of {name} have claims on devices, and start again with their whole job only")
        yield from (f"{path}{each}" for each in wrong or _wrong_copies(group, parent, by_name))
    yield from _wrong_tree(groups, by_name)
    yield from _wrong_growth(groups, roles)


def _wrong_names(
    group: RoleGroup, parent: RoleGroup | None, known: Mapping[str, RoleGroup], roles: Mapping[str, GroupedRole]
) -> Iterator[str]:
    if group.within is not None and (parent is None or parent is group):
        yield f".within: there is no group {group.within} before it"
    if not group.pods and len(known) > 1:
        yield ".pods: left out for the first group alone, which holds all others"
    if group.pods and group.within is None and any(not each.pods for each in known.values()):
        yield ".within: the first group holds all pods; name it"
    yield from (f".pods: there is no role {name}" for name in group.pods if name not in roles)
    if parent is not None and parent.pods:
        yield from (f".pods: {name} is not in {parent.name}" for name in group.pods if name not in parent.pods)


def _wrong_copies(group: RoleGroup, parent: RoleGroup | None, roles: Mapping[str, GroupedRole]) -> Iterator[str]:
    """Faults of the group's sizes: its copies are whole, and of every role there are as many, at least and at most."""
    inner = parent is not None and bool(parent.pods)
    # Within a group that grows each copy is the same as before, so that its inner groups know one size.
    for most in (False, True) if not inner else (False,):
        copies = set[int]()
        for name, pods in group.pods.items():
            own = roles[name].most if most else roles[name].gang
            there = parent.pods[name] if parent is not None and inner else own
            if there % pods:
                yield f".pods: {there} pods of {name} make no whole groups of {pods}"
                return
            copies.add(there // pods)
        if len(copies) > 1:
            yield f".pods: the roles make different numbers of copies ({', '.join(map(str, sorted(copies)))})"
            return


def _wrong_growth(groups: Sequence[RoleGroup], roles: Sequence[GroupedRole]) -> Iterator[str]:
    """Faults of a job that grows by copies: of one group alone, with all of its elastic roles in it."""
    elastic = {role.name for role in roles if role.gang < role.most}
    if not elastic or not groups:
        return
    growing = find_growing(groups, roles)
    grown = {} if growing is None else growing.pods
    if apart := sorted(elastic - grown.keys()):
        yield f"groups: {apart[0]} is elastic; a job grows by copies of one group, which names pods of each such role"
    elif growing is not None and sum(grown.values()) > GROWN_MAX:
        yield f"groups: a copy of {growing.name} has more than {GROWN_MAX} pods, by which no job grows"
    for group in groups:
        if not group.pods and group.restart is not None:
            yield f"groups: {group.name} has all pods and grows; copies within it may start again by themselves, not it"


def _wrong_tree(groups: Sequence[RoleGroup], roles: Mapping[str, GroupedRole]) -> Iterator[str]:
    for name, chain in find_parents(groups).items():
        if len(chain) > DEPTH_MAX:
            yield f"groups: {name} is within more than {DEPTH_MAX - 1} others"
    for name in roles:
        chain = groups_of_role(groups, name)
        if any(inner.within != outer.name for outer, inner in itertools.pairwise(chain)):
            yield f"groups: {name} is in groups that are not within each other"
    copies = [roles[name].most // pods for group in groups for name, pods in [*group.pods.items()][:1] if name in roles]
    if sum(copies) > COPIES_MAX:
        yield f"groups: more than {COPIES_MAX} copies in one job"

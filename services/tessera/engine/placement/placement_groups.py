"""
Placement groups of a gang: roles of one topology group, and pods that share a node.

A **bundle** is a pod of one role with the pods that go to the same node; where pods share a claim on devices, it is all
pods of their roles. A **bundle set** is a number of equal bundles, a **placement group** the sets whose domain is
chosen together; a role that names no group is one of its own. Groups of pods make a **tree** of placement groups, each
copy one of them, under one root for all roles that are in such groups.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tessera.domain.devices.levels import NEAR
from tessera.domain.devices.resources import GroupNeed, Need, RoleNeed
from tessera.domain.work.gang import gang_of
from tessera.engine.placement.fits import BundleKind, kind_of

BundleCounts = dict[str, int]
"""Number of bundles by node, or by domain; those without room are left out."""


@dataclass(frozen=True, slots=True)
class BundleSet:
    """
    `count` equal bundles: the pods number `first` and on of each of `roles`; the others go with the first role's.

    `pods` has the role of each pod of a bundle, in the order of `needs`, and what its number is above the bundle's.
    `undivided`: the only bundle is all pods of `roles`, which share claims.
    """

    roles: tuple[RoleNeed, ...]
    kind: BundleKind
    first: int
    count: int
    pods: tuple[tuple[RoleNeed, int], ...]
    undivided: bool = False

    @property
    def needs(self) -> tuple[Need, ...]:
        """Needs of the pods of a bundle."""
        return self.kind.needs

    @property
    def whole(self) -> Need:
        """Sum of what a bundle takes of its node."""
        return self.kind.whole

    @property
    def role(self) -> RoleNeed:
        """First role of the bundle, whose pods the others go with."""
        return self.roles[0]


@dataclass(frozen=True, slots=True)
class PlacementGroup:
    """Bundle sets for one domain of one of `levels`, narrowest first; `bound`: of the last one at the widest."""

    bundle_sets: tuple[BundleSet, ...]
    levels: tuple[str, ...] = ()
    bound: bool = False

    anywhere: bool = True
    """Whether its pods may lie on any nodes, however they are placed relative to each other."""
    may_split: bool = True
    """Whether its pods may lie apart where they cannot lie together."""
    unasked: bool = False
    """Whether nobody asked for the domain: then the score chooses among those that hold the pods."""
    name: str = ""
    """Name of the group of pods that this is a copy of, and its number among the copies in one of the group above."""
    copy: int = 0
    inside: tuple["PlacementGroup", ...] = ()
    """Groups in whose domains its pods are, within its own; all of its pods are in one of them."""

    @property
    def kinds_of_groups(self) -> Iterator["PlacementGroup"]:
        """The first copy of each group of the tree, itself left out: the others are its equals."""
        for each in self.inside:
            if not each.copy:
                yield each
                yield from each.kinds_of_groups


@lru_cache(maxsize=16_384)
def placement_groups(roles: tuple[RoleNeed, ...]) -> tuple[PlacementGroup, ...]:
    """Placement groups in the order of the roles; a group stands where its first role does."""
    names = {role.name for role in roles}
    sharing = {led[0].name: led for led in _sharing(roles)}
    others = {role.name for led in sharing.values() for role in led[1:]}
    together: dict[str, list[RoleNeed]] = {}
    for role in roles:
        if role.beside not in names and role.name not in others:
            shared = "" if role.groups else f"/{role.group}" if role.group else role.name
            together.setdefault(shared, []).append(role)
    return tuple(
        _make_group(members, roles, sharing) if key else _make_tree(members, roles) for key, members in together.items()
    )


PodsInGroups = tuple[RoleNeed, tuple[GroupNeed, ...], int, int]
"""Pods of a role: the groups that they are in, the number of the first, and how many."""


def _make_tree(members: Iterable[RoleNeed], roles: tuple[RoleNeed, ...], firm: bool = False) -> PlacementGroup:
    """A tree without groups that say nothing of places; `firm`: and without those that say what is preferred."""
    # Copies of such a group would be placed one after the other, where small pods of one take what the next one needs.
    pods = [(r, tuple(g for g in r.groups if g[2] and (g[3] or not firm)), 0, r.replicas) for r in members]
    return _make_copy(pods, roles, 0, "", 0)


@lru_cache(maxsize=16_384)
def firm_tree(roles: tuple[RoleNeed, ...]) -> PlacementGroup:
    """The tree of the gang's groups of pods without what they only prefer."""
    return _make_tree((role for role in roles if role.groups), roles, firm=True)


def _make_copy(
    pods: list[PodsInGroups], roles: tuple[RoleNeed, ...], depth: int, name: str, copy: int
) -> PlacementGroup:
    """The group of these pods, who are in `depth` groups with each other."""
    of_gpus = any(each.need.total_gpu_milli for each in roles)
    sets = [BundleSet((r,), kind_of((r.need,), of_gpus), first, count, ((r, 0),)) for r, _, first, count in pods]
    deeper: dict[str, list[PodsInGroups]] = {}
    for each in pods:
        deeper.setdefault(each[1][depth][0] if len(each[1]) > depth else "", []).append(each)
    inside = list[PlacementGroup]()
    for inner, theirs in deeper.items():
        if inner:
            inside += _make_copies(inner, theirs, roles, depth)
        elif len(deeper) > 1:  # pods of its own, beside groups in it
            inside.append(_make_copy(theirs, roles, depth, "", 0))
    _, _, levels, bound = pods[0][1][depth - 1] if name else ("", 0, (), False)
    is_tree = bool(name or inside)
    # The largest go first, since what is small finds room beside them; nothing of a tree is placed in part.
    sets.sort(key=lambda bundles: -bundles.whole.total_gpu_milli if is_tree else 0)
    inside.sort(key=_gpus_of_unit, reverse=True)
    return PlacementGroup(
        tuple(sets),
        levels,
        bound,
        anywhere=not is_tree,
        may_split=not is_tree,
        name=name,
        copy=copy,
        inside=tuple(inside),
    )


def _gpus_of_unit(group: PlacementGroup) -> int:
    """Thousandths of GPUs of what has to be together in the group: a copy of it, or only each pod."""
    gpus = [bundles.whole.total_gpu_milli for bundles in group.bundle_sets]
    if not group.levels:
        return max(gpus)
    return sum(each * bundles.count for each, bundles in zip(gpus, group.bundle_sets, strict=True))


def _make_copies(
    name: str, pods: list[PodsInGroups], roles: tuple[RoleNeed, ...], depth: int
) -> Iterator[PlacementGroup]:
    # A group that names no pods is one copy of all of them.
    sizes = [groups[depth][1] or count for _, groups, _, count in pods]
    for copy in range(pods[0][3] // sizes[0]):
        of_copy = [
            (role, groups, first + copy * size, size)
            for (role, groups, first, _), size in zip(pods, sizes, strict=True)
        ]
        yield _make_copy(of_copy, roles, depth + 1, name, copy)


def _sharing(roles: tuple[RoleNeed, ...]) -> Iterator[tuple[RoleNeed, ...]]:
    """Roles of which all pods go to one node, since they share claims. None of them goes beside another (contract)."""
    pods = Counter[str]()
    for role in roles:
        pods.update(dict.fromkeys(role.need.shared, role.replicas))
    # A claim that one pod names ties it to nobody: users' lone pods name claims, too.
    shared = sorted(name for name, count in pods.items() if count > 1)
    if not shared:
        return
    found = list[set[str]]()
    # A role may share one claim with a role before it and another one with a role after it: then all three go together.
    for name in shared:
        link = {role.name for role in roles if name in role.need.shared}
        found = [each for each in found if not each & link] + [link.union(*(each for each in found if each & link))]
    yield from (tuple(role for role in roles if role.name in each) for each in found)


def _make_group(
    members: list[RoleNeed], roles: tuple[RoleNeed, ...], sharing: Mapping[str, tuple[RoleNeed, ...]]
) -> PlacementGroup:
    bundle_sets = tuple(
        bundles
        for role in members
        for bundles in (_undivided(sharing[role.name], roles) if role.name in sharing else _split_role(role, roles))
    )
    levels, bound, spread = members[0].levels, members[0].bound, any(bundles.role.spread for bundles in bundle_sets)
    return PlacementGroup(
        bundle_sets,
        levels,
        bound,
        anywhere=not levels and not spread,
        may_split=not bound and not spread,
        unasked=members[0].group == NEAR,
    )


def _undivided(led: tuple[RoleNeed, ...], roles: tuple[RoleNeed, ...]) -> Iterator[BundleSet]:
    """Roles that share claims are one bundle."""
    gang = gang_of(roles)
    needs = tuple(need for role in led for need in gang.needs_in(role))
    pods = tuple((role, at) for role in led for at in range(role.replicas))
    kind = kind_of(needs, any(each.need.total_gpu_milli for each in roles))
    yield BundleSet(led, kind, 0, 1, pods, undivided=True)


def _split_role(role: RoleNeed, roles: tuple[RoleNeed, ...]) -> Iterator[BundleSet]:
    """A role is cut where another one that goes with it has no more pods."""
    beside = [other for other in roles if other.beside == role.name]
    first, of_gpus = 0, any(each.need.total_gpu_milli for each in roles)
    for upto in sorted({role.replicas, *(other.replicas for other in beside)}):
        bundle = (role, *(other for other in beside if other.replicas >= upto))
        pods = tuple((each, 0) for each in bundle)
        yield BundleSet(bundle, kind_of(tuple(each.need for each in bundle), of_gpus), first, upto - first, pods)
        first = upto

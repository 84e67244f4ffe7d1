"""
CompositePodGroups of `scheduling.k8s.io`: a gang of gangs, up to the PodGroups that pods name. Pure.

A child names its parent, and no parent its children: so an object that is to be read has all groups of its namespace
beside it (`MEMBERS`). Groups that came of one template, with equal trees below them, are copies of one group of the
contract; else each is one of its own.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tessera.binder.workloads.kinds.pod_group import NAME as POD_GROUP
from tessera.binder.workloads.kinds.pod_group import WORKLOAD_API, policy_of
from tessera.binder.workloads.port import MEMBERS, GangMark, Group, GroupKind, KindRights, Workload
from tessera.binder.workloads.reading import as_part, items, mapping, no, text
from tessera.binder.workloads.references import OwnerRef
from tessera_schemas.base import Json
from tessera_schemas.cluster.gang_groups import DEPTH_MAX
from tessera_schemas.reasons import Code, Reason

COMPOSITE_API = "scheduling.k8s.io/v1alpha3"
COMPOSITE = "CompositePodGroup"
COUNT = f"{COMPOSITE}.spec.schedulingPolicy.gang.minGroupCount"
PART, PLACE = "/part", "/place"
"""Names that no annotation of the API can have: a pod's part of the gang, and the number of that part in its role."""
DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class TreeLevel:
    """A group of the tree: one of `pods`, or of the groups `below` it."""

    name: str
    template: str
    topology: str
    pods: int
    below: tuple["TreeLevel", ...] = ()

    @property
    def leaves(self) -> Iterator["TreeLevel"]:
        """The groups of pods, in the order of the tree."""
        yield from (leaf for each in self.below for leaf in each.leaves) if self.below else (self,)

    @property
    def ref(self) -> tuple[str, str]:
        """Kind and name, which no other group of its namespace has both of."""
        return COMPOSITE if self.below else POD_GROUP, self.name

    @property
    def like(self) -> tuple[str, str]:
        """Kind and template, which copies of a group share."""
        return COMPOSITE if self.below else POD_GROUP, self.template


class CompositePodGroup(Workload):
    """The topmost CompositePodGroup that is a gang, with all below; pods name their PodGroup, groups their parent."""

    kind: ClassVar[GroupKind | None] = GroupKind.COMPOSITE
    api_group: ClassVar[str] = "scheduling.k8s.io"
    kinds: ClassVar[tuple[str, ...]] = (COMPOSITE,)
    condition: ClassVar[str] = "CompositePodGroupInitiallyScheduled"
    reason: ClassVar[str] = "Unschedulable"
    observes: ClassVar[bool] = True
    members: ClassVar[tuple[tuple[str, str], ...]] = ((COMPOSITE_API, COMPOSITE), (WORKLOAD_API, POD_GROUP))
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("scheduling.k8s.io", ("compositepodgroups",), ("get", "list"), status=("patch",)),
    )

    def condition_of(self, thing: Json) -> tuple[str, bool]:
        """The condition stands for the first success alone."""
        return self.condition, True

    def size(self, owner: Json) -> int | Reason:
        """The least numbers of all its PodGroups, once as many groups are there as it counts."""
        tree = read_tree(owner)
        return tree if isinstance(tree, Reason) else sum(leaf.pods for leaf in tree.leaves)

    def parts(self, mark: GangMark | None, owner: Json | None, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
        """The least number of pods of each PodGroup."""
        tree = read_tree(owner or {})
        if isinstance(tree, Reason):
            return tree
        least = {as_part(leaf.name): leaf.pods for leaf in tree.leaves}
        if len(least) < sum(1 for _ in tree.leaves):
            return no(Code.NOT_SUPPORTED_YET, "PodGroup.metadata.name", "two are told apart by more than 63 characters")
        return least

    def in_parts(self, pods: Sequence[Json]) -> list[Json]:
        """The pods with their PodGroup as the part of the gang that they are of."""
        return [_marked(pod, as_part(_pod_group(pod)), 0) for pod in pods]

    def in_roles(self, owner: Json | None, pods: Sequence[Json]) -> list[Json]:
        """The pods with the name of their role, and which copy of it they are in."""
        tree = read_tree(owner or {})
        if isinstance(tree, Reason):
            return list(pods)
        keys, numbers = _keys(tree), Counter[str]()
        place = dict[str, tuple[str, int]]()
        for leaf in tree.leaves:
            key = keys[leaf.ref]
            place[leaf.name] = key, numbers[key]
            numbers[key] += 1
        return [_marked(pod, *place.get(_pod_group(pod), ("pods", 0))) for pod in pods]

    def groups(self, owner: Json | None, ranks: Sequence[tuple[str, Json]] = ()) -> list[Json] | Reason:
        """A group of the contract for each that has a domain, widest first, of the roles that its pods have."""
        tree = read_tree(owner or {})
        if isinstance(tree, Reason):
            return tree
        keys, there = _keys(tree), dict[str, Counter[str]]()
        for role, pod in ranks:
            there.setdefault(_pod_group(pod), Counter())[role] += 1
        found = dict[str, Json]()
        for level, around in _with_domain(tree, ()):
            name = _group_name(level, keys)
            pods = Counter[str]()
            for leaf in level.leaves:
                pods.update(there.get(leaf.name, {}))
            group = {
                "name": name,
                "within": _group_name(around[-1], keys) if around else None,
                "pods": {} if level is tree else dict(pods),
                "topology": {"level": level.topology},
            }
            if found.setdefault(name, group) != group:
                return no(Code.NOT_SUPPORTED_YET, f"{level.ref[0]} {level.name}", "its pods differ from its template's")
        return list(found.values())

    def domain_beyond(self, owner: Json | None, pod: Json) -> tuple[Json | Reason | None, str]:
        """The domain of a level that the pod is in: pods beyond the least number are not kept in it."""
        tree, field = read_tree(owner or {}), f"{POD_GROUP}.spec.schedulingConstraints.topology"
        levels = () if isinstance(tree, Reason) else _with_domain(tree, ())
        around = (level for level, _ in levels if _pod_group(pod) in {leaf.name for leaf in level.leaves})
        return next(({"level": level.topology} for level in around), None), field

    def shown_on(self, group: Group, owner: Json | None) -> list[OwnerRef]:
        """Each group of the tree, itself last."""
        tree = read_tree(owner or {})
        if isinstance(tree, Reason):
            return [] if group.owner is None else [group.owner]
        versions = {POD_GROUP: WORKLOAD_API, COMPOSITE: COMPOSITE_API}
        refs = (each.ref for each in _all(tree))
        return [OwnerRef(versions[kind], kind, group.namespace, name) for kind, name in refs][::-1]


def find_root(pod_group: Json, above: Sequence[Json]) -> tuple[Json, bool] | Reason:
    """
    The topmost group that is a gang, of a PodGroup and those above it, nearest first; and whether it is one of groups.

    Groups of a `basic` one start by themselves, so that it is none of their gang.
    """
    gang = pod_group
    for each in above:
        policy = policy_of(each, COMPOSITE, "minGroupCount")
        if isinstance(policy, Reason):
            return policy
        gang = each if policy.min_count else gang
    return gang, gang is not pod_group


def read_tree(root: Json) -> TreeLevel | Reason:
    """The tree below a CompositePodGroup, or what of it is missing or cannot be honoured."""
    return _read(root, COMPOSITE, mapping(root, MEMBERS), 1)


def _read(thing: Json, kind: str, there: Json, depth: int) -> TreeLevel | Reason:
    name, is_leaf = text(thing, "metadata", "name"), kind == POD_GROUP
    policy = policy_of(thing) if is_leaf else policy_of(thing, COMPOSITE, "minGroupCount")
    if isinstance(policy, Reason):
        return policy
    if not policy.min_count:
        way_out = f"{name} is below a gang, of which all groups start together; say a gang"
        return no(Code.NOT_SUPPORTED_YET, f"{kind}.spec.schedulingPolicy.basic", way_out)
    template = text(thing, "spec", "workloadRef", "templateName")
    if is_leaf:
        return TreeLevel(name, template, policy.topology, policy.min_count)
    if depth >= DEPTH_MAX:
        return too_deep()
    below = list[TreeLevel]()
    for child, its_kind in _children(name, there):
        level = _read(child, its_kind, there, depth + 1)
        if isinstance(level, Reason):
            return level
        below.append(level)
    if len(below) < policy.min_count:
        return no(Code.GANG_INCOMPLETE, f"{COMPOSITE} {name}", f"{len(below)} of {policy.min_count} groups are there")
    if len(below) > policy.min_count:
        detail = f"{name} has {len(below)} groups; those beyond would start pod by pod: count them all"
        return no(Code.NOT_SUPPORTED_YET, COUNT, detail)
    return TreeLevel(name, template, policy.topology, 0, tuple(below))


def _children(name: str, there: Json) -> list[tuple[Json, str]]:
    """The groups that name a parent, each with its kind."""
    found = [(one, kind) for kind in (COMPOSITE, POD_GROUP) for one in items(there, kind)]
    found = [(one, kind) for one, kind in found if text(one, "spec", "parentCompositePodGroupName") == name]
    return sorted(found, key=lambda one: (_natural(text(one[0], "metadata", "name")), one[1]))


def too_deep() -> Reason:
    """Reason for a tree of more levels than are honoured, or a circle."""
    field = f"{COMPOSITE}.spec.parentCompositePodGroupName"
    return no(Code.NOT_SUPPORTED_YET, field, f"groups are within each other at most {DEPTH_MAX} deep", most=DEPTH_MAX)


def _natural(name: str) -> list[tuple[int, str]]:
    """Names in the order in which people count: the tenth after the second."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in DIGITS.split(name)]


def _all(level: TreeLevel) -> Iterator[TreeLevel]:
    yield level
    for each in level.below:
        yield from _all(each)


def _with_domain(level: TreeLevel, around: tuple[TreeLevel, ...]) -> Iterator[tuple[TreeLevel, tuple[TreeLevel, ...]]]:
    """The levels that have a domain, widest first, each with those around it."""
    if level.topology:
        yield level, around
        around = (*around, level)
    for each in level.below:
        yield from _with_domain(each, around)


def _keys(tree: TreeLevel) -> dict[tuple[str, str], str]:
    """The name of each group as a part: that of its template where all of one template are alike, else its own."""
    levels = list(_all(tree))
    alike = {level.like: _shape(level) for level in levels}
    names = {(kind, as_part(name)) for kind, name in alike}
    is_told = all(level.template and alike[level.like] == _shape(level) for level in levels)
    by_template = is_told and len(names) == len(alike)
    return {level.ref: as_part(level.template if by_template else level.name) for level in levels}


def _shape(level: TreeLevel) -> tuple[object, ...]:
    return level.like, level.topology, level.pods, tuple(sorted(map(repr, map(_shape, level.below))))


def _group_name(level: TreeLevel, keys: Mapping[tuple[str, str], str]) -> str:
    # A PodGroup and a group of groups may be called the same.
    return f"{keys[level.ref][:56]}-groups" if level.below else keys[level.ref]


def _pod_group(pod: Json) -> str:
    return text(pod, "spec", "schedulingGroup", "podGroupName")


def _marked(pod: Json, part: str, place: int) -> Json:
    meta = mapping(pod, "metadata")
    notes = {**mapping(meta, "annotations"), PART: part, PLACE: str(place)}
    return {**pod, "metadata": {**meta, "annotations": notes}}

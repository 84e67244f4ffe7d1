"""
Topology levels by their short names: which node label each stands for. Pure.

A job may say a configured name wherever it may say a label key. What it means is settled once, when the job is taken
in: a later configuration changes nothing for jobs that wait. A key with a domain (`topology.kubernetes.io/zone`) is
always itself; a bare word is a name as soon as the configuration has any.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tessera.domain.devices.resources import GroupNeed, Node, RoleNeed, within_reach
from tessera.domain.storing.fast import replace
from tessera_schemas.cluster.gang_groups import RoleGroup, groups_of_role
from tessera_schemas.cluster.node_terms import Topology
from tessera_schemas.job import AffinityTerm, JobSpec, Operator, RoleReach
from tessera_schemas.reasons import Code, Reason

Levels = Mapping[str, str]
"""Short name to label, widest first."""
NEAR = "/"
"""Name of the group of roles that go near each other unasked; no role can say it."""


def with_levels(roles: Sequence[RoleNeed], levels: Levels, of_gangs: str) -> tuple[RoleNeed, ...]:
    """The needs with labels in place of names, and near each other where the policy `of_gangs` prefers that."""
    found = with_labels(roles, levels)
    return near_each_other(found, levels) if of_gangs == "preferred" else found


def with_labels(roles: Sequence[RoleNeed], levels: Levels) -> tuple[RoleNeed, ...]:
    """The needs with labels in place of names."""
    if not levels:
        return tuple(roles)
    return tuple(
        replace(
            role,
            levels=_labels(role.levels, levels),
            spread=levels.get(role.spread, role.spread),
            groups=tuple((name, pods, _labels(at, levels), bound) for name, pods, at, bound in role.groups),
            neighbours=None if role.neighbours is None else role.neighbours.with_labels(levels),
        )
        for role in roles
    )


def _labels(names: Sequence[str], levels: Levels) -> tuple[str, ...]:
    return tuple(levels.get(at, at) for at in names)


def in_groups(roles: Sequence[RoleNeed], groups: Sequence[RoleGroup]) -> Sequence[RoleNeed]:
    """The needs with the groups that their pods are in."""
    return [_in_groups(role, groups_of_role(groups, role.name)) for role in roles] if groups else roles


def _in_groups(role: RoleNeed, groups: Sequence[RoleGroup]) -> RoleNeed:
    # What a copy holds is kept for its next start, also of pods that have done their part.
    together = role.together or any(group.restart is not None for group in groups)
    return replace(role, groups=tuple(_group_need(group, role) for group in groups), together=together)


def _group_need(group: RoleGroup, role: RoleNeed) -> GroupNeed:
    asked = group.topology
    levels = (asked.level, *asked.wider) if asked else ()
    return group.name, group.pods.get(role.name, 0), levels, bool(asked and asked.required)


def near_each_other(roles: Sequence[RoleNeed], levels: Levels) -> tuple[RoleNeed, ...]:
    """
    The needs of a gang of several pods, each role in as few domains as there can be, if it says nothing of its place.

    Those that start with some pods and grow go wherever there is room, as when their owner asks for a domain.
    """
    labels = tuple(levels.values())[::-1]
    if not labels or sum(role.replicas for role in roles) < 2:
        return tuple(roles)
    return tuple(replace(role, levels=labels, group=NEAR) if _says_nothing(role) else role for role in roles)


def _says_nothing(role: RoleNeed) -> bool:
    return not (role.levels or role.spread or role.beside or role.more or role.groups)


DOMAINS_MAX = 64
"""Values that a term names; a run in more domains of a level is near nothing at that level."""
NEAR_WEIGHT = 100
"""Of each level at which a node is near a run that others are attached to."""


def domains_of(nodes: Iterable[Node], levels: Levels, required: bool) -> tuple[AffinityTerm, ...]:
    """
    The domains in which these nodes stand, as a term for each level, narrowest first.

    If required, only the narrowest level at which all of them are in one domain; without such a level, the widest one.
    """
    known = list(nodes)
    found = list[AffinityTerm]()
    for label in tuple(levels.values())[::-1]:
        values = {node.label(label) or "" for node in known}
        if "" not in values and 0 < len(values) <= DOMAINS_MAX:
            found.append(AffinityTerm(key=label, operator=Operator.IN, values=tuple(sorted(values))))
    single = [term for term in found if len(term.values) == 1]
    return tuple(single[:1] or found[-1:]) if required else tuple(found)


def near_domains(roles: Sequence[RoleNeed], terms: Sequence[AffinityTerm], required: bool) -> tuple[RoleReach, ...]:
    """The terms by role; of required ones those alone that the role has not of its own, since they are taken back."""
    found = list[RoleReach]()
    for role in roles:
        new = [t for t in terms if not required or within_reach(role, [RoleReach(role=role.name, terms=(t,))]) != role]
        found += [RoleReach(role=role.name, terms=tuple(new))] if new else []
    return tuple(found)


def with_near(roles: Sequence[RoleNeed], near: Sequence[RoleReach], required: bool, sign: int) -> tuple[RoleNeed, ...]:
    """The roles with these terms, or with a `sign` of -1 without them again."""
    if not near:
        return tuple(roles)
    if not required:
        return tuple(_preferring(role, near, sign) for role in roles)
    return tuple(within_reach(role, near, sign) for role in roles)


def _preferring(role: RoleNeed, near: Sequence[RoleReach], sign: int) -> RoleNeed:
    """The role that prefers nodes by each of these terms, or as it was before that."""
    own = list(role.need.affinity_preferred)
    for term in (term for reach in near if reach.role == role.name for term in reach.terms):
        preference = NEAR_WEIGHT, ((term.key, term.operator.value, term.values),)
        (own.append if sign > 0 else own.remove)(preference)
    return replace(role, need=replace(role.need, affinity_preferred=tuple(sorted(own))))


def unknown_levels(spec: JobSpec, levels: Levels) -> list[Reason]:
    """A refusal for each name that nobody configured, by the field that says it."""
    return [
        Reason(code=Code.NO_SUCH_TOPOLOGY_LEVEL, field=field, detail=f"{named}; there are {', '.join(levels)}")
        for field, named in _list_levels(spec)
        if levels and "/" not in named and named not in levels
    ]


def in_short(reason: Reason, levels: Levels) -> Reason:
    """The reason with the short name of the level that its detail begins with, if it has one."""
    label, colon, rest = reason.detail.partition(": ")
    name = next((name for name, of in levels.items() if colon and of == label), None)
    return reason if name is None else reason.model_copy(update={"detail": f"{name}: {rest}"})


def _list_levels(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for index, role in enumerate(spec.roles):
        yield from _list_of(f"roles[{index}]", role.topology)
        if role.spread is not None:
            yield f"roles[{index}].spread", role.spread
        for field in ("apart_from", "near") if role.neighbours is not None else ():
            for at, term in enumerate(getattr(role.neighbours, field)):
                yield f"roles[{index}].neighbours.{field}[{at}].topology", term.topology
    for index, group in enumerate(spec.groups):
        yield from _list_of(f"groups[{index}]", group.topology)
    if spec.retry.ladder is not None and spec.retry.ladder.level is not None:
        yield "retry.ladder.level", spec.retry.ladder.level


def _list_of(path: str, topology: Topology | None) -> Iterator[tuple[str, str]]:
    if topology is not None:
        yield f"{path}.topology.level", topology.level
        yield from ((f"{path}.topology.wider", wider) for wider in topology.wider)

"""
Topology levels by their short names: which node label each stands for. Pure.

A job may say a configured name wherever it may say a label key. What it means is settled once, when the job is taken
in: a later configuration changes nothing for jobs that wait. A key with a domain (`topology.kubernetes.io/zone`) is
always itself; a bare word is a name as soon as the configuration has any.
"""

from collections.abc import Iterator, Mapping, Sequence

from tessera.domain.devices.resources import RoleNeed
from tessera.domain.storing.fast import replace
from tessera_schemas.job import Role
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
            role, levels=tuple(levels.get(at, at) for at in role.levels), spread=levels.get(role.spread, role.spread)
        )
        for role in roles
    )


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
    return not (role.levels or role.spread or role.beside or role.more)


def unknown_levels(roles: Sequence[Role], levels: Levels) -> list[Reason]:
    """A refusal for each name that nobody configured, by the field that says it."""
    return [
        Reason(code=Code.NO_SUCH_TOPOLOGY_LEVEL, field=field, detail=f"{named}; there are {', '.join(levels)}")
        for field, named in _list_levels(roles)
        if levels and "/" not in named and named not in levels
    ]


def in_short(reason: Reason, levels: Levels) -> Reason:
    """The reason with the short name of the level that its detail begins with, if it has one."""
    label, colon, rest = reason.detail.partition(": ")
    name = next((name for name, of in levels.items() if colon and of == label), None)
    return reason if name is None else reason.model_copy(update={"detail": f"{name}: {rest}"})


def _list_levels(roles: Sequence[Role]) -> Iterator[tuple[str, str]]:
    for index, role in enumerate(roles):
        if role.topology is not None:
            yield f"roles[{index}].topology.level", role.topology.level
            yield from ((f"roles[{index}].topology.wider", wider) for wider in role.topology.wider)
        if role.spread is not None:
            yield f"roles[{index}].spread", role.spread

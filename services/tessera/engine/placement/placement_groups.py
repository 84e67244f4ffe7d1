"""
Parts of a gang that are placed together: roles of one topology group, and pods that share a node.

A **bundle** is a pod of one role with the pods that go to the same node. A **part** is a number of equal bundles, a
**unit** the parts whose domain is chosen together; a role that says nothing of this is a unit of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tessera.domain.resources import Need, Node, RoleNeed
from tessera.engine.placement.fits import BundleKind, kind_of, room_for


@dataclass(frozen=True, slots=True)
class Part:
    """`count` equal bundles: the pods number `first` and on of each of `roles`; the others go with the first role's."""

    roles: tuple[RoleNeed, ...]
    kind: BundleKind
    first: int
    count: int

    @property
    def needs(self) -> tuple[Need, ...]:
        """Needs of the pods of a bundle, one for each role."""
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
class Unit:
    """Parts that go into one domain of one of `levels`, narrowest first; `bound`: of the last one at the widest."""

    parts: tuple[Part, ...]
    levels: tuple[str, ...] = ()
    bound: bool = False

    anywhere: bool = True
    """Whether its pods may lie on any nodes, however they are placed relative to each other."""
    may_part: bool = True
    """Whether its pods may lie apart where they cannot lie together."""


@lru_cache(maxsize=16_384)
def units(roles: tuple[RoleNeed, ...]) -> tuple[Unit, ...]:
    """In the order of the roles; a group stands where its first role does."""
    names = {role.name for role in roles}
    together: dict[str, list[RoleNeed]] = {}
    for role in roles:
        if role.beside not in names:
            together.setdefault(f"/{role.group}" if role.group else role.name, []).append(role)
    return tuple(_unit(members, roles) for members in together.values())


def _unit(members: list[RoleNeed], roles: tuple[RoleNeed, ...]) -> Unit:
    parts = tuple(part for role in members for part in _parts(role, roles))
    levels, bound, spread = members[0].levels, members[0].bound, any(part.role.spread for part in parts)
    return Unit(parts, levels, bound, anywhere=not levels and not spread, may_part=not bound and not spread)


def _parts(role: RoleNeed, roles: tuple[RoleNeed, ...]) -> Iterator[Part]:
    """A role is cut where another one that goes with it has no more pods."""
    beside = [other for other in roles if other.beside == role.name]
    first = 0
    for upto in sorted({role.replicas, *(other.replicas for other in beside)}):
        bundle = (role, *(other for other in beside if other.replicas >= upto))
        yield Part(bundle, kind_of(tuple(each.need for each in bundle)), first, upto - first)
        first = upto


def bundles_for(part: Part, node: Node) -> int:
    """Number of bundles that a node which suits them takes now; exact."""
    room, pods = room_for(part.whole, node), len(part.needs)
    return room if pods == 1 else min(room, max(0, node.pods_free // pods))

"""
What of a gang is placed together: roles of one topology group, and pods that share a node.

A **bundle** is a pod of one role with the pods that go to the same node. A **part** is a number of equal bundles, a
**unit** the parts whose domain is chosen together; a role that says nothing of this is a unit of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tessera.domain.resources import Need, Node, RoleNeed
from tessera.engine.fits import Miss, lacks_room, never_fits, placed_on, room_for


@dataclass(frozen=True, slots=True)
class Part:
    """`count` equal bundles: the pods number `first` and on of each of `roles`; the others go with the first role's."""

    roles: tuple[RoleNeed, ...]
    needs: tuple[Need, ...]
    first: int
    count: int

    @property
    def role(self) -> RoleNeed:
        return self.roles[0]


@dataclass(frozen=True, slots=True)
class Unit:
    """Parts that go into one domain of one of `levels`, narrowest first; `bound`: of the last one at the widest."""

    parts: tuple[Part, ...]
    levels: tuple[str, ...] = ()
    bound: bool = False


@lru_cache(maxsize=4096)
def units(roles: tuple[RoleNeed, ...]) -> tuple[Unit, ...]:
    """In the order of the roles; a group stands where its first role does."""
    names = {role.name for role in roles}
    together: dict[str, list[RoleNeed]] = {}
    for role in roles:
        if role.beside not in names:
            together.setdefault(f"/{role.group}" if role.group else role.name, []).append(role)
    return tuple(
        Unit(tuple(part for role in members for part in _parts(role, roles)), members[0].levels, members[0].bound)
        for members in together.values()
    )


def _parts(role: RoleNeed, roles: tuple[RoleNeed, ...]) -> Iterator[Part]:
    """A role is cut where another one that goes with it has no more pods."""
    beside = [other for other in roles if other.beside == role.name]
    first = 0
    for upto in sorted({role.replicas, *(other.replicas for other in beside)}):
        bundle = (role, *(other for other in beside if other.replicas >= upto))
        yield Part(bundle, tuple(each.need for each in bundle), first, upto - first)
        first = upto


def misses(part: Part, node: Node) -> Miss | None:
    """The first test that the node fails for a bundle; None when it takes one now."""
    for need in part.needs:
        miss = never_fits(need, node)
        if miss is not None:
            return miss
    return short_of(part, node)


def short_of(part: Part, node: Node) -> Miss | None:
    """What is missing for a bundle on a node that suits all of its pods."""
    if len(part.needs) == 1:
        return lacks_room(part.needs[0], node)
    for need in part.needs:
        miss = lacks_room(need, node)
        if miss is not None:
            return miss
        node = node.taking(need, placed_on(node, need, 0, ""), 1)
    return None


def bundles_for(part: Part, node: Node) -> int:
    """How many bundles a node that suits them takes now, up to the part's count: exact for single pods."""
    if len(part.needs) == 1:
        return room_for(part.needs[0], node)
    for done in range(part.count):
        for need in part.needs:
            if lacks_room(need, node) is not None:
                return done
            node = node.taking(need, placed_on(node, need, 0, ""), 1)
    return part.count

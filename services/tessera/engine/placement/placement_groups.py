"""
What of a gang is placed together: roles of one topology group, and pods that share a node.

A **bundle** is a pod of one role with the pods that go to the same node. A **part** is a number of equal bundles, a
**unit** the parts whose domain is chosen together; a role that says nothing of this is a unit of its own.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tessera.domain.resources import Need, Node, RoleNeed
from tessera.engine.placement.fits import Miss, lacks_room, room_for


@dataclass(frozen=True, slots=True, eq=False)
class BundleKind:
    """
    Needs of a bundle, whichever gang it is of: `whole` is what one takes of its node, `labels` the keys asked for.

    Equal needs have one object (`kind_of`), so that what is known of a kind is found without comparing needs.
    """

    needs: tuple[Need, ...]
    whole: Need
    labels: frozenset[str]


@lru_cache(maxsize=16_384)
def kind_of(needs: tuple[Need, ...]) -> BundleKind:
    """The kind of bundles of one pod for each of these needs."""
    labels = {key for need in needs for key, _ in need.node_selector}
    labels |= {key for need in needs for key, _, _ in need.affinity}
    return BundleKind(needs, _sum(needs) if len(needs) > 1 else needs[0], frozenset(labels))


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

    @property
    def anywhere(self) -> bool:
        """Whether its pods may lie on any nodes, however they are placed relative to each other."""
        return not self.levels and not any(part.role.spread for part in self.parts)


@lru_cache(maxsize=16_384)
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
        yield Part(bundle, kind_of(tuple(each.need for each in bundle)), first, upto - first)
        first = upto


def _sum(needs: tuple[Need, ...]) -> Need:
    """
    What a bundle takes of a node, but for the number of its pods.

    Whole GPUs add up. No two of the pods share GPUs or one of them alone does: the contract refuses what would.
    """
    devices = Counter[str]()
    for need in needs:
        devices.update(dict(need.devices))
    return Need(
        sum(need.cpu_milli for need in needs),
        sum(need.memory_bytes for need in needs),
        sum(need.gpus for need in needs),
        sum(need.gpu_milli for need in needs),
        mig_profile=next((need.mig_profile for need in needs if need.mig_profile), ""),
        devices=tuple(sorted(devices.items())),
    )


def short_of(kind: BundleKind, node: Node) -> Miss | None:
    """What is missing for a bundle on a node that suits all of its pods."""
    return lacks_room(kind.whole, node) or (Miss.PODS if node.pods_free < len(kind.needs) else None)


def bundles_for(part: Part, node: Node) -> int:
    """How many bundles a node that suits them takes now; exact."""
    room, pods = room_for(part.whole, node), len(part.needs)
    return room if pods == 1 else min(room, max(0, node.pods_free // pods))

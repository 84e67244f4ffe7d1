"""Place gangs one after another, as one pass over a line does. `place_gang` and `inadmissible` are asked for here."""

from collections.abc import Iterable

from tessera.domain.resources import Node, RoleNeed
from tessera.engine.never import inadmissible
from tessera.engine.places import Places
from tessera.engine.placing import place_gang
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Reason

__all__ = ["Room", "inadmissible", "place_gang"]


class Room:
    """
    What is free in one pool during one pass over the line. Allocations only take from it.

    Since room only shrinks within a pass, a gang that found no place finds none later in the same pass either, and the
    first verdict stands for all equal gangs. It is kept by value: by identity, a restored committer would give other
    numbers than one that folded the whole ledger.
    """

    def __init__(self, nodes: Iterable[Node], places: Places | None = None) -> None:
        """`places` is what is known already about the same nodes, with more or less free."""
        self.nodes = {node.name: node for node in nodes}
        self.places = places or Places(self.nodes)
        self._refused: dict[tuple[RoleNeed, ...], Reason] = {}

    def place(self, roles: tuple[RoleNeed, ...]) -> tuple[Placement, ...] | Reason:
        """A placement for every pod in rank order, taken from the room; or the reason, and nothing is taken."""
        verdict = self.find(roles)
        if not isinstance(verdict, Reason):
            self.take(roles, verdict)
        return verdict

    def find(self, roles: tuple[RoleNeed, ...]) -> tuple[Placement, ...] | Reason:
        """What `place` would answer; nothing is taken."""
        known = self._refused.get(roles)
        if known is not None:
            return known
        verdict = place_gang(roles, self.nodes, self.places)
        if isinstance(verdict, Reason):
            self._refused[roles] = verdict
        return verdict

    def take(self, roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...]) -> None:
        """Somebody was placed there."""
        taken(self.nodes, roles, placements)


def taken(nodes: dict[str, Node], roles: tuple[RoleNeed, ...], placements: Iterable[Placement], sign: int = 1) -> None:
    """Change `nodes`, as far as they are among them, to what they are once these pods came (1) or left (-1)."""
    needs = {role.name: role.need for role in roles}
    for placement in placements:
        node = nodes.get(placement.node)
        if node is not None:
            nodes[node.name] = node.taking(needs[placement.role], placement, sign)

"""
Place a whole gang or none of it; and gangs one after another, as one pass over a queue order does.

Each pod in turn goes to the node that the pool's scoring policy scores highest, of equals to the one whose name comes
first. Which nodes a role may use at all, when its pods have to lie together or apart, is chosen before (`topology`).
"""

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

from tessera.domain.gang import Gang, gang_of
from tessera.domain.resources import Node, RoleNeed
from tessera.engine.placement.attempt import Attempt
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.node_order import Ranks
from tessera.engine.placement.placement_groups import Part, Unit, units
from tessera.engine.placement.refusals import no_domain, no_fit, not_even
from tessera.engine.placement.topology import place_together
from tessera.engine.scoring.protocol import BEST_FIT, ScoringPolicy
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code, Reason


def place_gang(
    roles: tuple[RoleNeed, ...],
    nodes: Mapping[str, Node],
    places: FeasibleNodes | None = None,
    ranks: Ranks | None = None,
) -> tuple[Placement, ...] | Reason:
    """
    Choose node and devices for every pod, or say why not; `nodes` is not changed.

    `places` is what earlier gangs of the same pass have found out about the same nodes, and the scoring by which one is
    chosen; `ranks` is how they ranked them.
    """
    done = try_to_place(gang_of(roles), nodes, places or FeasibleNodes(nodes), ranks)
    return done if isinstance(done, Reason) else done.placements


def try_to_place(
    gang: Gang, nodes: Mapping[str, Node], places: FeasibleNodes, ranks: Ranks | None = None
) -> Attempt | Reason:
    """
    The try that placed the whole gang, or why there is none.

    A unit that is bound or spread leaves nothing behind when it fails; another leaves the pods that found a place.
    """
    if not any(node.ready for node in nodes.values()):
        return Reason(code=Code.NO_NODES)
    attempt = Attempt(gang, nodes, places, ranks)
    for unit in units(gang):
        failed = None if unit.anywhere else place_together(unit, attempt)
        if unit.anywhere or (failed is not None and unit.may_part):
            failed = next((part for part in unit.parts if not attempt.fill(part, None, part.first, part.count)), None)
        if failed is not None:
            return _why(failed, unit, attempt, gang.pods)
    return attempt


def _why(part: Part, unit: Unit, attempt: Attempt, pods: int) -> Reason:
    if unit.bound:
        return no_domain(part, unit, attempt, pods)
    if part.role.spread:
        return not_even(part, attempt, pods)
    return no_fit(part, attempt, pods)


class FreeCapacity:
    """
    Free capacity of one pool during one scheduling pass. Allocations only take from it; `renewed` begins another
    pass.

    Since room only shrinks within a pass, a gang that found no place finds none later in the same pass either, and the
    first verdict stands for all equal gangs. It is kept by value: by identity, a restored committer would give other
    numbers than one that folded the whole ledger.
    """

    def __init__(
        self, nodes: Iterable[Node], places: FeasibleNodes | None = None, scoring: ScoringPolicy = BEST_FIT
    ) -> None:
        """`places` is what is known already about the same nodes, with more or less free; else `scoring` decides."""
        self.nodes = {node.name: node for node in nodes}
        self.places = places or FeasibleNodes(self.nodes, scoring)
        self.ranks = Ranks(self.nodes, self.places.scoring)
        self._refused: dict[Gang, Reason] = {}
        self._is_as_it_began = True
        self._found: tuple[tuple[Placement, ...], Attempt] | None = None

    def place(self, roles: tuple[RoleNeed, ...]) -> tuple[Placement, ...] | Reason:
        """A placement for every pod in rank order, taken from the room; or the reason, and nothing is taken."""
        verdict = self.find(roles)
        if not isinstance(verdict, Reason):
            self.take(roles, verdict)
        return verdict

    def find(self, roles: tuple[RoleNeed, ...]) -> tuple[Placement, ...] | Reason:
        """Answer of `place`, without taking anything."""
        gang = gang_of(roles)
        known = self._refused.get(gang)
        if known is not None:
            return known
        done = try_to_place(gang, self.nodes, self.places, self.ranks)
        if isinstance(done, Reason):
            self._refused[gang] = done
            return done
        self._found = done.placements, done
        return self._found[0]

    def take(self, roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...]) -> None:
        """Somebody was placed there."""
        if self._found is not None and self._found[0] is placements:
            self.nodes.update(self._found[1].changed)
        else:
            gang_of(roles).take(self.nodes, placements)
        self._found, self._is_as_it_began = None, False
        for placement in placements:
            self.ranks.changed(placement.node)

    def give_back(self, roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...]) -> None:
        """Pods have left these places; what was refused before may fit again."""
        gang_of(roles).take(self.nodes, placements, -1)
        self._refused.clear()
        self._found, self._is_as_it_began = None, False
        for placement in placements:
            self.ranks.changed(placement.node)

    def renewed(self, nodes: Collection[Node], scoring: ScoringPolicy) -> bool:
        """
        Begin another pass: whether these are the same nodes but for what is free, so that what is known serves again.

        Nodes are frozen: one that is the same object has not changed, and another one is judged anew. A pass that took
        nothing, before nodes of which none has changed, would refuse again what it refused, with the same numbers: then
        the refusals stand.
        """
        known = self.nodes
        if scoring is not self.places.scoring or len(nodes) != len(known):
            return False
        were = map(known.get, map(_name, nodes))
        changed = [node for node, was in zip(nodes, were, strict=True) if was is not node]
        if any(node.name not in known or _lasting(known[node.name]) != _lasting(node) for node in changed):
            return False
        for node in changed:
            self.put(node)
        if not self._is_as_it_began:
            self._refused.clear()
        self._is_as_it_began = True
        return True

    def put(self, node: Node) -> None:
        """A node of the room is another one now; what was refused before stays refused."""
        self.nodes[node.name], self._found, self._is_as_it_began = node, None, False
        self.ranks.changed(node.name)


_name = attrgetter("name")
_lasting = attrgetter(
    *(
        name
        for name in Node.__slots__
        if name not in ("cpu_free", "memory_free", "pods_free", "gpu_free", "devices_free", "mig_taken", "gpu_others")
    )
)
"""What of a node does not change when pods come and go."""

"""
Place a whole gang or none of it; and gangs one after another, as one pass over a queue order does.

Each pod in turn goes to the node that the pool's scoring policy scores highest; of equals to the one with the least
that others need more (`count_spared`), then to the one whose name comes first. Which nodes a role may use at all, when
its pods have to lie together or apart, is chosen before (`topology`).
"""

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

from tessera.domain.gang import Gang, gang_of
from tessera.domain.resources import Node, RoleNeed
from tessera.engine.placement.attempt import Attempt, Ranks
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import BundleKind
from tessera.engine.placement.placement_groups import BundleSet, PlacementGroup, placement_groups
from tessera.engine.placement.refusals import no_domain, no_fit, not_even
from tessera.engine.placement.topology import place_together
from tessera.engine.scoring.protocol import BEST_FIT, ScoringPolicy
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code, Reason

GANGS_MAX = 8_192
"""Number of refused gangs that are remembered; beyond, all are forgotten: it costs searches and changes no verdict."""


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

    A group that is bound or spread leaves nothing behind when it fails; another leaves the pods that found a place.
    """
    if not places.any_ready:
        return Reason(code=Code.NO_NODES, numbers={"nodes_cordoned": places.cordoned} if places.cordoned else {})
    attempt = Attempt(gang, nodes, places, ranks)
    for group in placement_groups(gang):
        failed = None if group.anywhere else place_together(group, attempt)
        if group.anywhere or (failed is not None and group.may_split):
            failed = next(
                (
                    bundles
                    for bundles in group.bundle_sets
                    if not attempt.fill(bundles, None, bundles.first, bundles.count)
                ),
                None,
            )
        if failed is not None:
            return _why(failed, group, attempt, gang.pods)
    return attempt


def _why(bundles: BundleSet, group: PlacementGroup, attempt: Attempt, pods: int) -> Reason:
    if group.bound:
        return no_domain(bundles, group, attempt, pods)
    if bundles.role.spread:
        return not_even(bundles, attempt, pods)
    return no_fit(bundles, attempt, pods)


class FreeCapacity:
    """
    Free capacity of one pool during one scheduling pass. Allocations only take from it; `renewed` begins another
    pass.

    Since room only shrinks within a pass, a gang that found no place finds none later in the same pass either, and the
    first verdict stands for all equal gangs. It is kept by value: by identity, a restored committer would give other
    numbers than one that folded the whole ledger. From one pass to the next a refusal stands until a node changes that
    the gang could use (`refusal`); its numbers are those of the nodes at the time of the pass's first verdict, and are
    counted when somebody asks for them (`find`).
    """

    def __init__(
        self, nodes: Iterable[Node], places: FeasibleNodes | None = None, scoring: ScoringPolicy = BEST_FIT
    ) -> None:
        """`places` is what is known already about the same nodes, with more or less free; else `scoring` decides."""
        self.nodes = {node.name: node for node in nodes}
        self.places = places or FeasibleNodes(self.nodes, scoring)
        self.ranks = Ranks(self.nodes, self.places)
        self._refused: dict[Gang, Reason] = {}
        self._numbered: dict[Gang, Reason] = {}
        """Refusals of passes before, with the numbers that they would have again at the beginning of this one."""
        self._before: list[Node] = []
        """Nodes as they were before each change of this pass, and where in it each gang was first refused."""
        self._refused_at: dict[Gang, int] = {}
        self._searched: dict[Gang, int] = {}
        self._short: dict[Gang, list[BundleKind]] = {}
        """Gangs that lacked room by the counts or the sum as of the first `_short_moved` moves, and still do."""
        self._lacking: dict[Gang, list[BundleKind]] = {}
        """Those that lacked it by the counts, whoever asked."""
        self._short_moved = 0
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
        at = self._refused_at.get(gang, len(self._before))
        if at == 0 and gang in self._numbered:
            self._refused[gang], self._refused_at[gang] = self._numbered[gang], 0
            return self._refused[gang]
        if at < len(self._before):  # its verdict is that of nodes of which something was taken since
            then = self.nodes | {node.name: node for node in reversed(self._before[at:])}
            done = try_to_place(gang, then, self.places)
        else:
            done = try_to_place(gang, self.nodes, self.places, self.ranks)
            if len(self._searched) >= GANGS_MAX:
                self._searched.clear()
            if isinstance(done, Reason):
                self._searched[gang] = self.ranks.moved
        if isinstance(done, Reason):
            self._refused[gang], self._refused_at[gang] = done, at
            return done
        self._found = done.placements, done
        return self._found[0]

    def refusal(self, roles: tuple[RoleNeed, ...]) -> Code | None:
        """The code of the reason that `find` would give, as far as that is known without a search; else None."""
        gang = gang_of(roles)
        is_refused = gang in self._refused_at
        if self.places.any_ready and not self._is_still_short(gang) and not is_refused and not self._is_untouched(gang):
            return None
        if not is_refused:
            self._refused_at[gang] = len(self._before)
        return Code.NO_FIT if self.places.any_ready else Code.NO_NODES

    def is_short(self, roles: tuple[RoleNeed, ...]) -> bool:
        """Whether the nodes lack the room for some of the pods, whatever becomes of the others; no search is made."""
        return not self.places.any_ready or self._lacks_room(gang_of(roles))

    def is_short_in_all(self, roles: tuple[RoleNeed, ...]) -> bool:
        """Whether they lack that room or the GPUs of all pods together: what a `refusal` says without memory."""
        return not self.places.any_ready or self._is_still_short(gang_of(roles))

    def looks(self, roles: tuple[RoleNeed, ...]) -> int:
        """Number of looks at a pod or a node that a search for the gang takes at most, about."""
        gang = gang_of(roles)
        return self.ranks.counts(*_kinds(gang)).looks(gang)

    def _lacks_room(self, gang: Gang) -> bool:
        """Whether the gang lacks room by the counts; remembered until a node gains room for it."""
        if gang in self._lacking and self._short_moved == self.ranks.moved:
            return True
        kinds = _kinds(gang)
        if not self.ranks.counts(*kinds).is_short(gang):
            return False
        self._remember(self._lacking, gang, kinds)
        return True

    def _remember(self, short: dict[Gang, list[BundleKind]], gang: Gang, kinds: list[BundleKind]) -> None:
        if self._short_moved == self.ranks.moved:
            if len(short) >= GANGS_MAX:
                short.clear()
            short[gang] = kinds

    def _is_still_short(self, gang: Gang) -> bool:
        """Whether the gang lacks room by the counts or by the sum; remembered until a node gains room for it."""
        kinds = _kinds(gang)
        if not self._lacks_room(gang) and not self._lacks_gpus(gang, kinds):
            return False
        self._remember(self._short, gang, kinds)
        return True

    def _lacks_gpus(self, gang: Gang, kinds: list[BundleKind]) -> bool:
        """Whether its roles together ask for more GPUs than are free, where they may use the same nodes."""
        using = [kind for kind in kinds if kind.whole.total_gpu_milli]
        if len(gang) < 2 or len({kind.never for kind in using}) != 1 or using[0].whole.mig_profile:
            return False
        return gang.amount.gpu_milli > self.ranks.suited(using[0]).gpu_free

    def _is_untouched(self, gang: Gang) -> bool:
        """Whether the gang was searched for in vain, and no node that suits any of its pods has changed since."""
        searched = self._searched.get(gang)
        if searched is None:
            return False
        if self.ranks.touched(_kinds(gang), searched):
            del self._searched[gang]
            return False
        self._searched[gang] = self.ranks.moved
        return True

    def take(self, roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...]) -> None:
        """Somebody was placed there."""
        before, nodes = self._before, self.nodes
        for placement in placements:
            if placement.node in nodes:
                before.append(nodes[placement.node])
        if self._found is not None and self._found[0] is placements:
            self.nodes.update(self._found[1].changed)
        else:
            gang_of(roles).take(self.nodes, placements)
        self._found = None
        for placement in placements:
            self.ranks.changed(placement.node)

    def give_back(self, roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...]) -> None:
        """Pods have left these places; what was refused before may fit again."""
        gang_of(roles).take(self.nodes, placements, -1)
        self._begin()
        self._short.clear()
        self._lacking.clear()
        self._found = None
        for placement in placements:
            self.ranks.changed(placement.node)

    def renewed(self, nodes: Collection[Node], scoring: ScoringPolicy) -> bool:
        """
        Begin another pass: whether these are the same nodes but for what is free, so that what is known serves again.

        Nodes are frozen: one that is the same object has not changed, and another one is judged anew. A pass that took
        nothing, before nodes of which none has changed, would refuse again what it refused, with the same numbers: then
        these stand until something is taken.
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
        numbered = {} if self._before else self._numbered | self._refused
        self._begin()
        self._numbered = numbered
        self.ranks.drop_roomier(self._lacking, self._short_moved)
        self._short_moved = self.ranks.drop_roomier(self._short, self._short_moved)
        return True

    def is_known_short(self, gang: Gang) -> bool:
        """Whether the gang was refused by the counts and no node has gained room for its pods since."""
        if gang not in self._short or self._short_moved != self.ranks.moved:
            return False
        self._refused_at.setdefault(gang, len(self._before))
        return True

    def put(self, node: Node) -> None:
        """A node of the room is another one now; what was refused before stays refused."""
        self._before.append(self.nodes[node.name])
        self.nodes[node.name], self._found = node, None
        self.ranks.changed(node.name)

    def _begin(self) -> None:
        """Forget the verdicts of the pass so far; what follows from the nodes is known all the same."""
        self._refused.clear()
        self._numbered.clear()
        self._refused_at.clear()
        self._before.clear()


def _kinds(gang: Gang) -> list[BundleKind]:
    return [bundles.kind for group in placement_groups(gang) for bundles in group.bundle_sets]


_name = attrgetter("name")
_ROOM = ("cpu_free", "memory_free", "pods_free", "gpu_free", "devices_free", "mig_taken")
_CHANGING = (*_ROOM, "gpu_others", "others", "gpu_beyond", "away_ts")
_lasting = attrgetter(*(name for name in Node.__slots__ if name not in _CHANGING), "others.devices")
"""Properties of a node that do not change when pods come and go, ours or others'."""

"""
Place a whole gang or none of it; and gangs one after another, as one pass over a queue order does.

Each pod in turn goes to the node that the pool's scoring policy scores highest; of equals to the one with the least
that others need more (`count_spared`), then to the one whose name comes first. Which nodes a role may use at all, when
its pods have to lie together or apart, is chosen before (`topology`).
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from operator import attrgetter

from tessera.domain.devices.empty_nodes import emptied
from tessera.domain.devices.networks import pools_drawn, reached
from tessera.domain.devices.resources import Node, RoleNeed
from tessera.domain.work.gang import Gang, gang_of
from tessera.engine.placement.attempt import Attempt, place_by_trying
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import BundleKind
from tessera.engine.placement.gpu_models import alternatives
from tessera.engine.placement.placement_groups import BundleSet, PlacementGroup, placement_groups
from tessera.engine.placement.refusals import no_copy, no_domain, no_fit, no_model, not_even
from tessera.engine.placement.rows.room_counts import RoomTable
from tessera.engine.placement.rows.search_looks import SearchLooks
from tessera.engine.placement.rows.shortage import is_short, lacks_gpus, lone_kind
from tessera.engine.placement.rows.table import WHOLE, Entry, entry, policy_for
from tessera.engine.placement.topology import place_together, place_tree
from tessera.engine.scoring.protocol import BEST_FIT, ScoringPolicy
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement

GANGS_MAX = 8_192
"""Number of refused gangs that are remembered; beyond, all are forgotten: it costs searches and changes no verdict."""


def place_gang(
    roles: tuple[RoleNeed, ...],
    nodes: Mapping[str, Node],
    places: FeasibleNodes | None = None,
    table: RoomTable | None = None,
) -> tuple[Placement, ...] | Reason:
    """
    Choose node and devices for every pod, or say why not; `nodes` is not changed.

    `places` is what earlier gangs of the same pass have found out about the same nodes, and the scoring by which one is
    chosen; `table` is these nodes as a table.
    """
    done = try_to_place(gang_of(roles), nodes, places or FeasibleNodes(nodes), table)
    return done if isinstance(done, Reason) else done.placements


def try_to_place(
    gang: Gang, nodes: Mapping[str, Node], places: FeasibleNodes, table: RoomTable | None = None
) -> Attempt | Reason:
    """
    The try that placed the whole gang, or why there is none.

    A group that is bound or spread leaves nothing behind when it fails; another leaves the pods that found a place.
    """
    if not places.any_ready:
        return Reason(code=Code.NO_NODES, numbers={"nodes_cordoned": places.cordoned} if places.cordoned else {})
    bound_gangs: tuple[Gang, ...] = (gang,)
    # A gang that is of one pod, or may be mixed, is not even asked: it costs what it did.
    if gang.one_model:
        bound_gangs = alternatives(gang, places, lambda kind: _best_node(kind, nodes, places, table))
    if bound_gangs == (gang,):
        attempt, against = _tried(gang, nodes, places, table)
        return against or attempt
    # All are tried before one is told: the reason says how near each model came.
    refused = list[tuple[Gang, Attempt, Reason]]()
    for each in bound_gangs:
        attempt, against = _tried(each, nodes, places, table)
        if against is None:
            return attempt
        refused.append((each, attempt, against))
    return no_model(gang, refused)


def _best_node(
    kind: BundleKind, nodes: Mapping[str, Node], places: FeasibleNodes, table: RoomTable | None
) -> Entry | None:
    # The same order as by judging every node, which is what a ranking keeps.
    if table is not None:
        return table.ranking(kind).best()
    scoring = policy_for(kind, places.scoring)
    return min((e for name in places.suited(kind) if (e := entry(kind, nodes[name], scoring))), default=None)


def _tried(
    gang: Gang, nodes: Mapping[str, Node], places: FeasibleNodes, table: RoomTable | None
) -> tuple[Attempt, Reason | None]:
    """A try on the models that the gang is bound to, and why it failed."""
    attempt = Attempt(gang, nodes, places, table)
    for group in placement_groups(gang):
        if group.inside:
            wanting = place_tree(group, gang, attempt)
            if wanting is not None:
                return attempt, no_copy(*wanting, attempt, gang.pods)
            continue
        failed = None if group.anywhere else place_together(group, attempt)
        if group.anywhere or (failed is not None and group.may_split):
            failed = next((b for b in group.bundle_sets if not attempt.fill(b, None, b.first, b.count)), None)
        if failed is not None:
            # A new one: what the failed one placed is told in the reason.
            trial = Attempt(gang, nodes, places, table)
            if _is_placed_by_trying(gang, trial):
                trial.tell_all()
                return trial, None
            attempt.tell_all()
            return attempt, _why(failed, group, attempt, gang.pods)
    if attempt.untold:
        attempt.tell_all()
    # Within the gang a device counts as full after one share; to all others what is left of it is free.
    if gang.apart:  # further pods of others may share its devices
        attempt.changed = {name: attempt.before(name) for name in attempt.changed}
        gang.take(attempt.changed, attempt.placed)
    return attempt, None


def _is_placed_by_trying(gang: Gang, trial: Attempt) -> bool:
    groups = placement_groups(gang) if gang.claims and gang.pods > 1 else ()
    sets = [bundles for group in groups for bundles in group.bundle_sets]
    return bool(sets) and all(group.anywhere for group in groups) and place_by_trying(trial, sets)


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
    numbers than one that folded the whole ledger. Its numbers are those of the nodes at the time of that verdict, and
    are counted when somebody asks for them (`find`). From one pass to the next only a search in vain is remembered,
    until a node changes that the gang could use: all else is read from the table.
    """

    def __init__(
        self, nodes: Iterable[Node], places: FeasibleNodes | None = None, scoring: ScoringPolicy = BEST_FIT
    ) -> None:
        """`places` is what is known already about the same nodes, with more or less free; else `scoring` decides."""
        self.nodes = {node.name: node for node in nodes}
        self.places = places or FeasibleNodes(self.nodes, scoring)
        self._refused: dict[Gang, Reason] = {}
        self._before: list[Node] = []
        """Nodes as they were before each change of this pass, and where in it each gang was first refused."""
        self._refused_at: dict[Gang, int] = {}
        self._searched: dict[Gang, int] = {}
        """Gangs that were searched for in vain, and the number of changes of nodes by then."""
        self._short: dict[Gang, int] = {}
        """Gangs that lacked room by the counts, and the number of changes of nodes by then."""
        self._holdable: dict[Gang, bool] = {}
        # Whether the nodes could hold a gang if they were empty: that does not change as long as this serves.
        self._found: tuple[tuple[Placement, ...], Attempt] | None = None

    @cached_property
    def table(self) -> RoomTable:
        """The nodes as a table, in the order of the scoring and with their room for each kind."""
        return RoomTable(self.nodes, self.places)

    @cached_property
    def _emptied(self) -> "FreeCapacity":
        """The same nodes without any pod. What is lasting of nodes never changes here, so that it serves as long."""
        return FreeCapacity(map(emptied, self.nodes.values()), self.places)

    @cached_property
    def _looks(self) -> SearchLooks:
        return SearchLooks(self.table)

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
        if at < len(self._before):  # its verdict is that of nodes of which something was taken since
            then = self.nodes | {node.name: node for node in reversed(self._before[at:])}
            done = try_to_place(gang, then, self.places)
        else:
            done = try_to_place(gang, self.nodes, self.places, self.table)
            if isinstance(done, Reason):
                if len(self._searched) >= GANGS_MAX:
                    self._searched.clear()
                self._searched[gang] = self._changes()
        if isinstance(done, Reason):
            self._refused[gang], self._refused_at[gang] = done, at
            return done
        self._found = done.placements, done
        return self._found[0]

    def refusal(self, roles: tuple[RoleNeed, ...]) -> Code | None:
        """The code of the reason that `find` would give, as far as that is known without a search; else None."""
        gang = gang_of(roles)
        if gang not in self._refused_at and self.shortage(gang) is None:
            if not self._is_untouched(gang):
                return None
            self._refused_at[gang] = len(self._before)
        return Code.NO_FIT if self.places.any_ready else Code.NO_NODES

    def shortage(self, gang: Gang) -> Code | None:
        """The code of the refusal that follows from counts and sums alone; None where they do not refuse the gang."""
        if not self.is_short_in_all(gang):
            return None
        self.note_short(gang)
        return Code.NO_FIT if self.places.any_ready else Code.NO_NODES

    def note_short(self, gang: Gang) -> None:
        """Know that the gang is refused now: a later refusal in this pass has the numbers of its first one."""
        self._refused_at.setdefault(gang, len(self._before))

    def lacks_whole_gpus(self, kind: BundleKind, gpus: int) -> bool:
        """Whether nodes are ready, and none that suits the kind has so many whole GPUs free."""
        self.table.refresh()
        return self.places.any_ready and not (self.table.free[WHOLE, self.table.suits(kind)] >= gpus).any()

    def is_short(self, roles: tuple[RoleNeed, ...]) -> bool:
        """Whether the nodes lack the room for some of the pods, whatever becomes of the others; no search is made."""
        gang, table = gang_of(roles), self.table
        if not self.places.any_ready:
            return True
        lone = lone_kind(gang)
        if lone is not None:
            return table.total(lone) < gang.pods
        if self._is_still_short(gang):
            return True
        if not all(is_short(each, table) for each in alternatives(gang, self.places)):
            return False
        if len(self._short) >= GANGS_MAX:
            self._short.clear()
        self._short[gang] = table.changes
        return True

    def _is_still_short(self, gang: Gang) -> bool:
        """Whether the gang lacked room before and none of its kinds has gained any since."""
        then, table = self._short.get(gang), self.table
        if then is None:
            return False
        return table.latest_gain <= then or all(table.last_gain(kind) <= then for kind in _kinds(gang))

    def is_short_in_all(self, roles: tuple[RoleNeed, ...]) -> bool:
        """Whether they lack that room or the GPUs of all pods together: what a `refusal` says without memory."""
        if self.is_short(roles):
            return True
        gangs, table = alternatives(gang_of(roles), self.places), self.table
        return all((len(gangs) > 1 and is_short(each, table)) or lacks_gpus(each, table) for each in gangs)

    def could_hold(self, roles: tuple[RoleNeed, ...]) -> bool:
        """Whether counts and sums leave the gang room once every pod has left the nodes; no search is made."""
        gang = gang_of(roles)
        if (known := self._holdable.get(gang)) is None:
            if len(self._holdable) >= GANGS_MAX:
                self._holdable.clear()
            known = self._holdable[gang] = self.places.any_ready and not self._emptied.is_short_in_all(gang)
        return known

    def looks(self, roles: tuple[RoleNeed, ...]) -> int:
        """Number of looks at a pod or a node that a search for the gang takes at most, about."""
        return sum(map(self._looks.count, alternatives(gang_of(roles), self.places)))

    def _changes(self) -> int:
        self.table.refresh()
        return self.table.changes

    def _is_untouched(self, gang: Gang) -> bool:
        """Whether the gang was searched for in vain, and no node that suits any of its pods has changed since."""
        searched, now, table = self._searched.get(gang), self._changes(), self.table
        if searched is None:
            return False
        rows = table.rows_since(searched)
        if rows is None or any(table.suits(kind)[rows].any() for kind in _kinds(gang)):
            del self._searched[gang]
            return False
        self._searched[gang] = now
        return True

    def take(self, roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...]) -> None:
        """Subtract these placements from the free capacity."""
        if self._found is not None and self._found[0] is placements:
            changed = self._found[1].changed
            self._before += [self.nodes[name] for name in changed]
            self.nodes.update(changed)
            self._note(changed)
        else:
            changing = self.changing(placements)
            self._before += [self.nodes[name] for name in changing]
            gang_of(roles).take(self.nodes, placements)
            self._note(changing)

    def give_back(self, roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...]) -> None:
        """Pods have left these places; what was refused before may fit again."""
        gang_of(roles).take(self.nodes, placements, -1)
        self._begin()
        self._note(self.changing(placements))

    def changing(self, placements: tuple[Placement, ...]) -> dict[str, None]:
        """The nodes for which something else is free with these pods: theirs, and those that share a network."""
        found = {placement.node: None for placement in placements if placement.node in self.nodes}
        if pools := pools_drawn(placements):
            found |= {node.name: None for node in reached(self.nodes.values(), pools)}
        return found

    def renewed(self, nodes: Collection[Node], scoring: ScoringPolicy) -> bool:
        """
        Begin another pass: whether these are the same nodes but for what is free, so that what is known serves again.

        Nodes are frozen: one that is the same object has not changed, and another one is judged anew.
        """
        known = self.nodes
        if scoring is not self.places.scoring or len(nodes) != len(known):
            return False
        were = map(known.get, map(_name, nodes))
        changed = [node for node, was in zip(nodes, were, strict=True) if was is not node]
        # Pods come and go all the time; what else changes on a node asks for all that is known of the pool anew.
        if any(node.name not in known or _lasting(known[node.name]) != _lasting(node) for node in changed):
            return False
        for node in changed:
            self.put(node)
        self._begin()
        return True

    def put(self, node: Node) -> None:
        """A node of the room is another one now; what was refused before stays refused."""
        self._before.append(self.nodes[node.name])
        self.nodes[node.name] = node
        self._note((node.name,))

    def _note(self, names: Iterable[str]) -> None:
        self._found = None
        if "table" in self.__dict__:
            for name in names:
                self.table.changed(name)

    def _begin(self) -> None:
        """Forget the verdicts of the pass so far; what follows from the nodes is known all the same."""
        self._refused.clear()
        self._refused_at.clear()
        self._before.clear()


def _kinds(gang: Gang) -> list[BundleKind]:
    return [bundles.kind for group in placement_groups(gang) for bundles in group.bundle_sets]


_name = attrgetter("name")
_ROOM = ("cpu_free", "memory_free", "pods_free", "gpu_free", "devices_free", "mig_taken", "promised", "drawn")
_CHANGING = (
    *_ROOM,
    "drawn_by_others",
    "drawn_elsewhere",
    "gpu_others",
    "others",
    "in_zones",
    "gpu_beyond",
    "away_ts",
    "short_ts",
    "kept_data",
)
_lasting = attrgetter(*(name for name in Node.__slots__ if name not in _CHANGING), "others.devices")
"""Properties of a node that do not change when pods come and go, ours or others'."""

"""
The nodes of one pool as a table, and in the order of the pool's scoring for each kind of pod that was asked for.

Rows are nodes in the order of their names, columns what is free on them. Whoever changes a node tells `changed`, and
its row is looked at again before the next answer. The order is that of judging all nodes anew: score first, then what
the node has that the pod does not ask for (`count_spared`), then name. Each kind has a cost for every row, and the
first of the lowest is the best; a row is judged again only when its node changed, or comes to the top at what a lighter
kind thinks of it.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from tessera.domain.devices.resources import WHOLE_GPU, Need, Node, is_seat, seats_of
from tessera.domain.storing.fast import replace
from tessera.domain.work.evidence import FitFailure
from tessera.engine.claims.extended import devices_free, sets_of, shortage_on
from tessera.engine.claims.least_lost import LEAST_LOST
from tessera.engine.claims.numa_zones import count_in_zones
from tessera.engine.claims.shortages import Shortage
from tessera.engine.placement.feasible_nodes import NAMES_MAX, FeasibleNodes
from tessera.engine.placement.fits import SPARED_BITS, BundleKind, count_spared, short_of
from tessera.engine.placement.mig import free_positions
from tessera.engine.scoring.protocol import BEST_FIT, WORD, DataNear, PreferredFirst, ScoringPolicy

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LOG_MIN = 4_096
"""So many changes of rows are remembered, or twice as many as there are nodes; who is further behind begins anew."""

COSTS_MAX = 1 << 23
"""Kinds times rows whose costs are kept; beyond, all are forgotten: it costs time and changes no order."""

FEW = 64  # rows that a ranking looks at one by one, without asking what a lighter kind thinks of them
NEAR = 8  # rankings of little less CPU that a new one looks at for one to begin with
NONE = (1 << 63) - 1
"""Cost of a row that has no room, or is left out."""

UNKNOWN = -1
"""Of a row, whether a search finds what a pod wants there: nobody has asked since its node changed."""

PODS, CPU, MEMORY, WHOLE = range(4)
MISSES = (
    FitFailure.GPU,
    FitFailure.DEVICES,
    FitFailure.CPU,
    FitFailure.MEMORY,
    FitFailure.PODS,
    FitFailure.ZONES,
    FitFailure.CLAIMED,
    FitFailure.KEPT,
    FitFailure.APART,
)
"""What a node may lack; a place in it, from 1 on, says what a row lacks."""
ZONES, CLAIMED, KEPT, APART = 6, 7, 8, 9

Entry = tuple[int, str]
"""A cost (the score, negated, above the bits of what is spared) and a name: the smallest is the best."""

_whatever_is_free = attrgetter(
    "gpu_free",
    "cpu_free",
    "memory_free",
    "pods_free",
    "devices_free",
    "mig_taken",
    "promised",
    "drawn",
    "drawn_by_others",
    "in_zones",
    "drawn_elsewhere",
    "pieces",
    "kept_data",
)


_amounts_of = attrgetter("gpu_free", "cpu_free", "memory_free", "pods_free", "gpu_others")


def state_of(node: Node) -> tuple[object, ...]:
    """State of a node: its free room, and how many GPUs pods of others have."""
    return _whatever_is_free(node), len(node.gpu_others)


def policy_for(kind: BundleKind, scoring: ScoringPolicy) -> ScoringPolicy:
    """
    No mix prices MIG instances of a device plugin, nor several shares of one pod; of devices that are claimed the loss
    of others' pieces counts.
    """
    if kind.whole.claims:
        found: ScoringPolicy = LEAST_LOST
    else:
        # A policy that prices a share looks at the one GPU that it would take; which of several is another question.
        found = BEST_FIT if kind.whole.mig_profile or kind.whole.gpu_parts > 1 else scoring
    # Data is a cost among costs, and what is preferred stands above all of them: in this order the one is inside.
    if kind.whole.data:
        found = DataNear(found)
    return PreferredFirst(found, kind.preferred) if kind.preferred else found


def entry(kind: BundleKind, node: Node, scoring: ScoringPolicy) -> Entry | None:
    """Rank of a node that suits the kind; None when it has no room."""
    if short_of(kind, node) is not None:
        return None
    return cost_on(kind, node, scoring), node.name


def cost_on(kind: BundleKind, node: Node, scoring: ScoringPolicy) -> int:
    """Cost of a bundle on a node: the lower the score the more, and of equal scores what is spared there."""
    return (-scoring.score(kind.whole, node) << SPARED_BITS) + count_spared(kind, node)


class NodeTable:
    """`nodes` may change in what is free as long as `changed` is told of it; `places` is what is known besides."""

    def __init__(self, nodes: Mapping[str, Node], places: FeasibleNodes) -> None:
        self.nodes, self.places = nodes, places
        self.names: Sequence[str] = sorted(nodes)
        self.row_of = {name: row for row, name in enumerate(self.names)}
        self.at = there = [nodes[name] for name in self.names]
        """The node of each row, as of the last `refresh`."""
        most = max((len(node.gpu_free) for node in there), default=0)
        of_devices = [node.gpu_free + (0,) * (most - len(node.gpu_free)) for node in there]
        self.gpu_free: Ints = np.array(of_devices, np.int64).reshape(len(there), most)
        """Thousandths free on each device, 0 beyond the last one of a node."""
        amounts = [(n.pods_free, n.cpu_free, n.memory_free, n.gpu_free.count(WHOLE_GPU)) for n in there]
        self.free: Ints = np.array(amounts, np.int64).reshape(len(there), 4).T.copy()
        """Pods, CPU, memory and whole GPUs free, by row."""
        self.open: Ints = np.array([node.open for node in there], np.int64).reshape(len(there), 3).T.copy()
        """CPU and memory free to jobs without GPUs, by row."""
        self.most = np.array([max(node.gpu_free, default=0) for node in there], np.int64)
        self.offering = np.array([node.offer is not None for node in there], np.bool_)
        """Rows of nodes with devices that drivers publish."""
        self.any_offering = bool(self.offering.any())
        self.zoned = np.array([bool(node.zones) for node in there], np.bool_)
        """Rows of nodes whose kubelet keeps each pod within one NUMA zone."""
        self.any_zoned = bool(self.zoned.any())
        self.gpus_of_others = np.array([len(node.gpu_others) for node in there], np.int64)
        self.changes = 0
        """Number of changes of rows so far; the last ones are in the log."""
        self.replaced: dict[int, Node] = {}
        """Nodes of the rows that changed, as they were when their room was last counted."""
        self._log: list[int] = []
        self._stale = set[str]()
        self.changed = self._stale.add
        self._devices: dict[str, Ints] = {}
        self._seats: dict[str, dict[int, int]] = {}
        """Seats of anti-affinity groups that are taken, with the rows where they are and what is left there."""
        for row, node in enumerate(there):
            if (counted := node.devices_free) and is_seat(counted[0][0]):  # nearly no node has one
                self._seat(row, node)
        self._searched: dict[Hashable, NDArray[np.int8]] = {}
        self._shortages: dict[Hashable, tuple[list[Shortage | None], set[int]]] = {}
        """What is short for claims, by row, and the rows whose nodes changed since they were asked."""
        self._suits: dict[object, Bools] = {}
        self._suited: dict[object, Ints] = {}
        self._rankings: dict[BundleKind, Ranking] = {}
        self._families: dict[tuple[object, ...], list[tuple[int, int, Ranking]]] = {}
        self._spared: dict[object, dict[object, int]] = {}

    def refresh(self) -> None:
        """Bring the rows of the nodes that changed up to date."""
        for name in self._stale:
            row, node = self.row_of.get(name), self.nodes.get(name)
            if row is None or node is None:
                continue
            before, self.at[row] = self.at[row], node
            for room in self._searched.values():
                room[row] = UNKNOWN
            for _, unasked in self._shortages.values():
                unasked.add(row)
            # Labels and conditions change more often than what is free: readers of the log need not look again then.
            if state_of(node) == state_of(before):
                continue
            # The first of several changes counts: readers compare with the node as they saw it last.
            self.replaced.setdefault(row, before)
            self._log.append(row)
            self.changes += 1
            for device, column in self._devices.items():
                column[row] = devices_free(node, device)
            if node.devices_free != before.devices_free:
                self._unseat(row, before)
                self._seat(row, node)
            # What a start elsewhere has of a network is in no other column, and a thousand nodes may hear of one.
            if not node.kept_percent and _amounts_of(node) == _amounts_of(before):
                continue
            self.free[:, row] = (
                node.pods_free,
                node.cpu_free,
                node.memory_free,
                (gpus := node.gpu_free).count(WHOLE_GPU),
            )
            self.open[:, row] = node.open if node.kept_percent else (node.cpu_free, node.memory_free, node.pods_free)
            self.gpu_free[row, : len(gpus)] = gpus
            self.most[row], self.gpus_of_others[row] = max(gpus, default=0), len(node.gpu_others)
        self._stale.clear()
        # A reader that is further behind than the log reaches takes all rows anew, which costs no more by then.
        if len(self._log) > max(LOG_MIN, 2 * len(self.names)):
            del self._log[: len(self._log) // 2]

    def _seat(self, row: int, node: Node) -> None:
        for name, free in seats_of(node.devices_free):
            self._seats.setdefault(name, {})[row] = free

    def _unseat(self, row: int, node: Node) -> None:
        for name, _ in seats_of(node.devices_free):
            del self._seats[name][row]
            if not self._seats[name]:
                del self._seats[name]

    def rows_since(self, changes: int) -> list[int] | None:
        """The rows that changed after the first `changes`; None when these are too many to be remembered."""
        count = self.changes - changes
        if count > len(self._log):
            return None
        return list(set(self._log[len(self._log) - count :])) if count else []

    def suits(self, kind: BundleKind) -> Bools:
        """Rows that suit the kind, whatever room they have."""
        found = self._suits.get(kind.never)
        if found is None:
            if len(self._suits) * len(self.names) > NAMES_MAX:
                self._suits.clear()
                self._suited.clear()
            row_of, found = self.row_of, np.zeros(len(self.names), np.bool_)
            found[[row_of[name] for name in self.places.suited(kind) if name in row_of]] = True
            self._suits[kind.never] = found
        return found

    def suited_rows(self, kind: BundleKind) -> Ints:
        """The rows that suit the kind."""
        found = self._suited.get(kind.never)
        if found is None:
            found = self._suited[kind.never] = np.flatnonzero(self.suits(kind))
        return found

    def devices_free(self, name: str) -> Ints:
        """Devices of that name that are free, by row."""
        if is_seat(name):
            # Nearly every job may have a seat of its own, and each is taken on few rows: a column of each would cost
            # all nodes times all jobs.
            taken, free = self._seats.get(name, {}), np.ones(len(self.names), np.int64)
            free[list(taken)] = list(taken.values())
            return free
        found = self._devices.get(name)
        if found is None:
            there = (devices_free(node, name) for node in self.at)
            found = self._devices[name] = np.fromiter(there, np.int64, len(self.names))
        return found

    def gpus_with(self, gpu_milli: int) -> Ints:
        """Number of GPUs with a share of this size left, by row."""
        found: Ints = (self.gpu_free >= gpu_milli).sum(axis=1)
        return found

    def misses(self, kind: BundleKind) -> NDArray[np.int8]:
        """What a bundle lacks first on each row, as a place in `MISSES` from 1 on; 0 where it fits or is not suited."""
        need, found = kind.whole, np.zeros(len(self.names), np.int8)
        # Put down first, so that each shortage of the node itself takes its place.
        if kind.spares:
            asked = np.array([need.cpu_milli, need.memory_bytes, len(kind.needs)])
            np.putmask(found, (self.open < asked[:, None]).any(axis=0), KEPT)
        np.putmask(found, self.free[PODS] < len(kind.needs), 5)
        np.putmask(found, self.free[MEMORY] < need.memory_bytes, 4)
        np.putmask(found, self.free[CPU] < need.cpu_milli, 3)
        for name, count in need.devices:
            np.putmask(found, self.devices_free(name) < count, APART if is_seat(name) else 2)
        if need.gpus:
            np.putmask(found, self.free[WHOLE] < need.gpus, 1)
        if need.gpu_milli:
            np.putmask(found, self.most < need.gpu_milli, 1)
            if need.gpu_parts > 1:
                np.putmask(found, self.gpus_with(need.gpu_milli) < need.gpu_parts, 1)
        if need.mig_profile:
            found[
                [row for row in self.suited_rows(kind).tolist() if free_positions(need, self.at[row]) < need.gpu_parts]
            ] = 1
        # Asked last, of rows that lack nothing else of their own: a search costs more than a comparison of columns, and
        # rows whose nodes are in equal states cost one search together.
        if self.any_zoned:
            open_rows = self.suits(kind) & self.zoned & ((found == 0) | (found == KEPT))
            room = self._room_for(kind, open_rows, lambda node: count_in_zones(kind.needs, node, 1))
            np.putmask(found, open_rows & (room == 0), ZONES)
        if need.claims or (self.any_offering and (need.gpus or need.devices)):
            open_rows = self.suits(kind) & self.offering & ((found == 0) | (found == KEPT))
            wanted = need.claims, need.gpus, need.devices, need.isolation
            room = self._room_for(wanted, open_rows, lambda node: sets_of(need, node, 1))
            np.putmask(found, open_rows & (room == 0), CLAIMED)
        return found

    def _room_for(self, wanted: Hashable, asked: Bools, search: Callable[[Node], int]) -> NDArray[np.int8]:
        """1 where a search finds what is wanted, 0 where not; of the rows that are asked about."""
        room = self._searched.get(wanted)
        if room is None:
            if len(self._searched) * len(self.names) > COSTS_MAX:
                self._searched.clear()
            room = self._searched[wanted] = np.full(len(self.names), UNKNOWN, np.int8)
        for row in np.flatnonzero(asked & (room == UNKNOWN)).tolist():
            room[row] = search(self.at[row])
        return room

    def shortages(self, need: Need) -> list[Shortage | None]:
        """Shortage of each row for a pod's claims, None where there is none. Only rows that changed are asked."""
        wanted = need.claims, need.gpus, need.devices, need.isolation
        if wanted not in self._shortages:
            if len(self._shortages) * len(self.names) > COSTS_MAX:
                self._shortages.clear()
            self._shortages[wanted] = [None] * len(self.names), set(range(len(self.names)))
        # Words of a refusal are the same as long as no node changes, and most passes refuse again what they refused.
        found, unasked = self._shortages[wanted]
        for row in unasked:
            found[row] = shortage_on(need, self.at[row])
        unasked.clear()
        return found

    def ranking(self, kind: BundleKind) -> "Ranking":
        """The ranking for a kind, as the nodes are now."""
        self.refresh()
        found = self._rankings.get(kind)
        if found is None:
            found = self._make_ranking(kind)
        found.catch_up()
        return found

    def _make_ranking(self, kind: BundleKind) -> "Ranking":
        """A new ranking; it begins with that of a kind that asks for little less CPU, and for no more of anything."""
        if len(self._rankings) * len(self.names) > COSTS_MAX:
            self._rankings.clear()
            self._families.clear()
        whole = kind.whole
        family = self._families.setdefault(
            (kind.never, len(kind.needs), _gpus_of(whole), whole.claims, kind.spares, whole.data, kind.preferred), []
        )
        spared = self._spared.setdefault(kind.never, {})
        if not family and (bare := _bare(kind)).whole != whole:
            family.append((0, 0, Ranking(bare, self, spared, None)))
        after = bisect_left(family, (whole.cpu_milli + 1,))
        nearest = (ranking for *_, ranking in reversed(family[max(0, after - NEAR) : after]))
        lightest = family[0][2] if family else None
        near = next((ranking for ranking in nearest if is_lighter(ranking.kind, kind)), lightest)
        found = self._rankings[kind] = Ranking(kind, self, spared, near)
        insort(family, (whole.cpu_milli, len(family), found))
        return found


class Ranking:
    """
    The costs of the rows for one kind of pod: `best` gives the best that is not left out.

    A kind that asks for more than another one, of equal GPUs, gets no higher score from any node (`ScoringPolicy`), and
    spares the same there, since both ask for devices of the same names. So a row may stand at what a lighter kind
    thinks of it, whose ranking is `near`, until it comes to the top, and be judged only then: most rows never are.
    """

    def __init__(self, kind: BundleKind, table: NodeTable, spared: dict[object, int], near: "Ranking | None") -> None:
        self.kind, self._table, self._near, self._spared = kind, table, near, spared
        self._policy = policy_for(kind, table.places.scoring)
        self._words = [np.full(len(table.names), NONE, np.int64) for _ in range(self._policy.words)]
        """Each cost in words of 62 bits, the highest first."""
        self._judged: Bools = np.zeros(len(table.names), np.bool_)
        self._changes = -1
        self._left_out: list[tuple[int, int]] = []

    def catch_up(self) -> None:
        """Look at the rows that have changed since the last time."""
        table, kind = self._table, self.kind
        rows = table.rows_since(self._changes) if self._changes >= 0 else None
        self._changes = table.changes
        if rows is not None and len(rows) <= FEW:
            suits = table.suits(kind)
            for row in rows:
                self._words[0][row] = NONE
                if suits[row] and short_of(kind, table.at[row]) is None:
                    self._judge(row)
            return
        fits = table.suits(kind) & (table.misses(kind) == 0)
        changed = slice(None) if rows is None else np.array(rows, np.int64)
        self._words[0][changed] = NONE
        if self._near is None:
            for row in np.flatnonzero(fits).tolist() if rows is None else filter(fits.__getitem__, rows):
                self._judge(row)
            return
        self._near.catch_up()
        self._judged[changed] = False
        for word, theirs in zip(self._words, self._near._words, strict=True):
            word[changed] = theirs[changed]
        np.putmask(self._words[0], ~fits, NONE)
        # A NUMA zone may have less than the lighter kind wants, and all that this one does: CPUs that are no whole ones
        # are in no zone.
        for row in np.flatnonzero(fits[changed] & (self._words[0][changed] == NONE)).tolist():
            self._judge(row if rows is None else rows[row])

    def _judge(self, row: int) -> int:
        node = self._table.at[row]
        known = node.devices, node.taints, node.tolerated, node.gpus, node.gpu_model, node.gpu_resource
        spared = self._spared.get(known)
        if spared is None:
            spared = self._spared[known] = count_spared(self.kind, node)
        cost = (-self._policy.score(self.kind.whole, node) << SPARED_BITS) + spared
        rest = cost
        for word in reversed(self._words[1:]):
            word[row] = rest & ((1 << WORD) - 1)
            rest >>= WORD
        self._words[0][row] = rest
        self._judged[row] = True
        return cost

    def best(self) -> Entry | None:
        """The best row that is not left out: its cost and the node's name."""
        highest, *lower = self._words
        while True:
            row = int(highest.argmin()) if len(highest) else 0
            if not len(highest) or highest[row] == NONE:
                return None
            if lower:
                row = _first(highest, lower, row)
            if self._judged[row]:
                cost = int(highest[row])
                for word in lower:
                    cost = (cost << WORD) + int(word[row])
                return cost, self._table.names[row]
            self._judge(row)

    def leave_out(self, *names: str) -> None:
        """Let nobody take these nodes until `restore`."""
        for name in names:
            row = self._table.row_of[name]
            self._left_out.append((row, int(self._words[0][row])))
            self._words[0][row] = NONE

    def restore(self) -> None:
        """Puts the nodes that were left out back among those to choose from."""
        for row, cost in reversed(self._left_out):
            self._words[0][row] = cost
        self._left_out.clear()


def _first(highest: Ints, lower: list[Ints], row: int) -> int:
    """The first row of the lowest cost, where `row` is the first with its highest word."""
    rows = np.flatnonzero(highest == highest[row])
    for word in lower:
        if len(rows) == 1:
            break
        here = word[rows]
        rows = rows[here == here.min()]
    return int(rows[0])


def is_lighter(kind: BundleKind, other: BundleKind) -> bool:
    """Whether the kind asks for no more than another one of its family."""
    one, two = kind.whole, other.whole
    little = one.cpu_milli <= two.cpu_milli and one.memory_bytes <= two.memory_bytes
    return little and (not one.devices or one.devices == two.devices)


def _gpus_of(need: Need) -> tuple[int, int, str, int]:
    """GPUs of its node for which a pod asks, besides claims."""
    return need.gpus, need.gpu_milli, need.mig_profile, need.gpu_parts


def _bare(kind: BundleKind) -> BundleKind:
    """The kind without CPU, memory and devices: whatever suits and holds one of its family suits and holds it."""
    gpus, gpu_milli, mig_profile, gpu_parts = _gpus_of(kind.whole)
    whole = Need(0, 0, gpus, gpu_milli, mig_profile=mig_profile, gpu_parts=gpu_parts)
    # Data is no amount: without it the lighter kind would think better of each node that has none of it.
    if kind.whole.claims or kind.whole.data:
        whole = replace(whole, claims=kind.whole.claims, data=kind.whole.data)
    return BundleKind(kind.needs, whole, kind.labels, kind.never, kind.devices, kind.spares, kind.preferred)

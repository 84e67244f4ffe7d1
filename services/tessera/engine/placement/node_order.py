"""
The nodes of one pass in the order of the pool's scoring, for each kind of pod that was asked for.

Nodes in equal states are one row: nothing but their names tells them apart, so that each kind judges a row once and of
a row the first name stands for all. The best is read at the top of a heap; a node that changed goes to another row, and
a kind looks at rows that are new or have another first name only when it is asked for again. So a placement costs what
changed, and not the number of nodes. Whatever was done before, the order is that of judging all nodes anew: score
first, then what the node has that the pod does not ask for (`count_spared`), then name.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush, heapreplace
from itertools import takewhile
from operator import attrgetter, gt

from tessera.domain.resources import WHOLE_GPU, Need, Node
from tessera.engine.placement.fits import SPARED_BITS, BundleKind, count_spared, never_fits, short_of
from tessera.engine.scoring.protocol import BEST_FIT, ScoringPolicy

SLACK = 64  # entries that stand for nothing any more
FEW = 64  # rows that a ranking judges at once, without asking what a lighter kind thinks of them
NEAR = 8  # rankings of little less CPU that a new one looks at for one to begin with

Entry = tuple[int, str]
"""A score, negated, above the bits of what is spared, and a name: the smallest is the best."""


MOVES_MAX = 4_096
"""So many moves are remembered, or as many as there are nodes; whoever is further behind counts anew."""

Move = tuple[str, "StateRow | None", "StateRow"]
"""A node, the row that it left, and the one it went to."""


def policy_for(kind: BundleKind, scoring: ScoringPolicy) -> ScoringPolicy:
    """No mix prices MIG instances."""
    return BEST_FIT if kind.whole.mig_profile else scoring


def entry(kind: BundleKind, node: Node, scoring: ScoringPolicy) -> Entry | None:
    """Rank of a node that suits the kind; None when it has no room."""
    if short_of(kind, node) is not None:
        return None
    return (-scoring.score(kind.whole, node) << SPARED_BITS) + count_spared(kind, node), node.name


_whole = attrgetter("whole")
_whatever_lasts = attrgetter(
    "ready",
    "device_profile",
    "taints",
    "tolerated",
    "devices",
    "others.devices",
    "gpus",
    "gpu_model",
    "gpu_memory_bytes",
    "mig_geometry",
    "mig_instances",
)
_whatever_is_free = attrgetter("gpu_free", "cpu_free", "memory_free", "pods_free", "devices_free", "mig_taken")


class StateRow:
    """
    Nodes in one state; `names` ascend. `node` is one of them, and `scores` what kinds think of it, None: no room.

    `cpu_free`, `whole` GPUs and `most` of one GPU are kept apart: most rows have no room for most kinds, which is seen
    by these three at once.
    """

    __slots__ = ("by_domain", "cpu_free", "key", "lightest", "most", "names", "node", "scores", "whole")

    def __init__(self, key: tuple[object, ...], node: Node) -> None:
        self.key, self.node, self.names = key, node, [node.name]
        self.scores: dict[BundleKind, int | None] = {}
        self.lightest: dict[Family, BundleKind] = {}
        """Of each family the lightest kind that has a score, among those that told others."""
        self.by_domain: dict[str, Counter[str]] | None = None
        """Number of its nodes in each domain, of each level that was asked for since `names` changed."""
        self.cpu_free, self.whole = node.cpu_free, node.gpu_free.count(WHOLE_GPU)
        self.most = max(0, max(node.gpu_free, default=0))

    def may_hold(self, kind: BundleKind) -> bool:
        """Whether CPU and GPUs are enough for one bundle."""
        need = kind.whole
        return self.whole >= need.gpus and self.cpu_free >= need.cpu_milli and self.most >= need.gpu_milli

    def is_roomier(self, other: "StateRow") -> bool:
        """Whether there is more of anything free than on the nodes of the other row."""
        here, there = self.node, other.node
        if self.key[0] != other.key[0] or here.cpu_free > there.cpu_free or here.memory_free > there.memory_free:
            return True
        return (
            here.pods_free > there.pods_free
            or any(map(gt, here.gpu_free, there.gpu_free))
            or here.devices_free != there.devices_free
            or here.mig_taken != there.mig_taken
        )

    def domains(self, level: str, values: Mapping[str, str]) -> Counter[str]:
        """Number of its nodes in each domain of the level; `values` are the domains by node."""
        self.by_domain = known = self.by_domain or {}
        found = known.get(level)
        if found is None:
            found = known[level] = Counter(values[name] for name in self.names if name in values)
        return found


class SuitedRows:
    """Rows whose nodes suit a kind, and what is the same for all kinds that suit the same nodes."""

    def __init__(self, rows: Iterable[StateRow]) -> None:
        self._rows = sorted(rows, key=_whole, reverse=True)

    def __iter__(self) -> Iterator[StateRow]:
        return iter(self._rows)

    def with_gpus(self, count: int) -> Iterator[StateRow]:
        """The rows with at least so many whole GPUs free."""
        return takewhile(lambda row: row.whole >= count, self._rows) if count else iter(self._rows)

    @cached_property
    def nodes(self) -> int:
        """Number of nodes."""
        return sum(len(row.names) for row in self._rows)

    @cached_property
    def most_whole(self) -> int:
        """Whole GPUs free on the node with the most."""
        return self._rows[0].whole if self._rows else 0

    @cached_property
    def most_of_one(self) -> int:
        """Thousandths free on the GPU with the most."""
        return max((max(row.node.gpu_free, default=0) for row in self._rows), default=0)

    @cached_property
    def gpu_free(self) -> int:
        """Thousandths of GPUs that are free, devices of which more is held than there is left out."""
        return sum(sum(left for left in row.node.gpu_free if left > 0) * len(row.names) for row in self._rows)

    @cached_property
    def gpus_of_others(self) -> int:
        """GPUs that pods hold which are not Tessera's."""
        return sum(len(row.node.gpu_others) * len(row.names) for row in self._rows)


class StateRows:
    """
    The rows of `nodes`, which may change in what is free as long as `changed` is told of it.

    A state is everything that a decision may look at: what is free, what the node is, and its labels of those keys
    that some kind has asked for; with a scoring that looks at names, the name.
    """

    def __init__(self, nodes: Mapping[str, Node], scoring: ScoringPolicy) -> None:
        self._nodes, self._by_name = nodes, scoring.by_name
        self._asked: frozenset[str] = frozenset()
        self._lasting: dict[str, int] = {}
        self._rows: dict[tuple[object, ...], StateRow] = {}
        self._stale: set[str] = set()
        self.row_of: dict[str, StateRow] = {}
        self.changes: dict[StateRow, int] = {}
        """Every row by when it got another first name, the latest last; `last` numbers the changes."""
        self.last = 0
        self.moves: list[Move] = []
        """The latest moves; `moved` counts all of them."""
        self.moved = 0
        self._suits: dict[object, dict[object, bool]] = {}
        self._suited: dict[object, tuple[int, SuitedRows]] = {}
        self._spared: dict[object, dict[object, int]] = {}

    def moves_since(self, moved: int) -> Sequence[Move] | None:
        """The moves after the first `moved`; None when they are too many to be remembered."""
        count = self.moved - moved
        return None if count > len(self.moves) else self.moves[len(self.moves) - count :]

    def known_suits(self, kind: BundleKind) -> dict[object, bool]:
        """Verdicts so far on whether nodes suit the kind, by the part of their state that lasts."""
        return self._suits.setdefault(kind.never, {})

    def suits(self, kind: BundleKind, row: StateRow) -> bool:
        """Whether the row's nodes suit the kind, whatever room they have."""
        known = self.known_suits(kind)
        found = known.get(row.key[0])
        if found is None:
            found = known[row.key[0]] = all(never_fits(need, row.node) is None for need in kind.needs)
        return found

    def known_spared(self, kind: BundleKind) -> dict[object, int]:
        """Devices that the kind would better spare on nodes, so far, by the part of their state that lasts."""
        return self._spared.setdefault(kind.never, {})

    def suited(self, kind: BundleKind) -> SuitedRows:
        """The rows that suit the kind, as they are now."""
        known = self._suited.get(kind.never)
        if known is None or known[0] != self.moved:
            rows = (row for row in self._rows.values() if self.suits(kind, row))
            known = self._suited[kind.never] = self.moved, SuitedRows(rows)
        return known[1]

    def changed(self, name: str) -> None:
        """Notes that the node is another one now."""
        self._stale.add(name)

    def renewed(self, labels: frozenset[str]) -> bool:
        """Bring all rows up to date, such that they tell these labels apart; whether all are new."""
        anew = not labels <= self._asked or not self.row_of
        if anew:
            self._asked |= labels
            for table in (
                self._lasting,
                self._rows,
                self.row_of,
                self.changes,
                self._suits,
                self._suited,
                self._spared,
            ):
                table.clear()
            self.moves.clear()
            self.moved += 1
            self._make_rows()
        else:
            for name in self._stale:
                self._move(name)
        self._stale.clear()
        return anew

    def _make_rows(self) -> None:
        """Number the nodes by what lasts, and put each into its row; they come in the order of their names."""
        keys, numbers = sorted(self._asked), dict[tuple[object, ...], int]()
        for name, node in sorted(self._nodes.items()):
            labels = tuple(node.label(key) for key in keys) if keys else ()
            apart = *_whatever_lasts(node), labels, name if self._by_name else ""
            lasting = self._lasting[name] = numbers.setdefault(apart, len(numbers))
            key = lasting, _whatever_is_free(node), len(node.gpu_others)
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = StateRow(key, node)
                self._note(row)
            else:
                row.names.append(name)
            self.row_of[name] = row

    def _move(self, name: str) -> None:
        node, before = self._nodes[name], self.row_of.get(name)
        key = self._lasting[name], _whatever_is_free(node), len(node.gpu_others)
        if before is not None:
            if before.key == key:
                return
            self._leave(before, name)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = StateRow(key, node)
        else:
            insort(row.names, name)
            row.by_domain = None
        self.row_of[name] = row
        if row.names[0] == name:
            self._note(row)
        self.moved += 1
        self.moves.append((name, before, row))
        if len(self.moves) > max(MOVES_MAX, 2 * len(self._nodes)):
            del self.moves[: len(self.moves) // 2]

    def _leave(self, row: StateRow, name: str) -> None:
        at = bisect_left(row.names, name)
        del row.names[at]
        row.by_domain = None
        if not row.names:
            del self._rows[row.key], self.changes[row]
        elif not at:
            self._note(row)

    def _note(self, row: StateRow) -> None:
        self.last += 1
        self.changes.pop(row, None)
        self.changes[row] = self.last


class Ranking:
    """
    The rows for one kind of pod. `best` gives the best node beyond those that are to be left out.

    A kind that asks for more than another one, of equal GPUs, gets no higher score from any node (`ScoringPolicy`), and
    spares the same there, since both ask for devices of the same names. So
    a row may stand at what a lighter kind thinks of it until it comes to the top, and be judged only then: most rows
    never are. `family` has those kinds, and `near` is a lighter kind's ranking to begin with.
    """

    def __init__(
        self,
        kind: BundleKind,
        rows: StateRows,
        scoring: ScoringPolicy,
        family: "Family",
        near: "Ranking | None" = None,
    ) -> None:
        self.kind, self._rows, self._policy, self._family = kind, rows, policy_for(kind, scoring), family
        self._suits, self._spared = rows.known_suits(kind), rows.known_spared(kind)
        self._heap: list[Entry] = [] if near is None else near._heap.copy()
        self._seen: int = 0 if near is None else near._seen
        self._passed_over: list[Entry] = []
        self._passed: dict[StateRow, int] = {}
        """Of a row whose first nodes are left out, the place of the one that stands for it meanwhile."""

    def catch_up(self) -> None:
        """Look at the rows that are new, or begin with another node, since the last time."""
        heap, kind, new = self._heap, self.kind, list[StateRow]()
        cpu, gpus, milli = kind.whole.cpu_milli, kind.whole.gpus, kind.whole.gpu_milli
        for row, at in reversed(self._rows.changes.items()):
            if at <= self._seen:
                break
            if row.cpu_free >= cpu and row.whole >= gpus and row.most >= milli:
                if kind not in row.scores:
                    new.append(row)
                elif (known := row.scores[kind]) is not None:
                    heappush(heap, (known, row.names[0]))
        judge = self._judge if len(new) <= FEW else self._bound
        for row in new:
            score = judge(row)
            if score is not None:
                heappush(heap, (score, row.names[0]))
        self._seen = self._rows.last
        if len(heap) > 2 * len(self._rows.row_of) + SLACK:
            heap[:] = {each for each in heap if self._stands(each)}
            heapify(heap)

    def _bound(self, row: StateRow) -> int | None:
        """What the lightest kind that was asked thinks of the row; else this kind's own judgement, for heavier ones."""
        lightest = row.lightest.get(self._family)
        if lightest is not None and is_lighter(lightest, self.kind):
            return row.scores[lightest]
        row.lightest[self._family] = self.kind
        return self._judge(row)

    def _judge(self, row: StateRow) -> int | None:
        kind, node = self.kind, row.node
        suits = self._suits.get(row.key[0])
        fits = (self._rows.suits(kind, row) if suits is None else suits) and short_of(kind, node) is None
        if not fits:
            row.scores[kind] = None
            return None
        spared = self._spared.get(row.key[0])
        if spared is None:
            spared = self._spared[row.key[0]] = count_spared(kind, node)
        cost = row.scores[kind] = (-self._policy.score(kind.whole, node) << SPARED_BITS) + spared
        return cost

    def _stands(self, each: Entry) -> bool:
        """Whether an entry still says where its node's row stands, or a lighter kind says it of a row to be judged."""
        row = self._rows.row_of[each[1]]
        return row.names[self._passed.get(row, 0)] == each[1] and row.scores.get(self.kind, each[0]) == each[0]

    def best(self, but: Mapping[str, Node]) -> Entry | None:
        """The best node that is not one of `but`, which stay aside until `restore`."""
        heap, row_of = self._heap, self._rows.row_of
        while heap:
            top = heap[0]
            if not self._stands(top):
                heappop(heap)
            elif self.kind not in row_of[top[1]].scores:
                self._judge_first(row_of[top[1]])
            elif top[1] not in but:
                return top
            else:
                self._passed_over.append(heappop(heap))
                self._pass_on(top, but)
        return None

    def _judge_first(self, row: StateRow) -> None:
        """Judge the row of the first entry, which a lighter kind put there, and let it take its own place."""
        score, name = self._judge(row), self._heap[0][1]
        if score is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, (score, name))

    def _pass_on(self, top: Entry, but: Mapping[str, Node]) -> None:
        """Let the next node stand for the row of one that is left out."""
        row = self._rows.row_of[top[1]]
        for at in range(self._passed.get(row, 0) + 1, len(row.names)):
            if row.names[at] not in but:
                self._passed[row] = at
                heappush(self._heap, (top[0], row.names[at]))
                return

    def restore(self) -> None:
        """Puts the nodes that `best` left aside back among those to choose from."""
        self._passed.clear()
        for each in self._passed_over:
            heappush(self._heap, each)
        self._passed_over.clear()


class Family:
    """
    The rankings of kinds that suit the same nodes and take the same GPUs of them: each begins with a lighter one's.

    Where there is none, with that of a kind that asks for nothing but the GPUs.
    """

    def __init__(self, rows: StateRows, scoring: ScoringPolicy) -> None:
        self._rows, self._scoring = rows, scoring
        self._by_cpu: list[tuple[int, int, Ranking]] = []
        self._bare: Ranking | None = None

    def ranking(self, kind: BundleKind) -> Ranking:
        """A new ranking for a kind of this family."""
        near = self._nearest(kind) if self._by_cpu else None
        made = Ranking(kind, self._rows, self._scoring, self, near)
        insort(self._by_cpu, (kind.whole.cpu_milli, len(self._by_cpu), made))
        return made

    def _nearest(self, kind: BundleKind) -> Ranking:
        """A ranking of those that ask for little less CPU, and for no more of anything."""
        after = bisect_left(self._by_cpu, (kind.whole.cpu_milli + 1,))
        for _, _, ranking in reversed(self._by_cpu[max(0, after - NEAR) : after]):
            if is_lighter(ranking.kind, kind):
                return ranking
        if self._bare is None:
            self._bare = Ranking(_bare(kind), self._rows, self._scoring, self)
        self._bare.catch_up()
        return self._bare


def is_lighter(kind: BundleKind, other: BundleKind) -> bool:
    """Whether the kind asks for no more than another one of its family."""
    one, two = kind.whole, other.whole
    little = one.cpu_milli <= two.cpu_milli and one.memory_bytes <= two.memory_bytes
    return little and (not one.devices or one.devices == two.devices)


def _bare(kind: BundleKind) -> BundleKind:
    """The kind without CPU, memory and devices: whatever suits and holds one of its family suits and holds it."""
    whole = Need(0, 0, kind.whole.gpus, kind.whole.gpu_milli, mig_profile=kind.whole.mig_profile)
    return BundleKind(kind.needs, whole, kind.labels, kind.never, kind.devices)

"""
The nodes of one pass in the order of the pool's taste, for each kind of pod that was asked for.

The best node is read at the top of a heap; a node that changed is judged again only when a kind is asked for again, and
once however often it changed. So a placement costs what changed, and not the number of nodes. Whatever was done
before, the order is that of judging all nodes anew: score first, then name.
"""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from tessera.domain.resources import Need, Node
from tessera.engine.placement.placement_groups import Part, short_of
from tessera.engine.scoring.policies import FULLEST, Taste

CHANGES_MAX = 65_536  # remembered; when there are more, and when there are more entries, all is ranked anew
ENTRIES_MAX = 1_000_000  # of all kinds together, about
SLACK = 64  # entries that stand for nothing any more

Entry = tuple[int, str]
"""A score, negated, and a name: the smallest is the best."""


def taste_for(part: Part, taste: Taste) -> Taste:
    """No mix prices MIG instances."""
    return FULLEST if part.whole.mig_profile else taste


def entry(part: Part, node: Node, taste: Taste) -> Entry | None:
    """Where the node stands for one bundle; None when it has no room for it."""
    return (-taste.score(part.whole, node), node.name) if short_of(part, node) is None else None


class Ranking:
    """The nodes for one kind of pod. `after` gives the best beyond those that are to be left out."""

    __slots__ = ("_aside", "_heap", "_now", "seen")

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._heap = list(entries)
        heapify(self._heap)
        self._now = {name: score for score, name in self._heap}
        self._aside: list[Entry] = []
        self.seen = 0

    def put(self, name: str, now: Entry | None) -> None:
        """The node changed."""
        if now is None:
            self._now.pop(name, None)
        elif self._now.get(name) != now[0]:
            self._now[name] = now[0]
            heappush(self._heap, now)
            if len(self._heap) > 2 * len(self._now) + SLACK:
                self._heap = [(score, known) for known, score in self._now.items()]
                heapify(self._heap)

    def best(self, but: Mapping[str, Node]) -> Entry | None:
        """The best node that is not one of `but`, which stay aside until `restore`."""
        heap, now = self._heap, self._now
        while heap:
            top = heap[0]
            if now.get(top[1]) != top[0]:
                heappop(heap)
            elif top[1] in but:
                self._aside.append(heappop(heap))
            else:
                return top
        return None

    def restore(self) -> None:
        """Puts the nodes that `best` left aside back among those to choose from."""
        for each in self._aside:
            heappush(self._heap, each)
        self._aside.clear()


class Ranks:
    """`nodes` may change as long as `changed` is told of it."""

    def __init__(self, nodes: Mapping[str, Node], taste: Taste) -> None:
        self._nodes, self.taste = nodes, taste
        self._rankings: dict[tuple[Need, ...], Ranking] = {}
        self._changes: list[str] = []

    def changed(self, name: str) -> None:
        """Notes that a node is to be judged again; beyond CHANGES_MAX notes all rankings are made anew."""
        if len(self._changes) >= CHANGES_MAX:
            self._rankings.clear()
            self._changes.clear()
        self._changes.append(name)

    def of(self, part: Part, suited: Mapping[str, None]) -> Ranking:
        """The ranking for equal parts, as the nodes are now; `suited` are those that suit the part at all."""
        found, taste, nodes = self._rankings.get(part.needs), taste_for(part, self.taste), self._nodes
        if found is None:
            if len(self._rankings) * len(nodes) >= ENTRIES_MAX:
                self._rankings.clear()
            entries = (entry(part, nodes[name], taste) for name in suited)
            found = self._rankings[part.needs] = Ranking(each for each in entries if each is not None)
        else:
            for name in set(self._changes[found.seen :]):
                if name in suited:
                    found.put(name, entry(part, nodes[name], taste))
        found.seen = len(self._changes)
        return found

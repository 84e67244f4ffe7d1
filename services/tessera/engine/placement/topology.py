"""
Domains for a placement group: one domain, into as few as can be, or spread over all.

One domain: at the narrowest level that has one, the **tightest** domain that holds the pods, so that domains with more
room stay whole; that is, in order: room for the fewest such pods, fewest GPUs free, least of what they do not ask for
(`count_spared`), the domain's name. Within a domain of a wider level the narrower ones are filled as below. What is not
bound to a domain goes to as few as there can be: the one with most room while none holds the rest, then the tightest
that does.

Where nobody asked for a domain (`unasked`), the pods go to the one of several where they cost least by the scoring, and
of equal ones to the tightest: few domains come first, and within that the cluster is packed as by the scoring alone.
Compared are the tightest domain and those of the best nodes.

Groups within each other (`place_tree`): each copy takes the tightest domain within that of the copy it is in, by room
for the fewest such pods, fewest GPUs free and the name, and goes on to the next where what comes after finds no place.

Spread: the pods' numbers on the values of the label differ by at most the role's `max_skew`, as with Kubernetes'
`maxSkew` and `DoNotSchedule`, and by no more than they have to; a value counts when a ready node with it suits the role
and could hold one such pod if it were empty. The tightest values get one more where it does not come out even.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby, islice

from tessera.domain.devices.empty_nodes import emptied
from tessera.domain.devices.resources import WHOLE_GPU
from tessera.domain.work.gang import Gang
from tessera.engine.placement.attempt import Attempt
from tessera.engine.placement.fits import count_bundles, count_spared
from tessera.engine.placement.placement_groups import BundleCounts, BundleSet, PlacementGroup, firm_tree
from tessera.engine.placement.rows.shortage import COMPARED_MAX, LOOKS_COMPARED, TRIES_MAX, even_shares

TREE_TRIES_MAX = 512
"""Number of domains that are tried in vain for the groups of one gang."""
BEST_NODES = 64
"""Number of the best nodes whose domains are compared by cost."""


def place_together(group: PlacementGroup, attempt: Attempt) -> BundleSet | None:
    """Place all parts in one domain, else if they need not be, in few or evenly; or the first that found no place."""
    if group.levels:
        # From the narrowest level outwards: the first that has a domain is the best one, and within a wider domain the
        # narrower levels still count.
        for depth, level in enumerate(group.levels):
            able, members = _able(group.bundle_sets, level, attempt), attempt.places.domains(level)
            in_order = _cheapest_first if group.unasked and len(able) > 1 else _tightest_first
            for value in in_order(group, depth, able, attempt):
                if _settle(group.bundle_sets, members[value], group.levels[:depth], attempt) is None:
                    return None
        # No level has a domain for it. Who is bound to one is refused here; all others go on to be placed in few or
        # anywhere.
        if group.bound:
            return _most_wanting(group, attempt)
    return _settle(group.bundle_sets, None, group.levels, attempt)


def place_tree(tree: PlacementGroup, gang: Gang, attempt: Attempt) -> tuple[PlacementGroup, int] | None:
    """
    Place all pods of a tree of groups, each copy in a domain of its own within that of the copy it is in.

    Else nothing is placed, and the group is told that found no domain, with the number of pods that had a place then.
    """
    search = _TreeSearch(attempt)
    if next(search.ways((tree,), None), None):
        return None
    # What is only preferred keeps nothing waiting.
    # Asked for only now, since most trees find a place as they are wished.
    firm = firm_tree(gang)
    if firm == tree:
        return search.wanting, search.most
    search = _TreeSearch(attempt)
    return None if next(search.ways((firm,), None), None) else (search.wanting, search.most)


class _TreeSearch:
    """
    Ways to place groups, depth first: a copy takes its tightest domain, and another one only where what comes after it
    found no place.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt, self._vain = attempt, 0
        self.most, self.wanting = -1, PlacementGroup(())

    def ways(self, groups: Sequence[PlacementGroup], names: Sequence[str] | None) -> Iterator[bool]:
        """Yields once for each way in which all of the groups are placed on `names`, and takes it back thereafter."""
        # A stack of its own: groups come in hundreds of copies, which is too deep for recursion.
        open_ways = list[Iterator[bool]]()
        while True:
            if len(open_ways) == len(groups):
                yield True
            else:
                open_ways.append(self._ways_of(groups[len(open_ways)], names))
            while open_ways and next(open_ways[-1], None) is None:
                open_ways.pop()
            if not open_ways:
                return

    def _ways_of(self, group: PlacementGroup, names: Sequence[str] | None) -> Iterator[bool]:
        for depth, level in enumerate(group.levels):
            for members in self._tightest(group, level, names):
                # Counted and never timed, so that a replay gives up at the same place.
                if self._vain > TREE_TRIES_MAX:
                    return
                yield from self._ways_in(group, members, group.levels[:depth])
                self._vain += 1
        # Last of all: a preference that nothing holds is as good as none.
        if not group.bound:
            yield from self._ways_in(group, names, group.levels)
        # Of pods beside groups within another group that one is told.
        if len(self._attempt.placed) > self.most and (group.name or names is None):
            self.most, self.wanting = len(self._attempt.placed), group

    def _ways_in(self, group: PlacementGroup, names: Sequence[str] | None, narrower: tuple[str, ...]) -> Iterator[bool]:
        if group.inside:
            yield from self.ways(group.inside, names)
            return
        before = self._attempt.mark()
        if _settle(group.bundle_sets, names, narrower, self._attempt) is None:
            yield True
            self._attempt.back_to(before)

    def _tightest(self, group: PlacementGroup, level: str, names: Sequence[str] | None) -> Iterator[Sequence[str]]:
        """Nodes among `names` of each domain with room for every set on its own, the tightest domain first."""
        attempt, every = self._attempt, self._attempt.places.domains(level)
        able, domains = _able(group.bundle_sets, level, attempt), every
        if names is not None:
            domains = attempt.places.split(names, level)
            # A domain that is not wholly among `names` has less room there than was counted.
            parts = {v: among for v, among in domains.items() if v in able and len(among) < len(every[v])}
            able = {v: room for v, room in able.items() if v in domains and v not in parts}
            able |= {v: room for v, among in parts.items() if (room := _room_in(group, among, attempt))}
        in_order = sorted(able, key=lambda value: (able[value], attempt.gpu_free(domains[value]), value))
        # As for one domain, the roomiest stays the last try.
        in_order = in_order[: TRIES_MAX - 1] + in_order[TRIES_MAX - 1 :][-1:]
        yield from (domains[value] for value in in_order if _enough(group.bundle_sets, domains[value], attempt))


def _room_in(group: PlacementGroup, names: Sequence[str], attempt: Attempt) -> int:
    """Room for the first set on these nodes; 0 where one of the sets has no room there even alone."""
    rooms = [sum(count_bundles_by_node(bundles, names, attempt).values()) for bundles in group.bundle_sets]
    enough = all(room >= bundles.count for room, bundles in zip(rooms, group.bundle_sets, strict=True))
    return rooms[0] if enough else 0


def count_bundles_by_node(bundles: BundleSet, names: Sequence[str] | None, attempt: Attempt) -> BundleCounts:
    """Number of bundles that each node of `names`, or of all nodes, has room for."""
    suited, node = attempt.suited(bundles), attempt.node
    among = suited if names is None else [name for name in names if name in suited]
    return {name: room for name in among if (room := count_bundles(bundles.kind, node(name))) > 0}


def by_domain(bundles: BundleSet, level: str, attempt: Attempt) -> BundleCounts:
    """Number of bundles that each domain of the level takes; domains without room are left out."""
    # Sums by domain that are kept from one question to the next; only where none are kept all nodes are walked.
    counted = attempt.counted(bundles, level)
    if counted is not None:
        return counted
    values, sums = attempt.places.values(level), BundleCounts()
    for name, room in count_bundles_by_node(bundles, None, attempt).items():
        value = values.get(name)
        if value is not None:
            sums[value] = sums.get(value, 0) + room
    return sums


def room_anywhere(bundles: BundleSet, attempt: Attempt) -> int:
    """Number of bundles that all nodes take now."""
    counted = attempt.counted_in_all(bundles)
    return sum(count_bundles_by_node(bundles, None, attempt).values()) if counted is None else counted


def _most_wanting(group: PlacementGroup, attempt: Attempt) -> BundleSet:
    """The set that no domain of the last level holds even alone; else the first, since they do not go together."""
    for bundles in group.bundle_sets:
        if max(by_domain(bundles, group.levels[-1], attempt).values(), default=0) < bundles.count:
            return bundles
    return group.bundle_sets[0]


def _able(bundle_sets: tuple[BundleSet, ...], level: str, attempt: Attempt) -> BundleCounts:
    """The domains with room for every set on its own, the only ones that may hold them together; room for the first."""
    first, *others = (by_domain(bundles, level, attempt) for bundles in bundle_sets)
    counts = [bundles.count for bundles in bundle_sets]
    return {
        value: room
        for value, room in first.items()
        if room >= counts[0] and all(s.get(value, 0) >= count for s, count in zip(others, counts[1:], strict=True))
    }


def _cheapest_first(group: PlacementGroup, depth: int, able: BundleCounts, attempt: Attempt) -> Iterator[str]:
    """Domains as `_tightest_first` has them, but of several that are likely first the one where the pods cost least."""
    members, values = attempt.places.domains(group.levels[depth]), attempt.places.values(group.levels[depth])
    pods = sum(bundles.count * len(bundles.pods) for bundles in group.bundle_sets)
    # A domain that costs little has one of the best nodes as a rule, and to ask every domain would cost a gang of eight
    # on ten thousand nodes more than all else.
    of_best = (values.get(name, "") for name in attempt.best(group.bundle_sets[0], BEST_NODES))
    likely = chain(islice(_tightest_first(group, depth, able, attempt), 1), (v for v in of_best if v in able))
    compared, looks = list[str](), 0
    # Counted and never timed, so that a replay compares the same domains.
    for value in islice(dict.fromkeys(likely), COMPARED_MAX):
        looks += pods + len(members[value])
        if looks <= LOOKS_COMPARED:
            compared.append(value)
    if len(compared) > 1:
        costs = {value: _cost(group, members[value], depth, attempt) for value in compared}
        holding = [(cost, able[value], value) for value, cost in costs.items() if cost is not None]
        yield from (value for *_, value in sorted(holding))
    else:
        # One domain alone is compared with nothing: it keeps its turn among the tightest.
        compared.clear()
    yield from (value for value in _tightest_first(group, depth, able, attempt) if value not in compared)


def _cost(group: PlacementGroup, names: Sequence[str], depth: int, attempt: Attempt) -> int | None:
    """Cost of all pods on these nodes; None if they have no place there. Nothing is placed."""
    before, attempt.cost = attempt.mark(), 0
    failed = _settle(group.bundle_sets, names, group.levels[:depth], attempt)
    # Tried on the attempt itself and taken back: a copy of the nodes would cost more than the pods do.
    cost, attempt.cost = attempt.cost, None
    attempt.back_to(before)
    return None if failed else cost


def _tightest_first(group: PlacementGroup, depth: int, able: BundleCounts, attempt: Attempt) -> Iterator[str]:
    """
    The domains of `able`, tightest first.

    Beyond `TRIES_MAX` only the roomiest is tried, since it is the likeliest.
    """
    bundle_sets, members = group.bundle_sets, attempt.places.domains(group.levels[depth])
    # Tightest first by room for the first set: numbers of different kinds of pods do not add up.
    in_order = sorted(able, key=lambda value: (able[value], value))
    # The roomiest stays the last try, so that a gang that fits anywhere with ease is not refused for the bound's sake.
    in_order = in_order[: TRIES_MAX - 1] + in_order[TRIES_MAX - 1 :][-1:]
    for _, equal in groupby(in_order, key=able.__getitem__):
        tied = list(equal)
        # The dearer rank is reckoned only for domains that are equal by the cheap one.
        if len(tied) > 1:
            tied.sort(key=lambda value: (*_rank(bundle_sets, members[value], attempt), value))
        yield from (value for value in tied if _enough(bundle_sets, members[value], attempt))


def _rank(bundle_sets: tuple[BundleSet, ...], names: Sequence[str], attempt: Attempt) -> tuple[int, int]:
    """GPUs free in a domain, and what there is that its pods do not ask for; of equally roomy ones the least first."""
    spared = (count_spared(bundles.kind, attempt.before(name)) for name in names for bundles in bundle_sets)
    return attempt.gpu_free(names), sum(spared)


def _enough(bundle_sets: tuple[BundleSet, ...], names: Sequence[str], attempt: Attempt) -> bool:
    """Whether the parts' sums are free there at all: looked at before several are tried in vain."""
    if len(bundle_sets) == 1:
        return True
    nodes = [attempt.node(name) for name in names]
    # Sums only: enough in sum may still not fit, yet too little in sum never does.
    gpu_milli = sum(
        bundles.count * (bundles.whole.gpus * WHOLE_GPU + bundles.whole.gpu_milli * bundles.whole.gpu_parts)
        for bundles in bundle_sets
    )
    cpu_milli = sum(bundles.count * bundles.whole.cpu_milli for bundles in bundle_sets)
    gpu_free = sum(left for node in nodes for left in node.gpu_free if left > 0)
    return gpu_milli <= gpu_free and cpu_milli <= sum(max(0, node.cpu_free) for node in nodes)


def _settle(
    bundle_sets: tuple[BundleSet, ...], names: Sequence[str] | None, levels: tuple[str, ...], attempt: Attempt
) -> BundleSet | None:
    """Place all sets on `names`, in few domains of `levels`; else the first that fails, and nothing is placed."""
    # All sets or none: whatever the first sets took is given back when a later one finds no place.
    before = attempt.mark()
    for bundles in bundle_sets:
        # A refusal by the sum over all nodes needs no walk over them.
        in_all = None if names is not None or bundles.role.spread else attempt.counted_in_all(bundles)
        if in_all is not None and in_all < bundles.count:
            attempt.back_to(before)
            return bundles
        there = count_bundles_by_node(bundles, names, attempt)
        if bundles.role.spread:
            done = _spread(bundles, names, there, attempt)
        else:
            done = sum(there.values()) >= bundles.count and _gather(
                bundles, there, levels, bundles.first, bundles.count, attempt
            )
        if not done:
            attempt.back_to(before)
            return bundles
    return None


def _gather(
    bundles: BundleSet, there: BundleCounts, levels: tuple[str, ...], first: int, count: int, attempt: Attempt
) -> bool:
    """Place `count` bundles in as few domains of the last level as can be, and so on inside each."""
    if not levels:
        return attempt.fill(bundles, there, first, count)
    *narrower, level = levels
    domains = attempt.places.split(there, level)
    sums = {value: sum(there[name] for name in names) for value, names in domains.items()}
    while count and sums:
        # While no domain holds the rest, the roomiest takes as much as it can: each of them filled to the brim leaves
        # the fewest to fill. The last piece goes to the tightest, which keeps larger ones whole.
        holding = [value for value in sums if sums[value] >= count]
        value = min(holding, key=lambda v: (sums[v], v)) if holding else min(sums, key=lambda v: (-sums[v], v))
        here = min(count, sums.pop(value))
        if not _gather(bundles, {n: there[n] for n in domains[value]}, tuple(narrower), first, here, attempt):
            return False
        first, count = first + here, count - here
    # Nodes without the label belong to no domain, and each one would count as a domain of its own: they come last.
    in_none = [name for name in there if name not in attempt.places.values(level)]
    return count == 0 or attempt.fill(bundles, in_none, first, count)


def _spread(bundles: BundleSet, names: Sequence[str] | None, there: BundleCounts, attempt: Attempt) -> bool:
    """Place the bundles evenly, those of one value after those of another in the order of the values."""
    room = count_spread_bundles(bundles, names, there, attempt)
    shares = even_shares(bundles.count, room, bundles.role.max_skew)
    if shares is None:
        return False
    members, first = attempt.places.split(there, bundles.role.spread), bundles.first
    for value in sorted(shares):
        if shares[value] and not attempt.fill(bundles, members[value], first, shares[value]):
            return False
        first += shares[value]
    return True


def count_spread_bundles(
    bundles: BundleSet, names: Sequence[str] | None, there: BundleCounts, attempt: Attempt
) -> BundleCounts:
    """The room on each value that counts, 0 where all of it is taken."""
    label, places = bundles.role.spread, attempt.places
    if names is None:
        found = dict.fromkeys(places.holding(bundles.kind, label), 0)
        return found | {value: sum(there[n] for n in members) for value, members in places.split(there, label).items()}
    suited, found = attempt.suited(bundles), BundleCounts()
    for value, members in places.split([name for name in names if name in suited], label).items():
        room = sum(there.get(name, 0) for name in members)
        # A value without room counts as long as its nodes could hold a pod when empty: left out, the spread would be
        # even over what happens to be free, and skewed as soon as others leave.
        if room or any(count_bundles(bundles.kind, emptied(attempt.node(name))) for name in members):
            found[value] = room
    return found

"""
Domains for a placement group: one domain, into as few as can be, or spread over all.

One domain: at the narrowest level that has one, the **tightest** domain that holds the pods, so that domains with more
room stay whole; that is, in order: room for the fewest such pods, fewest GPUs free, least of what they do not ask for
(`count_spared`), the domain's name. Within a domain of a wider level the narrower ones are filled as below. What is not
bound to a domain goes to as few as there can be: the one with most room while none holds the rest, then the tightest
that does.

Spread: the pods' numbers on the values of the label differ by at most one, as with Kubernetes' `maxSkew: 1` and
`DoNotSchedule`; a value counts when a ready node with it suits the role and could hold one such pod if it were empty.
The tightest values get one more where it does not come out even.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from tessera.domain.devices.empty_nodes import emptied
from tessera.domain.devices.resources import WHOLE_GPU
from tessera.engine.placement.attempt import Attempt
from tessera.engine.placement.fits import count_bundles, count_spared
from tessera.engine.placement.placement_groups import BundleCounts, BundleSet, PlacementGroup
from tessera.engine.placement.rows.shortage import TRIES_MAX, even_shares


def place_together(group: PlacementGroup, attempt: Attempt) -> BundleSet | None:
    """Place all parts in one domain, else if they need not be, in few or evenly; or the first that found no place."""
    if group.levels:
        # From the narrowest level outwards: the first that has a domain is the best one, and within a wider domain the
        # narrower levels still count.
        for depth, level in enumerate(group.levels):
            for names in _tightest_first(group.bundle_sets, level, attempt):
                if _settle(group.bundle_sets, names, group.levels[:depth], attempt) is None:
                    return None
        # No level has a domain for it. Who is bound to one is refused here; all others go on to be placed in few or
        # anywhere.
        if group.bound:
            return _most_wanting(group, attempt)
    return _settle(group.bundle_sets, None, group.levels, attempt)


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


def _tightest_first(bundle_sets: tuple[BundleSet, ...], level: str, attempt: Attempt) -> Iterator[list[str]]:
    """
    The nodes of each domain with room for every set on its own: the only ones that may hold them together.

    Beyond `TRIES_MAX` only the roomiest is tried, since it is the likeliest.
    """
    sums = [by_domain(bundles, level, attempt) for bundles in bundle_sets]
    able = [
        v for v in sums[0] if all(s.get(v, 0) >= bundles.count for s, bundles in zip(sums, bundle_sets, strict=True))
    ]
    if not able:
        return
    members = attempt.places.domains(level)
    # Tightest first by room for the first set: numbers of different kinds of pods do not add up.
    able.sort(key=lambda value: (sums[0][value], value))
    # The roomiest stays the last try, so that a gang that fits anywhere with ease is not refused for the bound's sake.
    able = able[: TRIES_MAX - 1] + able[TRIES_MAX - 1 :][-1:]
    for _, equal in groupby(able, key=lambda value: sums[0][value]):
        tied = list(equal)
        # The dearer rank is reckoned only for domains that are equal by the cheap one.
        if len(tied) > 1:
            tied.sort(key=lambda value: (*_rank(bundle_sets, members[value], attempt), value))
        yield from (members[value] for value in tied if _enough(bundle_sets, members[value], attempt))


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
    shares = even_shares(bundles.count, count_spread_bundles(bundles, names, there, attempt))
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

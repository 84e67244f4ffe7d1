"""
Domains for the parts of a unit: one domain, into as few as can be, or spread over all.

One domain: at the narrowest level that has one, the **tightest** domain that holds the pods, so that domains with more
room stay whole; that is, in order: room for the fewest such pods, fewest GPUs free, the domain's name. Within a domain
of a wider level the narrower ones are filled as below. What is not bound to a domain goes to as few as there can be:
the one with most room while none holds the rest, then the tightest that does.

Spread: the pods' numbers on the values of the label differ by at most one, as with Kubernetes' `maxSkew: 1` and
`DoNotSchedule`; a value counts when a ready node with it suits the role and could hold one such pod if it were empty.
The tightest values get one more where it does not come out even.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from tessera.domain.resources import WHOLE_GPU, emptied
from tessera.engine.placement.attempt import Attempt
from tessera.engine.placement.placement_groups import Part, Unit, bundles_for

TRIES_MAX = 64
"""How many domains of a level are tried: a lone role is held by the first that has the room, others may not be."""

Rooms = dict[str, int]
"""How many bundles each node takes now; nodes without room are left out."""


def place_together(unit: Unit, attempt: Attempt) -> Part | None:
    """Place all parts in one domain, else if they need not be, in few or evenly; or the first that found no place."""
    if unit.levels:
        everywhere = [rooms(part, None, attempt) for part in unit.parts]
        for depth, level in enumerate(unit.levels):
            for names in _tightest_first(unit.parts, everywhere, level, attempt):
                if _settle(unit.parts, names, unit.levels[:depth], attempt) is None:
                    return None
        if unit.bound:
            return _most_wanting(unit, everywhere, attempt)
    return _settle(unit.parts, None, unit.levels, attempt)


def rooms(part: Part, names: Sequence[str] | None, attempt: Attempt) -> Rooms:
    """Of `names`, or of all nodes."""
    suited, node = attempt.suited(part), attempt.node
    among = suited if names is None else [name for name in names if name in suited]
    return {name: room for name in among if (room := bundles_for(part, node(name))) > 0}


def by_domain(there: Rooms, level: str, attempt: Attempt) -> Rooms:
    """Number of bundles that each domain of the level takes; domains without room are left out."""
    values, sums = attempt.places.values(level), Rooms()
    for name, room in there.items():
        value = values.get(name)
        if value is not None:
            sums[value] = sums.get(value, 0) + room
    return sums


def _most_wanting(unit: Unit, everywhere: Sequence[Rooms], attempt: Attempt) -> Part:
    """The part that no domain of the last level holds even alone; else the first, since they do not go together."""
    for part, there in zip(unit.parts, everywhere, strict=True):
        if max(by_domain(there, unit.levels[-1], attempt).values(), default=0) < part.count:
            return part
    return unit.parts[0]


def _tightest_first(
    parts: tuple[Part, ...], everywhere: Sequence[Rooms], level: str, attempt: Attempt
) -> Iterator[list[str]]:
    """
    The nodes of each domain with room for every part on its own: the only ones that may hold them together.

    Beyond `TRIES_MAX` only the roomiest is tried, since it is the likeliest.
    """
    sums = [by_domain(there, level, attempt) for there in everywhere]
    able = [v for v in sums[0] if all(s.get(v, 0) >= part.count for s, part in zip(sums, parts, strict=True))]
    if not able:
        return
    members = attempt.places.domains(level)
    able.sort(key=lambda value: (sums[0][value], value))
    able = able[: TRIES_MAX - 1] + able[TRIES_MAX - 1 :][-1:]
    for _, equal in groupby(able, key=lambda value: sums[0][value]):
        tied = list(equal)
        if len(tied) > 1:
            tied.sort(key=lambda value: (attempt.gpu_free(members[value]), value))
        yield from (members[value] for value in tied if _enough(parts, members[value], attempt))


def _enough(parts: tuple[Part, ...], names: Sequence[str], attempt: Attempt) -> bool:
    """Whether the parts' sums are free there at all: looked at before several are tried in vain."""
    if len(parts) == 1:
        return True
    nodes = [attempt.node(name) for name in names]
    gpu_milli = sum(part.count * (part.whole.gpus * WHOLE_GPU + part.whole.gpu_milli) for part in parts)
    cpu_milli = sum(part.count * part.whole.cpu_milli for part in parts)
    gpu_free = sum(left for node in nodes for left in node.gpu_free if left > 0)
    return gpu_milli <= gpu_free and cpu_milli <= sum(max(0, node.cpu_free) for node in nodes)


def _settle(
    parts: tuple[Part, ...], names: Sequence[str] | None, levels: tuple[str, ...], attempt: Attempt
) -> Part | None:
    """Place all parts on `names`, in few domains of `levels`; else the first part that fails, and nothing is placed."""
    before = attempt.mark()
    for part in parts:
        there = rooms(part, names, attempt)
        if part.role.spread:
            done = _spread(part, names, there, attempt)
        else:
            done = sum(there.values()) >= part.count and _gather(part, there, levels, part.first, part.count, attempt)
        if not done:
            attempt.back_to(before)
            return part
    return None


def _gather(part: Part, there: Rooms, levels: tuple[str, ...], first: int, count: int, attempt: Attempt) -> bool:
    """Place `count` bundles in as few domains of the last level as can be, and so on inside each."""
    if not levels:
        return attempt.fill(part, there, first, count)
    *narrower, level = levels
    domains = attempt.places.split(there, level)
    sums = {value: sum(there[name] for name in names) for value, names in domains.items()}
    while count and sums:
        holding = [value for value in sums if sums[value] >= count]
        value = min(holding, key=lambda v: (sums[v], v)) if holding else min(sums, key=lambda v: (-sums[v], v))
        here = min(count, sums.pop(value))
        if not _gather(part, {n: there[n] for n in domains[value]}, tuple(narrower), first, here, attempt):
            return False
        first, count = first + here, count - here
    in_none = [name for name in there if name not in attempt.places.values(level)]
    return count == 0 or attempt.fill(part, in_none, first, count)


def _spread(part: Part, names: Sequence[str] | None, there: Rooms, attempt: Attempt) -> bool:
    """Place the bundles evenly, those of one value after those of another in the order of the values."""
    shares = even_shares(part.count, spread_rooms(part, names, there, attempt))
    if shares is None:
        return False
    members, first = attempt.places.split(there, part.role.spread), part.first
    for value in sorted(shares):
        if shares[value] and not attempt.fill(part, members[value], first, shares[value]):
            return False
        first += shares[value]
    return True


def spread_rooms(part: Part, names: Sequence[str] | None, there: Rooms, attempt: Attempt) -> Rooms:
    """The room on each value that counts, 0 where all of it is taken."""
    suited = attempt.suited(part)
    among = suited if names is None else [name for name in names if name in suited]
    found = Rooms()
    for value, members in attempt.places.split(among, part.role.spread).items():
        room = sum(there.get(name, 0) for name in members)
        if room or any(bundles_for(part, emptied(attempt.node(name))) for name in members):
            found[value] = room
    return found


def even_shares(count: int, by_value: Rooms) -> Rooms | None:
    """Number for each value so that the numbers differ by at most one; None when that cannot be."""
    if not by_value:
        return None
    each, more = divmod(count, len(by_value))
    roomy = sorted((value for value, room in by_value.items() if room > each), key=lambda v: (by_value[v], v))
    if min(by_value.values()) < each or len(roomy) < more:
        return None
    return dict.fromkeys(by_value, each) | dict.fromkeys(roomy[:more], each + 1)

"""Why devices that drivers publish do not answer the claims of a pod, in words and numbers over all nodes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter

from tessera.domain.devices.claims import ClaimNeed
from tessera.domain.devices.resources import Need, Node
from tessera.domain.storing.fast import replace
from tessera.engine.claims.drawing import describe_again, draw, free_devices
from tessera.engine.claims.extended import claims_on
from tessera.engine.claims.shortages import LESS_ISOLATED, TAINTED, TAKEN, UNFIT, Shortage

TAINTS_MAX = CONDITIONS_MAX = 3
MATCHING = "matching"


def describe_shortage(
    need: Need, lacking: Sequence[tuple[Shortage, Node]], before: Mapping[str, Node]
) -> tuple[str, dict[str, int]]:
    """
    Words for what is short for a pod's claims, of the request that is short on most nodes, with counts over the nodes.

    `lacking` are the nodes that lack devices for them; where there are none, so are words and counts. `before` are the
    nodes without the gang's other pods, for those on which these found a place, or of whose networks they have devices.
    """
    if not lacking:
        return "", {}
    found = [short for short, _ in lacking]
    # One request is named and not all: whoever mends it is told of the next one then.
    counted = Counter((short.claim, short.request, short.device_class) for short in found)
    # Sorted first, so that of equal counts every process names the same.
    most = max(sorted(counted), key=lambda request: counted[request])
    there = [(short, node) for short, node in lacking if (short.claim, short.request, short.device_class) == most]
    of_it = [short for short, _ in there]
    counts, own = _count(of_it), _count_own(need, there, before)
    numbers = {
        "claimed_devices_wanted": of_it[0].count,
        "claimed_devices_matching": counts[MATCHING],
        "claimed_devices_taken": max(0, counts[TAKEN] - own),
    }
    hindered = Counter[str]()
    if any(claim.constraints for claim in need.claims):
        hindered.update(words for _, node in lacking if (words := _hindrance(claims_on(need, node), node)))
    return _words(most[2], of_it, counts, own, hindered), {name: count for name, count in numbers.items() if count}


def _hindrance(claims: tuple[ClaimNeed, ...], node: Node) -> str:
    """The condition between devices without which the node would answer the claims now; "" where there is none."""
    conditions = sorted({(each.attribute, each.distinct) for claim in claims for each in claim.constraints})
    # One condition is named where that is enough; else all are, which hinder together.
    for left_out in (*([each] for each in conditions), conditions):
        if not isinstance(draw(free_devices(node), _without(claims, left_out)), Shortage):
            return " and ".join(f"{'distinct' if distinct else 'one'} {name}" for name, distinct in left_out)
    return ""


def _without(claims: tuple[ClaimNeed, ...], conditions: list[tuple[str, bool]]) -> tuple[ClaimNeed, ...]:
    return tuple(
        replace(
            claim,
            constraints=tuple(each for each in claim.constraints if (each.attribute, each.distinct) not in conditions),
        )
        for claim in claims
    )


def _count_own(need: Need, lacking: Sequence[tuple[Shortage, Node]], before: Mapping[str, Node]) -> int:
    """Devices of the request that nobody had before the gang's other pods found their places."""
    # By what is left of each device and not by what these pods drew: a part that is drawn takes others of its GPU.
    changed = [(short, before[node.name]) for short, node in lacking if node.name in before]
    then = [describe_again(free_devices(node), claims_on(need, node), short) for short, node in changed]
    return _count([short for short, _ in changed])[TAKEN] - _count(then)[TAKEN]


def _count(shortages: list[Shortage]) -> Counter[str]:
    """Devices that match (`MATCHING`), and those of them that something keeps from the request, by what does."""
    counts = Counter({MATCHING: 0, TAKEN: 0, UNFIT: 0, LESS_ISOLATED: 0})
    for short in shortages:
        counts[MATCHING] += short.matching
        counts[TAKEN] += short.taken
        counts[UNFIT] += short.unfit
        counts[LESS_ISOLATED] += short.less_isolated
    # Few devices are tainted, and a park has a thousand nodes: a step for each that has none is half of the words.
    for short in filter(attrgetter("tainted"), shortages):
        counts.update({TAINTED + key: number for key, number in short.tainted})
    seen = set[str]()
    for short in filter(attrgetter("networked"), shortages):
        for device, what in short.networked:
            # Each node that it reaches has counted it.
            if device in seen:
                counts.subtract([MATCHING, what] if what else [MATCHING])
            seen.add(device)
    return counts


def _words(device_class: str, shortages: list[Shortage], counts: Counter[str], own: int, hindered: Counter[str]) -> str:
    # An expression that fails selects nothing anywhere: counts beside it would send people to look for devices.
    error = next((short.error for short in shortages if short.error), "")
    if error:
        return f"{device_class}: {error}"
    if any(short.unknown for short in shortages):
        return f"{device_class}: its devices are being looked at"
    parts = [f"{counts[MATCHING]} devices of class {device_class}"]
    # Of a network one node may have heard of a taint and another not yet: then it is left out.
    tainted = {what: count for what, count in counts.items() if what.startswith(TAINTED) and count > 0}
    taken, taints = counts[TAKEN], Counter(tainted)
    parts += [f"{taken} taken{f' ({own} by its other pods)' if own else ''}"] if taken else []
    parts += [f"{count} {what}" for what, count in taints.most_common(TAINTS_MAX)]
    parts += [f"{counts[UNFIT]} without the capacity"] if counts[UNFIT] else []
    parts += [f"{counts[LESS_ISOLATED]} shared with less isolation"] if counts[LESS_ISOLATED] else []
    parts += [
        f"no set with {words} on {count} {'node' if count == 1 else 'nodes'}"
        for words, count in sorted(hindered.items(), key=lambda each: (-each[1], each[0]))[:CONDITIONS_MAX]
    ]
    parts += ["a pool is incomplete"] if any(short.incomplete for short in shortages) else []
    parts += ["the search was given up"] if any(short.gave_up for short in shortages) else []
    return ", ".join(parts)

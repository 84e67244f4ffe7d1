"""
Sightings of nodes, told on only once it lasts, and over only once it is gone for a while. Pure; whole seconds.

A flapping cause is told once and stays told: sightings need not follow one another, and only `gone_seconds` without
any end it. A source that is away is not asked here at all, so that its silence neither makes a node sick nor well.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tessera_schemas.cluster.health import AILMENTS_MAX, MEANINGS, Ailment, HealthCause

CauseAndDevice = tuple[HealthCause, str]


@dataclass(frozen=True, slots=True)
class Sighting:
    """One thing that a source sees now. `at_once`: an event, which once is enough."""

    ailment: Ailment
    at_once: bool = False


@dataclass(slots=True)
class _Spell:
    """An ailment, how many looks saw it, since when looks have not, and whether it is told."""

    ailment: Ailment
    looks: int = 0
    missing_since: int | None = None
    told: bool = False


class Damper:
    """
    Words of one source on each node. A cause is told from `looks` sightings on, and over after `gone_seconds` without.

    Looks that are further apart than `gap_seconds` prove nothing about the time between them.
    """

    def __init__(self, looks: int, gone_seconds: int, gap_seconds: int) -> None:
        self._looks, self._gone_seconds, self._gap_seconds = looks, gone_seconds, gap_seconds
        self._nodes: dict[str, dict[CauseAndDevice, _Spell]] = {}
        self._looked: dict[str, int] = {}

    def look(self, node: str, known: Iterable[Ailment], found: Iterable[Sighting], now: int) -> tuple[Ailment, ...]:
        """
        Words of the source on the node after this look; `known` is what the ledger has of it, which counts as told
        when this process has not looked yet.
        """
        is_first = node not in self._looked
        spells = self._nodes.setdefault(node, {})
        if is_first:
            spells.update({(each.cause, each.device): _Spell(each, told=True) for each in known})
        gap = is_first or now - self._looked[node] > self._gap_seconds
        self._looked[node] = now
        sightings: dict[CauseAndDevice, Sighting] = {}
        for sighting in found:
            key = sighting.ailment.cause, sighting.ailment.device
            sightings[key] = sighting if sighting.at_once else sightings.get(key, sighting)
        for key, sighting in sightings.items():
            spell = spells.setdefault(key, _Spell(sighting.ailment))
            spell.looks, spell.missing_since = spell.looks + 1, None
            if not spell.told:
                spell.ailment = sighting.ailment
                spell.told = sighting.at_once or spell.looks >= self._looks
        self._end_missing(spells, sightings, now, gap)
        told = sorted((spell.ailment for spell in spells.values() if spell.told), key=_gravest_first)
        return tuple(told[:AILMENTS_MAX])

    def _end_missing(
        self, spells: dict[CauseAndDevice, _Spell], seen: Mapping[CauseAndDevice, Sighting], now: int, gap: bool
    ) -> None:
        for key in [key for key in spells if key not in seen]:
            spell = spells[key]
            if spell.missing_since is None or gap:
                spell.missing_since = now
            if now - spell.missing_since >= self._gone_seconds:
                del spells[key]

    def forget(self, nodes: Iterable[str]) -> None:
        """Forgets nodes that are no more."""
        for node in nodes:
            self._nodes.pop(node, None)
            self._looked.pop(node, None)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that have been looked at."""
        return tuple(self._looked)


def _gravest_first(ailment: Ailment) -> tuple[int, str, str]:
    return -MEANINGS[ailment.cause][1].rank, ailment.cause, ailment.device

"""
What both implementations of FGD's measure share: which kinds of pods are usual, and its score as thresholds.

Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023, and its simulator.
"""

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

COVERED_PER_MILLE = 950  # of the pods; rarer kinds are left out of the published workload


class Sortable(Protocol):
    """A kind of pod, however the implementation tells kinds apart."""

    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=Sortable)

# A score s of 1..99 is reached when F falls by this many millionths of a GPU: 1,000,000 ln(s / (100 - s)), rounded up.
# The other half mirrors it.
_UPPER = (
    0, 40006, 80043, 120145, 160343, 200671, 241163, 281852, 322774, 363966, 405466, 447313, 489549, 532217, 575365,
    619040, 663295, 708186, 753772, 800120, 847298, 895385, 944462, 994623, 1045969, 1098613, 1152680, 1208312,
    1265667, 1324926, 1386295, 1450011, 1516348, 1585628, 1658229, 1734602, 1815290, 1900959, 1992431, 2090742, 2197225,
    2313635, 2442348, 2586690, 2751536, 2944439, 3178054, 3476099, 3891821, 4595120,
)  # fmt: skip
STEPS = (*(1 - step for step in reversed(_UPPER[1:])), *_UPPER)


def typical(known: Iterable[tuple[K, int]]) -> list[tuple[K, int]]:
    """The kinds that come most often and together cover 95 % of the weight; of equals in their own order."""
    ranked = sorted(known, key=lambda entry: (-entry[1], entry[0]))
    enough, covered, kept = sum(weight for _, weight in ranked) * COVERED_PER_MILLE, 0, list[tuple[K, int]]()
    for kind, weight in ranked:
        if covered * 1000 >= enough:
            break
        kept.append((kind, weight))
        covered += weight
    return kept

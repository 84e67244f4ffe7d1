"""The checker's report: violations, and counts of what it looked at."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant of the design (`I1` to `I13`) or a rule by its name, broken, and the n where it showed (0: none)."""

    invariant: str
    n: int
    text: str


@dataclass(slots=True)
class Report:
    """`examined` counts what was looked at, by kind and by invariant, so that a check of nothing shows as one."""

    violations: list[Violation] = field(default_factory=list)
    examined: Counter[str] = field(default_factory=Counter)

    def demand(self, holds: bool, invariant: str, n: int, text: str) -> bool:
        """Counts one check of an invariant, and a violation at message `n` where it does not hold; returns `holds`."""
        self.examined[invariant] += 1
        self.violations += [] if holds else [Violation(invariant, n, text)]
        return holds

"""Rows of the report: several rounds each, with the floor of the same round beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class ReportRow:
    """
    One measured thing. `rounds` and `floors` belong together one by one; the ratio is the round divided by its floor.

    `notes` hold what else the same rounds showed, medians with their unit in the name.
    """

    what: str
    unit: str
    reach: str
    rounds: tuple[float, ...]
    floor: str
    floors: tuple[float, ...]
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(value / floor for value, floor in zip(self.rounds, self.floors, strict=True))

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "unit": self.unit,
            "reach": self.reach,
            "value": spread(self.rounds),
            "floor": {"what": self.floor, **spread(self.floors)},
            "ratio": spread(self.ratios),
            "notes": self.notes,
        }

    def lines(self) -> list[str]:
        head = [
            f"{self.what} [{self.unit}], to reach: {self.reach}",
            f"    measured  {_text(self.rounds)}",
            f"    floor     {_text(self.floors)}  {self.floor}",
            f"    ratio     {_text(self.ratios)}",
        ]
        return head + [f"    {name}: {_note(value)}" for name, value in self.notes.items()]


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "median": median(values), "max": max(values), "rounds": len(values)}


def percentile(values: Sequence[float], hundredths: int) -> float:
    """The value that so many of a hundred do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, len(ranked) * hundredths // 100)]


def _text(values: Sequence[float]) -> str:
    return f"{_number(min(values)):>9} {_number(median(values)):>9} {_number(max(values)):>9}"


def _note(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_note(part)}" for name, part in value.items())
    return _number(value) if isinstance(value, int | float) else str(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"

"""Findings of `doctor`: what is wrong, and the way out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an operator has to know, and what to do about it."""

    what: str
    way_out: str

    def line(self) -> str:
        """One line: what is wrong, and the way out."""
        return f"{self.what}; {self.way_out}"

"""Fields of entities that came after the first stored ledgers."""

from dataclasses import field
from typing import TypeVar

E = TypeVar("E")
LATER = "later"
"""The metadata key of such fields."""


def later(default: E) -> E:
    """
    The default of an entity's field that came after 0.3: the canonical form leaves the field out while it has it.

    So a ledger that never uses the field hashes as it did before. Such fields stand last, in the order they came in.
    """
    return field(default=default, metadata={LATER: True})

"""Kubernetes quantities as whole numbers; a rest is rounded up, as the API does."""

from functools import lru_cache
from math import ceil

from tessera_schemas.text.quantities import quantity


@lru_cache(maxsize=4096)
def thousandths(text: str | int) -> int:
    """The quantity in thousandths of its unit, for CPU. Raises QuantityError."""
    return ceil(quantity(text) * 1000)


@lru_cache(maxsize=4096)
def units(text: str | int) -> int:
    """The quantity in whole units, for bytes and counts. Raises QuantityError."""
    return ceil(quantity(text))

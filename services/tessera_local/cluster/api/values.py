"""Times and quantities as the API writes them: RFC 3339 in UTC with whole seconds, and whole numbers of units."""

from datetime import UTC, datetime
from functools import lru_cache
from math import ceil

from tessera_schemas.text.quantities import quantity


def rfc3339(ms: int) -> str:
    """`ms` milliseconds since the Unix epoch, rounded down to the second."""
    return _format_second(ms // 1000)


@lru_cache(maxsize=1024)
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=4096)
def thousandths(text: str | int) -> int:
    """The quantity in thousandths of its unit, for CPU. Raises QuantityError."""
    return ceil(quantity(text) * 1000)


@lru_cache(maxsize=4096)
def units(text: str | int) -> int:
    """The quantity in whole units, for bytes and counts. Raises QuantityError."""
    return ceil(quantity(text))

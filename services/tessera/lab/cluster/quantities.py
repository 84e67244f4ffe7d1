"""Kubernetes quantities ("500m", "2", "1Gi", "1e3") as whole numbers; a rest is rounded up, as the API does."""

import re
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

_PATTERN = re.compile(r"\+?(\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d{1,2})|(n|u|m|k|[KMGTPE]i|[MGTPE]))?")
_SCALE: dict[str | None, Decimal] = {
    None: Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}


@lru_cache(maxsize=4096)
def thousandths(quantity: str | int) -> int:
    """The quantity in thousandths of its unit, for CPU. Raises ValueError when it is none, or negative."""
    return _rounded_up(_exact(quantity) * 1000)


@lru_cache(maxsize=4096)
def units(quantity: str | int) -> int:
    """The quantity in whole units, for bytes and counts. Raises ValueError when it is none, or negative."""
    return _rounded_up(_exact(quantity))


def _exact(quantity: str | int) -> Decimal:
    match = _PATTERN.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"not a quantity: {quantity!r}")
    number, exponent, suffix = match.groups()
    return Decimal(number) * (Decimal(10) ** int(exponent) if exponent else _SCALE[suffix])


def _rounded_up(number: Decimal) -> int:
    return int(number.to_integral_value(rounding=ROUND_CEILING))

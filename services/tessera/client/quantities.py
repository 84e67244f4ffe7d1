"""
Friendly quantities, for people only: `cpu: "2"`, `memory: 16Gi`, `2h`. What is sent holds integers.

A quantity that is no whole number of its unit is an error and is never rounded.
"""

import re
from fractions import Fraction

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
_BYTES = {
    "": 1,
    **{letter: 1000**power for power, letter in enumerate("kMGTP", start=1)},
    **{f"{letter}i": 1024**power for power, letter in enumerate("KMGTP", start=1)},
}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def cpu_milli(text: str | float) -> int:
    """`2`, `0.5` and `500m` in thousandths of a core. Raises ValueError."""
    return _whole(text, {"": 1000, "m": 1}, "CPU: write 2, 0.5 or 500m")


def memory_bytes(text: str | float) -> int:
    """`16Gi`, `500M` or plain bytes. Raises ValueError."""
    return _whole(text, _BYTES, "memory: write 16Gi, 500M or bytes")


def seconds(text: str | float) -> int:
    """`90`, `30m`, `2h`, `1d`. Raises ValueError."""
    return _whole(text, _SECONDS, "time: write 90, 30m, 2h or 1d")


def gpu_milli(text: str | float) -> int:
    """`0.5` or `500m` of a GPU in thousandths. Raises ValueError."""
    return _whole(text, {"": 1000, "m": 1}, "GPUs: write 8, 0.5 or 500m")


def _whole(text: str | float, scale: dict[str, int], hint: str) -> int:
    match = _NUMBER.fullmatch(str(text).strip())
    if match is None or match[2] not in scale:
        raise ValueError(f"{text!r} is not a quantity of {hint}")
    number = Fraction(match[1]) * scale[match[2]]
    if number.denominator != 1:
        raise ValueError(f"{text!r} is no whole number of the smallest unit of {hint}")
    return number.numerator


def said_memory(value: int) -> str:
    """1099511627776 as `1Ti`; never longer than seven characters."""
    for power, letter in ((5, "Pi"), (4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if value >= 1024**power:
            tenths = value * 10 // 1024**power
            return f"{tenths // 10}{letter}" if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10}{letter}"
    return str(value)


def said_milli(value: int) -> str:
    """1500 thousandths as `1.5`."""
    whole, rest = divmod(value, 1000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


def said_age(milliseconds: int) -> str:
    """The two largest units, such as `3h12m`."""
    total = max(0, milliseconds) // 1000
    for size, unit, below, lower in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if total >= size:
            rest = total % size // below
            return f"{total // size}{unit}{rest}{lower}" if rest else f"{total // size}{unit}"
    return f"{total}s"

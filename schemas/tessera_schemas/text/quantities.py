"""
Quantities as Kubernetes and as people write them, as exact numbers: "500m", "1Gi", "2h". The contract has integers.
"""

import re
from fractions import Fraction
from functools import lru_cache

_QUANTITY = re.compile(
    r"\+?(?P<digits>[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})"
    r"(?:(?P<exponent>[eE][+-]?[0-9]{1,2})|(?P<suffix>[numkMGTPE]|[KMGTPE]i))?"
)
_SCALE = {
    **{letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", start=1)},
    "": Fraction(1),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}


class QuantityError(ValueError):
    """Error for a text that is no quantity, or one below zero; it names the text."""


@lru_cache(maxsize=4096)
def quantity(text: str | float) -> Fraction:
    """The exact number, never below zero. Raises QuantityError. Remembered: thousands of pods ask for the same."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise QuantityError(f"{text!r} is not a quantity")
    return Fraction(found["digits"] + (found["exponent"] or "")) * _SCALE[found["suffix"] or ""]


CPU = "CPU: write 2, 0.5 or 500m"
MEMORY = "memory: write 16Gi, 500M or bytes"
GPUS = "GPUs: write 8, 0.5 or 500m"
TIME = "time: write 90, 30m, 2h or 1d"
_MILLI = re.compile(r"[0-9.]+m?")
_TIME = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([smhd]?)")
_SLURMS_TIME = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,8})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")
_SLURMS_UNITS = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def cpu_milli(text: str | float) -> int:
    """`2`, `0.5` and `500m` in thousandths of a core. Raises QuantityError."""
    return _milli(text, CPU)


def memory_bytes(text: str | float) -> int:
    """`16Gi`, `500M` or plain bytes. Raises QuantityError."""
    return _whole(_read(text, MEMORY), text, MEMORY)


def gpu_milli(text: str | float) -> int:
    """`0.5` or `500m` of a GPU in thousandths. Raises QuantityError."""
    return _milli(text, GPUS)


def seconds(text: str | float) -> int:
    """`90`, `30m`, `2h`, `1d`: no quantity of Kubernetes, where `m` is a thousandth. Raises QuantityError."""
    match = _TIME.fullmatch(str(text).strip())
    if match is None:
        raise QuantityError(f"{text!r} is not a quantity of {TIME}")
    return _whole(Fraction(match[1]) * _SECONDS[match[2]], text, TIME)


def slurms_seconds(text: str) -> int | None:
    """Slurm's times: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]; else None."""
    match = _SLURMS_TIME.fullmatch(text)
    if match is None:
        return None
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    units = _SLURMS_UNITS[3 if days is not None else len(parts)]
    return int(days or 0) * 86_400 + sum(part * unit for part, unit in zip(parts, units, strict=False))


def _milli(text: str | float, hint: str) -> int:
    """Larger units than one are quantities, too, but `cpu: 16Gi` is a slip of the pen."""
    if _MILLI.fullmatch(str(text).strip()) is None:
        raise QuantityError(f"{text!r} is not a quantity of {hint}")
    return _whole(_read(text, hint) * 1000, text, hint)


def _read(text: str | float, hint: str) -> Fraction:
    try:
        return quantity(str(text).strip())
    except QuantityError as error:
        raise QuantityError(f"{text!r} is not a quantity of {hint}") from error


def _whole(number: Fraction, text: str | float, hint: str) -> int:
    if number.denominator != 1:
        raise QuantityError(f"{text!r} is no whole number of the smallest unit of {hint}")
    return number.numerator

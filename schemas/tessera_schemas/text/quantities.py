"""Kubernetes quantities ("500m", "2", "1Gi", "1e3") as exact numbers; whoever asks says how a rest is rounded."""

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

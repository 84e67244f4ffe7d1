"""
Chance in integers: draws that follow from a seed alone, quantiles of samples, and logarithms of waits.

Floats would round in another way on another machine, and `random` draws otherwise in another version of Python.
"""

from collections.abc import Sequence

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15
ONE = 2**40
"""Draws are of so many parts; probabilities are told in them."""
LOG_UNIT = 1024
"""Logarithms are of base two, in so many parts, straight between powers of two."""
LEAST_MS = 1000


class Draws:
    """
    A sequence of draws from a seed.

    Source: splitmix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
    """

    __slots__ = ("_at",)

    def __init__(self, seed: int) -> None:
        self._at = seed & MASK

    def part(self) -> int:
        """A number from 0 to `ONE` - 1, all equally likely."""
        self._at = (self._at + STEP) & MASK
        mixed = ((self._at ^ (self._at >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        return (mixed ^ (mixed >> 31)) >> 24

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1."""
        return self.part() * count >> 40

    def split(self) -> "Draws":
        """Another sequence, which follows from this one."""
        return Draws(self.part() * STEP)


def quantile_of(ascending: Sequence[int], permille: int) -> int:
    """Quantile of a sample, between its neighbours in proportion."""
    at = permille * (len(ascending) + 1) - 1000
    low = min(max(0, at // 1000), len(ascending) - 1)
    high = min(low + 1, len(ascending) - 1)
    rest = min(max(0, at - low * 1000), 1000)
    return ascending[low] + (ascending[high] - ascending[low]) * rest // 1000


def log_of(wait_ms: int) -> int:
    """Logarithm of a wait; shorter than a second counts as that."""
    wait = max(LEAST_MS, wait_ms)
    octave = wait.bit_length() - 1
    return octave * LOG_UNIT + (wait * LOG_UNIT >> octave) - LOG_UNIT


def wait_of(log: int) -> int:
    """The wait of a logarithm."""
    octave, rest = divmod(max(0, log), LOG_UNIT)
    return (LOG_UNIT + rest << octave) // LOG_UNIT

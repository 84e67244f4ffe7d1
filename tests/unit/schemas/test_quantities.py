"""Quantities of Kubernetes are read exactly, and what is none is named."""

from fractions import Fraction

import pytest

from tessera_schemas.text.quantities import QuantityError, quantity
from tests.builders import GIB

QUANTITIES = [
    ("0", 0),
    ("4", 4),
    ("3920m", Fraction(3920, 1000)),
    ("0.5", Fraction(1, 2)),
    ("1e3", 1000),
    ("2k", 2000),
    ("64Gi", 64 * GIB),
    ("129e6", 129_000_000),
    ("528280152Ki", 528_280_152 * 1024),
    ("1.5Ti", 3 * 2**39),
    ("2E", 2 * 10**18),
    ("1Ei", 2**60),
    ("100n", Fraction(1, 10**7)),
    ("+2", 2),
    ("2.", 2),
    (".5", Fraction(1, 2)),
    ("1e-3", Fraction(1, 1000)),
    ("1234567890123456789012345.5Ei", Fraction(2469135780246913578024691, 2) * 2**60),
    ("250u", Fraction(1, 4000)),
]


@pytest.mark.parametrize(("text", "number"), QUANTITIES, ids=[text for text, _ in QUANTITIES])
def test_a_quantity_is_read_exactly(text: str, number: Fraction) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "much", "1 Gi", "4Xi", "1K", "Gi", "NaN", "Infinity", "1e", "0x10", "-1", "1e999", "1.2.3", "9" * 31]
)
def test_what_is_no_quantity_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(QuantityError, match="is not a quantity") as raised:
        quantity(text)
    assert repr(text) in str(raised.value)

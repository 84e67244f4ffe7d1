"""Whoever follows the ledger for the gateway knows whether somebody waits for what it says next."""

from tessera.gateway.commanding import Arrivals
from tests.virtual_time import VirtualClock


async def test_somebody_is_expected_from_the_first_submit_until_the_last_has_its_answer() -> None:
    arrivals, seen = Arrivals(VirtualClock()), list[bool]()
    seen.append(arrivals.expected.is_set())
    async with arrivals.expecting("a"):
        seen.append(arrivals.expected.is_set())
        async with arrivals.expecting("a"), arrivals.expecting("b"):
            seen.append(arrivals.expected.is_set())
        seen.append(arrivals.expected.is_set())
    seen.append(arrivals.expected.is_set())
    assert seen == [False, True, True, True, False]

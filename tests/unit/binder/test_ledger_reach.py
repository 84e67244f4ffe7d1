"""Objects that name an allocation beyond what was folded: on its way to us, or lost by the ledger."""

import pytest

from tessera.binder.nodes.other_ledgers import DOUBT_SECONDS, LedgerReach
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.ports import Message


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Ledger:
    def __init__(self, end: int) -> None:
        self.end = end

    async def tail(self) -> Message:
        return Message("ledger.main", self.end, b"")


@pytest.fixture
def state() -> State:
    made = State()
    made.n = 7
    return made


async def test_what_was_folded_is_known_without_a_look(state: State) -> None:
    await LedgerReach(None, Clock(), state).check(7, "pod")  # type: ignore[arg-type]


async def test_who_is_behind_on_a_ledger_that_has_the_allocation_waits_however_long(state: State) -> None:
    clock = Clock()
    reach = LedgerReach(Ledger(9), clock, state)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(Transient, match="newer than what was read"):
            await reach.check(9, "pod")
        clock.now += 10 * DOUBT_SECONDS


async def test_what_the_ledger_does_not_have_is_lost_only_after_a_while_of_looking(state: State) -> None:
    clock, ledger = Clock(), Ledger(8)
    reach = LedgerReach(ledger, clock, state)  # type: ignore[arg-type]
    with pytest.raises(Transient, match="does not have yet, or lost"):
        await reach.check(9, "pod")
    clock.now += DOUBT_SECONDS
    await reach.check(9, "pod")


async def test_an_end_that_catches_up_meanwhile_begins_the_doubt_anew(state: State) -> None:
    clock, ledger = Clock(), Ledger(8)
    reach = LedgerReach(ledger, clock, state)  # type: ignore[arg-type]
    for end in (8, 9, 8):
        ledger.end = end
        with pytest.raises(Transient):
            await reach.check(9, "pod")
        clock.now += DOUBT_SECONDS

"""
Gate before submission: a whole group waits here for its tenant's budget, or for room in the ledger.

A group that waits here costs the ledger nothing, and its pods say why they wait. Groups that wait for a budget are let
through one after the other as the budget fills, each at a time of its own, however many there are and however often one
is looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tessera.domain.state import State
from tessera.kernel.ledger.room import LedgerRoom
from tessera.kernel.messaging.budgets import Budgets
from tessera.kernel.ports import Clock
from tessera_schemas.reasons import RETRY_NUMBER, Reason

TURNS_MAX = 100_000  # beyond that those whose time has come are forgotten


@dataclass(frozen=True, slots=True)
class Turn:
    at: float
    why: Reason


class Gate:
    def __init__(self, clock: Clock, state: State, room: LedgerRoom, replicas: Callable[[], int]) -> None:
        self._clock, self._state, self._room, self._replicas = clock, state, room, replicas
        self._budgets = Budgets(clock, replicas)
        self._turns: dict[str, Turn] = {}
        self._last: dict[str, float] = {}

    @property
    def has_room(self) -> bool:
        """Tells whether the ledger has room for more work."""
        return self._room.against_work() is None

    def against(self, group: str, tenant: str, size: int, again: bool) -> Turn | None:
        """Why a submit of `size` bytes waits, and until when; one that goes `again` was charged the first time."""
        now = self._clock.monotonic()
        # The ledger's room goes before any budget, also for what goes again: a tenant is charged for nothing that
        # cannot be written.
        if (full := self._room.against_work()) is not None:
            return Turn(now + full.numbers[RETRY_NUMBER], full)
        if again:
            return None
        # A group that has its turn is not asked again before that: with a charge at each look, whoever is looked at
        # most would be served first.
        turn = self._turns.get(group)
        if turn is not None and now < turn.at:
            return turn
        why = self._budgets.spend(tenant, self._state.tree.limits_of(tenant), size)
        self._turns.pop(group, None)
        return None if why is None else self._put_off(group, tenant, size, why)

    def _put_off(self, group: str, tenant: str, size: int, why: Reason) -> Turn:
        limits, now = self._state.tree.limits_of(tenant), self._clock.monotonic()
        by_number = 1 / limits.submits_per_second if limits.submits_per_second else 0.0
        by_size = size / limits.bytes_per_second if limits.bytes_per_second else 0.0
        # Each turn begins where the last one given ends, so that a thousand groups come one by one and not all at the
        # moment at which the budget is full again. A binder has its share of the budget, and replicas are as many times
        # slower.
        following = self._last.get(tenant, 0.0) + max(by_number, by_size) * self._replicas()
        at = max(now + why.numbers[RETRY_NUMBER], following)
        # Those whose time has come are forgotten first: they are let through by the budget like anybody new.
        if len(self._turns) >= TURNS_MAX:
            self._turns = {other: turn for other, turn in self._turns.items() if turn.at > now}
        turn = self._turns[group] = Turn(at, why)
        self._last[tenant] = at
        return turn

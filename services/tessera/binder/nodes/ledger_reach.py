"""
Objects on the cluster that name an allocation beyond the ledger's end.

Usually we are only behind. But a ledger that lost its end and was restored never had that allocation, and what it made
would stay for ever.
"""

from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.ports import Clock, Ledger

DOUBT_SECONDS = 10.0
"""A replica of the stream that lags may answer with an older end for a moment."""


class LedgerReach:
    """Remembers since when each number is beyond the end; those that the ledger reaches are forgotten."""

    def __init__(self, ledger: Ledger, clock: Clock, state: State) -> None:
        self._ledger, self._clock, self._state = ledger, clock, state
        self._beyond: dict[int, float] = {}

    async def check(self, n: int, what: str) -> None:
        """
        Returns when message `n` was folded, or is certainly none of this ledger; costs one read unless it was folded.

        Raises Transient while the message is still to be read, or might be.
        """
        if self._beyond:
            self._beyond = {each: since for each, since in self._beyond.items() if each > self._state.n}
        if n <= self._state.n:
            return
        tail = await self._ledger.tail()
        if tail is not None and tail.seq >= n:
            self._beyond.pop(n, None)
            raise Transient(f"the {what} is newer than what was read of the ledger")
        now = self._clock.monotonic()
        if now - self._beyond.setdefault(n, now) < DOUBT_SECONDS:
            raise Transient(f"the {what} was made by message {n}, which the ledger does not have yet, or lost")

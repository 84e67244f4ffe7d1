"""
The account of the shard's GPUs, kept along the fold and stored on SNAP as one more sink.

It goes on where the stored one ends, once the fold is there: the state then says who has what, so that a restart, a
roll-over, an empty Redis or another replica changes no digit. Where nothing is stored it begins with the state.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self

import structlog

from tessera.domain.state import State
from tessera.engine.accounts.account import Account
from tessera.engine.accounts.periods import MINUTES, STEP_MS, AccountPeriods, Period
from tessera.engine.accounts.restarts import Restart, restarts_in
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.accounts import (
    UNREADABLE,
    OpenAccount,
    now_message,
    period_message,
    read_open,
    read_sums,
    sum_message,
)
from tessera.kernel.ports import Bus, Outgoing
from tessera.kernel.service.context import Ports
from tessera_schemas.ledger import LedgerMessage

STORE_SECONDS = 10.0
"""Between two times that the newest five minutes are stored: so far behind is what others read."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """An account that is stored, with its periods that are not over; of `at.n` 0 where it cannot be gone on with."""

    at: OpenAccount
    periods: dict[str, Period]

    @classmethod
    async def read(cls, bus: Bus, shard: str) -> Self | None:
        """None where nothing is stored. Raises Transient."""
        at = await read_open(bus, shard)
        if at is None:
            return None
        sums = await read_sums(bus, shard, at)
        newest = {} if at.newest is None else {MINUTES.name: at.newest}
        try:
            periods = {name: Period.read(period) for name, period in (newest | sums).items()}
        except UNREADABLE:
            periods = {}
        if at.sums.keys() <= periods.keys():
            return cls(at, periods)
        return cls(replace(at, n=0), {})


class AccountKeeper:
    """
    The account as of the fold, and what of it is not stored yet.

    `_seq` is the newest message that says what is not over; `_stored_n` is up to where it does. `_looked` once this is
    known of an instance that leads. `trouble` says why nothing can be stored, None while all is well.
    """

    def __init__(self, ports: Ports, shard: str, state: State, stored: StoredAccount | None) -> None:
        self._ports, self._shard, self._state, self._stored = ports, shard, state, stored
        self._periods = AccountPeriods()
        self._account: Account | None = None
        self._since, self._seq, self._stored_n = state.ts, 0, 0
        self._sums, self._sums_upto = dict[str, int](), dict[str, int]()
        self._over = list[tuple[int, Outgoing]]()
        self._looked, self._storing = False, asyncio.Lock()
        self.trouble: str | None = None
        self._go_on()

    def _go_on(self) -> None:
        """Begins; where an account is stored, once the state is there or past it."""
        stored, state = self._stored, self._state
        if stored is not None and state.n < stored.at.n:
            return
        self._stored, self._since = None, state.ts
        self._seq = 0 if stored is None else stored.at.seq
        if stored is not None and stored.at.n:
            if state.n == stored.at.n and state.chain != stored.at.chain:
                log.error("account_of_another_ledger", n=stored.at.n)
            else:
                if state.n > stored.at.n:
                    log.warning("account_has_a_gap", after=stored.at.n, upto=state.n)
                self._since, self._periods.open = stored.at.since_ts, dict(stored.periods)
        self._account = Account(self._periods, state, STEP_MS, note_use=self._periods.note_use)

    def restarts(self, message: LedgerMessage) -> list[Restart]:
        """Runs that begin again by a message that is about to be folded, for `follow`."""
        return list(restarts_in(message, self._state))

    def follow(self, message: LedgerMessage, restarts: Iterable[Restart]) -> None:
        """Takes in a message that was folded."""
        if self._account is None:
            self._go_on()
            return
        self._since = self._since or message.ts
        self._account.take(message, self._state)
        self._periods.go_to(self._account.upto)
        for restart in restarts:
            self._periods.restart(*restart)
        for length, period in self._periods.take_over():
            out = period_message(self._shard, length.name, length.slot(period.start), period.stored())
            self._over.append((message.n, out))

    async def run(self, leading: Callable[[], bool]) -> None:
        """Stores the account now and then while `leading`, for ever. Raises Conflict where another one is stored."""
        while True:
            await self._ports.clock.sleep(STORE_SECONDS)
            try:
                if leading():
                    await self.store()
                else:
                    self._looked = False
                    await self._look()
                self.trouble = None
            except Transient as error:
                self.trouble = f"the account waits: {error}"
                log.warning("account_waits", error=str(error))

    async def store(self) -> None:
        """
        Stores all that is not stored yet: what is over, the sums, then the newest five minutes.

        Raises Transient; Conflict where another instance stored some meanwhile, behind which one begins again.
        """
        async with self._storing:
            self._looked = self._looked or await self._look()
            if self._looked and self._account is not None and self._account.n > self._stored_n:
                await self._store(self._account)

    async def _store(self, account: Account) -> None:
        account.settle()
        # All bytes are made before anybody else runs, or the parts would be of different moments.
        n, chain, upto, over = account.n, self._state.chain, account.upto, list(self._over)
        periods = {name: period.stored() for name, period in self._periods.open.items()}
        newest, sums_upto = periods.pop(MINUTES.name, None), {name: each["upto"] for name, each in periods.items()}
        changed = {name: each for name, each in periods.items() if self._sums_upto.get(name) != each["upto"]}
        sums = [sum_message(self._shard, name, each) for name, each in changed.items()]
        bus = self._ports.bus
        self._looked = False  # until all of it is known to be stored
        seqs = await bus.publish_all([*(message for _, message in over), *sums])
        self._sums |= dict(zip(changed, seqs[len(over) :], strict=True))
        stored = {name: self._sums[name] for name in sums_upto}
        now = OpenAccount(n, chain, self._since, upto, newest, stored, self._seq)
        self._seq = await bus.publish(now_message(self._shard, now))
        self._stored_n, self._sums_upto, self._looked = n, sums_upto, True
        del self._over[: len(over)]

    async def _look(self) -> bool:
        """
        Sees what is stored, and goes on behind it; returns whether ours may be stored behind it.

        What begins at another time is no part of ours: storing ours then meets a conflict, and it is read.
        """
        found, account = await read_open(self._ports.bus, self._shard), self._account
        if account is None or (found is not None and found.n > account.n):
            return False
        self._sums_upto = {}
        if found is None or not found.n:
            self._seq, self._stored_n = 0 if found is None else found.seq, 0
        elif found.since_ts == self._since:
            self._seq, self._stored_n = found.seq, found.n
            self._over = [(n, out) for n, out in self._over if n > found.n]
        return True

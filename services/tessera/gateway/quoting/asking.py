"""
Quotes of jobs that are not submitted: one at a time, so that their futures never take more than a part of the loop.

They rest on what projection has learnt, read from SNAP at the first ask and again after some minutes; where nothing is
stored, on what the state remembers. Asks of one ledger message within a minute get one answer.
"""

import asyncio
from collections.abc import Hashable

import structlog

from tessera.domain.state import State
from tessera.engine.quoting.asked import AskedQuote, quote_asked
from tessera.engine.quoting.record import QuoteRecord
from tessera.gateway.entrance.problems import refused
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.accounts import UNREADABLE
from tessera.kernel.ledger.quotes import newest_quotes, read_quotes
from tessera.kernel.ports import Bus, Clock
from tessera.kernel.tasks.slices import run_in_slices
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.reasons import Code, Reason

RECORD_SECONDS = 300.0
KEPT_SECONDS, KEPT_MAX = 60.0, 64
WAITING_MAX = 8
"""Asks that wait for the one that is drawn; more are refused for a moment."""

log = structlog.get_logger()


class AskedQuotes:
    """`state` is the live folded state, beside which a record is kept that was stored some minutes ago at most."""

    def __init__(self, state: State, bus: Bus, clock: Clock, shard: str) -> None:
        self._state, self._bus, self._clock, self._shard = state, bus, clock, shard
        self._record: QuoteRecord | None = None
        self._seq, self._record_n, self._record_until = 0, -1, float("-inf")
        self._drawing, self._waiting = asyncio.Lock(), 0
        self._kept: dict[Hashable, AskedQuote | Reason] = {}
        self._kept_n, self._kept_until = -1, float("-inf")

    async def quote(self, fact: JobAdmitted, with_changes: bool) -> AskedQuote | Reason:
        """The quote, or why there is none. Raises Refusal while too many ask."""
        if self._waiting >= WAITING_MAX:
            raise refused(Code.RATE_LIMITED, "", "as many quotes are being drawn as may wait", {"most": WAITING_MAX})
        self._waiting += 1
        try:
            async with self._drawing:
                return await self._quote(fact, with_changes)
        finally:
            self._waiting -= 1

    async def _quote(self, fact: JobAdmitted, with_changes: bool) -> AskedQuote | Reason:
        await self._read()
        now, asked = self._clock.monotonic(), (fact.model_dump_json(), with_changes)
        if self._kept_n != self._state.n or now >= self._kept_until or len(self._kept) >= KEPT_MAX:
            self._kept, self._kept_n, self._kept_until = {}, self._state.n, now + KEPT_SECONDS
        found = self._kept.get(asked)
        if found is None and self._record is not None:
            kept = self._kept
            drawing = quote_asked(self._state, self._record, fact, self._clock.now_ms(), with_changes)
            found = kept[asked] = await run_in_slices(drawing, self._clock)
        assert found is not None
        return found

    async def _read(self) -> None:
        # The record of one message stays: whoever asks again before the next one gets the same answer.
        n, now = self._state.n, self._clock.monotonic()
        if self._record is not None and (now < self._record_until or n == self._record_n):
            return
        self._record_until = now + RECORD_SECONDS
        try:
            record = await self._stored()
        except Transient as error:
            log.warning("quotes_not_read", error=str(error))
            record = self._record
        self._record = QuoteRecord.begin(self._state) if record is None else record
        self._record_n = n

    async def _stored(self) -> QuoteRecord | None:
        if self._record is not None and self._seq == await newest_quotes(self._bus, self._shard):
            return self._record
        stored, state = await read_quotes(self._bus, self._shard), self._state
        # One of a later message than ours, or of another ledger, says nothing of this state.
        if stored is None or not stored.n or stored.n > state.n:
            return self._record
        if stored.n == state.n and stored.chain != state.chain:
            return self._record
        try:
            record = QuoteRecord.read(stored.record)
            record.catch_up(state)
        except (*UNREADABLE, AttributeError, IndexError) as error:
            log.warning("quotes_not_read", error=str(error))
            return self._record
        self._seq = stored.seq
        return record

"""
Quotes of starts, kept along the fold: drawn every few seconds for all jobs that wait, put in Redis and scored.

What they rest on is stored on SNAP every five minutes, and gone on with by whoever leads next; what came between is
seen from the state alone.
Futures are drawn in slices, between which the fold goes on: the pool, lengths and arrivals that a set of futures rests
on are values of their own. Nothing is decided by a quote; without them everything else goes on.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.quoting import draw_quotes
from tessera.engine.quoting.pool_now import pool_now
from tessera.engine.quoting.record import QuoteRecord, ScoredQuote, resting
from tessera.engine.quoting.scorecard import Scorecard, as_told, scorecard
from tessera.kernel.errors import Conflict, Transient
from tessera.kernel.ledger.accounts import UNREADABLE, packed
from tessera.kernel.ledger.quotes import StoredQuotes, newest_quotes, store_quotes
from tessera.kernel.ledger.timestamps import LedgerTime
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.slices import run_in_slices
from tessera.kernel.tasks.waiting import wait_for
from tessera_schemas.base import INT_MAX
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.shard.quotes import KeptQuotes, QuoteScores, StartQuote

STORE_SECONDS = 300.0
STAND_BY_SECONDS = 1.0
LOAD = 20
"""Time from one drawing to the next, as a multiple of what it took: a twentieth of a core at most."""

log = structlog.get_logger()


class QuoteKeeper:
    """
    The record of quotes as of the fold; `seconds` from one drawing to the next at least, 0 for none at all.

    `_seq` is the manifest behind which ours is stored, `_stored_n` up to where; `_moved` is set by each message.
    """

    def __init__(self, ports: Ports, shard: str, state: State, stored: StoredQuotes | None, seconds: float) -> None:
        self._ports, self._shard, self._state, self._seconds = ports, shard, state, seconds
        self._stored = stored
        self._record: QuoteRecord | None = None
        self._seq, self._stored_n = 0 if stored is None else stored.seq, 0
        self._moved, self._storing = asyncio.Event(), asyncio.Lock()
        self._time, self._rest = LedgerTime(ports.clock, state.ts), STORE_SECONDS
        self._store_at = ports.clock.monotonic() + STORE_SECONDS
        if seconds:
            self._go_on()

    def _go_on(self) -> None:
        """Begins; where a record is stored, once the state is there or past it."""
        stored, state = self._stored, self._state
        if stored is not None and state.n < stored.n:
            return
        self._stored, record = None, None
        if stored is not None and stored.n and (state.n > stored.n or state.chain == stored.chain):
            try:
                record = QuoteRecord.read(stored.record)
                record.catch_up(state)
            except (*UNREADABLE, AttributeError, IndexError) as error:
                log.warning("quotes_not_read", error=str(error))
                record = None
        self._record = QuoteRecord.begin(state) if record is None else record

    def follow(self, message: LedgerMessage) -> None:
        """Takes in a message that was folded."""
        if not self._seconds:
            return
        if self._record is None:
            self._go_on()
        else:
            self._record.follow(message, self._state)
        self._moved.set()

    async def run(self, leading: Callable[[], bool], caught_up: asyncio.Event) -> None:
        """
        Draw again whenever the ledger has moved or a median that was told has passed, every few seconds at most, while
        `leading`, for ever.
        """
        await caught_up.wait()
        clock = self._ports.clock
        while True:
            if not leading():
                await clock.sleep(STAND_BY_SECONDS)
                continue
            await wait_for(self._moved, clock, self._rest)
            self._moved.clear()
            began = clock.monotonic()
            try:
                await self._draw()
                if clock.monotonic() >= self._store_at:
                    await self.store()
            except (Conflict, Transient) as error:
                log.warning("quotes_wait", error=str(error))
            except (ArithmeticError, LookupError, ValueError):
                # Events and views go on without quotes, whatever a pool is that no future can be drawn of.
                log.exception("quotes_not_drawn", n=self._state.n)
            await clock.sleep(max(self._seconds, LOAD * (clock.monotonic() - began)))

    async def _draw(self) -> None:
        record, state = self._record, self._state
        if record is None:
            return
        told, n, ts = dict[str, StartQuote](), state.n, self._time.now(state.ts)
        waiting = any(job.phase is Phase.QUEUED for job in state.jobs.values())
        for pool in sorted({queue.pool for queue in state.tree.queues.values()}) if waiting else ():
            then = state.overlay()
            # Of a quiet ledger the last message may be minutes old; runs have gone on since, and waits too.
            then.ts = ts
            now = pool_now(then, pool)
            if not now.waiting:
                continue
            outlook = record.outlook(now, pool, resting(state.runtimes))
            found = await run_in_slices(draw_quotes(outlook, now.ts), self._ports.clock)
            # Who has started, or is gone, while the futures were drawn has no use for a quote, and none is scored.
            live = [quote for quote in found if (job := state.jobs.get(quote.job_id)) and job.phase is Phase.QUEUED]
            told |= {quote.job_id: as_told(quote) for quote in record.give(live, now, pool, state.runtimes)}
        # A quiet ledger says nothing when a start that was told does not come: it is looked again then.
        soonest = min((quote.by_50_ts for quote in told.values() if quote.by_50_ts > ts), default=INT_MAX)
        self._rest = min(STORE_SECONDS, (soonest - ts) / 1000 + 1)
        cards = scores_of(record, ts)
        kept = KeptQuotes(n=n, ts=ts, quotes=told, scores={pool: score_view(card) for pool, card in cards.items()})
        self._ports.metrics.quotes.show(measures_of(cards))
        await self._ports.store.put_quotes(kept.model_dump_json().encode())

    async def store(self) -> None:
        """
        Stores all that is not stored yet. Raises Transient.

        Where another instance has stored one meanwhile ours is left out until the next time: both follow one ledger.
        """
        async with self._storing:
            record, state = self._record, self._state
            if record is None or state.n == self._stored_n or not state.is_whole:
                return
            self._store_at = self._ports.clock.monotonic() + STORE_SECONDS
            n, chain, value = state.n, state.chain, packed(record.stored())
            bus = self._ports.bus
            try:
                self._seq = await store_quotes(bus, self._shard, n, chain, value, self._seq)
                self._stored_n = n
            except Conflict:
                self._seq = await newest_quotes(bus, self._shard)


def scores_of(record: QuoteRecord, ts: int) -> dict[str, Scorecard]:
    """Scorecards of the last weeks by pool."""
    by_pool: dict[str, list[ScoredQuote]] = {}
    for scored in record.scored(ts):
        by_pool.setdefault(scored.given.job_class[0], []).append(scored)
    return {pool: scorecard(scored) for pool, scored in sorted(by_pool.items())}


def score_view(card: Scorecard) -> QuoteScores:
    """The card, for people."""
    return QuoteScores(
        quotes=card.quotes,
        **{f"held_by_{chance // 10}": share for chance, share in card.held_by},
        **{f"held_in_{chance // 10}": share for chance, share in card.held_in},
        error_ms=card.error_ms,
        naive_ahead_ms=card.naive_error_ms.ahead,
        naive_running_ms=card.naive_error_ms.ahead_and_running,
        naive_class_ms=card.naive_error_ms.last_of_class,
    )


def measures_of(cards: dict[str, Scorecard]) -> Iterable[tuple[str, tuple[str, ...], float]]:
    """The cards as metrics: name, labels and value."""
    for pool, card in cards.items():
        yield "quotes_scored", (pool,), card.quotes
        for chance, share in card.held_by:
            yield "quotes_held_ratio", (pool, f"by_{chance // 10}"), share / 1000
        for chance, share in card.held_in:
            yield "quotes_held_ratio", (pool, f"in_{chance // 10}"), share / 1000
        errors = {"quote": card.error_ms} | card.naive_error_ms._asdict()
        for predictor, error_ms in errors.items():
            yield "quote_error_seconds", (pool, predictor), error_ms / 1000

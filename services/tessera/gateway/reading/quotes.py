"""
Quotes of starts as projection keeps them in Redis: read once for all who ask, a second old at most.

They stand beside lists and jobs. Where Redis is away, or nothing was drawn yet, there are none, and lists go on.
"""

import asyncio

import structlog
from pydantic import ValidationError

from tessera.kernel.errors import Transient
from tessera.kernel.ports import Clock, ProjectionStore
from tessera_schemas.shard.quotes import KeptQuotes, StartQuote

AGE_SECONDS = 1.0
NONE = KeptQuotes(n=0, ts=0, quotes={}, scores={})

log = structlog.get_logger()


class SharedQuotes:
    """`kept` are the quotes that were read last; `seconds` is how long Redis may take."""

    def __init__(self, store: ProjectionStore, clock: Clock, seconds: float) -> None:
        self._store, self._clock, self._seconds = store, clock, seconds
        self._stored: bytes | None = None
        self._reading, self._read_at = asyncio.Lock(), float("-inf")
        self._away = False
        self.kept = NONE

    async def fresh(self) -> KeptQuotes:
        """The quotes, a second old at most; none while Redis is away."""
        async with self._reading:
            if self._clock.monotonic() - self._read_at >= AGE_SECONDS:
                await self._read()
                self._read_at = self._clock.monotonic()
            return self.kept

    async def of(self, job_id: str) -> StartQuote | None:
        """Quote of a waiting job; None where there is none."""
        await self.fresh()
        return self.known(job_id)

    def known(self, job_id: str) -> StartQuote | None:
        """The same of the quotes that were read last."""
        quote = self.kept.quotes.get(job_id)
        return None if quote is None else with_words(quote, self._clock.now_ms())

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                stored = await self._store.quotes()
            if stored != self._stored:
                self.kept = NONE if stored is None else KeptQuotes.model_validate_json(stored)
            self._stored, self._away = stored, False
        except (Transient, TimeoutError, ValidationError) as error:
            if not self._away:
                log.warning("quotes_away", error=str(error)[:200] or "no answer in time")
            self._stored, self.kept, self._away = None, NONE, True


def with_words(quote: StartQuote, now_ms: int) -> StartQuote:
    """The quote with its words as of now."""
    return quote.model_copy(update={"words": quote.in_words(now_ms)})

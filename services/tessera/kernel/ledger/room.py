"""
Room left in the ledger.

The ledger keeps every message until it is rolled over, so that it may be full one day. Its last tenth is a reserve:
new work is refused with `LedgerFull`, while known jobs go on, end and are released, and commands about them are taken,
until an operator has made the ledger larger. Of the tenth before that each tenant has an equal share, so that nobody
who sends more than others fills it for all.
"""

from collections import Counter

import structlog

from tessera.kernel.errors import KernelError
from tessera.kernel.ports import Bus, Clock, Usage
from tessera.kernel.service.metrics import Metrics
from tessera_schemas import subjects
from tessera_schemas.reasons import RETRY_NUMBER, Code, Reason
from tessera_schemas.text.units import format_memory

LOOK_SECONDS = 2.0
RESERVE_BYTES_MIN = 16 * 1024**2  # of a small ledger half at most: what is on its way when the mark is reached
RETRY_SECONDS = 60
WAY_OUT = "an operator enlarges it: tessera init --ledger-gib N --mend"

log = structlog.get_logger()


def reserve_of(usage: Usage) -> int:
    """Bytes that new work may not use: a tenth, 16 MiB at least, half at most; 0 for an unbounded ledger."""
    return min(max(usage.bytes_max // 10, RESERVE_BYTES_MIN), usage.bytes_max // 2)


class LedgerRoom:
    """The room as of the last look, one every few seconds; a look that fails changes nothing."""

    def __init__(self, bus: Bus, clock: Clock, metrics: Metrics, shard: str) -> None:
        self._bus, self._clock, self._metrics = bus, clock, metrics
        self._ledger, self._facts = subjects.stream("LEDGER", shard), subjects.stream("FACTS", shard)
        self._usage = Usage(0, 0)
        self._facts_bytes: int | None = None
        self._on_its_way = self._let_in = self._shared = 0
        self._taken: Counter[str] = Counter()  # of what is shared, by tenant
        self.facts_end = 0  # the highest number that a fact was seen to have
        self._reported = False

    async def watch(self) -> None:
        """Look every two seconds until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(LOOK_SECONDS)

    def let_in(self, tenant: str, size: int) -> None:
        """Count bytes that were accepted since the last look, so that a flood cannot pass between two looks."""
        self._let_in += size
        if self._shared:
            self._taken[tenant] += size

    async def look(self) -> None:
        """Ask how full facts and ledger are, set the metrics, log a reserve reached or left; outages change nothing."""
        let_in = self._let_in
        try:
            facts, usage = await self._bus.usage(self._facts), await self._bus.usage(self._ledger)
        except KernelError as error:
            log.debug("ledger_room_not_seen", error=str(error))
            return
        self._follow(facts.bytes, usage.bytes)
        self.facts_end = max(self.facts_end, facts.last_seq)
        self._usage, self._let_in = usage, self._let_in - let_in
        self._share_what_is_left()
        self._metrics.ledger_bytes.set(self._usage.bytes)
        self._metrics.ledger_bytes_max.set(self._usage.bytes_max)
        if self._is_low != self._reported:
            self._reported = self._is_low
            numbers = {"bytes": self._usage.bytes, "bytes_max": self._usage.bytes_max}
            if self._reported:
                log.error("ledger_full", **numbers, fix=WAY_OUT)
            else:
                log.info("ledger_has_room_again", **numbers)

    def against_work(self, tenant: str = "", parts: int = 1) -> Reason | None:
        """
        Why nothing new is taken in, or nothing of this tenant; None while the ledger has room for it.

        What is scarce is divided into equal `parts`, one for each tenant at each replica that takes work in.
        """
        if self._is_low:
            return self._reason()
        if not self._shared or self._taken[tenant] < (share := self._shared // parts):
            return None
        return self._reason(f"; a tenant's share of the rest, {format_memory(share)} here, is used")

    def against_orders(self) -> Reason | None:
        """Why not even what is asked of known jobs can be kept: the reserve is used up."""
        used_up = bool(self._usage.bytes_max) and self._left < subjects.MESSAGE_BYTES_MAX
        return self._reason() if used_up else None

    def problem(self) -> str | None:
        """Why no new work can be taken in, for `/readyz`; None while it can."""
        reason = self.against_work()
        return None if reason is None else f"{reason.sentence()}; {WAY_OUT}"

    def _share_what_is_left(self) -> None:
        """Begin to share once the tenth before the reserve is reached, and to end when there is more again."""
        if not self._usage.bytes_max or self._left >= 2 * reserve_of(self._usage):
            self._shared = 0
            self._taken.clear()
        elif not self._shared:
            self._shared = max(1, self._left - reserve_of(self._usage))

    def _follow(self, facts_bytes: int, ledger_bytes: int) -> None:
        """
        Count what was said and is not in the ledger yet: much, while nobody commits.

        A fact that is taken in stands in the ledger in full, so that the ledger has grown by as much at least.
        """
        if self._facts_bytes is not None:
            detail, taken = max(0, facts_bytes - self._facts_bytes), max(0, ledger_bytes - self._usage.bytes)
            self._on_its_way = max(0, self._on_its_way + detail - taken)
        self._facts_bytes = facts_bytes

    @property
    def _left(self) -> int:
        return self._usage.bytes_max - self._usage.bytes - self._waiting

    @property
    def _waiting(self) -> int:
        return self._on_its_way + self._let_in

    @property
    def _is_low(self) -> bool:
        return bool(self._usage.bytes_max) and self._left < reserve_of(self._usage)

    def _reason(self, more: str = "") -> Reason:
        waiting = f", {format_memory(self._waiting)} are on their way" if self._waiting else ""
        detail = f"{format_memory(self._usage.bytes)} of {format_memory(self._usage.bytes_max)} are used{waiting}{more}"
        return Reason(code=Code.LEDGER_FULL, numbers={RETRY_NUMBER: RETRY_SECONDS}, detail=detail)

"""
The account of GPUs as projection stores it, for whoever asks: the periods that a stretch of time consists of.

Whole days where hours are not asked for, hours else, and the newest five minutes. Periods that are over never change,
so that they are read once, as many as have `ROWS_KEPT` rows together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tessera.engine.accounts.periods import DAYS, HOURS, MINUTES, Period, PeriodLength
from tessera.gateway.entrance.problems import refused
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.accounts import UNREADABLE, OpenAccount, StoredPeriod, read_open, read_over, read_sums
from tessera.kernel.ports import Bus, Clock
from tessera_schemas.reasons import Code

ROWS_KEPT = 100_000
# Some 30 MB.
Piece = tuple[PeriodLength, int]
# Length and begin of a period.


@dataclass(frozen=True, slots=True)
class AccountSpan:
    """Periods from `since_ts` on until `until_ts`, in order, as of message `n`; the account ends at `upto_ts`."""

    n: int = 0
    since_ts: int = 0
    until_ts: int = 0
    upto_ts: int = 0
    periods: tuple[Period, ...] = ()


class AccountReader:
    """The account of one shard, read from SNAP."""

    def __init__(self, bus: Bus, shard: str, clock: Clock) -> None:
        self._bus, self._shard, self._clock = bus, shard, clock
        self._kept: dict[tuple[str, int, bool], Period] = {}
        self._rows = 0

    async def span(self, since_ts: int, until_ts: int, finest: PeriodLength, named: bool) -> AccountSpan:
        """
        Periods of the time, in full ones; `until_ts` 0 is no bound. Raises Refusal.

        `finest` is their length, as far as such are kept; with DAYS hours are what is left at both ends. `named`: with
        all names, else with tenants alone.
        """
        try:
            return await self._span(since_ts, until_ts, finest, named)
        except Transient as error:
            raise refused(Code.UNAVAILABLE, "account", "the stored account, in NATS") from error

    async def _span(self, since_ts: int, until_ts: int, finest: PeriodLength, named: bool) -> AccountSpan:
        at = await read_open(self._bus, self._shard)
        if at is None or not at.n:
            return AccountSpan()
        until = min(until_ts or at.upto_ts, at.upto_ts)
        pieces = list(_pieces(max(since_ts, at.since_ts), until, at.upto_ts, finest))
        if not pieces:
            return AccountSpan(at.n, until, until, at.upto_ts)
        over = [(length, start) for length, start in pieces if start + length.ms <= at.upto_ts]
        found = await self._over(over, named)
        if len(over) < len(pieces):
            found += await self._newest(at, pieces[-1], named)
        (_, since), (length, last) = pieces[0], pieces[-1]
        return AccountSpan(at.n, max(since, at.since_ts), min(last + length.ms, at.upto_ts), at.upto_ts, tuple(found))

    async def _over(self, pieces: Sequence[Piece], named: bool) -> list[Period]:
        known = {piece: self._kept.get((piece[0].name, piece[1], named)) for piece in pieces}
        missing = [piece for piece, period in known.items() if period is None]
        slots = [(length.name, length.slot(start)) for length, start in missing]
        for piece, stored in zip(missing, await read_over(self._bus, self._shard, slots), strict=True):
            period = None if stored is None else _read(stored, named)
            # A slot may have what is older than all that is kept.
            if period is not None and period.start == piece[1]:
                known[piece] = period
                self._keep((piece[0].name, piece[1], named), period)
            await self._clock.sleep(0)
        return [period for period in known.values() if period is not None]

    def _keep(self, key: tuple[str, int, bool], period: Period) -> None:
        before = self._kept.pop(key, None)
        self._rows += len(period.rows) - (0 if before is None else len(before.rows))
        self._kept[key] = period
        while self._rows > ROWS_KEPT:
            self._rows -= len(self._kept.pop(next(iter(self._kept))).rows)

    async def _newest(self, at: OpenAccount, piece: Piece, named: bool) -> list[Period]:
        length, start = piece
        sums = await read_sums(self._bus, self._shard, at) if length is not MINUTES else {}
        parts = [_read(stored, named) for stored in (sums.get(length.name), at.newest) if stored is not None]
        return [part for part in parts if part is not None and start <= part.start < start + length.ms]


def _pieces(since: int, until: int, upto: int, finest: PeriodLength) -> Iterator[Piece]:
    """Periods that have all of the time between; days where hours are too old to be kept."""
    kept = MINUTES if finest is MINUTES else HOURS
    oldest = kept.begin(upto) - (kept.kept - 1) * kept.ms
    at = since if finest is MINUTES else HOURS.begin(since)
    at = kept.begin(at) if at >= oldest else oldest if finest is MINUTES else DAYS.begin(at)
    while at < until:
        is_day = at == DAYS.begin(at) and (at < oldest or (finest is DAYS and at + DAYS.ms <= until))
        length = DAYS if is_day else kept
        yield length, at
        at += length.ms


def _read(stored: StoredPeriod, named: bool) -> Period | None:
    try:
        period = Period.read(stored)
    except UNREADABLE:
        return None
    if named:
        return period
    tenants = Period(period.start, period.from_ts, period.upto_ts)
    tenants.add(period, MINUTES.named)
    return tenants

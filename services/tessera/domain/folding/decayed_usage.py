"""
GPU time that queues, their tenants and these tenants' users have used, of which half counts after each half-life. Pure.

A row has what its name holds now, until the devices are free again, and the sum of what it held until `ts`: thousandths
of a GPU x milliseconds. Time goes in **ticks** of a 64th of the half-life, from the epoch on; what was used k ticks ago
counts 2^(-k/64). No sum is ever multiplied down: what is used later weighs more, by a table of 64 integers, and each
half-life ends with the sum halved, rounded down. So a row follows from what its name held and when, to the digit,
however many records lie in between: a sum of sums is the sum, and halving twice is halving by four.

Bounded: beyond `NAMES_MAX` rows an eighth goes, those with the least, into one row of others for each of queues,
tenants and users; who holds something stays. Rows that have come to nothing go at the end of a half-life.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from heapq import nsmallest
from itertools import accumulate
from math import isqrt
from typing import NamedTuple

from tessera.domain.entities import Run
from tessera.domain.storing.fast import fast_init
from tessera.domain.table import Table

TICKS = 64
"""In one half-life."""
BITS = 20
"""Of the weight of the first tick: so each weight is exact to a millionth."""


GROWTH = tuple(reduce(lambda power, _: isqrt(power), range(6), 1 << (TICKS * BITS + tick)) for tick in range(TICKS))
"""Weight of a millisecond in each tick of a half-life: 2^(20 + tick/64), rounded down."""
GROWN = (0, *accumulate(GROWTH))
"""Their sums: weight of a millisecond in each of the first ticks."""

NAMES_MAX, PART_DROPPED = 20_000, 8
LOOK_EVERY = 256  # rows beyond the most: where nearly all hold something, a look each time finds nobody
LOW_BITS = 62
PER_LN2 = 1_442_695  # millionths: a sum that halves in one half-life is that of 1 / ln 2 half-lives


@fast_init
@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """Use of one name up to `ts`, and what it holds from there on; the weighted sum in two parts of 62 bits."""

    name: str
    ts: int
    gpu_milli: int
    high: int
    low: int


Usages = Table[DecayedUsage]


class Decay(NamedTuple):
    """Reads and follows rows by one half-life of 64 ticks."""

    tick_ms: int

    half_life_ms: int  # of whole ticks

    def used(self, row: DecayedUsage | None, ts: int) -> int:
        """Thousandths of a GPU x milliseconds that count at `ts`, which is no earlier than the row's."""
        return 0 if row is None else self._sum(row, ts) // GROWTH[ts // self.tick_ms % TICKS]

    def average_of(self, used: int) -> int:
        """Thousandths of a GPU: who has always held as many has used just that."""
        return used * 1_000_000 // (self.half_life_ms * PER_LN2)

    def charge(self, rows: Usages, ts: int, run: Run | None, sign: int) -> None:
        """From now on (1), or no more (-1), a run's queue, tenant and user hold what it counts for."""
        if run is not None and run.used_milli:
            for name in names_of(run.queue, run.tenant, run.user):
                self.add(rows, ts, name, held=sign * run.used_milli)
                if len(rows) > NAMES_MAX and len(rows) % LOOK_EVERY == 0:
                    self._fold_least(rows, ts)

    def add(self, rows: Usages, ts: int, name: str, held: int = 0, used: int = 0) -> None:
        """Brings a row up to `ts` and adds to what its name holds, and has used; a row of nothing goes."""
        row = rows.get(name)
        held += 0 if row is None else row.gpu_milli
        total = used * GROWTH[ts // self.tick_ms % TICKS] + (0 if row is None else self._sum(row, ts))
        if held or total:
            rows.put(name, DecayedUsage(name, ts, held, total >> LOW_BITS, total & ((1 << LOW_BITS) - 1)))
        elif row is not None:
            rows.drop(name)

    def forget(self, rows: Usages, before: int, ts: int) -> None:
        """Drops the rows that have come to nothing, when a half-life ends between two times."""
        if before // self.half_life_ms != ts // self.half_life_ms:
            for name in [name for name, row in rows.items() if not row.gpu_milli and not self.used(row, ts)]:
                rows.drop(name)

    def _sum(self, row: DecayedUsage, ts: int) -> int:
        """The weighted sum at `ts`."""
        total, at, held, length = row.high << LOW_BITS | row.low, row.ts, row.gpu_milli, self.half_life_ms
        halvings = ts // length - at // length
        if not held:
            return total >> halvings
        for _ in range(halvings):
            total = (total + held * (self.tick_ms * GROWN[TICKS] - self._weight_until(at))) >> 1
            at += length - at % length
        return total + held * (self._weight_until(ts) - self._weight_until(at))

    def _weight_until(self, ts: int) -> int:
        """Weight of the milliseconds between the beginning of the half-life that `ts` is in, and `ts`."""
        tick, rest = divmod(ts % self.half_life_ms, self.tick_ms)
        return GROWN[tick] * self.tick_ms + GROWTH[tick] * rest

    def _fold_least(self, rows: Usages, ts: int) -> None:
        idle = ((self.used(row, ts), row.name) for row in rows.values() if not row.gpu_milli)
        for used, name in nsmallest(NAMES_MAX // PART_DROPPED, idle):
            rows.drop(name)
            self.add(rows, ts, "/" * name.count("/"), used=used)  # of the same kind


def names_of(queue: str, tenant: str, user: str) -> tuple[str, str, str]:
    """The rows that a run counts in; "" is the user of jobs that name none."""
    return queue, f"{queue}/{tenant}", f"{queue}/{tenant}/{user}"


def decay_of(half_life_seconds: int) -> Decay | None:
    """By a half-life as it is configured; None for 0, where nothing is kept."""
    tick_ms = half_life_seconds * 1000 // TICKS
    return Decay(tick_ms, tick_ms * TICKS) if tick_ms else None


def follow_half_life(
    rows: Usages, before: Decay | None, after: Decay | None, ts: int, runs: Iterable[Run], renamed: dict[str, str]
) -> None:
    """
    Puts another half-life in force: what counts now counts on, and decays by it from here on.

    At first what runs hold begins to count; without a half-life all is forgotten. What a queue has used goes to the
    one that takes its place (`renamed`: by the former name).
    """
    old = [] if before is None or before == after else [(row, before.used(row, ts)) for row in rows.values()]
    for name in [row.name for row, _ in old]:
        rows.drop(name)
    if after is None:
        return
    for run in runs if before is None else ():
        after.charge(rows, ts, run, 1)
    for row, used in old:
        after.add(rows, ts, row.name, row.gpu_milli, used)
    for row in [row for row in rows.values() if row.name.partition("/")[0] in renamed] if renamed else ():
        queue, slash, rest = row.name.partition("/")
        rows.drop(row.name)
        after.add(rows, ts, row.name, row.gpu_milli)  # its runs follow one by one
        after.add(rows, ts, renamed[queue] + slash + rest, used=after.used(row, ts))

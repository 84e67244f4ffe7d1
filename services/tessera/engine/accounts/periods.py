"""
Books of an account within bounds: five minutes of the last day, hours of 35 days, days of three years. Pure.

All is written into the five minutes that are open; once they are over, they are added to the hour and the day. A period
that is over never changes again, and is handed out once. Each length has as many slots as periods are kept, so that a
period takes the slot of one that is too old.

A row that would be one too many goes to others: its names are not kept, its amount is. Rows that name nobody (free
GPUs by cause, nodes that are out) are as many as pools, flavors and causes, and always stay.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tessera.engine.accounts.account import HOUR_MS
from tessera.engine.accounts.owners import NO_AMOUNTS, GpuCause, GpuOwner, OwnedAmounts

STEP_MS, DAY_MS = 300_000, 24 * HOUR_MS
ROWS_MAX = 3_072
"""Rows of one period that name somebody; a period is one message, whatever names users think of."""
OTHERS = "(others)"
"""In place of names that are not kept; no name of ours has a bracket."""
PeriodRows = dict[GpuOwner, OwnedAmounts]
RestartKey = tuple[str, str, str]
"""Pool, tenant and reason."""


@dataclass(frozen=True, slots=True)
class PeriodLength:
    """Length of periods, how many are kept, and which of an owner's names."""

    name: str
    ms: int
    kept: int
    named: Callable[[GpuOwner], GpuOwner]

    def begin(self, ts: int) -> int:
        """Begin of the period that has this moment; days are UTC's."""
        return ts - ts % self.ms

    def slot(self, start: int) -> int:
        """Slot of the period that begins then."""
        return start // self.ms % self.kept


MINUTES = PeriodLength("minutes", STEP_MS, 288, lambda owner: owner._replace(queue="", user="", job="", project=""))
HOURS = PeriodLength("hours", HOUR_MS, 35 * 24, lambda owner: owner)
DAYS = PeriodLength("days", DAY_MS, 3 * 366, lambda owner: owner._replace(job=""))
LENGTHS = (MINUTES, HOURS, DAYS)
SUMS = (HOURS, DAYS)
"""Lengths to which five minutes are added once they are over."""


@dataclass(slots=True)
class Period:
    """
    One period as far as it was counted, `from_ts` to `upto_ts`; amounts are times milliseconds.

    `restarts` are runs that began again, and what they had done since their last checkpoints.
    """

    start: int
    from_ts: int
    upto_ts: int
    rows: PeriodRows = field(default_factory=dict)
    restarts: dict[RestartKey, tuple[int, int]] = field(default_factory=dict)

    def put(self, owner: GpuOwner, amounts: OwnedAmounts, rows_max: int = ROWS_MAX) -> None:
        """Counts amounts for an owner, or for others where names are too many."""
        rows = self.rows
        if owner not in rows and owner.tenant and len(rows) >= rows_max:
            job, project = (OTHERS if name else "" for name in (owner.job, owner.project))
            owner = owner._replace(tenant=OTHERS, queue=OTHERS, user=OTHERS, job=job, project=project)
        gpu, cpu, memory = rows.get(owner, NO_AMOUNTS)
        rows[owner] = gpu + amounts[0], cpu + amounts[1], memory + amounts[2]

    def put_restart(self, key: RestartKey, count: int, lost: int) -> None:
        """Counts runs that begin again."""
        if key not in self.restarts and len(self.restarts) >= ROWS_MAX:
            key = key[0], OTHERS, key[2]
        known = self.restarts.get(key, (0, 0))
        self.restarts[key] = known[0] + count, known[1] + lost

    def add(self, other: "Period", named: Callable[[GpuOwner], GpuOwner], rows_max: int = ROWS_MAX) -> None:
        """Counts all of another period with those of its names that are kept here."""
        self.from_ts, self.upto_ts = min(self.from_ts, other.from_ts), max(self.upto_ts, other.upto_ts)
        for owner, amounts in other.rows.items():
            self.put(named(owner), amounts, rows_max)
        for key, (count, lost) in other.restarts.items():
            self.put_restart(key, count, lost)

    def stored(self) -> dict[str, Any]:
        """The period as JSON holds it; `read` reads it."""
        return {
            "start": self.start,
            "from": self.from_ts,
            "upto": self.upto_ts,
            # What is not there takes no room: rows of no class or project, or of GPUs alone, are as before there was
            # more.
            "rows": [
                [*owner[: _names_kept(owner)], amounts if amounts[1] or amounts[2] else amounts[0]]
                for owner, amounts in self.rows.items()
            ],
            "restarts": [[*key, *value] for key, value in self.restarts.items()],
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for what was not stored by `stored`."""
        rows = {_owner(*names): _amounts(amounts) for *names, amounts in stored["rows"]}
        restarts = {
            (pool, tenant, why): (int(count), int(lost)) for pool, tenant, why, count, lost in stored["restarts"]
        }
        return cls(int(stored["start"]), int(stored["from"]), int(stored["upto"]), rows, restarts)


class AccountPeriods:
    """Periods that are `open`, by the name of their length, and those that are over and were not taken yet."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self.open: dict[str, Period] = {}
        self._over: list[tuple[PeriodLength, Period]] = []
        self._rows_max = rows_max

    def add(self, owner: GpuOwner, amounts: OwnedAmounts, start_ts: int, end_ts: int) -> None:
        """See `AccountBooks`; both moments are in the same five minutes."""
        period = self.open.get(MINUTES.name)
        if period is None or start_ts >= period.start + STEP_MS:
            self.go_to(start_ts)
            period = self.open[MINUTES.name] = Period(MINUTES.begin(start_ts), start_ts, start_ts)
        lasted, rows = end_ts - start_ts, period.rows
        # A row that is there needs no look at how many there may be: each line comes here at each of its changes.
        if owner in rows:
            gpu, cpu, memory = rows[owner]
            rows[owner] = gpu + amounts[0] * lasted, cpu + amounts[1] * lasted, memory + amounts[2] * lasted
        else:
            period.put(owner, (amounts[0] * lasted, amounts[1] * lasted, amounts[2] * lasted), self._rows_max)
        if end_ts > period.upto_ts:
            period.upto_ts = end_ts

    def note_use(self, owner: GpuOwner, amount: int, ts: int) -> None:
        """Counts what was told of the use of held GPUs at `ts`, within what is open."""
        if (period := self.open.get(MINUTES.name)) is not None:
            period.put(owner, (amount, 0, 0), self._rows_max)

    def restart(self, pool: str, tenant: str, reason: str, lost: int) -> None:
        """Counts one run that begins again, within what is open."""
        if (period := self.open.get(MINUTES.name)) is not None:
            period.put_restart((pool, tenant, reason), 1, lost)

    def go_to(self, ts: int) -> None:
        """Ends what is over by then; all until then was added."""
        steps = self.open.get(MINUTES.name)
        if steps is not None and steps.start + STEP_MS <= ts:
            del self.open[MINUTES.name]
            for length in SUMS:
                self._end(length, steps.start)
                self._sum(length, steps)
            whole, steps = steps, Period(steps.start, steps.from_ts, steps.upto_ts)
            steps.add(whole, MINUTES.named, self._rows_max)
            self._over.append((MINUTES, steps))
        for length in SUMS:
            self._end(length, ts)

    def _sum(self, length: PeriodLength, steps: Period) -> None:
        begin = length.begin(steps.start)
        known = self.open.setdefault(length.name, Period(begin, steps.from_ts, steps.from_ts))
        known.add(steps, length.named, self._rows_max)

    def _end(self, length: PeriodLength, ts: int) -> None:
        known = self.open.get(length.name)
        if known is not None and known.start + length.ms <= ts:
            self._over.append((length, self.open.pop(length.name)))

    def take_over(self) -> Iterator[tuple[PeriodLength, Period]]:
        """Periods that are over, in order, each once."""
        over, self._over = self._over, []
        return iter(over)


def _owner(pool: str, flavor: str, cause: str, *names: str) -> GpuOwner:
    return GpuOwner(pool, flavor, GpuCause(cause), *names)


def _names_kept(owner: GpuOwner) -> int:
    return 9 if owner.device_class else 8 if owner.project else 7


def _amounts(stored: int | Sequence[int]) -> OwnedAmounts:
    """Amounts of a row; GPUs alone as one number."""
    gpu, cpu, memory = (stored, 0, 0) if isinstance(stored, int) else stored
    return int(gpu), int(cpu), int(memory)

"""
Run lengths as chances: of runs of a kind, how many end within each span of their age, and lengths drawn by that.

Kinds and buckets are those of `domain.runtimes`. What decides remembers 32 runs that ended, which say nothing of a tail
of weeks, and in whose eyes those that run yet do not exist. Here each bucket of age remembers by itself: of the last
runs that came so far, how many ended in it and how many passed it. So what a team runs today shows in the young
buckets within minutes, while the old ones remember months, and runs count from the moment at which they pass. A kind
with few runs leans on the coarser kind above it, and so does one whose name was not seen for long, since names of jobs
have no end: the rows of those that were counted last are kept. Until enough ends of any kind were seen, a part of the
lengths is guessed (`guess`): runs that are all young say that none is old, and nothing of when they end. All times are
milliseconds, all chances parts of `chance.ONE`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any, Self

from tessera.domain.runtimes import BUCKETS, UNKNOWN, JobKind, Sketch, bucket
from tessera.engine.ahead.durations import upper
from tessera.engine.quoting.chance import ONE

RUNS_MAX = 48, 128, 256, 512
"""Runs that a bucket remembers: of a kind, of its queue and size, of its size, and of all."""
NAMES_MAX = 4096
"""Kinds of the finest rows that are remembered; beyond that, the one goes that was counted the longest ago."""
WEIGHT = 16
"""Weight of a run; halving leaves whole numbers for some generations."""
PRIOR_RUNS = 4
"""With how many runs of its own a kind weighs as much as the coarser kind above it."""
UNKNOWN_ENDS = ONE // 6
"""Chance to end within half an octave of age where no run of any kind came so far."""
KNOWN_ENDS = 64
"""Ends that were seen of all runs, from which on lengths are drawn by them alone."""
GUESSED_AGE = UNKNOWN // 8
"""A younger run without a limit is guessed to have as long a tail as one of this age."""
ALL = "////"
"""Row of all runs."""
FIRST = bucket(1000)
"""Bucket below which ages are not told apart."""
LOWER = tuple(0 if at == 0 else upper(at - 1) for at in range(BUCKETS))
UPPER = tuple(upper(at) for at in range(BUCKETS))

EndedBy = tuple[int, ...]
"""Chance to have ended by the end of each bucket, ascending."""


class LearntLengths:
    """Runs as they start, grow older and end; times never fall. Equal sequences of calls give equal chances."""

    def __init__(self) -> None:
        self._ended: dict[str, list[int]] = {}
        self._passed: dict[str, list[int]] = {}
        self._evicted: dict[str, list[int]] = {}
        self._running: dict[str, tuple[JobKind, int, int]] = {}
        self._passes: list[tuple[int, str]] = []
        self._named: dict[str, None] = {}

    def start(self, run: str, kind: JobKind, ts: int) -> None:
        """A run has started."""
        self._running[run] = kind, ts, FIRST
        heappush(self._passes, (ts + UPPER[FIRST], run))

    def advance(self, ts: int) -> None:
        """Count the buckets that runs have passed until then."""
        passes = self._passes
        while passes and passes[0][0] <= ts:
            _, run = heappop(passes)
            # Of a run that has ended the next pass is still noted; it is dropped when its time has come.
            if (found := self._running.get(run)) is None:
                continue
            kind, started, at = found
            if started + UPPER[at] > ts:
                continue
            self._count(kind, at, ended=False)
            if at + 1 < BUCKETS:
                self._running[run] = kind, started, at + 1
                heappush(passes, (started + UPPER[at + 1], run))

    def end(self, run: str, ts: int, evicted: bool = False, cut: bool = False) -> None:
        """A run is over: by itself, or it was `cut` short or stopped for others, which says nothing of its length."""
        # Those that passed a bucket at the same time are counted before: ends of one time then stand in any order.
        self.advance(ts)
        found = self._running.pop(run, None)
        if found is None:
            return
        kind, started, _ = found
        self._name(kind)
        for key, _ in _rows(kind):
            row = self._evicted.setdefault(key, [0, 0])
            row[0] += WEIGHT * evicted
            row[1] += WEIGHT
            if row[1] >= RUNS_MAX[-1] * WEIGHT:
                row[:] = [count // 2 for count in row]
        if not evicted and not cut:
            self._count(kind, max(FIRST, bucket(ts - started)), ended=True)

    def _name(self, kind: JobKind) -> None:
        """Note that the kind is counted now, and forget the finest row of the one that was the longest ago."""
        if not kind.name:
            return
        # A dictionary keeps its order: who is put in again comes last.
        fine = _rows(kind)[0][0]
        self._named.pop(fine, None)
        self._named[fine] = None
        if len(self._named) > NAMES_MAX:
            oldest = next(iter(self._named))
            del self._named[oldest]
            for rows in (self._ended, self._passed, self._evicted):
                rows.pop(oldest, None)

    def _count(self, kind: JobKind, at: int, ended: bool) -> None:
        self._name(kind)
        for key, most in _rows(kind):
            if key not in self._ended:
                self._ended[key], self._passed[key] = [0] * BUCKETS, [0] * BUCKETS
            ends, passed = self._ended[key], self._passed[key]
            (ends if ended else passed)[at] += WEIGHT
            # Halving forgets, the ends and the passes of a bucket alike: its newest runs say most.
            if ends[at] + passed[at] >= most * WEIGHT:
                ends[at], passed[at] = ends[at] // 2, passed[at] // 2

    def chances(self) -> "LengthChances":
        """Chances by what has been seen until now, and by nothing that is seen later."""
        copies = [{key: list(row) for key, row in rows.items()} for rows in (self._ended, self._passed, self._evicted)]
        return LengthChances(*copies)

    @property
    def running(self) -> tuple[str, ...]:
        """Runs that have started and not ended."""
        return tuple(self._running)

    def begin(self, sketches: Iterable[Sketch]) -> None:
        """Count the runs that a shard remembers already as if each had been seen here."""
        for sketch in sketches:
            # Sketches have no row of all runs: those of each size make it up.
            keys = (sketch.key, ALL) if sketch.key.startswith("///") else (sketch.key,)
            for key in keys:
                if key.split("/")[2]:
                    self._named[key] = None
                ended = self._ended.setdefault(key, [0] * BUCKETS)
                passed = self._passed.setdefault(key, [0] * BUCKETS)
                for at, weight in sketch.counts:
                    ended[max(FIRST, at)] += weight
                    for before in range(FIRST, at):
                        passed[before] += weight

    def stored(self) -> dict[str, Any]:
        """Values of all of it, as JSON holds them."""
        running = [[run, *kind, started, at] for run, (kind, started, at) in self._running.items()]
        rows = {"ended": self._ended, "passed": self._passed, "evicted": self._evicted}
        return {
            "running": running,
            "named": list(self._named),
            **{name: _packed(found) for name, found in rows.items()},
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Read stored values back. Raises KeyError, TypeError or ValueError for anything else."""
        made = cls()
        made._ended, made._passed = _unpacked(stored["ended"], BUCKETS), _unpacked(stored["passed"], BUCKETS)
        made._evicted, made._named = _unpacked(stored["evicted"], 2), dict.fromkeys(stored["named"])
        for run, tenant, queue, name, gpus, started, at in stored["running"]:
            made._running[run] = JobKind(tenant, queue, name, gpus), started, at
            heappush(made._passes, (started + UPPER[at], run))
        return made


class LengthChances:
    """Lengths of runs at one moment; the table of a kind is made when first asked for."""

    def __init__(
        self, ended: dict[str, list[int]], passed: dict[str, list[int]], evicted: dict[str, list[int]]
    ) -> None:
        self._ended, self._passed, self._evicted = ended, passed, evicted
        self._tables: dict[JobKind, EndedBy] = {}
        ends = sum(ended.get(ALL, ())) // WEIGHT
        self.known = min(ends, KNOWN_ENDS) * ONE // KNOWN_ENDS
        """Part of the runs whose lengths are drawn by what was seen; those of the others are guessed."""

    def draw(self, kind: JobKind, elapsed_ms: int, part: int) -> int:
        """The whole length of a run that has run for so long, as the draw `part` of `ONE` says; always longer."""
        # Asked for each start of each future: the table is looked up here, without the call.
        table = self._tables.get(kind)
        if table is None:
            table = self.table(kind)
        passed = _passed(table, elapsed_ms) if elapsed_ms > 0 else 0
        # Of the chance that is left at its age, a part that is drawn evenly: what is conditioned on stays a table.
        target = passed + ((ONE - passed) * part >> 40)
        at = bisect_left(table, target)
        # Nobody ran as long. Of what has outlived all others only that is known, and it may do so again.
        if at >= BUCKETS:
            return max(UPPER[-1], 2 * elapsed_ms)
        # Within a bucket lengths are even. Half an octave is fine enough for a sum of many, and the buckets' edges are
        # the same in all tables.
        low = table[at - 1] if at else 0
        begin, end = LOWER[at], UPPER[at]
        found = begin + (end - begin) * (target - low) // max(1, table[at] - low)
        return found if found > elapsed_ms else elapsed_ms + 1

    def evicted_permille(self, kind: JobKind) -> int:
        """Chance of a run of the kind to be stopped for others before its end, as a share of those that were."""
        chance = 0
        for key, _ in reversed(_rows(kind)):
            stopped, runs = self._evicted.get(key, (0, 0))
            chance = (1000 * stopped + PRIOR_RUNS * WEIGHT * chance) // (runs + PRIOR_RUNS * WEIGHT)
        return chance

    def quantile(self, kind: JobKind, permille: int) -> int:
        """The length that so many thousandths of the kind's runs stay below."""
        return self.draw(kind, 0, permille * ONE // 1000)

    def mean(self, kind: JobKind) -> int:
        """Mean length, the tail cut where one run in a thousand is left."""
        table, last, total = self.table(kind), 0, 0
        for at, ended in enumerate(table):
            total += (ended - last) * (LOWER[at] + UPPER[at]) // 2
            last = ended
            if (ONE - ended) * 1000 < ONE:
                break
        return total // max(1, last)

    def table(self, kind: JobKind) -> EndedBy:
        """Chance of a run of the kind to have ended by the end of each bucket."""
        found = self._tables.get(kind)
        if found is None:
            # Hazards are mixed, and not the tables that follow from them. Of a kind with many short runs and no long
            # one the tail is then that of the coarser kind, as from where its own runs say nothing.
            hazard, prior = [0] * FIRST + [UNKNOWN_ENDS] * (BUCKETS - FIRST), PRIOR_RUNS * WEIGHT
            for key, _ in reversed(_rows(kind)):
                if key in self._ended:
                    counts = zip(self._ended[key], self._passed[key], hazard, strict=True)
                    hazard = [(ends * ONE + prior * above) // (ends + passed + prior) for ends, passed, above in counts]
            left = accumulate(hazard, lambda left, chance: left * (ONE - chance) >> 40, initial=ONE)
            found = self._tables[kind] = tuple(ONE - each for each in list(left)[1:])
        return found


def guess(limit_ms: int, elapsed_ms: int, part: int, at_their_word: bool) -> int:
    """
    The whole length of a run of which nothing is known but its limit, 0 for none, and its age; always longer than that.

    Nobody knows yet how near to their limits people's runs end. So limits are either what all runs take, or ends come
    evenly before them: a bound of 95 % has to allow for both. Without a limit a run's tail goes with its age, and at
    first with `GUESSED_AGE`.
    """
    if limit_ms > elapsed_ms:
        return limit_ms if at_their_word else elapsed_ms + 1 + ((limit_ms - elapsed_ms - 1) * part >> 40)
    age = max(elapsed_ms, GUESSED_AGE)
    return elapsed_ms + _UNSEEN.draw(_NOBODYS, age, part) - age


_UNSEEN, _NOBODYS = LengthChances({}, {}, {}), JobKind("", "", "", 0)


def _rows(kind: JobKind) -> tuple[tuple[str, int], ...]:
    """Keys of the rows that speak of a kind, the finest first, each with the runs that its buckets remember."""
    fine, queue, size = (
        f"{kind.tenant}/{kind.queue}/{kind.name}/{kind.gpus}",
        f"{kind.tenant}/{kind.queue}//{kind.gpus}",
        f"///{kind.gpus}",
    )
    return (fine, RUNS_MAX[0]), (queue, RUNS_MAX[1]), (size, RUNS_MAX[2]), (ALL, RUNS_MAX[3])


def _passed(table: EndedBy, elapsed_ms: int) -> int:
    """Draws to have ended before that age, evenly within a bucket."""
    at = bucket(elapsed_ms)
    low = table[at - 1] if at else 0
    return low + (table[at] - low) * (elapsed_ms - LOWER[at]) // (UPPER[at] - LOWER[at])


def _packed(rows: Mapping[str, list[int]]) -> dict[str, list[int]]:
    # Most buckets of a row are empty: pairs of a number and what stands there.
    return {key: [part for at, count in enumerate(row) if count for part in (at, count)] for key, row in rows.items()}


def _unpacked(rows: Mapping[str, list[int]], many: int) -> dict[str, list[int]]:
    # A bucket that is none would be counted from the row's end.
    made = {}
    for key, pairs in rows.items():
        row = made[key] = [0] * many
        for at, count in zip(pairs[::2], pairs[1::2], strict=True):
            if not 0 <= at < many:
                raise ValueError(f"bucket {at} of {many}")
            row[at] = count
    return made

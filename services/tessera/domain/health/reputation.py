"""
Evidence of ends of runs on the nodes that they ran on: evidence against each node, discounted with time. Pure.

The question is whose fault a failure is: of its program, or of a node. Programs fail anywhere, at the rate of their
pool; a bad node fails about every second run. So each end of a run is evidence (Wald's sequential test, with Page's
rule for a node that may turn bad on any day): a failure speaks for "bad" as much more as it is likelier on a bad node
than on a good one, a success speaks against it, and what is left of the sum never goes below zero, so that a good past
hides no new fault. One node of a hundred is taken to be bad beforehand: a node that is more probably bad than good is
suspect, and one against which several jobs, or a test job of the scheduler's own, speak as well is bad.

Failures are put down to programs where these show themselves. Each job, or array, counts once on a node; each further
place where it fails halves what it says of all of them, and after the third it says nothing of any. Jobs of one user,
whose program may be in the making, have to be more. A gang whose failed pods nobody told apart is evidence against each
of its nodes, and less so where one of them is suspect already.

All is in thousandths of a bit, a logarithm to base 2 of how much likelier a thing is: integers, the same in each
replay. Bounded: a row for each node that failed something, with the last `FAILED_MAX` jobs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tessera.domain.storing.fast import fast_init, replace
from tessera.domain.storing.later import later
from tessera.domain.table import Table
from tessera_schemas.cluster.health import ReputationPolicy

PPM = 1_000_000
BIT = 1000
FAILS_WHEN_BAD = 500_000
"""How often a bad node fails a run, at least, in millionths: evidence is weighed for the mildest that matters."""
ODDS_WHEN_BAD = 10
"""Nodes of a thousand that are bad beforehand."""
SUSPECT = 6_644
"""Evidence from which on a node is more probably bad than good, by these odds beforehand: log2(100)."""
JOBS_MIN, JOBS_OF_ONE_MIN = 3, 5
"""A suspect is bad once so many jobs speak against it, of several users, or of one, whose program is being written."""
MOST = 16 * BIT
"""What is beyond says nothing more, and would keep a node that was mended from use for longer."""
FAILED_MAX, REMEMBERED_HALF_LIVES = 8, 2
"""Failures that a node keeps: so many, and for so long after it failed them."""
RUNS_BEFORE, FAILURES_BEFORE = 1000, 20
"""Ends of runs, and failures among them, that a pool is taken to have had before any were seen."""
RATE_LEAST, RATE_MOST = 5_000, 200_000
"""Bounds of the rate at which programs fail, in millionths: neither a week without failures nor a bad day is a law."""
PLACES_MAX = 3
"""Each further place where a job failed halves what it says of all of them; after so many it says nothing of any."""


class NodeStanding(StrEnum):
    """Judgement of a node."""

    GOOD = "good"
    SUSPECT = "suspect"
    BAD = "bad"


@fast_init
@dataclass(frozen=True, slots=True)
class FailedThere:
    """
    A job, or array, that failed on a node: when, what that says of the node, and the GPUs that it had there; or a test
    of the node.
    """

    job: str
    user: str
    ts: int
    weight: int
    devices: tuple[int, ...] = ()
    is_test: bool = later(False)


@fast_init
@dataclass(frozen=True, slots=True)
class Reputation:
    """
    Evidence against a node, as of `ts`; what is known of it before that is in `score`, later time discounts it.

    `since_ts` is when the first of `failed` failed, `runs` are the ends of runs that counted since then.
    """

    node: str
    ts: int
    score: int
    since_ts: int
    runs: int
    failed: tuple[FailedThere, ...]


@fast_init
@dataclass(frozen=True, slots=True)
class FailureRate:
    """Ends of runs in a pool that say something of nodes, and failures among them; both halve with each half-life."""

    pool: str
    ts: int
    runs: int
    failures: int


Reputations = Table[Reputation]
FailureRates = Table[FailureRate]


class Ended(NamedTuple):
    """
    An end of a run: its job (for a task its array), its pool and user, and the nodes that it says something of.

    Of a failure these are the nodes of the pods that failed, of a success all. `devices` are GPUs by node.
    """

    ts: int
    pool: str
    user: str
    job: str
    nodes: Sequence[str]
    devices: dict[str, tuple[int, ...]] = {}  # noqa: RUF012 - never changed


@dataclass(frozen=True, slots=True)
class Reckoning:
    """Follows the rows of nodes and pools by the ends of runs, and reads them; evidence halves with each half-life."""

    half_life_ms: int

    def failed(self, rows: Reputations, rates: FailureRates, end: Ended) -> None:
        """A run failed, by its program as far as anybody can see."""
        known = [row for row in rows.values() if any(each.job == end.job for each in row.failed)]
        if not {row.node for row in known}.isdisjoint(end.nodes):
            return  # it has failed there before, and says no more by failing again
        # Where other jobs failed as well the node is likelier to blame, and that place speaks for no program.
        alone = [row for row in known if not _blamed_by_others(row, end.job)]
        places = 1 + len({each.ts for row in alone for each in row.failed if each.job == end.job})
        weights = self._weights(rows, end, self.rate_of(rates.get(end.pool)))
        self._count(rates, end, failures=1 if places == 1 else 0)
        halves = 0 if places > PLACES_MAX else 1
        for row in alone:
            self._blame_less(rows, row, end, halves)
        for node, weight in zip(end.nodes, weights, strict=True):
            row = rows.get(node) or Reputation(node, end.ts, 0, end.ts, 0, ())
            if places > 1 and not _blamed_by_others(row, end.job):
                weight = weight * halves >> places - 1
            self._blame(rows, rates, row, end, weight)

    def lasted(self, rows: Reputations, rates: FailureRates, end: Ended) -> None:
        """A run ended well, or held for long enough."""
        rate = self.rate_of(rates.get(end.pool))
        self._count(rates, end)
        weight = bits(PPM - rate, PPM - FAILS_WHEN_BAD)
        for node in end.nodes:
            row = rows.get(node)
            # An array of which some tasks fail there must not make up for them by the others.
            if row is None or any(each.job == end.job and each.weight for each in row.failed):
                continue
            score = max(0, self.score_at(row, end.ts) - weight)
            failed = row.failed if score else tuple(replace(each, weight=0) for each in row.failed)
            if score or end.ts - failed[-1].ts < self.half_life_ms:
                rows.put(node, Reputation(node, end.ts, score, row.since_ts, row.runs + 1, failed))
            else:
                rows.drop(node)

    def failed_test(self, rows: Reputations, node: str, job: str, ts: int) -> None:
        """A test of the node failed, which says as much as can be said."""
        row = rows.get(node) or Reputation(node, ts, 0, ts, 0, ())
        failed = (*row.failed, FailedThere(job, "", ts, MOST, is_test=True))[-FAILED_MAX:]
        rows.put(node, replace(row, ts=ts, score=MOST, failed=failed))

    def passed_test(self, rows: Reputations, node: str, ts: int) -> None:
        """A test of the node passed: half of what speaks against it is forgiven, and tests that failed before are."""
        row = rows.get(node)
        # Half and not all: a fault that comes and goes passes a short test every second time.
        if row is not None:
            failed = tuple(replace(each, weight=0 if each.is_test else each.weight // 2) for each in row.failed)
            rows.put(node, replace(row, ts=ts, score=self.score_at(row, ts) // 2, failed=failed))

    def standing(self, row: Reputation | None, ts: int) -> NodeStanding:
        """Judgement of a node at `ts`."""
        # Time only discounts: most rows are known to be good without reckoning.
        if row is None or row.score < SUSPECT or self.score_at(row, ts) < SUSPECT:
            return NodeStanding.GOOD
        if any(each.is_test for each in jobs_against(row)):
            return NodeStanding.BAD
        against = [each.user for each in row.failed if each.weight]
        least = JOBS_MIN if len(set(against)) > 1 else JOBS_OF_ONE_MIN
        return NodeStanding.BAD if len(against) >= least else NodeStanding.SUSPECT

    def score_at(self, row: Reputation, ts: int) -> int:
        """Evidence at `ts`, which is no earlier than the row's: half of it is left after each half-life."""
        halvings, rest = divmod(max(0, ts - row.ts), self.half_life_ms)
        return (row.score >> min(halvings, 62)) * (2 * self.half_life_ms - rest) // (2 * self.half_life_ms)

    def rate_of(self, known: FailureRate | None) -> int:
        """Millionths of the runs of a pool that fail wherever they run."""
        runs, failures = (0, 0) if known is None else (known.runs, known.failures)
        rate = (failures + FAILURES_BEFORE) * PPM // (runs + RUNS_BEFORE)
        return min(max(rate, RATE_LEAST), RATE_MOST)

    def _count(self, rates: FailureRates, end: Ended, failures: int = 0) -> None:
        known = rates.get(end.pool) or FailureRate(end.pool, end.ts, 0, 0)
        halvings = min(end.ts // self.half_life_ms - known.ts // self.half_life_ms, 62)
        runs, failed = (known.runs >> halvings) + 1, (known.failures >> halvings) + failures
        rates.put(end.pool, FailureRate(end.pool, end.ts, runs, failed))

    def _take_back(self, rates: FailureRates, end: Ended, failures: int) -> None:
        """Of what the pool's programs failed, so much was a node's."""
        if (known := rates.get(end.pool)) is not None:
            rates.put(end.pool, replace(known, failures=max(0, known.failures - failures)))

    def _weights(self, rows: Reputations, end: Ended, rate: int) -> list[int]:
        """Evidence of a failure against each of the nodes on which it may have come about."""
        found = [rows.get(node) for node in end.nodes]
        bad = [chance_of(0 if row is None else self.score_at(row, end.ts)) for row in found]
        fails, all_of_them = FAILS_WHEN_BAD + (PPM - FAILS_WHEN_BAD) * rate // PPM, sum(bad)
        others = [min(fails, rate + (all_of_them - one) * FAILS_WHEN_BAD // PPM) for one in bad]
        return [bits(fails, other) for other in others]

    def _blame(self, rows: Reputations, rates: FailureRates, row: Reputation, end: Ended, weight: int) -> None:
        """Adds a failure to what speaks against a node."""
        fresh = FailedThere(end.job, end.user, end.ts, weight, end.devices.get(row.node, ()))
        lately = (each for each in row.failed if end.ts - each.ts <= REMEMBERED_HALF_LIVES * self.half_life_ms)
        failed = (*lately, fresh)[-FAILED_MAX:]
        score = min(self.score_at(row, end.ts) + weight, MOST)
        after = Reputation(row.node, end.ts, score, failed[0].ts, row.runs + 1, failed)
        if self.standing(row, end.ts) is not NodeStanding.BAD and self.standing(after, end.ts) is NodeStanding.BAD:
            self._take_back(rates, end, sum(1 for _ in jobs_against(after)))
        rows.put(row.node, after)

    def _blame_less(self, rows: Reputations, row: Reputation, end: Ended, halves: int) -> None:
        """Keeps so many halves of what a job said of a node: it has failed elsewhere, too."""
        failed = tuple(
            replace(each, weight=each.weight * halves // 2) if each.job == end.job else each for each in row.failed
        )
        less = sum(before.weight - after.weight for before, after in zip(row.failed, failed, strict=True))
        score = max(0, self.score_at(row, end.ts) - less)
        rows.put(row.node, replace(row, ts=end.ts, score=score, failed=failed))


def reckon_by(policy: ReputationPolicy | None) -> Reckoning | None:
    """Reckoning as it is configured; None where it is not."""
    return None if policy is None else Reckoning(policy.half_life_seconds * 1000)


def chance_of(score: int) -> int:
    """The chance that a node with this evidence is bad, in millionths, to a whole bit."""
    odds = ODDS_WHEN_BAD << score // BIT
    return odds * PPM // (1000 + odds)


def bits(one: int, other: int) -> int:
    """Thousandths of a bit by which `one` is likelier than `other`, both above 0: log2(one / other), rounded down."""
    return (_log2(one) - _log2(other)) * BIT >> 10


def _log2(number: int) -> int:
    """Logarithm to base 2 of a positive integer in 1,024ths, by squaring: rounded down, the same on each machine."""
    whole = number.bit_length() - 1
    part, found = (number << 32) >> whole, 0
    for _ in range(10):
        part = part * part >> 32
        found <<= 1
        if part >> 33:
            part, found = part >> 1, found | 1
    return whole << 10 | found


def _blamed_by_others(row: Reputation, job: str) -> bool:
    return any(each.weight and each.job != job for each in row.failed)


def jobs_against(row: Reputation) -> Iterable[FailedThere]:
    """Failures that still say something of the node, oldest first."""
    return (each for each in row.failed if each.weight)


def common_devices(row: Reputation) -> tuple[int, ...]:
    """GPUs that each job had which failed there; none where some had no GPU, or only one job failed."""
    sets = [set(each.devices) for each in jobs_against(row) if not each.is_test]
    return tuple(sorted(set.intersection(*sets))) if len(sets) > 1 else ()


def partition_by_test(row: Reputation) -> tuple[list[FailedThere], list[FailedThere]]:
    """Failures of jobs that still say something of the node, and those of its tests; each oldest first."""
    found = list(jobs_against(row))
    return [each for each in found if not each.is_test], [each for each in found if each.is_test]

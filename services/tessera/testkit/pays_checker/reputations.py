"""
The rule of evidence: a node is suspected, or blamed for failures, just where the ends of runs say so, reckoned once
more from the records.

The arithmetic is this module's own, plain and slow: fractions, and a span for each number, within which any rounding
lies. What a span leaves open is not judged. Where an open question would change what is counted from then on, nothing
more is judged: a wrong count would accuse the committer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

from tessera.testkit.checker.report import Report
from tessera.testkit.pays_checker.blamed_nodes import COUNTED
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.base import run_id
from tessera_schemas.cluster.health import REPUTATION, HealthAction, HealthCause, HealthPolicy
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import RolesShifted
from tessera_schemas.work.run_ends import FAILURES_OF_NODES, Whose, end_of

FIRST_ENGINE = 10
HALF, MOST, POWER = Fraction(1, 2), 16, 2048
"""Part of its runs that a bad node fails, bits beyond which evidence says nothing more, and a power for logarithms."""
JOBS_KEPT, PLACES = 8, 3
"""Failures of a node that are kept, and places after whose failures a job says nothing of any."""
ROUNDING = Fraction(5, 1000)
"""Bits by which one step of the scheduler's may differ from ours."""
NOBODY, SUSPECTED, FAILURES = None, HealthCause.SUSPECTED, HealthCause.FAILURES
Causes = frozenset[HealthCause | None]


class _OpenQuestion(Exception):
    """A span does not say whether something is more than nothing."""


@dataclass(frozen=True, slots=True)
class BitRange:
    """Bits of evidence, between two bounds; never below 0."""

    low: Fraction = Fraction(0)
    high: Fraction = Fraction(0)

    def plus(self, other: "BitRange") -> "BitRange":
        """Sum of both, up to what evidence can say."""
        return BitRange(min(self.low + other.low, Fraction(MOST)), min(self.high + other.high, Fraction(MOST)))

    def less(self, other: "BitRange") -> "BitRange":
        """Difference of both, at least 0."""
        return BitRange(max(Fraction(0), self.low - other.high), max(Fraction(0), self.high - other.low))

    def times(self, part: Fraction) -> "BitRange":
        """Part of it, which the scheduler rounds down."""
        low, high = self.low * part, self.high * part
        return BitRange(max(Fraction(0), low - ROUNDING), high) if high else BitRange()

    @property
    def speaks(self) -> bool:
        """Whether there is any evidence."""
        if self.low == 0 < self.high:
            raise _OpenQuestion
        return self.high > 0


@dataclass(slots=True)
class SpokenFailure:
    """Evidence that a job, or array, gave against a node by failing there; or a test of the node."""

    job: str
    user: str
    ts: int
    weight: BitRange
    is_test: bool = False


@dataclass(slots=True)
class NodeEvidence:
    """All that was said of a node, and the sum as of `ts`."""

    ts: int
    sum: BitRange = field(default_factory=BitRange)
    said: list[SpokenFailure] = field(default_factory=list)

    def at(self, ts: int, half_life_ms: int) -> BitRange:
        """The sum later: half of it is left after each half-life, and in between it falls in a straight line."""
        halvings, rest = divmod(max(0, ts - self.ts), half_life_ms)
        part = Fraction(2 * half_life_ms - rest, 2 * half_life_ms * 2**halvings)
        return self.sum if part == 1 else self.sum.times(part)

    def is_blamed_by_others(self, job: str) -> bool:
        """Whether another job than this speaks against the node."""
        return any(each.weight.speaks for each in self.said if each.job != job)

    def causes(self, ts: int, half_life_ms: int) -> Causes:
        """Causes for which the node may be blamed: one, or two where rounding decides."""
        now, threshold = self.at(ts, half_life_ms), log2(Fraction(100))
        against = [each for each in self.said if each.weight.speaks] if now.high >= threshold - ROUNDING else []
        enough = len(against) >= (3 if len({each.user for each in against}) > 1 else 5)
        blamed = FAILURES if enough or any(each.is_test for each in against) else SUSPECTED
        is_good, is_blamed = now.low <= threshold + ROUNDING, now.high >= threshold - ROUNDING
        return Causes([*([NOBODY] if is_good else []), *([blamed] if is_blamed else [])])


@cache
def log2(number: Fraction) -> Fraction:
    """Logarithm to base 2 of a number from 1 on, rounded down: the length of a high power of it in bits."""
    return Fraction((number.numerator**POWER // number.denominator**POWER).bit_length() - 1, POWER)


def chance_of(bits: Fraction) -> Fraction:
    """Chance that a node is bad by so many whole bits of evidence; beforehand ten of 1,010 are."""
    odds = Fraction(2 ** (bits.numerator // bits.denominator), 100)
    return odds / (1 + odds)


@dataclass(slots=True)
class PoolRate:
    """Ends of runs of a pool and failures among them, halved at each turn of a half-life, in whole numbers."""

    ts: int
    runs: int = 0
    failures: int = 0

    @property
    def fails(self) -> Fraction:
        """Part of the runs that fail wherever they run."""
        rate = Fraction(self.failures + 20, self.runs + 1000)
        # To a millionth: a power of longer numbers would be slow, and says no more.
        return Fraction(min(max(rate, Fraction(1, 200)), Fraction(1, 5)) * 10**6 // 1, 10**6)


@dataclass(frozen=True, slots=True)
class EndedRun:
    """An end that counts: whose it is, and its nodes."""

    ts: int
    pool: str
    user: str
    job: str
    nodes: tuple[str, ...]


class Reckoned:
    """Evidence of all nodes, and the rates of all pools, by one half-life."""

    def __init__(self) -> None:
        self.half_life_ms = 1
        self.nodes, self._rates = dict[str, NodeEvidence](), dict[str, PoolRate]()

    def clear(self) -> None:
        """Forgets all that was counted."""
        self.nodes.clear()
        self._rates.clear()

    def failed(self, end: EndedRun) -> None:
        """Counts a failure against the nodes on which it may have come about."""
        known = [name for name, row in self.nodes.items() if any(each.job == end.job for each in row.said)]
        if {*known} & {*end.nodes}:
            return
        alone = [self.nodes[name] for name in known if not self.nodes[name].is_blamed_by_others(end.job)]
        places = 1 + len({each.ts for row in alone for each in row.said if each.job == end.job})
        weights = self._weights(end)
        self._count(end, failed=places == 1)
        kept = HALF if places <= PLACES else Fraction(0)
        for row in alone:
            row.sum, row.ts = row.at(end.ts, self.half_life_ms), end.ts
            for each in [each for each in row.said if each.job == end.job]:
                row.sum = row.sum.less(each.weight.times(1 - kept) if kept else each.weight)
                each.weight = each.weight.times(kept)
        for node, weight in zip(end.nodes, weights, strict=True):
            row = self.nodes.get(node, NodeEvidence(end.ts))
            if places > 1 and not row.is_blamed_by_others(end.job):
                weight = weight.times(2 * kept / 2 ** (places - 1))
            self._blame(node, row, end, weight)

    def lasted(self, end: EndedRun) -> None:
        """Counts for all nodes of a run that it ended well."""
        rate = self._rate_of(end)
        known = {node: self.nodes[node] for node in end.nodes if node in self.nodes}
        self._count(end)
        for node, row in known.items():
            if any(each.weight.speaks for each in row.said if each.job == end.job):
                continue
            row.sum, row.ts = row.at(end.ts, self.half_life_ms).less(_about(log2((1 - rate) / HALF))), end.ts
            if not row.sum.speaks:
                for each in row.said:
                    each.weight = BitRange()
                if end.ts - row.said[-1].ts >= self.half_life_ms:
                    del self.nodes[node]

    def tested(self, node: str, job: str, ts: int, passed: bool) -> None:
        """Counts the end of a test of the node."""
        row = self.nodes.get(node)
        if not passed:
            row = self.nodes.setdefault(node, NodeEvidence(ts))
            row.said = [*row.said, SpokenFailure(job, "", ts, BitRange(Fraction(MOST), Fraction(MOST)), is_test=True)][
                -JOBS_KEPT:
            ]
            row.sum, row.ts = BitRange(Fraction(MOST), Fraction(MOST)), ts
        elif row is not None:
            row.sum, row.ts = row.at(ts, self.half_life_ms).times(HALF), ts
            for each in row.said:
                each.weight = BitRange() if each.is_test else each.weight.times(HALF)

    def _blame(self, node: str, row: NodeEvidence, end: EndedRun, weight: BitRange) -> None:
        before = row.causes(end.ts, self.half_life_ms)
        row.sum, row.ts = row.at(end.ts, self.half_life_ms).plus(weight), end.ts
        lately = [each for each in row.said if end.ts - each.ts <= 2 * self.half_life_ms]
        row.said = [*lately, SpokenFailure(end.job, end.user, end.ts, weight)][-JOBS_KEPT:]
        self.nodes[node] = row
        after = row.causes(end.ts, self.half_life_ms)
        if FAILURES in after and before != {FAILURES}:
            if len(before) + len(after) > 2:
                raise _OpenQuestion
            # What a bad node failed is taken off what the programs of its pool did.
            rate = self._rates[end.pool]
            rate.failures = max(0, rate.failures - sum(each.weight.speaks for each in row.said))

    def _weights(self, end: EndedRun) -> list[BitRange]:
        rate, sums = self._rate_of(end), list[BitRange]()
        for node in end.nodes:
            row = self.nodes.get(node)
            sums.append(BitRange() if row is None else row.at(end.ts, self.half_life_ms))
        fails, found = HALF + HALF * rate, list[BitRange]()
        for at in range(len(sums)):
            others = [each for other, each in enumerate(sums) if other != at]
            low, high = (
                min(fails, rate + HALF * sum(map(chance_of, bounds), Fraction(0)))
                for bounds in ([each.low for each in others], [each.high for each in others])
            )
            less, more = _about(log2(_short(fails / high)), len(others)), _about(log2(_short(fails / low)), len(others))
            found.append(BitRange() if low == fails else BitRange(less.low, more.high))
        return found

    def _rate_of(self, end: EndedRun) -> Fraction:
        return self._rates.get(end.pool, PoolRate(end.ts)).fails

    def _count(self, end: EndedRun, failed: bool = False) -> None:
        rate = self._rates.setdefault(end.pool, PoolRate(end.ts))
        turns = end.ts // self.half_life_ms - rate.ts // self.half_life_ms
        rate.ts, rate.runs, rate.failures = end.ts, rate.runs // 2**turns + 1, rate.failures // 2**turns + failed


def _about(bits: Fraction, others: int = 0) -> BitRange:
    rounding = ROUNDING + Fraction(others, 1000)
    return BitRange(max(Fraction(0), bits - rounding), bits + rounding)


def _short(number: Fraction) -> Fraction:
    return max(Fraction(1), Fraction(number * 10**6 // 1, 10**6))


@dataclass(slots=True)
class RunBook:
    """A run as its records tell it; `places` are the nodes of its pods by rank, of ended ones too."""

    job: str
    queue: str
    user: str
    places: dict[int, str]
    started_ts: int | None = None
    revoked: Code | None = None
    stopped_ts: int = 0
    over: bool = False
    leaving: set[int] = field(default_factory=set)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes of all its pods."""
        return tuple(dict.fromkeys(self.places.values()))

    def has_lasted(self, steady_ms: int) -> bool:
        """Whether its end says that its nodes are good: it succeeded, or had held when others ended it."""
        if self.started_ts is None or self.revoked is None:
            return self.started_ts is not None
        by_node = self.revoked in COUNTED or end_of(self.revoked).whose is Whose.NODE
        return not by_node and self.stopped_ts - self.started_ts >= steady_ms


@dataclass(slots=True)
class TestBook:
    """Tests of a node, of the kind that is configured; `job` is the last, "" once it has ended; `void`: it is to say
    nothing."""

    job: str
    passes: int = 0
    failures: int = 0
    void: bool = False


class EvidenceRules:
    """Takes the records of each message between `open` and `end`; violations name the rule `blame`."""

    def __init__(self, report: Report, array_of: Mapping[str, str]) -> None:
        self._report, self._array_of, self._reckoned = report, array_of, Reckoned()
        self._policy, self._steady_ms = HealthPolicy(), 0
        self._pools, self._queues, self._users = dict[str, str](), dict[str, str](), dict[str, str]()
        self._runs, self._tests = dict[str, RunBook](), dict[str, TestBook]()
        self._tested: dict[str, str] = {}  # node by test job
        self._ended, self._blamed = set[str](), dict[str, HealthCause]()
        self._before: dict[str, Causes] = {}
        self.is_lost = False
        self._message: m.LedgerMessage

    def open(self, message: m.LedgerMessage) -> None:
        """Begins with a message."""
        self._message = message
        self._before = self._causes()

    def take(self, record: m.AnyRecord) -> None:
        """Follows a record."""
        try:
            getattr(self, f"_{record.kind}", lambda _: None)(record)
        except _OpenQuestion:
            self.is_lost = True

    def end(self) -> None:
        """Demands that each node is blamed as the evidence says, before this message's records or after them."""
        number, now = self._message.engine.rpartition("-")[2], self._causes()
        if not (number.isdecimal() and int(number) >= FIRST_ENGINE) or self._policy.reputation is None:
            return
        for node in sorted({*now, *self._before, *self._blamed}) if not self.is_lost else ():
            nothing = Causes([NOBODY])
            may_be, blamed = now.get(node, nothing) | self._before.get(node, nothing), self._blamed.get(node)
            ignored = blamed is None and any(
                cause is not None and self._policy.action_for(cause) is HealthAction.IGNORE for cause in may_be
            )
            text = f"{node} is blamed ({blamed}), and the ends of its runs say {sorted(map(str, may_be))}"
            self._report.demand(ignored or blamed in may_be, "blame", self._message.n, text)

    def _causes(self) -> dict[str, Causes]:
        try:
            rows = self._reckoned.nodes.items()
            return {node: row.causes(self._message.ts, self._reckoned.half_life_ms) for node, row in rows}
        except _OpenQuestion:
            self.is_lost = True
            return {}

    def _cited(self, index: int) -> f.AnyFact | None:
        return self._message.facts[index].fact if index < len(self._message.facts) else None

    # -- configuration and nodes

    def _config_set(self, r: m.ConfigSet) -> None:
        fact = self._cited(r.fact)
        if not isinstance(fact, f.ConfigProposed):
            return
        before, self._policy = self._policy, fact.body.health or HealthPolicy()
        self._steady_ms = fact.body.policy.steady_seconds * 1000
        self._pools |= {queue.name: queue.pool for queue in fact.body.queues}
        if before.test != self._policy.test:
            self._tests = {node: TestBook(row.job, void=True) for node, row in self._tests.items() if row.job}
        if self._policy.reputation is None:
            self._reckoned.clear()
            self.is_lost = False
        else:
            self._reckoned.half_life_ms = self._policy.reputation.half_life_seconds * 1000

    def _node_changed(self, r: m.NodeChanged) -> None:
        fact = self._cited(r.fact)
        if isinstance(fact, f.NodeSeen) and fact.gone and fact.name in self._reckoned.nodes:
            raise _OpenQuestion  # it is forgotten once nothing is held there, which is another book's business

    def _health_noted(self, r: m.HealthNoted) -> None:
        own = [each.ailment.cause for each in r.ailments if each.source == REPUTATION]
        self._blamed.pop(r.node, None)
        self._blamed |= {r.node: own[0]} if own else {}
        if r.overruled:
            self._reckoned.nodes.pop(r.node, None)
            if r.node in self._tests and self._tests[r.node].job:
                self._tests[r.node].void = True

    # -- jobs and runs

    def _job_queued(self, r: m.JobQueued) -> None:
        fact = self._cited(r.fact)
        if isinstance(fact, f.JobAdmitted | f.NodeTestProposed):
            self._queues[r.job_id], self._users[r.job_id] = fact.spec.queue, f"{fact.tenant}/{fact.spec.user}"
            self._ended.discard(r.job_id)
        if isinstance(fact, f.NodeTestProposed):
            last = self._tests.get(fact.node, TestBook(""))
            self._tests[fact.node] = TestBook(r.job_id, last.passes, last.failures)
            self._tested[r.job_id] = fact.node

    def _task_queued(self, r: m.TaskQueued) -> None:
        self._queues[r.job_id], self._users[r.job_id] = self._queues.get(r.array, ""), self._users.get(r.array, "")

    def _job_moved(self, r: m.JobMoved) -> None:
        self._queues[r.job_id] = r.queue
        for run in [run for run in self._runs.values() if run.job == r.job_id]:
            run.queue = r.queue

    def _allocated(self, r: m.Allocated) -> None:
        places = {place.rank: place.node for place in r.placements}
        run = RunBook(r.job_id, self._queues.get(r.job_id, ""), self._users.get(r.job_id, ""), places)
        self._runs[run_id(r.job_id, r.attempt)] = run

    def _grown(self, r: m.Grown) -> None:
        if (run := self._runs.get(r.run_id)) is not None:
            run.places |= {place.rank: place.node for place in r.placements}

    def _started(self, r: m.Started) -> None:
        if (run := self._runs.get(r.run_id)) is not None:
            run.started_ts = self._message.ts

    def _shrunk(self, r: m.Shrunk) -> None:
        run = self._runs.get(r.run_id)
        if run is not None:
            run.leaving |= {*r.ranks}
            if r.reason.code in FAILURES_OF_NODES and run.job not in self._ended:
                self._failed(run, r.reason, (run.places[rank] for rank in sorted(r.ranks)))

    def _roles_shifted(self, r: RolesShifted) -> None:
        if (run := self._runs.get(r.run_id)) is not None:
            run.leaving |= {*r.ranks}

    def _revoked(self, r: m.Revoked) -> None:
        run = self._runs.get(r.run_id)
        if run is None or (run.revoked is not None and not r.ended):
            return
        if run.revoked is None:
            run.stopped_ts = self._message.ts
        run.revoked = Code(r.reason.code)
        self._failed(run, r.reason, r.avoid)

    def _spared(self, r: m.Spared) -> None:
        if (run := self._runs.get(r.run_id)) is not None:
            run.revoked, run.stopped_ts = None, 0

    def _released(self, r: m.Released) -> None:
        run = self._runs.get(r.run_id)
        if run is not None and r.ranks:
            for rank in run.leaving.intersection(r.ranks):
                run.places.pop(rank, None)
        elif run is not None:
            del self._runs[r.run_id]
            if not run.over:
                self._lasted(run)

    def _finished(self, r: m.Finished) -> None:
        own = [run for run in self._runs.values() if run.job == r.job_id and not run.over]
        for run in own if r.phase == "succeeded" else ():
            run.over, run.revoked = True, None
            self._lasted(run)
        self._ended.add(r.job_id)
        if r.job_id in self._tested:
            self._test_ended(self._tested.pop(r.job_id), r)

    def _test_ended(self, node: str, r: m.Finished) -> None:
        row = self._tests.get(node)
        if row is None or row.job != r.job_id:
            return
        end = None if r.reason is None else end_of(r.reason.code)
        says = not row.void and r.phase != "cancelled"
        passed = says and r.phase == "succeeded"
        failed = says and not passed and end is not None and end.whose in (Whose.PROGRAM, Whose.NODE) and not end.notice
        row.job, row.void, row.passes, row.failures = "", False, row.passes + passed, row.failures + failed
        others = [each for name, each in self._tests.items() if name != node]
        is_believed = any(each.passes for each in (*others, row)) or not any(each.failures for each in others)
        if self._policy.reputation is not None and (passed or (failed and is_believed)):
            self._reckoned.tested(node, r.job_id, self._message.ts, passed)

    def _failed(self, run: RunBook, reason: Reason, nodes: Iterable[str]) -> None:
        there = tuple(dict.fromkeys(nodes))
        if self._policy.reputation is not None and reason.code in COUNTED and there and not self._is_test(run):
            self._reckoned.failed(self._end_of(run, there))

    def _lasted(self, run: RunBook) -> None:
        if self._policy.reputation is not None and run.has_lasted(self._steady_ms) and not self._is_test(run):
            self._reckoned.lasted(self._end_of(run, run.nodes))

    def _is_test(self, run: RunBook) -> bool:
        return run.job in self._tested

    def _end_of(self, run: RunBook, nodes: tuple[str, ...]) -> EndedRun:
        job = run.job if run.job in self._ended else self._array_of.get(run.job, run.job)
        return EndedRun(self._message.ts, self._pools.get(run.queue, ""), run.user, job, nodes)

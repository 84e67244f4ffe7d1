"""
The rules of the ladder and of stalls: each rung is the one that a job's failures in a row ask for, and a stall that was
seen has what the job wants of it.

What is counted against a job comes from `who_pays`, and what nodes are from the ledger's own facts.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.testkit.checker.report import Report
from tessera.testkit.pays_checker.who_pays import Payer
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.job import JobProgress
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import RungTaken, RunStalled, Stalled
from tessera_schemas.work.run_ends import RetryLadder

MAY_STAND = frozenset({Code.POD_FAILED, Code.HUNG, Code.STRAGGLES})
"""Failures after which a job may start again where it was."""


@dataclass(slots=True, eq=False)
class StandingRun:
    """A run that is held: the nodes of its pods, and how it is known to stall."""

    nodes: set[str]
    is_started: bool = False
    stops: int = 0
    stalled: Reason | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop, once or more."""
        return self.stops > 0


@dataclass(slots=True)
class FailedPlaces:
    """Nodes that failed a job; not `sure` where pods of an elastic run failed, whose nodes no record names."""

    nodes: dict[str, None] = field(default_factory=dict)
    sure: bool = True


class LadderRules:
    """Takes messages in order, before their records are counted; violations name the rules `ladder` and `stalls`."""

    def __init__(self, report: Report, payers: Mapping[str, Payer]) -> None:
        self._report, self._payers, self._n, self._ts, self._steady_seconds = report, payers, 0, 0, 0
        self._levels, self._labels = dict[str, str](), dict[str, Mapping[str, str]]()
        self._runs, self._failed = dict[str, StandingRun](), dict[str, FailedPlaces]()
        self._gone: set[str] = set()

    def take(self, message: m.LedgerMessage, record: m.AnyRecord, before: m.AnyRecord | None) -> None:
        """Judge a record, of which `before` is the one before it in the message, and follow it."""
        self._n, self._ts = message.n, message.ts
        facts = [taken.fact for taken in message.facts]
        if isinstance(before, m.Revoked):
            self._judge(before, record)
        elif isinstance(record, RungTaken):
            self._demand(False, f"{record.job_id} takes a rung, and no run of it was stopped just before")
        if isinstance(record, Stalled):
            self._stalls(record, facts)
        at = getattr(record, "fact", -1)
        cited = facts[at] if 0 <= at < len(facts) else None
        self._follow(record, cited)

    def end(self, message: m.LedgerMessage, last: m.AnyRecord | None) -> None:
        """Judge the last record of a message, and what it took in of stalls."""
        if isinstance(last, m.Revoked):
            self._judge(last, None)
        for fact in (taken.fact for taken in message.facts):
            if isinstance(fact, RunStalled) and fact.reason is not None:
                self._answered(fact, fact.reason)

    def _demand(self, holds: bool, text: str, rule: str = "ladder") -> None:
        self._report.demand(holds, rule, self._n, text)

    # -- the ladder

    def _judge(self, stop: m.Revoked, record: m.AnyRecord | None) -> None:
        """Demand the rung that is due after a stop, if any is, and no other."""
        job_id, places = stop.run_id.rpartition("-")[0], FailedPlaces()
        job, places = self._payers.get(job_id), self._failed.setdefault(job_id, places)
        rung = record if isinstance(record, RungTaken) and record.job_id == job_id else None
        ladder = None if job is None else job.spec.retry.ladder
        if job is None or ladder is None:
            self._demand(rung is None, f"{job_id} takes a rung, and has no ladder")
        elif rung is None:
            # Without a blamed node there is no rung; rules of the job, sick nodes, and ends of runs that stop for
            # another reason say themselves what is avoided.
            run = self._runs.get(stop.run_id)
            climbs = stop.reason.code in MAY_STAND and stop.then != "failed" and not stop.rule and not stop.ended
            climbs = climbs and run is not None and run.stops == 1
            self._demand(not (climbs and stop.avoid), f"{job_id} avoids {stop.avoid} without a rung of its ladder")
        else:
            goes_on = stop.then != "failed" and not stop.rule
            self._demand(goes_on, f"{job_id} takes a rung, and its stop is {stop.then} by rule {stop.rule}")
            run = self._runs.get(stop.run_id)
            foreign = set() if run is None else {*rung.nodes} - run.nodes
            self._demand(rung.nodes == stop.avoid and not foreign, f"{job_id} avoids {stop.avoid} by {rung}")
            self._height(stop, rung, ladder, 0 if self._is_fresh(job, stop) else job.strikes + job.troubles)
        places.nodes |= dict.fromkeys(stop.avoid)

    def _is_fresh(self, job: Payer, stop: m.Revoked) -> bool:
        return job.run_id == stop.run_id and job.has_held(self._steady_seconds)

    def _height(self, stop: m.Revoked, r: RungTaken, ladder: RetryLadder, failures: int) -> None:
        may_stand = stop.reason.code in MAY_STAND and failures < ladder.in_place
        text = (
            f"{r.job_id} takes rung {r.rung} ({r.count}) after {failures} failures in a row, {ladder.in_place} in place"
        )
        if r.rung == "in_place":
            self._demand(may_stand and r.count == failures + 1 and not r.nodes, text)
            return
        self._demand(not may_stand and bool(r.nodes), text)
        label = self._label(ladder) if ladder.domain_after else ""
        failed, is_sure = self._failed_in(r, label)
        worst = max(failed.values(), default=0)
        if r.rung == "elsewhere":
            self._demand(r.count == max(1, failures + 1 - ladder.in_place), text)
            is_low = worst < ladder.domain_after or not label or not is_sure
            self._demand(is_low, f"{r.job_id} avoids nodes alone, and {worst} of one {label} failed it")
            return
        count = failed.get(r.domain, 0)
        right = count == worst == r.count or (not is_sure and r.count >= ladder.domain_after)
        due = 0 < ladder.domain_after <= r.count
        self._demand(right and due, f"{r.job_id} avoids {r.domain} for {r.count} nodes, and {count} failed it there")

    def _label(self, ladder: RetryLadder) -> str:
        if ladder.level is None:
            return next(reversed(self._levels.values()), "")
        return self._levels.get(ladder.level, ladder.level)

    def _failed_in(self, r: RungTaken, label: str) -> tuple[Counter[str], bool]:
        """Nodes that failed the job by domain, of those where it failed just now; and whether that is all known."""
        places = self._failed[r.job_id]
        failed = {**places.nodes, **dict.fromkeys(r.nodes)}
        counts = Counter(f"{label}={self._labels.get(node, {}).get(label, '')}" for node in failed)
        here = {f"{label}={self._labels.get(node, {}).get(label, '')}" for node in r.nodes} - {f"{label}="}
        is_sure = places.sure and failed.keys().isdisjoint(self._gone) and len(failed) < 64
        return Counter({domain: counts[domain] for domain in here}), is_sure

    # -- stalls

    def _rule_of(self, run_id: str) -> JobProgress | None:
        job = self._payers.get(run_id.rpartition("-")[0])
        return None if job is None else job.spec.progress

    def _stalls(self, r: Stalled, facts: list[f.AnyFact]) -> None:
        run, rule = self._runs.get(r.run_id), self._rule_of(r.run_id)
        said = [a for a in facts if isinstance(a, RunStalled) and (a.run_id, a.reason) == (r.run_id, r.reason)]
        text = f"{r.run_id} stalls ({'no more' if r.reason is None else r.reason.code})"
        self._demand(bool(said), f"{text}, and nobody said so", "stalls")
        if run is None or rule is None:
            self._demand(False, f"{text}, and its job says nothing of progress", "stalls")
            return
        self._demand(run.is_started and not run.is_stopping, f"{text}, and does not run", "stalls")
        if r.reason is None:
            self._demand(run.stalled is not None, f"{text}, and did not before", "stalls")
            return
        news = run.stalled is None or run.stalled.code != r.reason.code
        self._demand(news, f"{text}, as was told before", "stalls")
        self._demand({*r.nodes} <= run.nodes, f"{text} on {r.nodes}, which are not its own", "stalls")
        self._demand(is_due(rule, r.reason), f"{text}, sooner than its job says", "stalls")
        warns = then_of(rule, r.reason) == "warn"
        self._demand(r.held_back is not warns, f"{text}, held back: {r.held_back}, only warned: {warns}", "stalls")

    def _answered(self, fact: RunStalled, reason: Reason) -> None:
        """Demand that a stall of which a job wants to hear is told, or ends its run."""
        run, rule = self._runs.get(fact.run_id), self._rule_of(fact.run_id)
        if run is None or rule is None or run.is_stopping or not run.is_started or not is_due(rule, reason):
            return
        told = run.stalled is not None and run.stalled.code == reason.code
        self._demand(told, f"{fact.run_id} stalls ({reason.code}), and nothing follows", "stalls")

    # -- what is followed

    def _follow(self, r: m.AnyRecord, cited: f.AnyFact | None) -> None:
        run = self._runs.get(getattr(r, "run_id", ""))
        if isinstance(r, m.Allocated):
            self._runs[f"{r.job_id}-{r.attempt}"] = StandingRun({place.node for place in r.placements})
        elif isinstance(r, m.ConfigSet) and isinstance(cited, f.ConfigProposed):
            self._levels = {level.name: level.label for level in cited.body.topology}
            self._steady_seconds = cited.body.policy.steady_seconds
        elif isinstance(r, m.NodeChanged) and isinstance(cited, f.NodeSeen):
            self._labels[cited.name] = cited.labels
            self._gone |= {cited.name} if cited.gone else set()
        elif isinstance(r, m.JobQueued) and isinstance(cited, f.JobAdmitted):
            before = () if cited.adopted is None else cited.adopted.failed_on
            self._failed[r.job_id] = FailedPlaces(dict.fromkeys(before))
        elif run is not None:
            self._follow_run(r, run)

    def _follow_run(self, r: m.AnyRecord, run: StandingRun) -> None:
        if isinstance(r, m.Grown):
            run.nodes |= {place.node for place in r.placements}
        elif isinstance(r, m.Started):
            run.is_started = True
        elif isinstance(r, m.Revoked):
            run.stops += 1
        elif isinstance(r, m.Spared):
            run.stops = 0
        elif isinstance(r, Stalled):
            run.stalled = r.reason
        elif isinstance(r, m.Shrunk):
            self._failed.setdefault(r.run_id.rpartition("-")[0], FailedPlaces()).sure = False
        elif isinstance(r, m.Released) and not r.ranks:
            del self._runs[r.run_id]


def then_of(rule: JobProgress, reason: Reason) -> str:
    """Word of the job about such a stall."""
    return rule.then if reason.code is Code.HUNG else rule.straggler_then


def is_due(rule: JobProgress, reason: Reason) -> bool:
    """Whether the job asks for such a stall, and it has lasted for so long."""
    hangs = reason.code is Code.HUNG
    least = rule.hang_seconds if hangs else rule.straggler_seconds
    # What was measured of GPUs shortens the wait of who asked for it alone.
    if hangs and rule.unused_seconds and reason.numbers.get("unused_seconds", 0) >= rule.unused_seconds:
        least = min(least, rule.unused_seconds)
    return (hangs or bool(rule.straggler_percent)) and reason.numbers.get("seconds", 0) >= least

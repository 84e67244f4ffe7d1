"""
Rule of stops: what runs is stopped only by a word that says stop, and what was merely observed stops a part of a pool.

The table here is the checker's own: for each reason, the evidence that its message has to carry.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.cluster.health import ACTIONS, REPUTATION, Ailment, HealthAction, HealthCause, HealthPolicy
from tessera_schemas.config import Policy
from tessera_schemas.facts import AnyFact
from tessera_schemas.job import JobProgress
from tessera_schemas.reasons import Code
from tessera_schemas.shard.records import RunStalled


class Stopped(NamedTuple):
    """A run that is to be stopped, as the checker's book has it."""

    job_id: str
    started: bool
    preemptible: bool
    nodes: frozenset[str]
    drained_queue: bool
    progress: JobProgress | None = None


Evidence = Callable[[m.LedgerMessage, m.Revoked, Stopped, Policy], bool]


def _facts_from(message: m.LedgerMessage, service: str) -> Iterator[AnyFact]:
    return (taken.fact for taken in message.facts if taken.service == service)


def _ended(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """The binder has seen its end, or that it cannot start, and said this very reason, or of one of several nodes."""
    for fact in _facts_from(message, "binder"):
        if isinstance(fact, f.RunEnded | f.BindFailed) and fact.run_id == r.run_id and fact.reason is not None:
            stall = {"code": Code.STARTS_STALL, "numbers": r.reason.numbers}
            told = fact.reason.code == Code.START_TIMEOUT and fact.reason.model_copy(update=stall) == r.reason
            if told or fact.reason == r.reason:
                return True
    return False


def _ended_well(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """The binder has seen that all its pods ended with 0, which a replica is not to do."""
    ends = (fact for fact in _facts_from(message, "binder") if isinstance(fact, f.RunEnded))
    return any(fact.run_id == r.run_id and fact.reason is None for fact in ends)


def _lost(message: m.LedgerMessage, r: m.Revoked) -> Iterator[f.RunLost]:
    for fact in _facts_from(message, "reclamation"):
        if isinstance(fact, f.RunLost) and (fact.run_id, fact.reason, fact.ranks) == (r.run_id, r.reason, ()):
            yield fact


def _proved(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """Reclamation has seen that a node of its own is lost, or that its own device is."""
    return any(run.nodes.intersection(fact.nodes) for fact in _lost(message, r))


def _gone(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """Reclamation has proof, or the cluster itself took the pods of a node away that is gone."""
    return _proved(message, r, run, policy) or _ended(message, r, run, policy)


def _overdue(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    return _ended(message, r, run, policy) or any(_lost(message, r))


def _unstarted(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """The run has ended by itself, or did not start in time for what its binder said."""
    return _ended(message, r, run, policy) or (not run.started and r.by == "deadline")


def _idle(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    return any(isinstance(fact, f.RunIdle) and fact.run_id == r.run_id for fact in _facts_from(message, "reclamation"))


def _stalled(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """Reclamation has seen no progress, or too little of a pod, for as long as the job says, which wants it to stop."""
    rule, facts = run.progress, [fact for fact in _facts_from(message, "reclamation") if isinstance(fact, RunStalled)]
    if rule is None or not run.started or not any((fact.run_id, fact.reason) == (r.run_id, r.reason) for fact in facts):
        return False
    slow = rule.straggler_seconds, rule.straggler_then
    seconds, then = (rule.hang_seconds, rule.then) if r.reason.code is Code.HUNG else slow
    if r.reason.code is Code.HUNG and rule.unused_seconds and "unused_seconds" in r.reason.numbers:
        unused = rule.unused_seconds <= r.reason.numbers["unused_seconds"]
        seconds = min(seconds, rule.unused_seconds) if unused else seconds
    return then != "warn" and r.reason.numbers.get("seconds", 0) >= seconds and r.observed in run.nodes


def _drained(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """An operator evicts a node of it; or one is cordoned, and room elsewhere is kept for it in the same message."""
    facts = [taken.fact for taken in message.facts]
    if any(isinstance(fact, f.DrainRequested) and fact.evict and fact.node in run.nodes for fact in facts):
        return True
    marks = [mark for mark in message.records if isinstance(mark, m.EarmarkSet) and mark.owner == run.job_id]
    elsewhere = any(mark.cause == "cordon" and r.observed not in _nodes(mark) for mark in marks)
    return policy.cordoned == "restart" and run.preemptible and elsewhere and _proved(message, r, run, policy)


def _nodes(mark: m.EarmarkSet) -> set[str]:
    return {place.node for place in mark.placements}


def _by_queue(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    return run.drained_queue


def _elsewhere(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """
    Judged by other rules: whoever asked for a cancel or a requeue, targets of attached jobs, and plans, which are whole
    or not at all.
    """
    return True


WORDS: dict[Code, Evidence] = {
    Code.CANCELLED: _elsewhere,
    Code.REQUEUE_ASKED: _elsewhere,
    Code.SCALED_DOWN: _elsewhere,
    Code.NEW_REVISION: _elsewhere,
    Code.REPLICA_ENDED: _ended_well,
    Code.TARGET_ENDED: _elsewhere,
    Code.TARGET_NOT_RUNNING: _elsewhere,
    Code.PREEMPTED: _elsewhere,
    Code.RECLAIMED: _elsewhere,
    Code.DEFRAGMENTED: _elsewhere,
    Code.IDLE: _idle,
    Code.HUNG: _stalled,
    Code.STRAGGLES: _stalled,
    Code.TIME_LIMIT: _overdue,
    Code.NODE_LOST: _gone,
    Code.NODE_SHRUNK: _proved,
    Code.NODE_DRAINED: _drained,
    Code.QUEUE_DRAINED: _by_queue,
    Code.RESERVATION_BEGINS: _elsewhere,
    Code.RESERVATION_OVER: _elsewhere,
}
"""Words that stop a run which works; for any other reason it has ended by itself, or never began."""
OBSERVED = (Code.NODE_LOST, Code.NODE_SHRUNK, Code.NODE_DRAINED)


def has_word(message: m.LedgerMessage, r: m.Revoked, run: Stopped, policy: Policy) -> bool:
    """Whether the message carries what allows it to stop the run for that reason."""
    return WORDS.get(Code(r.reason.code), _unstarted)(message, r, run, policy)


def counts(message: m.LedgerMessage, r: m.Revoked) -> str:
    """The node whose seeming loss or stall stops the run, without an operator's word; "" for any other word."""
    lost = list(_lost(message, r)) if r.reason.code in OBSERVED else []
    if not lost or any(fact.told for fact in lost):
        return r.observed if WORDS.get(Code(r.reason.code)) is _stalled else ""
    return r.observed if r.reason.code is Code.NODE_DRAINED else lost[0].nodes[0]


BY_TEST, TESTS_MAX = "test job ", 4
"""How evidence begins that a test gave, and how many tests of a shard live at a time."""


class SickNodes:
    """Words of sources about each node, and which nodes are out for it."""

    def __init__(self, report: Report) -> None:
        self._report, self._n = report, 0
        self._said: dict[tuple[str, str], list[tuple[Ailment, ...]]] = {}
        self._spoke: dict[tuple[str, str], None] = {}
        self._known: dict[str, m.HealthNoted] = {}
        self.policy, self.out = HealthPolicy(), set[str]()
        self._tests: dict[str, tuple[str, str]] = {}
        """Node and end of each test job; "" while it lives."""

    def take(self, message: m.LedgerMessage) -> None:
        """Takes the words of a message, before its records."""
        self._n = message.n
        for key in self._spoke:
            self._said[key] = self._said[key][-1:]
        self._spoke = {}
        for taken in message.facts:
            if isinstance(taken.fact, f.HealthSeen | f.HealthReported):
                key = taken.fact.node, taken.fact.source
                self._said[key], self._spoke[key] = [*self._said.get(key, []), taken.fact.ailments], None

    def noted(self, r: m.HealthNoted) -> None:
        """Demand that each ailment is the last word of its source, or one of those in this very message."""
        self._known[r.node] = r
        told = [each for each in r.ailments if each.source != REPUTATION]  # the committer's own
        unsaid = [a for a in told if not any(a.ailment in word for word in self._said.get((r.node, a.source), ()))]
        self._report.demand(not unsaid, "health", self._n, f"{r.node}: nobody says {unsaid[:1]}")
        own = [each.ailment.evidence for each in r.ailments if each.source == REPUTATION]
        named = [evidence.split()[2] for evidence in own if evidence.startswith(BY_TEST)]
        wrong = [job for job in named if self._tests.get(job) != (r.node, "failed")]
        self._report.demand(not wrong, "health", self._n, f"{r.node}: no test {wrong} of it has failed")

    def _is_suspect(self, node: str) -> bool:
        known = self._known.get(node)
        causes = [] if known is None or known.overruled else [each.ailment.cause for each in known.ailments]
        return HealthCause.SUSPECTED in causes

    def test_queued(self, fact: f.NodeTestProposed) -> None:
        """Demand that a test is the configured one, of a suspect, and that few live at a time, one of each node."""
        test, (role,) = self.policy.test, fact.spec.roles
        asked = (fact.tenant, fact.spec.queue, fact.spec.time_limit_seconds, role.template)
        same = test is not None and asked == (test.tenant, test.queue, test.time_limit_seconds, test.template)
        self._report.demand(same, "health", self._n, f"{fact.node}: a test that is not configured")
        self._report.demand(self._is_suspect(fact.node), "health", self._n, f"{fact.node} is tested, and no suspect")
        alive = [node for node, end in self._tests.values() if not end]
        few = len(alive) < TESTS_MAX and fact.node not in alive
        self._report.demand(few, "health", self._n, f"{fact.node} is tested beside {alive}")
        self._tests[fact.job_id] = fact.node, ""

    def test_placed(self, r: m.Allocated) -> None:
        """Demand that a test stands on its node alone, while that is suspected."""
        if (known := self._tests.get(r.job_id)) is not None:
            there = {place.node for place in r.placements} == {known[0]}
            self._report.demand(there, "health", self._n, f"{r.job_id} tests {known[0]}, and stands elsewhere")
            suspect = self._is_suspect(known[0])
            self._report.demand(suspect, "health", self._n, f"{r.job_id} starts on {known[0]}, which is no suspect")

    def test_ended(self, r: m.Finished) -> None:
        """Notes how a test job has ended."""
        if (known := self._tests.get(r.job_id)) is not None:
            self._tests[r.job_id] = known[0], r.phase

    def _action(self, node: str) -> HealthAction:
        known = self._known.get(node)
        if known is None or known.overruled or not known.ailments:
            return HealthAction.IGNORE
        return max((self.policy.action_for(each.ailment.cause) for each in known.ailments), key=ACTIONS.index)

    def asks(self, nodes: Iterable[str]) -> bool:
        """Whether a node of a run is to be emptied for its health."""
        return any(self._action(node) in (HealthAction.EVICT, HealthAction.FENCE) for node in nodes)

    def drained(self, r: m.NodeDrained, nodes: Mapping[str, f.NodeSeen]) -> None:
        """Demand that a node is closed for its health only if it is sick and few of its pool are, and opened if not."""
        (self.out.add if r.by and not r.undo else self.out.discard)(r.node)
        if not r.by or r.node not in nodes or nodes[r.node].gone:
            return
        sick = self._action(r.node) in (HealthAction.DRAIN, HealthAction.EVICT, HealthAction.FENCE)
        self._report.demand(sick is not r.undo, "health", self._n, f"{r.node} is {'opened' if sick else 'closed'}")
        there = {name for name, seen in nodes.items() if not seen.gone and seen.pool == nodes[r.node].pool}
        few = r.undo or len(self.out & there) <= max(1, len(there) * self.policy.out_percent // 100)
        self._report.demand(few, "health", self._n, f"{r.node} is out with {len(self.out & there)} of {len(there)}")


class Brake:
    """Stops by observation within the policy's time, by pool: when, the node, the job and its weight."""

    def __init__(self) -> None:
        self._stops: dict[str, list[tuple[int, str, str, int]]] = {}

    def stop(self, pool: str, stop: tuple[int, str, str, int], held: Iterable[tuple[int, int]], policy: Policy) -> bool:
        """
        Count a stop; whether it was within what may be stopped at once.

        `held` is the number of runs and their GPUs in thousandths by queue of the pool.
        """
        ts, node, job_id, part = stop
        since = ts - policy.mass_stop_seconds * 1000
        others = [old for old in self._stops.get(pool, []) if old[0] > since and old[2] != job_id]
        self._stops[pool] = [*others, stop]
        alone = all(of == node for _, of, _, _ in others)
        stopped, total = part + sum(weight for *_, weight in others), sum(max(each) for each in held)
        return alone or stopped * 100 <= policy.mass_stop_percent * total

    def ended(self, job_id: str) -> None:
        """The job has ended: what was stopped of it counts no more."""
        for pool, stops in self._stops.items():
            self._stops[pool] = [stop for stop in stops if stop[2] != job_id]

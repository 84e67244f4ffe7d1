"""
Rules of nodes that take nothing new for a while, never without a cause: those on which pods do not start or last, and
those whose MIG geometry is changed; of nodes that are turned off; and of spare nodes.
"""

from collections.abc import Iterable

from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.base import run_id
from tessera_schemas.cluster.fencing import FENCED_WITHIN_MS, FenceAnswered, FenceDue, Fencing
from tessera_schemas.cluster.health import HealthAction, HealthPolicy
from tessera_schemas.cluster.mig_changes import MigChangeProposed
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.run_ends import DISPLACING

LONGEST_MS = 300_000


class BackoffRules:
    """Follows the back-offs of nodes by the records alone, and in `cut` the nodes whose MIG geometry is changed."""

    def __init__(self, report: Report, cut: dict[str, bool]) -> None:
        self._report, self._n, self._ts = report, 0, 0
        self._backoffs: dict[str, m.NodeBackedOff] = {}
        self._nodes: dict[str, frozenset[str]] = {}
        self._cut = cut
        self._attempts: dict[str, int] = {}
        self._stopped: set[str] = set()  # nodes of runs that this message stops
        self._at_work: set[str] = set()  # jobs whose pods work already where this message allocates them
        self._message: m.LedgerMessage

    def take(self, message: m.LedgerMessage) -> None:
        """Checks the records of a message in order."""
        self._n, self._ts, self._stopped, self._message = message.n, message.ts, set(), message
        self._at_work.clear()
        for record in message.records:
            getattr(self, f"_{record.kind}", lambda _: None)(record)

    def _pods_taken_over(self, r: m.PodsTakenOver) -> None:
        self._at_work.add(r.job_id)

    def _allocated(self, r: m.Allocated) -> None:
        self._attempts[r.job_id] = r.attempt
        self._place(run_id(r.job_id, r.attempt), r.placements)

    def _grown(self, r: m.Grown) -> None:
        self._place(r.run_id, r.placements)

    def _revoked(self, r: m.Revoked) -> None:
        self._stopped |= self._nodes.get(r.run_id, frozenset())

    def _started(self, r: m.Started) -> None:
        self._end(r.run_id, lasted=False)

    def _finished(self, r: m.Finished) -> None:
        attempt = self._attempts.pop(r.job_id, 0)
        if r.phase == "succeeded":
            self._end(run_id(r.job_id, attempt), lasted=True)

    def _released(self, r: m.Released) -> None:
        if not r.ranks:
            self._nodes.pop(r.run_id, None)

    def _node_changed(self, r: m.NodeChanged) -> None:
        fact = self._message.facts[r.fact].fact
        if isinstance(fact, f.NodeSeen) and fact.gone:
            self._backoffs.pop(fact.name, None)
        if isinstance(fact, f.NodeSeen) and not self._cut.get(fact.name, False):
            self._cut.pop(fact.name, None)

    def _place(self, name: str, places: tuple[Placement, ...]) -> None:
        nodes = frozenset(place.node for place in places)
        self._nodes[name] = self._nodes.get(name, frozenset()) | nodes
        closed = sorted(node for node in nodes if node in self._backoffs and self._backoffs[node].until_ts > self._ts)
        cut = sorted(nodes & self._cut.keys())
        works = name.rpartition("-")[0] in self._at_work
        self._demand(works or not closed, f"{name}: nodes {closed} take no pods for now")
        self._demand(works or not cut, f"{name}: nodes {cut} are being cut")

    def _mig_change_begun(self, r: m.MigChangeBegun) -> None:
        held = sorted(name for name, nodes in self._nodes.items() if r.node in nodes)
        self._demand(not held, f"{r.node} is cut to {r.config} under {held}")
        self._demand(r.node not in self._cut, f"{r.node} is cut twice at a time")
        asked = [taken.fact for taken in self._message.facts if isinstance(taken.fact, MigChangeProposed)]
        proposed = {(fact.node, fact.config, fact.job_id) for fact in asked}
        self._demand((r.node, r.config, r.job_id) in proposed, f"nobody proposed to cut {r.node} to {r.config}")
        self._cut[r.node] = True

    def _mig_change_ended(self, r: m.MigChangeEnded) -> None:
        self._demand(self._cut.get(r.node, False), f"{r.node} was not being cut")
        self._cut[r.node] = r.undo

    def _node_backed_off(self, record: m.NodeBackedOff) -> None:
        node, before = record.node, self._backoffs.get(record.node)
        self._demand(node in self._stopped, f"{node} backs off, but no run of this message stops there")
        kept = before is None or before.until_ts <= self._ts or record.until_ts == before.until_ts
        self._demand(kept, f"{node} is kept longer while it backs off")
        self._demand(record.until_ts <= self._ts + LONGEST_MS, f"{node} is kept from use for too long")
        self._backoffs[node] = record

    def _end(self, name: str, lasted: bool) -> None:
        """A run started, or lasted: its nodes are well, of suspects for failed programs only where it lasted."""
        for node in self._nodes.get(name, ()):
            if node in self._backoffs and (lasted or not self._backoffs[node].failed):
                del self._backoffs[node]

    def _demand(self, holds: bool, text: str) -> None:
        self._report.demand(holds, "backoff", self._n, text)


class FenceRules:
    """
    A node is turned off only as a fact asked for it and while it does not answer, or for its health, once at a time,
    and no more of a pool within an hour than is configured, unless an operator asked. It is off only while silent.
    """

    def __init__(self, report: Report) -> None:
        self._report, self._n = report, 0
        self._nodes: dict[str, f.NodeSeen] = {}
        self._open: dict[str, str] = {}
        self._asked: dict[str, tuple[str, int]] = {}  # pool, and when
        self._fencing: Fencing | None = None

    def take(self, message: m.LedgerMessage) -> None:
        """Checks the records of a message in order."""
        self._n = message.n
        for record in message.records:
            if isinstance(record, m.ConfigSet | m.NodeChanged):
                fact = message.facts[record.fact].fact
                if isinstance(fact, f.ConfigProposed):
                    self._fencing = fact.body.fencing
                elif isinstance(fact, f.NodeSeen):
                    self._nodes[fact.name] = fact
            elif isinstance(record, m.FenceAsked):
                self._ask(record, message)
            elif isinstance(record, m.FenceEnded):
                self._end(record, message)

    def _ask(self, record: m.FenceAsked, message: m.LedgerMessage) -> None:
        node = record.node
        asked = [taken.fact for taken in message.facts if isinstance(taken.fact, FenceDue)]
        due = (node, record.cause is not None) in {(fact.node, fact.sick) for fact in asked}
        self._demand(due, f"nobody asked to fence {node}")
        seen, is_there = self._nodes.get(node), record.cause is not None or self._is_silent(node)
        self._demand(is_there, f"{node} is to be fenced, and answers or is not there")
        self._demand(node not in self._open, f"{node} is fenced twice at a time")
        self._open[node] = record.request
        if seen is None:
            return
        since = message.ts - FENCED_WITHIN_MS
        lately = {name for name, (pool, ts) in self._asked.items() if pool == seen.pool and ts > since} - {node}
        there = sum(other.pool == seen.pool and not other.gone for other in self._nodes.values())
        percent = 0 if self._fencing is None else self._fencing.at_most_percent
        within = len(lately) < max(1, there * percent // 100)
        self._demand(bool(percent) and (within or bool(record.by)), f"{node}: too many are fenced in an hour")
        self._asked[node] = seen.pool, message.ts

    def _is_silent(self, node: str) -> bool:
        seen = self._nodes.get(node)
        return seen is not None and not (seen.ready or seen.cordoned or seen.gone)

    def _end(self, record: m.FenceEnded, message: m.LedgerMessage) -> None:
        node, outcome = record.node, record.outcome
        asked = self._open.pop(node, "")
        self._demand(asked == record.request or outcome == "undone", f"{node}: an end of a request that is not open")
        self._demand(outcome != "off" or self._is_silent(node), f"{node} is said to be off, and answers")
        if outcome in ("off", "failed"):
            answers = [taken.fact for taken in message.facts if isinstance(taken.fact, FenceAnswered)]
            said = (node, record.request, outcome) in {(fact.node, fact.request, fact.outcome) for fact in answers}
            self._demand(said, f"{node}: nobody said that its fence is {outcome}")

    def _demand(self, holds: bool, text: str) -> None:
        self._report.demand(holds, "fence", self._n, text)


class SickFences:
    """
    A node is turned off for its health only while a cause that asks for it keeps it out, once until it was well, and
    after each gang there was told to stop, and had the time for notice and grace that its job asked for.
    """

    def __init__(self, report: Report) -> None:
        self._report, self._policy = report, HealthPolicy()
        self._ailments: dict[str, m.HealthNoted] = {}
        self._out, self._asked = set[str](), set[str]()
        self._seconds: dict[str, int] = {}  # of notice and grace, by job
        self._gangs: dict[str, dict[int, str]] = {}  # by run the node of each rank
        self._told: dict[str, int] = {}  # when each run was last told to stop
        self._message: m.LedgerMessage

    def take(self, message: m.LedgerMessage) -> None:
        """Checks the records of a message in order."""
        self._message = message
        for record in message.records:
            getattr(self, f"_{record.kind}", lambda _: None)(record)

    def _cited(self, at: int) -> f.AnyFact | None:
        # A false message may cite a fact that it does not have, which the invariant checker tells.
        return self._message.facts[at].fact if 0 <= at < len(self._message.facts) else None

    def _config_set(self, r: m.ConfigSet) -> None:
        fact = self._cited(r.fact)
        if isinstance(fact, f.ConfigProposed):
            self._policy = fact.body.health or HealthPolicy()

    def _job_queued(self, r: m.JobQueued) -> None:
        fact = self._cited(r.fact)
        if isinstance(fact, f.JobAdmitted | f.NodeTestProposed):
            notice = fact.spec.checkpoint.notice_seconds if fact.spec.checkpoint else 0
            self._seconds[r.job_id] = notice + fact.spec.termination_grace_seconds

    def _task_queued(self, r: m.TaskQueued) -> None:
        self._seconds[r.job_id] = self._seconds.get(r.array, 0)

    def _health_noted(self, r: m.HealthNoted) -> None:
        self._ailments[r.node] = r
        if not r.ailments:
            self._asked.discard(r.node)

    def _node_drained(self, r: m.NodeDrained) -> None:
        (self._out.add if r.by and not r.undo else self._out.discard)(r.node)

    def _allocated(self, r: m.Allocated) -> None:
        self._gangs[run_id(r.job_id, r.attempt)] = {place.rank: place.node for place in r.placements}

    def _revoked(self, r: m.Revoked) -> None:
        self._told[r.run_id] = self._message.ts

    def _spared(self, r: m.Spared) -> None:
        self._told.pop(r.run_id, None)

    def _finished(self, r: m.Finished) -> None:
        """Ends what it still holds: that has stopped, or waits for the time that a cancelled job is given."""
        for run in [name for name in self._gangs if name.rpartition("-")[0] == r.job_id]:
            self._told.setdefault(run, self._message.ts)
        self._seconds.pop(r.job_id, None)

    def _released(self, r: m.Released) -> None:
        held = self._gangs.pop(r.run_id, {})
        if r.ranks:
            self._gangs[r.run_id] = {rank: node for rank, node in held.items() if rank not in r.ranks}
        else:
            self._told.pop(r.run_id, None)

    def _fence_asked(self, r: m.FenceAsked) -> None:
        known = self._ailments.get(r.node)
        causes = () if known is None or known.overruled else {each.ailment.cause for each in known.ailments}
        asks = r.cause is not None and self._policy.action_for(r.cause) is HealthAction.FENCE
        is_asked = asks and r.cause in causes and r.node in self._out
        self._demand(r.cause is None or is_asked, f"{r.node} is to be turned off for {r.cause}")
        if r.cause is None:
            return
        self._demand(r.node not in self._asked, f"{r.node} is turned off again, and was not well since")
        self._asked.add(r.node)
        for run in sorted(name for name, held in self._gangs.items() if r.node in held.values()):
            told, seconds = self._told.get(run), self._seconds.get(run.rpartition("-")[0], 0)
            had_time = told is not None and self._message.ts >= told + seconds * 1000
            self._demand(had_time, f"{r.node} is to be turned off under {run}, which has time to save its work")

    def _demand(self, holds: bool, text: str) -> None:
        self._report.demand(holds, "fence", self._message.n, text)


class SpareRules:
    """
    Nothing starts on a spare, or is promised its room, but a job under whose last run a node broke.

    Which nodes are spares this follows from what each is seen to be and from what was placed. Of whether a node takes
    anything it knows a part: it may take too few nodes for spares, and none for one that is not.
    """

    def __init__(self, report: Report) -> None:
        self._report, self._n = report, 0
        self._spares: dict[str, int] = {}
        self._nodes: dict[str, f.NodeSeen] = {}
        self._out: set[str] = set()
        self._sick: set[str] = set()
        self._runs: dict[str, dict[int, str]] = {}  # by run the node of each rank
        self._marks: dict[str, m.EarmarkSet] = {}
        self._displaced: set[str] = set()
        self._given_back: set[str] = set()  # nodes of earmarks that ended in this message
        self._at_work: set[str] = set()
        self._message: m.LedgerMessage

    def take(self, message: m.LedgerMessage) -> None:
        """Checks the records of a message in order."""
        self._n, self._message = message.n, message
        self._given_back.clear()
        self._at_work.clear()
        for record in message.records:
            getattr(self, f"_{record.kind}", lambda _: None)(record)

    def _config_set(self, r: m.ConfigSet) -> None:
        fact = self._message.facts[r.fact].fact
        if isinstance(fact, f.ConfigProposed):
            self._spares = {pool.name: pool.spare_nodes for pool in fact.body.pools if pool.spare_nodes}

    def _node_changed(self, r: m.NodeChanged) -> None:
        fact = self._message.facts[r.fact].fact
        if isinstance(fact, f.NodeSeen):
            self._nodes[fact.name] = fact

    def _node_drained(self, r: m.NodeDrained) -> None:
        (self._out.discard if r.undo else self._out.add)(r.node)

    def _health_noted(self, r: m.HealthNoted) -> None:
        (self._sick.add if r.ailments and not r.overruled else self._sick.discard)(r.node)

    def _pods_taken_over(self, r: m.PodsTakenOver) -> None:
        self._at_work.add(r.job_id)

    def _allocated(self, r: m.Allocated) -> None:
        self._judge(r.job_id, r.job_id, r.placements)
        self._displaced.discard(r.job_id)
        self._runs[run_id(r.job_id, r.attempt)] = {place.rank: place.node for place in r.placements}

    def _grown(self, r: m.Grown) -> None:
        self._judge(r.run_id, "", r.placements)
        self._runs.setdefault(r.run_id, {}).update({place.rank: place.node for place in r.placements})

    def _earmark_set(self, r: m.EarmarkSet) -> None:
        if r.cause != "restart":  # its own place, on nodes that were its own until just now
            self._judge(f"the earmark of {r.owner}", r.owner, r.placements)
        self._marks[r.owner] = r

    def _earmark_ended(self, r: m.EarmarkEnded) -> None:
        mark = self._marks.pop(r.owner, None)
        self._given_back |= _nodes_of(() if mark is None else mark.placements)

    def _released(self, r: m.Released) -> None:
        held = self._runs.pop(r.run_id, {})
        if r.ranks:
            self._runs[r.run_id] = {rank: node for rank, node in held.items() if rank not in r.ranks}

    def _requeued(self, r: m.Requeued) -> None:
        (self._displaced.add if r.reason.code in DISPLACING else self._displaced.discard)(r.job_id)

    def _judge(self, what: str, job_id: str, places: Iterable[Placement]) -> None:
        if not self._spares or job_id in self._displaced or job_id in self._at_work:
            return
        taken = {node for held in self._runs.values() for node in held.values()}
        taken = taken.union(*(_nodes_of(mark.placements) for mark in self._marks.values()))
        for name in sorted(_nodes_of(places) - taken - self._given_back - self._sick):
            seen = self._nodes.get(name)
            if seen is not None and not seen.others.gpus:
                free = [n for n in self._nodes.values() if n.pool == seen.pool and n.ready and not n.gone]
                free = [n for n in free if n.name not in taken and n.name not in self._out]
                before = sum((-n.gpus, n.name) < (-seen.gpus, name) for n in free)
                is_spare = before < self._spares.get(seen.pool, 0)
                self._report.demand(not is_spare, "spare", self._n, f"{what}: {name} is a spare of {seen.pool}")


def _nodes_of(places: Iterable[Placement]) -> set[str]:
    return {place.node for place in places}

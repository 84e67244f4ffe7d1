"""
The rule of nodes that are blamed for failures: no more jobs speak against a node than failed there, and what is kept
from use as a suspect takes only trials.

What is demanded here are the jobs and users that the evidence must rest on; `reputations` makes its arithmetic again.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from tessera.testkit.checker.report import Report
from tessera.testkit.pays_checker.who_pays import Payer
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.cluster.health import REPUTATION, HealthCause, HealthPolicy
from tessera_schemas.reasons import Code
from tessera_schemas.work.placement import Placement

COUNTED = (Code.POD_FAILED, Code.POD_REFUSED_BY_NODE)
"""Ends of pods that speak against the nodes of these pods."""
JOBS_MIN, JOBS_OF_ONE_MIN = 3, 5
"""A bad node has failed so many jobs of several users, or of one."""
BY_TEST = "test job "
OF_JOBS = re.compile(r"(\d+) jobs failed there")


@dataclass(slots=True)
class Sick:
    """Health of a node that is not well."""

    node: str
    since_ts: int
    cause: HealthCause | None = None  # for which it is blamed
    is_suspect: bool = False


@dataclass(slots=True)
class Failures:
    """When each job, or array, last failed on a node, and whose it is."""

    jobs: dict[str, tuple[int, str]] = field(default_factory=dict)

    def lately(self, half_life_seconds: int) -> list[str]:
        """Users of the jobs that failed no longer than two half-lives before the newest, one for each job."""
        newest = max((ts for ts, _ in self.jobs.values()), default=0)
        return [user for ts, user in self.jobs.values() if newest - ts <= 2 * half_life_seconds * 1000]


class BlamedNodes:
    """Takes records in order; violations name the rule `blame`."""

    def __init__(self, report: Report, payers: Mapping[str, Payer], array_of: Mapping[str, str]) -> None:
        self._report, self._payers, self._array_of, self._n, self._ts = report, payers, array_of, 0, 0
        self._policy: HealthPolicy | None = None
        self._nodes, self._sick = dict[str, f.NodeSeen](), dict[str, Sick]()
        self._failures, self._users, self._limits = dict[str, Failures](), dict[str, str](), dict[str, int]()
        self._places: dict[str, dict[int, Placement]] = {}

    def take(self, message: m.LedgerMessage, record: m.AnyRecord) -> None:
        """Judge a record, and follow it."""
        self._n, self._ts = message.n, message.ts
        if isinstance(record, m.HealthNoted):
            self._noted(record)
        elif isinstance(record, m.Allocated):
            used = any(
                isinstance(r, m.EarmarkEnded | m.PodsTakenOver) and _of(r) == record.job_id for r in message.records
            )
            self._starts(record, used)
            self._places[f"{record.job_id}-{record.attempt}"] = {place.rank: place for place in record.placements}
        elif isinstance(record, m.Grown) and record.run_id in self._places:
            self._places[record.run_id] |= {place.rank: place for place in record.placements}
        elif isinstance(record, m.Revoked | m.Shrunk) and record.reason.code in COUNTED:
            self._failed(record)
        elif isinstance(record, m.JobUpdated) and record.changes.time_limit_seconds is not None:
            self._limits[record.job_id] = record.changes.time_limit_seconds
        elif 0 <= (at := getattr(record, "fact", -1)) < len(message.facts):
            self._cited(record, message.facts[at].fact)

    def _demand(self, holds: bool, text: str) -> None:
        self._report.demand(holds, "blame", self._n, text)

    # -- what is demanded

    def _noted(self, r: m.HealthNoted) -> None:
        """Demand that a node is blamed for no more than failed there."""
        blamed = [each.ailment for each in r.ailments if each.source == REPUTATION]
        before = self._sick.get(r.node)
        if not r.ailments:
            self._sick.pop(r.node, None)
            return
        cause = blamed[0].cause if blamed else None
        if blamed and cause != (None if before is None else before.cause):
            self._blamed(r.node, cause, blamed[0].evidence, len(blamed))
        suspect = not r.overruled and any(each.ailment.cause is HealthCause.SUSPECTED for each in r.ailments)
        since_ts = self._ts if before is None else before.since_ts
        self._sick[r.node] = Sick(r.node, since_ts, cause, suspect)
        if r.overruled:
            self._failures.pop(r.node, None)

    def _blamed(self, node: str, cause: HealthCause | None, evidence: str, count: int) -> None:
        rules = None if self._policy is None else self._policy.reputation
        right = count == 1 and cause in (HealthCause.SUSPECTED, HealthCause.FAILURES)
        self._demand(rules is not None and right, f"{node} is blamed ({cause}), and nobody asks for that")
        users = [] if rules is None else self._failures.get(node, Failures()).lately(rules.half_life_seconds)
        least = 1 if cause is HealthCause.SUSPECTED else JOBS_MIN if len({*users}) > 1 else JOBS_OF_ONE_MIN
        # A test of the scheduler's own says enough alone; that it has failed is another rule's to demand.
        least = 0 if evidence.startswith(BY_TEST) else least
        said = OF_JOBS.search(evidence)
        told = 0 if said is None else int(said[1])
        text = f"{node} is blamed ({cause}) for {told} jobs; {len(users)} of {len({*users})} users failed there"
        self._demand(least <= told <= len(users), text)

    def _starts(self, r: m.Allocated, used: bool) -> None:
        """Demand that a job which starts on a suspect is a trial; what was kept for it before is another matter."""
        job, rules = self._payers.get(r.job_id), None if self._policy is None else self._policy.reputation
        there = {place.node for place in r.placements}
        if used or job is None or job.adopted or there.isdisjoint(self._sick):
            return
        suspects = there & self._suspects()
        array = self._array_of.get(r.job_id, r.job_id)
        limit = self._limits.get(r.job_id, self._limits.get(array, job.spec.time_limit_seconds or 0))
        short = rules is not None and 0 < limit <= rules.trial_seconds
        is_trial = short and job.spec.preemptible and len(r.placements) == 1
        self._demand(is_trial or not suspects, f"{r.job_id} starts on {sorted(suspects)}, and is no trial")

    def _suspects(self) -> set[str]:
        """Suspects that are kept from use: of each pool the first, up to its part; none while one of them is gone."""
        found, kept = set[str](), Counter[str]()
        sick = [each for each in self._sick.values() if each.is_suspect and each.node in self._nodes]
        if self._policy is None or any(self._nodes[each.node].gone for each in sick):
            return found
        there = Counter(node.pool for node in self._nodes.values() if not node.gone)
        for each in sorted(sick, key=attrgetter("since_ts", "node")):
            pool = self._nodes[each.node].pool
            if kept[pool] < there[pool] * self._policy.out_percent // 100:
                kept[pool] += 1
                found.add(each.node)
        return found

    # -- what is followed

    def _failed(self, r: m.Revoked | m.Shrunk) -> None:
        """A failure speaks against the nodes that a stop names, or of the pods that an elastic run loses."""
        job_id, places = r.run_id.rpartition("-")[0], self._places.get(r.run_id, {})
        nodes = r.avoid if isinstance(r, m.Revoked) else [places[rank].node for rank in r.ranks if rank in places]
        job = self._array_of.get(job_id, job_id)
        for node in nodes:
            self._failures.setdefault(node, Failures()).jobs[job] = self._ts, self._users.get(job, "")

    def _cited(self, r: m.AnyRecord, fact: f.AnyFact) -> None:
        if isinstance(r, m.ConfigSet) and isinstance(fact, f.ConfigProposed):
            self._policy = fact.body.health
        elif isinstance(r, m.NodeChanged) and isinstance(fact, f.NodeSeen):
            self._nodes[fact.name] = fact
        elif isinstance(r, m.JobQueued) and isinstance(fact, f.JobAdmitted):
            self._users[r.job_id] = f"{fact.tenant}/{fact.spec.user}"
            self._limits.pop(r.job_id, None)


def _of(r: m.EarmarkEnded | m.PodsTakenOver) -> str:
    return r.owner if isinstance(r, m.EarmarkEnded) else r.job_id

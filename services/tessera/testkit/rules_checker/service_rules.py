"""
Rules of services: no plan leaves one with fewer replicas at work than it is guaranteed, and no rollout with fewer than
it may do without.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker.rows import JobRow, RunRow
from tessera_schemas import ledger as m
from tessera_schemas.reasons import Code
from tessera_schemas.shard.records import RolloutRequested


@dataclass
class RolloutRow:
    """A service's programs now and before, each by the message that said them, 0 for the submit; and how it rolls."""

    now: int = 0
    before: int = 0
    goes_on: bool = False
    falls_back: bool = False
    missing: int = 0
    ready_ms: int = 0
    revision: int = 1

    @property
    def given(self) -> int:
        """Programs of a replica that starts."""
        return self.before if self.falls_back else self.now


@dataclass
class ServiceRules:
    """`jobs` and `runs` are the rules checker's, by their ids."""

    report: Report
    jobs: Mapping[str, JobRow]
    runs: Mapping[str, RunRow]
    rollouts: dict[str, RolloutRow] = field(default_factory=dict)
    programs: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)

    def mark(self) -> None:
        """Say of each replica whether it is in the minimum: the first to start are, of those that hold devices."""
        replicas: dict[str, list[JobRow]] = {}
        for job in self.jobs.values():
            if uid := _service(job):
                replicas.setdefault(uid, []).append(job)
        for uid, jobs in replicas.items():
            least = _least(jobs)
            named = [(run.started_ts is None, run.started_ts, name, run) for name, run in self._holding(uid)]
            ordered = [run.job for *_, run in sorted(named, key=lambda each: each[:3])]
            for job in jobs:
                holds = next((at for at, each in enumerate(ordered) if each is job), len(ordered))
                job.in_minimum = holds < least

    def evicts(self, n: int, name: str, run: RunRow) -> None:
        """Demand that a plan which stops this run leaves its service's minimum of those that have started."""
        if uid := _service(run.job):
            least = _least([job for job in self.jobs.values() if _service(job) == uid])
            left = sum(each.started_ts is not None and each is not run for _, each in self._holding(uid))
            text = f"{name} is stopped by a plan, and leaves {left} replicas of {uid} at work, of at least {least}"
            self.report.demand(left >= least, "minimum", n, text)

    def follow(self, message: m.LedgerMessage, r: m.AnyRecord) -> None:
        """Takes in what a record says of rollouts, before the other rules judge it."""
        if isinstance(r, m.ServiceScaled):
            self.wanted[r.job_id] = r.replicas
        elif isinstance(r, m.ServiceRollout):
            self._rolls(message, r, self.rollouts.setdefault(r.job_id, RolloutRow()))
        elif isinstance(r, m.TaskQueued) and r.array in self.rollouts:
            self.programs[r.job_id] = self.rollouts[r.array].given
        elif isinstance(r, m.Held) and r.undo and (row := self.rollouts.get(self._service_of(r.job_id))) is not None:
            if not any(name.startswith(r.job_id) for name in self.runs):
                self.programs[r.job_id] = row.given
        elif isinstance(r, m.Revoked) and r.reason.code is Code.NEW_REVISION and r.run_id in self.runs:
            self._replaces(message, r.run_id, self.runs[r.run_id])

    def _service_of(self, job_id: str) -> str:
        return self.jobs[job_id].array if job_id in self.jobs else ""

    def _rolls(self, message: m.LedgerMessage, r: m.ServiceRollout, row: RolloutRow) -> None:
        asked = message.facts[r.fact].fact if r.state == "begun" else None
        if not isinstance(asked, RolloutRequested):
            last = row.goes_on and r.revision == row.revision
            self.report.demand(last, "rollout", message.n, f"no rollout of revision {r.revision} of {r.job_id} goes on")
            row.goes_on, row.falls_back = False, r.state == "stopped"
            return
        by = asked.job_id == r.job_id and asked.tenant in ("", self.jobs[r.job_id].tenant)
        self.report.demand(by, "rollout", message.n, f"nobody who may asked for revision {r.revision} of {r.job_id}")
        unproved = row.goes_on or row.falls_back
        if asked.undo:
            row.now, row.before = row.before, row.now
        else:
            row.now, row.before = message.n, row.before if unproved else row.now
        row.goes_on, row.falls_back, row.revision = True, False, r.revision
        row.missing, row.ready_ms = asked.max_unavailable, asked.min_ready_seconds * 1000

    def _replaces(self, message: m.LedgerMessage, name: str, run: RunRow) -> None:
        """
        Demand that a run is stopped for other programs than its own, and that enough others work without it: as many as
        are wanted, less those that the rollout may do without, and no fewer than are guaranteed.
        """
        job_id, uid = name.rpartition("-")[0], _service(run.job)
        row, size = self.rollouts.get(uid), run.job.spec.service
        own = self.programs.get(job_id, 0)
        other = row is not None and own != row.given
        self.report.demand(other, "rollout", message.n, f"{name} is stopped for the programs that it runs")
        if row is None or size is None or row.falls_back or run.started_ts is None:
            return
        holding = [(each, other) for each, other in self._holding(uid) if other is not run]
        least = max(self.wanted.get(uid, size.wanted) - row.missing, size.min_replicas)
        left = sum(self._works(each, other, row, message.ts) for each, other in holding)
        text = f"{name} is stopped for a new revision, and leaves {left} replicas of {uid} at work, of at least {least}"
        self.report.demand(left >= least, "rollout", message.n, text)

    def _works(self, name: str, run: RunRow, row: RolloutRow, ts: int) -> bool:
        is_new = self.programs.get(name.rpartition("-")[0], 0) == row.now
        return run.started_ts is not None and ts - run.started_ts >= (row.ready_ms if is_new else 0)

    def _holding(self, uid: str) -> list[tuple[str, RunRow]]:
        found = ((name, run) for name, run in self.runs.items() if _service(run.job) == uid)
        return [(name, run) for name, run in found if not run.stopping and not run.job.ended]


def _service(job: JobRow) -> str:
    """UID of the service that a live job is a replica of; "" for none."""
    service = job.adopted.service if job.adopted is not None else None
    uid = job.array if job.spec.service is not None and job.adopted is None else "" if service is None else service.uid
    return "" if job.ended else uid


def _least(jobs: list[JobRow]) -> int:
    sizes = [job.adopted.service if job.adopted is not None else job.spec.service for job in jobs]
    return max((size.min_replicas for size in sizes if size is not None), default=0)

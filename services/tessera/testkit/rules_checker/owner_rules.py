"""
Rule of owners (I3 of the line): who is within nominal quota waits a bounded time for what others borrow of it.

A clock runs for each job that is told that quota alone keeps it, while by this checker's own arithmetic the job would
be within what its queue has, and those above it but for the root: then what it lacks is lent, and can be had back. The
clock stands still where docs/policy.md promises nothing: while room is kept for the job, and while a run of who borrows
has not started, is stopping, or may not be evicted. A start in the queue, and a new configuration, set it back: the sum
is promised to the first in line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker.quotas import Quotas
from tessera.testkit.rules_checker.rows import JobRow, RunRow
from tessera_schemas import ledger as m
from tessera_schemas.config import Policy
from tessera_schemas.reasons import Code

GAP_MS = 2_000
"""So much of a time in which nothing is written counts: then it may be that nobody is there to decide."""
DECIDING_SECONDS = 60
"""Two looks for plans, and services that start anew in between."""


@dataclass
class OwnerRules:
    """The book is the rules checker's; `waited_ms` is by job that quota keeps, as far as it counts."""

    report: Report
    quotas: Quotas
    jobs: Mapping[str, JobRow]
    runs: Mapping[str, RunRow]
    kept: Mapping[str, m.EarmarkSet]
    waited_ms: dict[str, int] = field(default_factory=dict)
    last_ts: int = 0

    def take(self, message: m.LedgerMessage) -> None:
        """Take in who begins to wait for quota, who does so no longer, and what sets the clocks back."""
        for record in message.records:
            if isinstance(record, m.Waiting) and record.job_id in self.jobs:
                if record.reason.code is Code.WAITING_FOR_QUOTA:
                    self.waited_ms.setdefault(record.job_id, 0)
                elif record.reason.code is not Code.WAITING_FOR_PREEMPTED:
                    self.waited_ms.pop(record.job_id, None)
            elif isinstance(record, m.Finished | m.Allocated):
                self.waited_ms.pop(record.job_id, None)
            if isinstance(record, m.ConfigSet):
                self.waited_ms = dict.fromkeys(self.waited_ms, 0)
            elif isinstance(record, m.Allocated) and record.job_id in self.jobs:
                queue = self.jobs[record.job_id].spec.queue
                behind = [job_id for job_id in self.waited_ms if self.jobs[job_id].spec.queue == queue]
                self.waited_ms |= dict.fromkeys(behind, 0)

    def pass_time(self, n: int, ts: int, policy: Policy) -> None:
        """Let the time since the message before `n` pass for who has waited longest in each queue."""
        gap, self.last_ts = min(GAP_MS, ts - self.last_ts), ts
        first = {self.jobs[job_id].spec.queue: job_id for job_id in reversed(self.waited_ms)}
        for queue, job_id in first.items():
            if job_id in self.kept or not self._has_left(self.jobs[job_id]):
                continue
            tree = {each.name for each in self.quotas.tree(queue)}
            runs = [run for run in self.runs.values() if run.job.spec.queue in tree]
            if not all(_may_be_stopped(run) for run in runs if self._borrows(run)):
                continue
            self.waited_ms[job_id] += gap
            lent_kept = policy.lent_kept_seconds if any(run.job.adopted or run.kept_lent_ts for run in runs) else 0
            bound = policy.min_runtime_seconds + lent_kept + DECIDING_SECONDS
            text = f"{job_id} is within nominal quota and has waited {self.waited_ms[job_id]} ms for what others borrow"
            self.report.demand(self.waited_ms[job_id] <= bound * 1000, "owner", n, text)

    def _has_left(self, job: JobRow) -> bool:
        """Whether the job would be within what its queue has, and those above it but for the root."""
        path = self.quotas.path(job.spec.queue)
        if len(path) < 2 or path[0].reclaim != "any" or job.held or job.away:
            return False
        # All of a tree lack what one of it borrows: the root says nothing.
        flavors = self.quotas.flavors(job.spec.queue, job.amount)
        return all(self.quotas.has_left(queue, flavor, job.amount) for queue in path[:-1] for flavor in flavors)

    def _borrows(self, run: RunRow) -> bool:
        return any(self.quotas.lent(queue, run.flavor, run.amount) for queue in self.quotas.path(run.job.spec.queue))


def _may_be_stopped(run: RunRow) -> bool:
    return run.started_ts is not None and not run.stopping and run.job.preemptible and not run.job.in_minimum

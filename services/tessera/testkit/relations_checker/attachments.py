"""Rules of attached jobs for each record, in the order of the ledger: a job starts beside its target's run alone."""

from dataclasses import dataclass

from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.reasons import Code
from tessera_schemas.shard.records import Attached, Detached
from tessera_schemas.work.arrays import Attachment

LAG_MAX = 8
"""Messages that may lie between the stop of a target's run and the word for those attached to it."""


@dataclass(slots=True)
class Beside:
    """A job as far as it is known: its own attachment, and whether it has a run that works."""

    attached: Attachment | None
    in_line: bool
    works: bool = False
    changed_n: int = 0
    ended: bool = False
    leaves: bool = False  # told to end, with its run


class Attachments:
    def __init__(self, report: Report) -> None:
        self.report, self.n, self.jobs, self.facts = report, 0, dict[str, Beside](), tuple[m.TakenFact, ...]()
        self.attached = set[str]()

    def demand(self, holds: bool, text: str) -> None:
        """Counts one check at the message that is being read, and a violation where it does not hold."""
        self.report.demand(holds, "attach", self.n, text)

    def take(self, message: m.LedgerMessage) -> None:
        """Checks each record of a message in order, then how long attached jobs outlive their targets' runs."""
        self.n, self.facts = message.n, message.facts
        for record in message.records:
            name = getattr(record, "job_id", "") or getattr(record, "run_id", "").partition("-")[0]
            check = getattr(self, f"_{record.kind}", None)
            if check is not None and (name in self.jobs or record.kind in ("job_queued", "task_queued")):
                check(record, name)
        for name in self.attached:
            job = self.jobs[name]
            gone = job.attached is None or not self._works(job.attached.job)
            late = gone and job.in_line and not job.leaves and self._stopped_n(job) + LAG_MAX < self.n
            self.demand(not late, f"{name} goes on {LAG_MAX} messages after its target has stopped")

    def _stopped_n(self, job: Beside) -> int:
        target = self.jobs.get(job.attached.job) if job.attached is not None else None
        return self.n if target is None else target.changed_n

    def _works(self, job_id: str, before: bool = False) -> bool:
        """Whether the job has a run that works; with `before` also where it had one before this message."""
        job = self.jobs.get(job_id)
        return job is not None and (job.works or (before and job.changed_n == self.n))

    def _turn(self, name: str, works: bool) -> None:
        job = self.jobs[name]
        if job.works is not works:
            job.works, job.changed_n = works, self.n

    def _job_queued(self, r: m.JobQueued, name: str) -> None:
        fact = self.facts[r.fact].fact if r.fact < len(self.facts) else None
        attached = fact.spec.attach_to if isinstance(fact, f.JobAdmitted) else None
        self.jobs[name] = Beside(attached, attached is None)
        if attached is not None:
            self.attached.add(name)
            target = self.jobs.get(attached.job)
            self.demand(target is not None and not target.ended, f"{name} is attached to no live job")

    def _task_queued(self, r: m.TaskQueued, name: str) -> None:
        self.jobs[name] = Beside(None, True)

    def _attached(self, r: Attached, name: str) -> None:
        job = self.jobs[name]
        runs = job.attached is not None and self._works(job.attached.job)
        self.demand(runs and not job.in_line, f"{name} gets in line, and its target does not run")
        job.in_line = True

    def _detached(self, r: Detached, name: str) -> None:
        job = self.jobs[name]
        stands = job.attached is None or self._works(job.attached.job)
        self.demand(job.in_line and not stands, f"{name} leaves its line, and its target runs")
        job.in_line = False

    def _allocated(self, r: m.Allocated, name: str) -> None:
        job = self.jobs[name]
        if job.attached is not None:
            beside = job.in_line and self._works(job.attached.job, before=True)
            self.demand(beside, f"{name} starts beside no run of {job.attached.job}")

    def _started(self, r: m.Started, name: str) -> None:
        self._turn(name, True)

    def _spared(self, r: m.Spared, name: str) -> None:
        self._turn(name, True)

    def _revoked(self, r: m.Revoked, name: str) -> None:
        job = self.jobs[name]
        if r.reason.code in (Code.TARGET_ENDED, Code.TARGET_NOT_RUNNING):
            stands = job.attached is None or self._works(job.attached.job)
            self.demand(not stands, f"{name} is stopped for a target that runs")
        job.leaves = job.leaves or r.then != "requeue"
        self._turn(name, False)

    def _finished(self, r: m.Finished, name: str) -> None:
        self._turn(name, False)
        self.jobs[name].ended = True
        self.attached.discard(name)

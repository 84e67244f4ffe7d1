"""Rules of arrays and dependencies for each record, in the order of the ledger."""

from dataclasses import dataclass, field
from typing import Any

from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code
from tessera_schemas.work.arrays import FAMILY, Dependency, has_task, index_of, task_count, task_id

WAITS, BEGUN = "waits", "begun"
"""Of a job that has not ended: whether a run of it ever started."""


@dataclass(slots=True)
class RelatedJob:
    job_id: str
    tenant: str
    spec: JobSpec
    age: tuple[int, int]
    after: tuple[Dependency, ...] = ()
    array: "RelatedJob | None" = None  # the one that it is a task of
    tasks: "list[RelatedJob]" = field(default_factory=list)
    closed: bool = False
    hurried: bool = False
    held: bool = False
    runs: bool = False
    stands: str = WAITS  # or how it ended

    @property
    def ended(self) -> bool:
        return self.stands not in (WAITS, BEGUN)

    @property
    def begun(self) -> bool:
        if self.spec.array is None:
            return self.stands != WAITS
        whole = len(self.tasks) == task_count(self.spec.array.tasks) or self.closed
        return self.ended or (whole and all(task.stands != WAITS for task in self.tasks))


class Relations:
    def __init__(self, report: Report) -> None:
        self.report, self.n, self.jobs = report, 0, dict[str, RelatedJob]()
        self.message: m.LedgerMessage

    def demand(self, holds: bool, rule: str, text: str) -> None:
        """Counts one check of a rule at the message that is being read, and a violation where it does not hold."""
        self.report.demand(holds, rule, self.n, text)

    def take(self, message: m.LedgerMessage) -> None:
        """Checks each record of a message in order."""
        self.n, self.message = message.n, message
        for record in message.records:
            name = getattr(record, "job_id", "") or getattr(record, "run_id", "").partition("-")[0]
            job, check = self.jobs.get(name), getattr(self, f"_{record.kind}", None)
            if record.kind in ("job_queued", "task_queued"):
                getattr(self, f"_{record.kind}")(record)
            elif check is not None and job is not None:
                check(record, job)

    def _job_queued(self, r: m.JobQueued) -> None:
        fact = self.message.facts[r.fact].fact if r.fact < len(self.message.facts) else None
        if isinstance(fact, f.JobAdmitted):
            of_tasks = {each for each in fact.spec.after if self._is_of_tasks(each)}
            after = tuple(_as_own(each) for each in fact.spec.after if each not in of_tasks)
            self.jobs[r.job_id] = RelatedJob(r.job_id, fact.tenant, fact.spec, (self.n, r.fact), after)
            self._check_whose(self.jobs[r.job_id])

    def _check_whose(self, job: RelatedJob) -> None:
        """A job waits for jobs of its own tenant."""
        others = [self.jobs.get(e.job) or self._array_without(e.job) for e in job.spec.after if e.job is not None]
        own = all(other is not None and other.tenant == job.tenant for other in others)
        self.demand(own, "after", f"{job.job_id} waits for jobs that its tenant does not have")

    def _array_without(self, job_id: str) -> RelatedJob | None:
        """The array of which this is a task's id that was not queued."""
        family = (row for row in self.jobs.values() if row.job_id[:FAMILY] == job_id[:FAMILY])
        arrays = (row for row in family if row.spec.array and has_task(row.spec.array.tasks, index_of(job_id)))
        return next(arrays, None)

    def _is_of_tasks(self, dependency: Dependency) -> bool:
        """Between arrays it is the tasks that correspond."""
        other = self.jobs.get(dependency.job or "")
        return dependency.condition == "aftercorr" and other is not None and other.spec.array is not None

    def _task_queued(self, r: m.TaskQueued) -> None:
        array = self.jobs.get(r.array)
        why = "is of nobody" if array is None else self._misqueued(r, array)
        self.demand(not why, "array", f"task {r.task} of {r.array} {why}")
        if array is not None:
            followed = [each.job for each in array.spec.after if each.job is not None and self._is_of_tasks(each)]
            after = tuple(Dependency(condition="afterok", job=task_id(job, r.task)) for job in followed)
            spec = array.spec.model_copy(update={"array": None})
            self.jobs[r.job_id] = task = RelatedJob(r.job_id, array.tenant, spec, array.age, after, array)
            array.tasks.append(task)

    def _misqueued(self, r: m.TaskQueued, array: RelatedJob) -> str:
        said, known = array.spec.array, self.jobs.get(r.job_id)
        if said is None or array.ended or array.closed or array.after or array.held:
            return "comes while its array queues none"
        if not has_task(said.tasks, r.task) or r.job_id != task_id(r.array, r.task):
            return "is no task of it"
        if array.tasks and array.tasks[-1].job_id >= r.job_id:
            return "does not come in the order of indexes"
        return "has the id of another job" if known is not None and not known.ended else ""

    def _array_closed(self, r: m.ArrayClosed, job: RelatedJob) -> None:
        changes = not job.closed or (r.now and not job.hurried)
        self.demand(job.spec.array is not None and changes, "array", f"{r.job_id} is no array that is open")
        job.closed, job.hurried = True, job.hurried or r.now

    def _held(self, r: m.Held, job: RelatedJob) -> None:
        job.held = not r.undo

    def _job_updated(self, r: m.JobUpdated, job: RelatedJob) -> None:
        job.spec = job.spec.model_copy(update=r.changes.given)
        if r.changes.after is not None:
            of_tasks = {each for each in r.changes.after if self._is_of_tasks(each)}
            job.after = tuple(_as_own(each) for each in r.changes.after if each not in of_tasks)
            self.demand(not job.tasks, "after", f"array {r.job_id} waits for others, and its tasks do not")
            self._check_whose(job)

    def _dependency_met(self, r: m.DependencyMet, job: RelatedJob) -> None:
        met = [each for each in job.after if each not in r.left]
        true = bool(met) and all(self._verdict(job, each) for each in met)
        self.demand(true, "after", f"{r.job_id} waits for {r.left} only, but {met} did not come true")
        job.after = r.left

    def _allocated(self, r: m.Allocated, job: RelatedJob) -> None:
        self.demand(not job.after, "after", f"{r.job_id} starts, but waits for {job.after}")
        self.demand(job.spec.array is None, "array", f"array {r.job_id} starts itself")
        job.runs, said = True, None if job.array is None else job.array.spec.array
        if job.array is not None and said is not None and said.limit is not None:
            others = [task.job_id for task in job.array.tasks if task.runs and not task.ended and task is not job]
            self.demand(len(others) < said.limit, "array", f"{r.job_id} runs beside {others}")
        job.stands = job.stands if job.array is None else BEGUN  # an array begins with the devices of its last task

    def _started(self, r: m.Started, job: RelatedJob) -> None:
        job.stands = BEGUN

    def _requeued(self, r: m.Requeued, job: RelatedJob) -> None:
        job.runs = False

    def _finished(self, r: m.Finished, job: RelatedJob) -> None:
        never = r.reason is not None and r.reason.code is Code.DEPENDENCY_NEVER_SATISFIED
        false = any(self._verdict(job, each) is False for each in job.after) or job.array is not None
        self.demand(not never or false, "after", f"{r.job_id} ends, but {job.after} may come true")
        if job.spec.array is not None:
            left = [task.job_id for task in job.tasks if not task.ended]
            self.demand(not left, "array", f"array {r.job_id} ends before tasks {left}")
            ends = [task.stands for task in job.tasks]
            whole = ends == ["succeeded"] * task_count(job.spec.array.tasks)
            right = whole == (r.phase == "succeeded") or job.closed
            self.demand(right, "array", f"array {r.job_id} has {r.phase}, its tasks have {sorted(set(ends))}")
        job.stands = r.phase

    def _verdict(self, job: RelatedJob, dependency: Dependency) -> bool | None:
        """True where it has come true, False where it never will."""
        if dependency.job is None:
            who = _who(job)
            alike = [row for row in self.jobs.values() if row.age < job.age and row.array is None and _who(row) == who]
            return all(row.ended for row in alike) or None
        other = self.jobs.get(dependency.job)
        if other is None and (array := self._array_without(dependency.job)) is not None:
            return dependency.condition != "afterok" if array.closed or array.ended else None
        if other is None or (other.ended and dependency.condition in ("afterok", "afternotok")):
            return other is not None and (other.stands == "succeeded") == (dependency.condition == "afterok")
        return other.ended or (dependency.condition == "after" and other.begun) or None


def _as_own(dependency: Dependency) -> Dependency:
    if dependency.condition != "aftercorr":
        return dependency
    return Dependency(condition="afterok", job=dependency.job)


def _who(row: RelatedJob) -> Any:
    return row.tenant, row.spec.user, row.spec.name

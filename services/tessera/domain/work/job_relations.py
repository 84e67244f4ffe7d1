"""
Index of the relations between jobs: tasks and their arrays, jobs and those that wait for them or are attached.

Derived from the table of jobs, and like every index it belongs to the base alone. So a decision finds here what the
messages before it brought about; what its own message brings about, the next one finds.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tessera.domain.work.phases import Phase
from tessera_schemas.work.arrays import FAMILY

if TYPE_CHECKING:
    from tessera.domain.entities import Job
    from tessera.domain.table import Table

SINGLETON = ""
"""In the place of a job's id, for what no single job decides."""

Namesakes = tuple[str, str, str]
"""Tenant, user and name: jobs that `singleton` holds apart."""


class JobRelations:
    """
    `tasks` are the live tasks of each array; `families` finds a live array by the beginning of its tasks' ids.

    `due` are waiting jobs of which something that they wait for may have been decided; `open` are arrays that may queue
    a task, are over, or are being closed.
    """

    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, None]] = {}
        self.families: dict[str, str] = {}
        self.due: dict[str, None] = {}
        self.open: dict[str, None] = {}
        self._dependents: dict[str, dict[str, dict[str, None]]] = {}  # by the beginning of an id, then by the id
        self._namesakes: dict[Namesakes, dict[str, None]] | None = None  # kept from the first singleton on

    def rebuild(self, jobs: "Table[Job]") -> None:
        """After a restore: everything again from the jobs."""
        for job in jobs.values():
            self._come(jobs, job)

    def job_changes(self, jobs: "Table[Job]", old: "Job | None", new: "Job | None") -> None:
        """Follows a job from `old` to `new` (None: not there), once the table holds it as it is now."""
        if new is None:
            if old is not None:
                self._leave(jobs, old)
        elif old is None:
            self._come(jobs, new)
        else:
            if old.after is not new.after:
                self._forget(old)
                self._wait(jobs, new)
            if old.name != new.name and not new.task_of:
                self._rename(old, new)
            if new.array is not None:
                self._look_at_array(new)
            if new.array is not None and (old.array is None or old.array.closed is not new.array.closed):
                self.due |= dict.fromkeys(self.dependents_on_tasks(new.job_id))
            if new.array is not None or (new.phase is Phase.RUNNING) is not (old.phase is Phase.RUNNING):
                self._mark_due(new.job_id)

    def look_past(self, is_decided: Callable[[str], bool]) -> None:
        """A message has looked at all that was due: of these, only what is decided and had no room in it stays."""
        self.due = {job_id: None for job_id in self.due if is_decided(job_id)}

    def has_older_namesake(self, jobs: "Table[Job]", job: "Job") -> bool:
        """Whether an older job of the same tenant, user and name is live, tasks of arrays left out."""
        known = (self._namesakes or {}).get(_namesakes(job), {})
        return any(_is_older_namesake(other, job) for other in jobs.found(known))

    def older_namesakes(self, jobs: "Table[Job]", job: "Job") -> list["Job"]:
        """Live jobs for whose ends the job waits by `singleton`, as before the message that is being decided."""
        if self._namesakes is None:
            known: Iterable[str] = (other.job_id for other in jobs.values() if not other.task_of)
        else:
            known = self._namesakes.get(_namesakes(job), {})
        return [other for other in jobs.found(known) if _is_older_namesake(other, job)]

    def _mark_due(self, job_id: str) -> None:
        """The job has started, stopped or ended: those that wait for it are looked at in the next message."""
        self.due |= self._waiting_for(job_id)

    def _waiting_for(self, key: str) -> dict[str, None]:
        return self._dependents.get(key[:FAMILY], {}).get(key, {})

    def dependents_on_tasks(self, array_id: str) -> list[str]:
        """Jobs that wait for a single task of the array, in no order, perhaps one that is not queued yet."""
        family = self._dependents.get(array_id[:FAMILY], {})
        return [job for key, waiting in family.items() if key != array_id for job in waiting]

    def _come(self, jobs: "Table[Job]", job: "Job") -> None:
        if job.task_of:
            self.tasks.setdefault(job.task_of, {})[job.job_id] = None
        elif self._namesakes is not None:
            self._namesakes.setdefault(_namesakes(job), {})[job.job_id] = None
        if job.array is not None:
            self.families[job.job_id[:FAMILY]] = job.job_id
            self._look_at_array(job)
        self._wait(jobs, job)

    def _leave(self, jobs: "Table[Job]", job: "Job") -> None:
        self._forget(job)
        self._mark_due(job.job_id)
        if job.task_of:
            left = self.tasks[job.task_of]
            del left[job.job_id]
            if not left:
                del self.tasks[job.task_of]
        if job.array is not None:
            self.families.pop(job.job_id[:FAMILY], None)
            self.open.pop(job.job_id, None)
        if self._namesakes is not None and not job.task_of:
            self._leave_namesakes(job)

    def _leave_namesakes(self, job: "Job") -> None:
        """The job is none of them any more: those that wait for all older ones are looked at in the next message."""
        assert self._namesakes is not None
        others = self._namesakes.get(_namesakes(job), {})
        others.pop(job.job_id, None)
        self.due |= {other: None for other in others if other in self._waiting_for(SINGLETON)}

    def _rename(self, old: "Job", new: "Job") -> None:
        if self._namesakes is None:
            return
        self._leave_namesakes(old)
        self._namesakes.setdefault(_namesakes(new), {})[new.job_id] = None
        if new.job_id in self._waiting_for(SINGLETON):
            self.due[new.job_id] = None

    def _wait(self, jobs: "Table[Job]", job: "Job") -> None:
        """Note what the job waits for; some of it may be decided already, so the next message looks at it."""
        for key in _awaited(job):
            self._dependents.setdefault(key[:FAMILY], {}).setdefault(key, {})[job.job_id] = None
            if key == SINGLETON and self._namesakes is None:
                self._namesakes = {}
                for other in jobs.values():
                    if not other.task_of:
                        self._namesakes.setdefault(_namesakes(other), {})[other.job_id] = None
        if job.after or job.attached is not None:
            self.due[job.job_id] = None

    def _forget(self, job: "Job") -> None:
        for key in _awaited(job):
            family = self._dependents.get(key[:FAMILY], {})
            family.get(key, {}).pop(job.job_id, None)
            if not family.get(key):
                family.pop(key, None)
            if not family:
                self._dependents.pop(key[:FAMILY], None)
        self.due.pop(job.job_id, None)

    def _look_at_array(self, job: "Job") -> None:
        array = job.array
        if array is None:
            return
        rolls = array.rollout is not None and not array.rollout.done
        resizes = array.has_room or (array.is_service and (array.too_many or rolls))
        queues = resizes and not job.held and not job.after
        if queues or array.is_over or array.closed is not None:
            self.open[job.job_id] = None
        else:
            self.open.pop(job.job_id, None)


def _awaited(job: "Job") -> Iterator[str]:
    """Jobs whose start, stop or end the job goes by."""
    yield from (each.job or SINGLETON for each in job.after)
    if job.attached is not None:
        yield job.attached.job


def _namesakes(job: "Job") -> Namesakes:
    return job.tenant, job.user, job.name


def _is_older_namesake(other: "Job", job: "Job") -> bool:
    return _age(other) < _age(job) and _namesakes(other) == _namesakes(job)


def _age(job: "Job") -> tuple[int, int]:
    return job.taken_n, job.fact_index

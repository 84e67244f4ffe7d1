"""Index of live jobs by group of users' pods, kept from the ledger."""

from collections.abc import Iterable

from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.kernel.ledger.shard import Entry
from tessera_schemas.ledger import Allocated, Finished, JobQueued, Requeued, Waiting

SAY_SOMETHING = (Allocated, Requeued, Waiting)


class GroupIndex:
    """A group has one live job, and for a moment another while the one before is being cancelled."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_group: dict[str, dict[str, None]] = {}
        self._group_of: dict[str, str] = {}
        for job in state.jobs.values():
            self._add(job)

    def groups(self) -> Iterable[str]:
        """Ids of the groups that have a live job."""
        return list(self._by_group)

    def jobs(self, group_id: str) -> list[Job]:
        """The group's live jobs, the oldest first."""
        found = self._state.jobs.found(self._by_group.get(group_id, ()))
        return sorted(found, key=lambda job: (job.taken_n, job.fact_index, job.job_id))

    def take_in(self, entry: Entry) -> list[str]:
        """Follow a ledger message that the state has; the groups of whose jobs it says something."""
        # A dict keeps the order of the records and names each group once.
        named: dict[str, None] = {}
        for record in entry.message.records:
            if type(record) is JobQueued:
                job = self._state.jobs.get(record.job_id)
                group = None if job is None else self._add(job)
            elif type(record) is Finished:
                group = self._drop(record.job_id)
            elif isinstance(record, SAY_SOMETHING):
                group = self._group_of.get(record.job_id)
            else:
                continue
            if group is not None:
                named[group] = None
        return list(named)

    def _add(self, job: Job) -> str | None:
        if job.adopted is None:
            return None
        self._by_group.setdefault(job.adopted.group, {})[job.job_id] = None
        self._group_of[job.job_id] = job.adopted.group
        return job.adopted.group

    def _drop(self, job_id: str) -> str | None:
        group = self._group_of.pop(job_id, None)
        if group is not None:
            jobs = self._by_group[group]
            del jobs[job_id]
            if not jobs:
                del self._by_group[group]
        return group

"""
The few fields of a job's view that lists filter, count and sort by, read without decoding the rest.

A shard has a hundred thousand rows of which a screen shows two hundred: decoding each takes twenty times as long as the
one look here. A row that does not read as expected, such as one of a newer build, is decoded as a whole.
"""

import re
from dataclasses import dataclass

from tessera.domain.work.phases import TERMINAL, Phase
from tessera_schemas.views import JobView

ENDED = frozenset(phase.value for phase in TERMINAL)
REFUSED = "refused"
"""Phase of users' work in Kubernetes that is turned away."""
RUNNING = Phase.RUNNING.value

_RANKS = {REFUSED: 1, **dict.fromkeys(ENDED, 2)}
_TEXT = rb'"((?:[^"\\]|\\.)*)"'
_PLAIN = rb'"([^"\\]*)"'
# Fields stand in declared order, those without a default in every row, and a quote inside a text is escaped.
_BEGIN = re.compile(
    rb'\{"job_id":%b,"tenant":%b,"queue":%b,"name":%b,"key":%b,"phase":%b,"priority":-?\d+,"attempt":\d+,"pods":\d+,'
    rb'"gpu_milli":(\d+),"submitted_ts":(\d+)(?:,"started_ts":\d+)?(?:,"ended_ts":\d+)?(?:,"not_before":\d+)?'
    rb'(?:,"reason":\{"code":%b)?' % (_PLAIN, _PLAIN, _PLAIN, _TEXT, _TEXT, _PLAIN, _PLAIN)
)
_HELD = re.compile(rb',"held_pods":\d+(?:,"held_gpu_milli":(\d+))?')
_TASK = re.compile(rb',"task_of":%b' % _PLAIN)


@dataclass(slots=True)
class JobGlance:
    """
    `gpu_milli_now`: held by its run, else asked for by its gang. `code`: why it waits, "" where nobody said. `task_of`:
    an array whose task it is, and `runs_tasks`: an array with tasks that run.
    """

    job_id: str
    tenant: str
    queue: str
    phase: str
    submitted_ts: int
    gpu_milli: int
    gpu_milli_now: int
    code: str
    task_of: str = ""
    runs_tasks: bool = False

    @classmethod
    def read(cls, stored: bytes) -> "JobGlance":
        """Glance at a stored row. Raises ValidationError for what is no view of a job."""
        found = _BEGIN.match(stored)
        if found is None or b',"array":{' in stored:  # arrays are few
            return cls.of(JobView.from_bytes(stored))
        job_id, tenant, queue, _, _, phase, gpu_milli, submitted_ts, code = found.groups()
        asked = int(gpu_milli)
        held = _HELD.search(stored, found.end()) if phase != b"queued" else None
        return cls(
            job_id.decode(),
            tenant.decode(),
            queue.decode(),
            phase.decode(),
            int(submitted_ts),
            asked,
            asked if held is None else int(held[1] or 0),
            (code or b"").decode(),
            "" if (task := _TASK.search(stored, found.end())) is None else task[1].decode(),
        )

    @classmethod
    def of(cls, job: JobView) -> "JobGlance":
        """The same from a view that is decoded."""
        code = "" if job.reason is None else job.reason.code
        place = (job.job_id, job.tenant, job.queue, job.phase)
        runs_tasks = job.array is not None and job.array.running > 0 and job.phase not in ENDED
        amounts = (job.gpu_milli, job.gpu_milli_now)
        return cls(*place, job.submitted_ts, *amounts, code, job.task_of, runs_tasks)

    @property
    def order(self) -> tuple[int, int, str]:
        """Live jobs first, then refused work, then ended jobs; each oldest first, then by id."""
        return _RANKS.get(self.phase, 0), self.submitted_ts, self.job_id


@dataclass(frozen=True, slots=True)
class JobFilter:
    """
    Jobs of this tenant and queue in any of these phases; None stands for all.

    Without `tasks` an array stands for them, and is of phase running, too, while any of them is.
    """

    tenant: str | None = None
    queue: str | None = None
    phases: frozenset[str] | None = None
    tasks: bool = True

    def takes(self, job: JobGlance | JobView) -> bool:
        """Tells whether the job is wanted."""
        return (
            self.tenant in (None, job.tenant)
            and self.queue in (None, job.queue)
            and (self.tasks or not job.task_of)
            and (self.phases is None or self._is_in(job, self.phases))
        )

    def _is_in(self, job: JobGlance | JobView, phases: frozenset[str]) -> bool:
        glance = job if isinstance(job, JobGlance) else JobGlance.of(job)
        return glance.phase in phases or (glance.runs_tasks and not self.tasks and RUNNING in phases)

"""
Job arrays: equal jobs told apart by an index, submitted in one message. And what a job waits for: other jobs' ends.

The id of a task is made of its array's id and its index, so that whoever knows the array knows the ids of all tasks,
and the ids of one array's tasks sort as their indexes do.
"""

import re
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from tessera_schemas.base import Count, JobId, Key, Positive, Strict, job_id

TASKS_MAX = 100_000
INDEX_MAX = 2**20 - 1  # the digits of a task's id tell so many apart
RANGES_MAX = 64
DEPENDENCIES_MAX = 32
FAMILY = 16
"""Characters that the ids of an array and of its tasks begin with."""
_DIGITS = "234567abcdefghijklmnopqrstuvwxyz"  # in the order in which characters sort
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?")


class TaskRange(NamedTuple):
    """The indexes `first`, `first + step` … up to `last`, which is one of them."""

    first: int
    last: int
    step: int

    @property
    def size(self) -> int:
        """Number of indexes."""
        return (self.last - self.first) // self.step + 1


@lru_cache(maxsize=4096)
def task_ranges(text: str) -> tuple[TaskRange, ...]:
    """The ranges of a text such as `0-9,20-30:5`; raises ValueError unless they ascend and are within bounds."""
    found: list[TaskRange] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"tasks: {part!r} is no index and no range; write 0-9, 1,3,5 or 0-30:10")
        first, step = int(match[1]), int(match[3] or 1)
        last = int(match[2] or first)
        if not step or last < first:
            raise ValueError(f"tasks: {part}: a range goes up, by at least 1")
        found.append(TaskRange(first, last - (last - first) % step, step))
    if any(after.first <= before.last for before, after in pairwise(found)):
        raise ValueError("tasks: ranges stand in ascending order, and name no index twice")
    if len(found) > RANGES_MAX or found[-1].last > INDEX_MAX:
        raise ValueError(f"tasks: at most {RANGES_MAX} ranges, and no index above {INDEX_MAX}")
    if sum(each.size for each in found) > TASKS_MAX:
        raise ValueError(f"tasks: more than {TASKS_MAX} tasks in one array")
    return tuple(found)


def task_count(text: str) -> int:
    """Number of tasks of an array with these ranges."""
    return sum(each.size for each in task_ranges(text))


def task_index(text: str, position: int) -> int:
    """Index of the task at a position, counted from 0 in ascending order; raises IndexError beyond the last."""
    for each in task_ranges(text):
        if position < each.size:
            return each.first + position * each.step
        position -= each.size
    raise IndexError("the array has no such task")


def has_task(text: str, index: int) -> bool:
    """Whether the array has a task of this index."""
    return any(each.first <= index <= each.last and not (index - each.first) % each.step for each in task_ranges(text))


def ranges_from(text: str, position: int) -> str:
    """The text of the tasks from a position on; "" when there are none."""
    parts: list[str] = []
    for each in task_ranges(text):
        skipped, position = min(position, each.size), max(0, position - each.size)
        first = each.first + skipped * each.step
        if first <= each.last:
            end = f"-{each.last}" if first < each.last else ""
            parts.append(f"{first}{end}{f':{each.step}' if end and each.step > 1 else ''}")
    return ",".join(parts)


def task_id(array_id: str, index: int) -> str:
    """Job id of an array's task: 16 characters of the array's id, and 4 that tell the index."""
    digits = "".join(_DIGITS[index >> shift & 31] for shift in (15, 10, 5, 0))
    return array_id[:FAMILY] + digits


def index_of(job_id: str) -> int:
    """The index that a task's id tells; of any other job a number without meaning."""
    index = 0
    for digit in job_id[FAMILY:]:
        index = index * 32 + _DIGITS.index(digit)
    return index


class JobArray(Strict):
    """
    A task for each index of `tasks`: a job of its own, equal to the others, that knows its index.

    `limit` is how many tasks may have a run at once; None: no limit.
    """

    tasks: Annotated[
        str,
        StringConstraints(min_length=1, max_length=1024),
        Field(description="Indexes of the tasks, such as 0-9,20-30:5"),
    ]
    limit: Annotated[Positive | None, Field(description="Most tasks that have a run at once; null: no limit")] = None

    @field_validator("tasks")
    @classmethod
    def _readable(cls, tasks: str) -> str:
        task_ranges(tasks)
        return tasks


SERVICE_TASKS = f"0-{TASKS_MAX - 1}"
"""Indexes of a service's replicas: a new one takes the next, so that there is always another."""
REPLICAS_OF_SERVICE_MAX = 256
ServiceReplicas = Annotated[Count, Field(le=REPLICAS_OF_SERVICE_MAX)]


class ServiceSize(Strict):
    """
    Numbers of replicas of a service: equal jobs, each of which is started again whenever it ends.

    Of those that run the first `min_replicas` are guaranteed: no plan stops them, and they do not borrow quota.
    """

    min_replicas: Annotated[
        ServiceReplicas, Field(description="Replicas that are guaranteed; 0: none, and it may be scaled to zero")
    ] = 0
    max_replicas: Annotated[
        Annotated[Positive, Field(le=REPLICAS_OF_SERVICE_MAX)],
        Field(description="Replicas to which it may be scaled"),
    ] = 1
    replicas: Annotated[
        ServiceReplicas | None,
        Field(description="Replicas to begin with, until it is scaled; null: the minimum"),
    ] = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min_replicas <= self.wanted <= self.max_replicas:
            raise ValueError("service: min_replicas <= replicas <= max_replicas does not hold")
        return self

    @property
    def wanted(self) -> int:
        """Number of replicas to begin with."""
        return self.min_replicas if self.replicas is None else self.replicas


Condition = Literal["afterok", "afternotok", "afterany", "after", "aftercorr", "singleton"]


class Dependency(Strict):
    """
    Condition on another job, which must hold before a job gets in line; of several all must.

    `afterok`, `afternotok`, `afterany`: the other job has succeeded, has failed or was cancelled, has ended. `after`:
    it has started, or ended. `aftercorr`: of two arrays, each task waits for the success of the task of its index.
    `singleton`: no older job of this tenant, user and name is left; it names no job.
    """

    condition: Annotated[Condition, Field(description="State that the other job must reach")]
    job: Annotated[JobId | None, Field(description="Id of the other job; none for singleton")] = None

    @model_validator(mode="after")
    def _names_a_job(self) -> Self:
        if (self.job is None) != (self.condition == "singleton"):
            raise ValueError("job: singleton names none, and every other condition names one")
        return self

    def text(self) -> str:
        """The dependency in words."""
        return f"{self.condition} of {self.job}" if self.job else self.condition


class Attachment(Strict):
    """
    Relation of a job to another one of its tenant, beside whose run alone it is of use: rollout workers to a learner.

    The job starts while the other one runs, near to it, and is cancelled once the other one has ended.
    """

    job: Annotated[
        Key, Field(description="Job beside which this one runs: its id, or the key under which the tenant sent it")
    ]
    near: Annotated[
        Literal["preferred", "required"],
        Field(
            description="Place of the pods. preferred: as near to the other job's run as there is room, by the levels "
            "of the configuration. required: only in the narrowest domain that holds the whole of that run"
        ),
    ] = "preferred"
    on_detach: Annotated[
        Literal["requeue", "cancel"],
        Field(
            description="What follows when the other job's run stops and that job is not over. requeue: this one is "
            "stopped and waits for it. cancel: this one is cancelled"
        ),
    ] = "requeue"

    def by_id(self, shard: str, tenant: str) -> "Attachment":
        """The same with the other job's id, where its key is named."""
        named = re.fullmatch(r"[a-z2-7]{20}", self.job) is not None
        return self if named else self.model_copy(update={"job": job_id(shard, tenant, self.job)})


AttachTo = Annotated[Attachment | None, Field(description="Job of the same tenant beside which this one runs")]


class WholeJob(NamedTuple):
    """What a job says of itself as a whole: its tasks or replicas, and the jobs that it goes by."""

    array: JobArray | None
    service: ServiceSize | None
    attach_to: Attachment | None
    after: tuple[Dependency, ...]
    is_elastic: bool
    has_neighbours: bool
    has_limit: bool

    def fault(self) -> str:
        """What does not go together, beginning with the field; "" for nothing."""
        if self.service is not None and (fault := self._fault_of_service()):
            return fault
        if self.array is None and any(each.condition == "aftercorr" for each in self.after):
            return "after: aftercorr is for arrays, whose tasks have indexes; write afterok"
        if self.attach_to is None:
            return ""
        if self.array is not None or self.service is not None:
            return "attach_to: no array and no service is attached; give one job replicas, or send several jobs"
        near = "roles.neighbours: an attached job's nodes are those near the other job; leave it out"
        return near if self.has_neighbours else ""

    def _fault_of_service(self) -> str:
        if self.array is not None and self.array != JobArray(tasks=SERVICE_TASKS):
            return "array: a service has its replicas by `service`, and no other tasks"
        if self.is_elastic:
            return "roles: a service grows by replicas, and not by pods of one; leave out min_replicas and max_replicas"
        return "time_limit_seconds: a service has no end; leave it out" if self.has_limit else ""

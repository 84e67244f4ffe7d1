"""The shared views with the ledger number up to which they hold: read from Redis, or from the gateway by HTTP."""

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, TypeVar

from tessera.client.connect.job_glance import ENDED, REFUSED, JobFilter, JobGlance
from tessera.client.input.files import as_json
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.clock import SystemClock
from tessera_schemas.base import Lenient
from tessera_schemas.views import JobView, NodeView, QueueView
from tessera_schemas.work.arrays import has_task, task_id

if TYPE_CHECKING:
    from tessera.client.connect.api import Api
    from tessera.kernel.ports import ProjectionStore
    from tessera_schemas.config import Config
    from tessera_schemas.work.templates import JobTemplate

ID_PREFIX_MIN, ID_CHARACTERS = 4, 20
PAGE = 500
PAUSES = (0.05, 0.1, 0.2, 0.4)
"""Seconds between looks for a job that is not found, before it is said that there is none."""

Row = TypeVar("Row", bound=Lenient)


class ReadViews(ABC):
    """Each raises Transient while whoever holds the views is away."""

    def __init__(self) -> None:
        self._read_at: list[int] = []

    async def as_of(self) -> int:
        """Ledger number up to which everything holds that was read since this was last asked."""
        n, self._read_at = min(self._read_at, default=0), []
        return n

    @abstractmethod
    async def title(self) -> str:
        """Name of the views' owner, for the first line of a screen."""

    @abstractmethod
    async def templates(self) -> "Sequence[JobTemplate]":
        """Templates that may be submitted by name."""

    @abstractmethod
    async def _rows(self, view: str, model: type[Row]) -> list[Row]:
        """All rows of a view, noting in `_read_at` as of when."""

    @abstractmethod
    async def _job(self, job_id: str) -> JobView | None:
        """The job with this id."""

    @abstractmethod
    async def tasks(self, array: JobView, phase: str) -> list[JobView]:
        """Tasks of an array in this phase, by index."""

    async def jobs(self) -> list[JobView]:
        """Live jobs first, each group oldest first, then by id."""
        return sorted(await self._rows("jobs", JobView), key=lambda job: (job.phase in ENDED, *_age(job)))

    async def all_work(self) -> list[JobView]:
        """Live jobs, then users' work in Kubernetes that is refused, whose ids are no jobs', then ended jobs."""
        found = [*await self._rows("jobs", JobView), *await self._rows(REFUSED, JobView)]
        return sorted(found, key=lambda job: ((job.phase in ENDED) * 2 + (job.phase == REFUSED), *_age(job)))

    async def list_work(self, wanted: JobFilter, limit: int | None = None) -> tuple[list[JobView], int]:
        """The first `limit` of all work that is wanted, in the order of `all_work`, and how much is wanted in all."""
        found = [job for job in await self.all_work() if wanted.takes(job)]
        return found[:limit], len(found)

    async def glances(self) -> list[JobGlance]:
        """All jobs, in no order."""
        return [JobGlance.of(job) for job in await self._rows("jobs", JobView)]

    async def nodes(self) -> list[NodeView]:
        """All nodes by pool, then name."""
        return sorted(await self._rows("nodes", NodeView), key=lambda node: (node.pool, node.name))

    async def queues(self) -> list[QueueView]:
        """All queues by name."""
        return sorted(await self._rows("queues", QueueView), key=lambda queue: queue.name)

    async def work(self, named: str) -> JobView:
        """A job, or refused work, by its id, the unique beginning of one, or its name, as `one_of`. Raises Failure."""
        return await _look_again(lambda: self._find(named, REFUSED))

    async def id_to_wait_for(self, named: str) -> str:
        """As `work`, and the id also of a task that is not queued yet. Raises Failure."""
        try:
            return (await self.work(named)).job_id
        except Failure as failure:
            task = await self._task_id(named) if failure.code is Exit.NOT_FOUND else None
            if task is None:
                raise
            return task

    async def job(self, named: str) -> JobView:
        """A job by its id, the unique beginning of one, or its name, as `one_of`. Raises Failure."""
        return await _look_again(lambda: self._find(named))

    async def live_job(self, named: str) -> JobView:
        """As `job`, for orders: a Failure also where several have the name and all of them have ended."""
        return await _look_again(lambda: self._find(named, live_only=True))

    async def _find(self, named: str, *further: str, live_only: bool = False) -> JobView:
        """A name may look like a task's, as `train_7`: who has it is meant, unless there is such a task, too."""
        try:
            task = await self._task(named)
        except Failure:
            if called := [job for job in await self._named(named, *further) if job.name == named]:
                return one_of(called, named, live_only)
            raise
        if task is None:
            return await self._job(named) or one_of(await self._named(named, *further), named, live_only)
        if any(job.name == named for job in await self._named(named)):
            raise Failure(Exit.USAGE, f"job {named}: the name of a job and of a task; give the id")
        return task

    async def _named(self, named: str, *further: str) -> list[JobView]:
        """Jobs, and rows of further views, that may be meant: at least those of this name or beginning of an id."""
        return await (self.all_work() if further else self.jobs())

    async def _task(self, named: str) -> JobView | None:
        """Task `ARRAY_INDEX` of an array; None where the name is of no such form. Raises Failure."""
        job_id = await self._task_id(named)
        task = None if job_id is None else await self._job(job_id)
        if job_id is not None and task is None:
            raise Failure(Exit.NOT_FOUND, f"job {named}: not queued yet, or no longer listed; see `tessera ls`")
        return task

    async def _task_id(self, named: str) -> str | None:
        """Id of a task of an array, queued or not; None where the name is of no such form. Raises Failure."""
        of, _, index = named.rpartition("_")
        if not of or not (index.isascii() and index.isdecimal()):
            return None
        array = await self._find(of)
        tasks = array.array.tasks if array.array is not None else ""
        if not tasks or not has_task(tasks, int(index)):
            raise Failure(Exit.NOT_FOUND, f"job {named}: {of} has no such task")
        return task_id(array.job_id, int(index))


class ShardViews(ReadViews):
    """The views in Redis; the number is read before a view, so that a view is never older than it says."""

    def __init__(self, store: "ProjectionStore", shard: str = "") -> None:
        super().__init__()
        self.store, self._shard = store, shard

    async def title(self) -> str:
        """Shard, and the preset of the policy in force."""
        body = (await self.config()).body
        return f"shard {self._shard}, preset {'none: nothing is configured' if body is None else body.policy.preset}"

    async def templates(self) -> "Sequence[JobTemplate]":
        """Templates of the configuration in force."""
        body = (await self.config()).body
        return () if body is None else body.templates

    async def config(self) -> "Config":
        """Version 0 before the first `apply`."""
        from tessera_schemas.config import Config  # who only lists does without

        n, (stored,) = await self.store.fields_as_of(("config", "config"))
        self._read_at.append(n)
        return Config() if stored is None else Config.model_validate_json(stored)

    async def _rows(self, view: str, model: type[Row]) -> list[Row]:
        return [model.from_bytes(stored) for stored in (await self._stored(view)).values()]

    async def list_work(self, wanted: JobFilter, limit: int | None = None) -> tuple[list[JobView], int]:
        """Decodes only what is returned."""
        found: list[tuple[tuple[int, int, str], bytes]] = []
        for view in ("jobs", REFUSED):
            for stored in (await self._stored(view)).values():
                glance = JobGlance.read(stored)
                if wanted.takes(glance):
                    found.append((glance.order, stored))
        first = sorted(found) if limit is None else nsmallest(limit, found)  # to sort all takes as long as reading them
        return [JobView.from_bytes(stored) for _, stored in first], len(found)

    async def glances(self) -> list[JobGlance]:
        """Decodes nothing as a whole."""
        return [JobGlance.read(stored) for stored in (await self._stored("jobs")).values()]

    async def _named(self, named: str, *further: str) -> list[JobView]:
        """Decodes the rows alone that contain what is named."""
        text, found = as_json(named)[1:-1], list[JobView]()  # as it is stored: a quote is escaped
        for view in ("jobs", *further):
            rows = (await self._stored(view)).values()
            found += [JobView.from_bytes(stored) for stored in rows if text in stored]
        return found

    async def tasks(self, array: JobView, phase: str) -> list[JobView]:
        """Decodes the rows alone of the array's tasks."""
        text, rows = f'"task_of":"{array.job_id}"'.encode(), (await self._stored("jobs")).values()
        found = [JobView.from_bytes(stored) for stored in rows if text in stored]
        return sorted((task for task in found if task.phase == phase), key=lambda task: task.task)

    async def _stored(self, view: str) -> dict[str, bytes]:
        n, (rows,) = await self.store.rows_as_of(view)
        self._read_at.append(n)
        return rows

    async def _job(self, job_id: str) -> JobView | None:
        n, (stored,) = await self.store.fields_as_of(("jobs", job_id))
        self._read_at.append(n)
        return None if stored is None else JobView.from_bytes(stored)


class ApiViews(ReadViews):
    """The views as the gateway serves them to the token of `api`: a tenant's token sees what is the tenant's."""

    def __init__(self, api: "Api") -> None:
        super().__init__()
        self._api = api

    async def title(self) -> str:
        """Address of the gateway."""
        await self._api.ready()
        return self._api.url

    async def templates(self) -> "Sequence[JobTemplate]":
        """Templates without the jobs that they make, which the API does not show."""
        from tessera_schemas.work.templates import JobTemplate, Parameter

        found = (await self._get("/v1/templates"))["items"]
        return [
            JobTemplate.model_construct(
                name=one["name"],
                description=one["description"],
                parameters=tuple(map(Parameter.model_validate, one["parameters"])),
                overrides=tuple(one["overrides"]),
                spec={},
            )
            for one in found
        ]

    async def _rows(self, view: str, model: type[Row]) -> list[Row]:
        if view not in ("jobs", REFUSED):
            return [model.model_validate(row, extra="ignore") for row in (await self._get(f"/v1/{view}"))["items"]]
        rows = await self._pages(**({"phase": REFUSED} if view == REFUSED else {}))
        return [
            model.model_validate(row, extra="ignore") for row in rows if (row["phase"] == REFUSED) == (view == REFUSED)
        ]

    async def tasks(self, array: JobView, phase: str) -> list[JobView]:
        """Asks for no other jobs."""
        rows = await self._pages(array=array.job_id, phase=phase)
        return [JobView.model_validate(row, extra="ignore") for row in rows]

    async def _pages(self, **asked: Any) -> list[Any]:
        """Rows of all pages of the list of jobs."""
        rows: list[Any] = []
        while True:
            page = await self._get("/v1/jobs", limit=PAGE, **asked)
            rows += page["items"]
            if not page.get("next"):
                return rows
            asked["cursor"] = page["next"]

    async def _job(self, job_id: str) -> JobView | None:
        from tessera.client.connect.api import path_of

        if not is_whole_id(job_id):
            return None
        try:
            return JobView.model_validate((await self._get(path_of(job_id)))["job"], extra="ignore")
        except Failure as failure:
            if failure.code is Exit.NOT_FOUND:
                return None
            raise

    async def _get(self, path: str, **query: Any) -> dict[str, Any]:
        found = await self._api.get(path, **query)
        self._read_at.append(int(found["as_of"]))
        return found


async def _look_again(look: Callable[[], Awaitable[JobView]]) -> JobView:
    """
    What is found, also a moment later: the views are behind whoever acknowledged a submit. Raises Failure.
    """
    for pause in PAUSES:
        try:
            return await look()
        except Failure as failure:
            if failure.code is not Exit.NOT_FOUND:
                raise
        await SystemClock().sleep(pause)
    return await look()


def is_whole_id(named: str) -> bool:
    """Tells whether a job is named by a whole id, which needs no view to be understood."""
    return re.fullmatch(f"[a-z2-7]{{{ID_CHARACTERS}}}", named) is not None


def _age(job: JobView) -> tuple[int, str]:
    return job.submitted_ts, job.job_id


def one_of(jobs: list[JobView], named: str, live_only: bool = False) -> JobView:
    """
    The job meant by its number, the beginning of an id or a name; of jobs with one name the live one, if it is alone.

    Where all of them have ended, who reads means the newest; with `live_only`, for an order, that is a Failure, too.
    Raises Failure.
    """
    if numbered := [job for job in jobs if job.number and str(job.number) == named]:
        return numbered[0]
    jobs = [job for job in jobs if not job.task_of]  # they begin and are called as their array
    by_id = [job for job in jobs if len(named) >= ID_PREFIX_MIN and job.job_id.startswith(named)]
    by_name = [job for job in jobs if job.name == named]
    live = [job for job in by_name if job.phase not in ENDED]
    for found in (by_id, live, by_name):
        if len(found) == 1:
            return found[0]
        if found:
            if found is by_name:  # and none of them lives
                if live_only:
                    raise Failure(Exit.CONFLICT, f"job {named}: all {len(found)} jobs of this name have ended")
                return max(found, key=_age)
            some = ", ".join(job.job_id for job in found[:5]) + (", …" if len(found) > 5 else "")
            raise Failure(Exit.USAGE, f"job {named}: {len(found)} jobs have this name ({some}); give the id of one")
    raise Failure(Exit.NOT_FOUND, f"job {named}: there is none with this id or name; see `tessera ls`")

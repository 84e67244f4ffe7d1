"""The shard's lists with the ledger number up to which they hold, as the gateway serves them to whoever asks."""

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tessera.client.outcomes import Exit, Failure
from tessera.domain.work.phases import TERMINAL, Phase
from tessera.kernel.clock import SystemClock
from tessera_schemas.base import Lenient, Strict
from tessera_schemas.views import JobView, LineStart, NodeView, QueueView, ShareView
from tessera_schemas.work.arrays import has_task, task_id

if TYPE_CHECKING:
    from tessera.client.connect.api import Api
    from tessera.domain.devices.free_slots import Slots
    from tessera.gateway.operations.models import ToldConsequences, WorkGroups
    from tessera_schemas.config import Config
    from tessera_schemas.shard.quotes import StartQuote
    from tessera_schemas.work.templates import JobTemplate

ENDED = frozenset(phase.value for phase in TERMINAL)
LIVE = tuple(phase.value for phase in Phase if phase not in TERMINAL)
REFUSED = "refused"
"""Phase of users' work in Kubernetes that is turned away."""
ID_PREFIX_MIN, ID_CHARACTERS = 4, 20
PAGE, NAMED_MAX = 500, 100
PAUSES = (0.05, 0.1, 0.2, 0.4)
"""Seconds between looks for a job that is not found, before it is said that there is none."""

Row = TypeVar("Row", bound=Lenient)


class ShardViews:
    """
    Lists of a shard: a tenant's token sees what is the tenant's.

    Each raises Transient while the gateway is away, Failure and Refused for what it refuses.
    """

    def __init__(self, api: "Api") -> None:
        self._api = api
        self._read_at: list[int] = []

    async def as_of(self) -> int:
        """Ledger number up to which everything holds that was read since this was last asked."""
        n, self._read_at = min(self._read_at, default=0), []
        return n

    async def title(self) -> str:
        """Address of the gateway, for the first line of a screen."""
        await self._api.ready()
        return self._api.url

    async def config(self) -> "Config":
        """Configuration in force, for operators; version 0 before the first `apply`."""
        from tessera_schemas.config import Config  # who only lists does without

        return Config.model_validate((await self._get("/v1/config"))["config"])

    async def templates(self) -> "Sequence[JobTemplate]":
        """Templates that may be submitted by name, without the jobs that they make."""
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

    async def jobs(self, phases: Collection[str] = (), **wanted: Any) -> list[JobView]:
        """Jobs in these phases, or all, as fields of a job query want them; live jobs first, each oldest first."""
        found = await self.all_work(phases, **wanted)
        return [job for job in found if job.phase != REFUSED]

    async def all_work(self, phases: Collection[str] = (), **wanted: Any) -> list[JobView]:
        """As `jobs`; between live and ended jobs users' work in Kubernetes that is refused, whose ids are no jobs'."""
        found = await self._pages(phase=tuple(phases), **wanted)
        return sorted(found, key=lambda job: ((job.phase in ENDED) * 2 + (job.phase == REFUSED), *_age(job)))

    async def list_work(self, limit: int, phases: Collection[str] = (), **wanted: Any) -> tuple[list[JobView], int]:
        """The first `limit` of all work that is wanted, in the order of `all_work`, and how much is wanted in all."""
        asked = {"order": "live", "phase": tuple(phases), **wanted}
        page = await self._get("/v1/jobs", limit=min(limit, PAGE), count="true", **asked)
        rows, count = page["items"], int(page["count"])
        while page.get("next") and len(rows) < limit:
            page = await self._get("/v1/jobs", limit=min(limit - len(rows), PAGE), cursor=page["next"], **asked)
            rows += page["items"]
        return [JobView.model_validate(row, extra="ignore") for row in rows], count

    async def consequences(self, command: Strict) -> "ToldConsequences":
        """Consequences of an order, which is not given."""
        from tessera.gateway.operations.models import ToldConsequences

        said = {"command": command.model_dump(mode="json")}
        return ToldConsequences.model_validate((await self._api.post("/v1/consequences", said))[1], extra="ignore")

    async def groups(self) -> "WorkGroups":
        """Live jobs by tenant, and queued jobs by the reason for which they wait."""
        from tessera.gateway.operations.models import WorkGroups

        return WorkGroups.model_validate(await self._get("/v1/work"), extra="ignore")

    async def slots(self) -> "list[Slots]":
        """Free slots of every pool, with the rules by which GPUs that can be had are idle."""
        from pydantic import TypeAdapter

        from tessera.domain.devices.free_slots import Slots

        return TypeAdapter(list[Slots]).validate_python((await self._get("/v1/slots"))["items"])

    async def shares(self) -> list[ShareView]:
        """Shares of queues, tenants in them and their users by weight, a name before those below it."""
        return await self._rows("shares", ShareView)

    async def places(self) -> dict[str, dict[str, Any]]:
        """Places in line by the ids of jobs, of those that one may see."""
        return {row["job_id"]: row for row in (await self._get("/v1/line"))["items"] if row.get("job_id")}

    async def expected_starts(self) -> dict[str, LineStart]:
        """Expected starts of waiting jobs by their ids, of those whose start is known."""
        start = "expected_start"
        told = {job_id: place[start] for job_id, place in (await self.places()).items() if place.get(start)}
        return {job_id: LineStart.model_validate(found, extra="ignore") for job_id, found in told.items()}

    async def quotes(self) -> "dict[str, StartQuote]":
        """Quotes of waiting jobs by their ids, of those that one may see."""
        from tessera_schemas.shard.quotes import StartQuote

        rows, page = list[Any](), await self._get("/v1/quotes", limit=PAGE)
        while page.get("next"):
            rows += page["items"]
            page = await self._get("/v1/quotes", limit=PAGE, cursor=page["next"])
        found = (*rows, *page["items"])
        return {row["job_id"]: StartQuote.model_validate(row["quote"], extra="ignore") for row in found}

    async def quote_words(self, job_id: str) -> str:
        """Quote of a waiting job in words; "" where there is none."""
        from tessera.client.connect.api import path_of

        found = (await self._get(path_of(job_id))).get("quote")
        return str(found["words"]) if found else ""

    async def nodes(self) -> list[NodeView]:
        """All nodes by pool, then name."""
        return sorted(await self._rows("nodes", NodeView), key=lambda node: (node.pool, node.name))

    async def queues(self) -> list[QueueView]:
        """All queues by name."""
        return sorted(await self._rows("queues", QueueView), key=lambda queue: queue.name)

    async def tasks(self, array: JobView, phase: str) -> list[JobView]:
        """Tasks of an array in this phase, by index."""
        return await self._pages(array=array.job_id, phase=phase)

    async def work(self, named: str) -> JobView:
        """A job, or refused work, by its id, the unique beginning of one, or its name, as `one_of`. Raises Failure."""
        return await _look_again(named, lambda: self._find(named, refused=True))

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
        return await _look_again(named, lambda: self._find(named))

    async def live_job(self, named: str) -> JobView:
        """As `job`, for orders: a Failure also where several have the name and all of them have ended."""
        return await _look_again(named, lambda: self._find(named, live_only=True))

    async def _find(self, named: str, refused: bool = False, live_only: bool = False) -> JobView:
        """A name may look like a task's, as `train_7`: who has it is meant, unless there is such a task, too."""
        try:
            task = await self._task(named)
        except Failure:
            if called := [job for job in await self._named(named, refused) if job.name == named]:
                return one_of(called, named, live_only)
            raise
        if task is None:
            return await self._job(named) or one_of(await self._named(named, refused), named, live_only)
        if any(job.name == named for job in await self._named(named)):
            raise Failure(Exit.USAGE, f"job {named}: the name of a job and of a task; give the id")
        return task

    async def _named(self, named: str, refused: bool = False) -> list[JobView]:
        """Jobs, and refused work, that may be meant: of this number, this name or with this beginning of an id."""
        if not named or len(named) > NAMED_MAX:
            return []
        return await (self.all_work(named=named) if refused else self.jobs(named=named))

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

    async def _rows(self, view: str, model: type[Row]) -> list[Row]:
        return [model.model_validate(row, extra="ignore") for row in (await self._get(f"/v1/{view}"))["items"]]

    async def _pages(self, **asked: Any) -> list[JobView]:
        """
        Jobs of all pages, newest first.

        A job's place in this order never changes, so that none is left out or listed twice while pages are turned.
        """
        rows: list[Any] = []
        while True:
            page = await self._get("/v1/jobs", limit=PAGE, **asked)
            rows += page["items"]
            if not page.get("next"):
                return [JobView.model_validate(row, extra="ignore") for row in rows]
            asked["cursor"] = page["next"]

    async def _get(self, path: str, **query: Any) -> dict[str, Any]:
        found = await self._api.get(path, **query)
        self._read_at.append(int(found["as_of"]))
        return found


async def _look_again(named: str, look: Callable[[], Awaitable[JobView]]) -> JobView:
    """
    What is found, also a moment later: the views are behind whoever acknowledged a submit. Raises Failure.

    The gateway itself waits that moment for a job that is named by its whole id.
    """
    for pause in () if is_whole_id(named) else PAUSES:
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
    The job meant by its number, the beginning of an id or a name; of jobs with one name a live one before all others.

    Who reads means the newest of several; with `live_only`, for an order, several are a Failure, and so is none that
    lives. Raises Failure.
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
            if found is by_name and live_only:  # and none of them lives
                raise Failure(Exit.CONFLICT, f"job {named}: all {len(found)} jobs of this name have ended")
            if found is not by_id and not live_only:
                return max(found, key=_age)
            some = ", ".join(job.job_id for job in found[:5]) + (", …" if len(found) > 5 else "")
            raise Failure(Exit.USAGE, f"job {named}: {len(found)} jobs have this name ({some}); give the id of one")
    raise Failure(Exit.NOT_FOUND, f"job {named}: there is none with this id or name; see `tessera ls`")

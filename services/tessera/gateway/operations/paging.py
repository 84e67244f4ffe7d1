"""Pages of a list of jobs: which jobs are wanted, and where the next page goes on."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from heapq import nsmallest

from tessera.domain.entities import EndedJob, Job
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.gateway.entrance.problems import refused
from tessera.gateway.operations import models, queries
from tessera.gateway.reading.views import ORDERS, ListedKind, ListPlace, SharedViews
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView

ID_PREFIX_MIN = 4
# Characters by which a job may be named that are the beginning of its id.
NAMED_MAX = 100
# Jobs that are found by one name; live ones first, then the newest.
LOOKED_AT_MAX = 20_000
# Jobs that one page looks at; then it ends, maybe empty, and says where to go on.


class JobPages:
    """Pages of jobs, of one tenant or of all. Each raises Refusal while Redis is away."""

    def __init__(self, state: State, views: SharedViews) -> None:
        self._state, self._views = state, views

    async def page(
        self,
        query: queries.JobQuery,
        tenant: str | None,
        array: Job | EndedJob | None,
        turn: Callable[[], Awaitable[None]],
    ) -> models.JobPage:
        """The page that is asked for; `array` is the one whose tasks are listed. It is searched for at its `turn`."""
        if query.named:
            return await self._named(query, tenant)
        place = place_of(query.cursor)
        n, jobs = await self._views.jobs()
        await turn()
        if array is None:
            rest = jobs.after(tenant, place, query.order)
        else:
            rest = jobs.tasks(array.job_id, array.submitted_ts, place)
        items, place = page_of(rest, query, self._user_of)
        following, count = None if place is None else cursor_of(place), count_of(jobs.kinds, query, tenant)
        return models.JobPage(as_of=n, items=tuple(items), next=following, count=count)

    async def _named(self, query: queries.JobQuery, tenant: str | None) -> models.JobPage:
        # All jobs that are called so, on one page, up to date as far as the ledger is known here.
        n, found = await self._views.jobs_of(ids_named(self._state, tenant, query.named), self._state.n)
        return models.JobPage(as_of=n, items=tuple(page_of(found, query, self._user_of)[0]))

    def _user_of(self, job_id: str) -> str:
        # User of the tenant whose job it is; the fold forgets it with the job's end.
        job = self._state.jobs.get(job_id)
        return "" if job is None else job.user


def page_of(
    rest: Iterable[JobView], query: queries.JobQuery, user_of: Callable[[str], str]
) -> tuple[list[JobView], ListPlace | None]:
    """The page, and the place behind which the next one begins; None when nothing is left."""
    items: list[JobView] = []
    place: ListPlace | None = None
    sought, place_in = query.search.casefold(), ORDERS[query.order]
    for looked_at, job in enumerate(rest):
        if len(items) == query.limit or looked_at == LOOKED_AT_MAX:
            return items, place
        place = place_in(job)
        if _wanted(job, query) and (not sought or _is_found(job, sought, user_of)):
            items.append(job)
    return items, None


def count_of(kinds: Mapping[ListedKind, int], query: queries.JobQuery, tenant: str | None) -> int | None:
    """Number of jobs on all pages; None unless the query narrows them by tenant, queue and phase alone."""
    if not query.count or query.array or query.name or query.named or query.search:
        return None
    return sum(number for kind, number in kinds.items() if tenant in (None, kind.tenant) and _is_of_kind(kind, query))


def _wanted(job: JobView, query: queries.JobQuery) -> bool:
    return (
        _is_of_kind(ListedKind.of(job), query) and query.array in (None, job.task_of) and query.name in (None, job.name)
    )


def _is_of_kind(kind: ListedKind, query: queries.JobQuery) -> bool:
    # Whether the phase, the queue and being a task are as wanted; an array that stands for its tasks runs as they.
    runs = kind.runs_tasks and not query.tasks and Phase.RUNNING.value in query.phase
    return (
        (not query.phase or kind.phase in query.phase or runs)
        and (query.tasks or not kind.is_task)
        and query.queue in (None, kind.queue)
    )


def _is_found(job: JobView, sought: str, user_of: Callable[[str], str]) -> bool:
    texts = (job.name, job.job_id, job.queue, job.tenant, job.owner, user_of(job.job_id))
    return any(sought in text.casefold() for text in texts)


def cursor_of(place: ListPlace) -> str:
    """The cursor by which a client asks for what is behind this place."""
    return urlsafe_b64encode("{}.{}.{}".format(*place).encode()).decode()


def place_of(cursor: str) -> ListPlace | None:
    """The place that a cursor stands for, None for the beginning. Raises Refusal for what is no cursor."""
    if not cursor:
        return None
    try:
        rank, ts, job = urlsafe_b64decode(cursor.encode()).decode().split(".", 2)
        return int(rank), int(ts), job
    except ValueError:
        raise refused(Code.INVALID_FIELD, "cursor", "not a cursor; send `next` of the page before") from None


def ids_named(state: State, tenant: str | None, named: str) -> list[str]:
    """
    Ids of jobs, and of refused work, that are called so: by name, number, or the beginning of the id.

    They are the fold's: a list may lack the job that was submitted a moment ago. Of `tenant` alone, None for all. Live
    jobs come first, then refused work, then ended jobs, the newest first.
    """
    known: list[tuple[int, int, str]] = []
    for rank, jobs in ((0, state.jobs), (2, state.ended)):
        known += [
            (rank, -job.submitted_ts, job.job_id)
            for job in jobs.values()
            if tenant in (None, job.tenant) and is_called(job, named)
        ]
    known += [
        (1, -work.since_ts, work.work_id)
        for work in state.refused.values()
        if tenant in (None, work.tenant) and (named == work.owner.rpartition("/")[2] or _begins(work.work_id, named))
    ]
    return [job_id for _, _, job_id in nsmallest(NAMED_MAX, known)]


def is_called(job: Job | EndedJob, named: str) -> bool:
    """Tells whether this is the job's name or number, or the beginning of its id."""
    return named == job.name or named == str(job.number) or _begins(job.job_id, named)


def _begins(job_id: str, named: str) -> bool:
    return len(named) >= ID_PREFIX_MIN and job_id.startswith(named)

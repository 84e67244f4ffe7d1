"""Pages of a list of jobs: which jobs are wanted, and where the next page goes on."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping

from tessera.domain.work.phases import Phase
from tessera.gateway.entrance.problems import refused
from tessera.gateway.operations import models
from tessera.gateway.reading.views import ORDERS, JobKind, Place
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView

ID_PREFIX_MIN = 4
"""Characters by which a job may be named that are the beginning of its id."""
LOOKED_AT_MAX = 20_000
"""Jobs that one page looks at; then it ends, maybe empty, and says where to go on."""


def page_of(
    rest: Iterator[JobView], query: models.JobQuery, user_of: Callable[[str], str]
) -> tuple[list[JobView], Place | None]:
    """The page, and the place behind which the next one begins; None when nothing is left."""
    items: list[JobView] = []
    place: Place | None = None
    sought, place_in = query.search.casefold(), ORDERS[query.order]
    for looked_at, job in enumerate(rest):
        if len(items) == query.limit or looked_at == LOOKED_AT_MAX:
            return items, place
        place = place_in(job)
        if _wanted(job, query) and (not sought or _is_found(job, sought, user_of)):
            items.append(job)
    return items, None


def count_of(kinds: Mapping[JobKind, int], query: models.JobQuery, tenant: str | None) -> int | None:
    """Number of jobs on all pages; None unless the query narrows them by tenant, queue and phase alone."""
    if not query.count or query.array or query.name or query.named or query.search:
        return None
    return sum(number for kind, number in kinds.items() if tenant in (None, kind.tenant) and _is_of_kind(kind, query))


def _wanted(job: JobView, query: models.JobQuery) -> bool:
    return (
        _is_of_kind(JobKind.of(job), query)
        and query.array in (None, job.task_of)
        and query.name in (None, job.name)
        and (not query.named or _is_named(job, query.named))
    )


def _is_of_kind(kind: JobKind, query: models.JobQuery) -> bool:
    """Whether the phase, the queue and being a task are as wanted; an array that stands for its tasks runs as they."""
    runs = kind.runs_tasks and not query.tasks and Phase.RUNNING.value in query.phase
    return (
        (not query.phase or kind.phase in query.phase or runs)
        and (query.tasks or not kind.is_task)
        and query.queue in (None, kind.queue)
    )


def _is_named(job: JobView, named: str) -> bool:
    """Whether the name, the number or the id may mean the job; a task's id begins as its array's."""
    begins = len(named) >= ID_PREFIX_MIN and job.job_id.startswith(named)
    return named in (job.name, str(job.number)) or begins


def _is_found(job: JobView, sought: str, user_of: Callable[[str], str]) -> bool:
    texts = (job.name, job.job_id, job.queue, job.tenant, job.owner, user_of(job.job_id))
    return any(sought in text.casefold() for text in texts)


def cursor_of(place: Place) -> str:
    """The cursor by which a client asks for what is behind this place."""
    return urlsafe_b64encode("{}.{}.{}".format(*place).encode()).decode()


def place_of(cursor: str) -> Place | None:
    """The place that a cursor stands for, None for the beginning. Raises Refusal for what is no cursor."""
    if not cursor:
        return None
    try:
        rank, ts, job = urlsafe_b64decode(cursor.encode()).decode().split(".", 2)
        return int(rank), int(ts), job
    except ValueError:
        raise refused(Code.INVALID_FIELD, "cursor", "not a cursor; send `next` of the page before") from None

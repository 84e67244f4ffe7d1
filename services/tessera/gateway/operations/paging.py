"""Pages of a list of jobs: which jobs are wanted, and where the next page goes on."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator

from tessera.domain.work.phases import Phase
from tessera.gateway.entrance.problems import refused
from tessera.gateway.operations import models
from tessera.gateway.reading.views import Age, age
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView

LOOKED_AT_MAX = 20_000
"""Jobs that one page looks at; then it ends, maybe empty, and says where to go on."""


def page_of(
    older: Iterator[JobView], query: models.JobQuery, user_of: Callable[[str], str]
) -> tuple[list[JobView], Age | None]:
    """The page, and the place behind which the next one begins; None when nothing is left."""
    items: list[JobView] = []
    place: Age | None = None
    sought = query.search.casefold()
    for looked_at, job in enumerate(older):
        if len(items) == query.limit or looked_at == LOOKED_AT_MAX:
            return items, place
        place = age(job)
        if _wanted(job, query) and (not sought or _is_found(job, sought, user_of)):
            items.append(job)
    return items, None


def _wanted(job: JobView, query: models.JobQuery) -> bool:
    return (
        (not query.phase or job.phase in query.phase or _runs_tasks(job, query))
        and (query.tasks or not job.task_of)
        and query.array in (None, job.task_of)
        and query.queue in (None, job.queue)
        and query.name in (None, job.name)
    )


def _runs_tasks(job: JobView, query: models.JobQuery) -> bool:
    """Whether running ones are wanted, and it is an array that stands for its tasks, of which some run."""
    wanted = not query.tasks and Phase.RUNNING.value in query.phase
    return wanted and job.array is not None and job.array.running > 0 and not job.ended_ts


def _is_found(job: JobView, sought: str, user_of: Callable[[str], str]) -> bool:
    texts = (job.name, job.job_id, job.queue, job.tenant, job.owner, user_of(job.job_id))
    return any(sought in text.casefold() for text in texts)


def cursor_of(place: Age) -> str:
    """The cursor by which a client asks for what is behind this place."""
    return urlsafe_b64encode(f"{-place[0]}.{place[1]}".encode()).decode()


def place_of(cursor: str) -> Age | None:
    """The place that a cursor stands for, None for the beginning. Raises Refusal for what is no cursor."""
    if not cursor:
        return None
    try:
        ts, _, job = urlsafe_b64decode(cursor.encode()).decode().partition(".")
        return -int(ts), job
    except ValueError:
        raise refused(Code.INVALID_FIELD, "cursor", "not a cursor; send `next` of the page before") from None

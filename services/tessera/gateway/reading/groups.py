"""Live jobs in groups: by tenant, and those that wait by the reason for it."""

from collections.abc import Callable, Iterable

from tessera.gateway.operations.models import JobGroup
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView

QUEUED = "queued"


def groups_of(jobs: Iterable[JobView]) -> tuple[tuple[JobGroup, ...], tuple[JobGroup, ...]]:
    """Groups of live jobs by tenant, and of queued ones by the code of their reason; most GPUs first."""
    live = [job for job in jobs if _code_of(job) != Code.ARRAY_TASKS]  # the tasks count themselves
    waiting = [job for job in live if job.phase == QUEUED]
    return _grouped(live, lambda job: job.tenant), _grouped(waiting, _code_of)


def _code_of(job: JobView) -> str:
    return "" if job.reason is None else job.reason.code


def _grouped(jobs: Iterable[JobView], name: Callable[[JobView], str]) -> tuple[JobGroup, ...]:
    found: dict[str, list[JobView]] = {}
    for job in jobs:
        found.setdefault(name(job), []).append(job)
    made = [_group(title, members) for title, members in found.items()]
    return tuple(sorted(made, key=lambda group: (-group.gpu_milli, -group.wanted_milli, group.name)))


def _group(name: str, jobs: list[JobView]) -> JobGroup:
    waiting = [job for job in jobs if job.phase == QUEUED]
    holding = [job for job in jobs if job.phase != QUEUED]
    return JobGroup(
        name=name,
        running=len(holding),
        waiting=len(waiting),
        gpu_milli=sum(job.gpu_milli_now for job in holding),
        wanted_milli=sum(job.gpu_milli for job in waiting),
        oldest_ts=min((job.submitted_ts for job in waiting), default=0),
    )

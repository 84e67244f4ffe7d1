"""Live jobs in groups: by tenant, those that wait by the reason for it, and those that use none of their GPUs."""

from collections.abc import Callable, Iterable

from tessera.gateway.operations.models import IdleGroup, JobGroup
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView

QUEUED, RUNNING = "queued", "running"


def groups_of(jobs: Iterable[JobView]) -> tuple[tuple[JobGroup, ...], tuple[JobGroup, ...]]:
    """Groups of live jobs by tenant, and of queued ones by the code of their reason; most GPUs first."""
    live = [job for job in jobs if _code_of(job) != Code.ARRAY_TASKS]  # the tasks count themselves
    waiting = [job for job in live if job.phase == QUEUED]
    return _grouped(live, lambda job: job.tenant), _grouped(waiting, _code_of)


def idle_groups(jobs: Iterable[JobView]) -> tuple[IdleGroup, ...]:
    """Running jobs that were warned of being idle, by tenant and queue; most GPUs first."""
    found: dict[tuple[str, str], list[int]] = {}
    for job in jobs:
        if job.idle_ts and job.phase == RUNNING:
            found.setdefault((job.tenant, job.queue), []).append(job.gpu_milli_now)
    made = [IdleGroup(tenant=who[0], queue=who[1], jobs=len(held), gpu_milli=sum(held)) for who, held in found.items()]
    return tuple(sorted(made, key=lambda group: (-group.gpu_milli, group.tenant, group.queue)))


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

"""
Live jobs in groups: by tenant, those that wait by the reason for it, and those that use none of their GPUs; services
with their replicas, and data sets by the nodes that have them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from tessera.domain.devices.datasets import dataset_key, split_key
from tessera.domain.entities import Job, Run
from tessera.domain.folding.services import minimum_of, replicas_by_service
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.queueing.entry import over_limit_of_task
from tessera.gateway.operations.dataset_models import DatasetDomain, DatasetPlaces, DatasetReader
from tessera.gateway.operations.models import IdleGroup, JobGroup, ServiceRow
from tessera.gateway.reading.explaining import hide_other_tenants
from tessera_schemas.cluster.devices import EVERY_TENANT
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView

QUEUED, RUNNING = "queued", "running"
ReadingJob = tuple[Job, int]
"""A job that waits, and the bytes of a data set that it reads."""


def groups_of(jobs: Iterable[JobView]) -> tuple[tuple[JobGroup, ...], tuple[JobGroup, ...]]:
    """Groups of live jobs by tenant, and of queued ones by the code of their reason; most GPUs first."""
    of_their_parts = (Code.ARRAY_TASKS, Code.SERVICE_REPLICAS)  # which count themselves
    live = [job for job in jobs if _code_of(job) not in of_their_parts]
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


NEVER_USED = 0, "", 0
"""Of a data set that no run has read: when, on what node, and how many bytes."""
READERS_MAX = 8


def service_rows(state: State, tenant: str | None) -> tuple[ServiceRow, ...]:
    """Services of the tenant, of all tenants for None, by tenant and name; those that were submitted at any size."""
    found = [_service_row(state, tenant, uid, jobs) for uid, jobs in replicas_by_service(state).items()]
    shown = (row for row in found if row is not None and tenant in (None, row.tenant))
    return tuple(sorted(shown, key=lambda row: (row.tenant, row.name, row.job_id)))


def _service_row(state: State, tenant: str | None, uid: str, jobs: list[Job]) -> ServiceRow | None:
    made_of = state.jobs.get(uid)
    whole = made_of or next(iter(jobs), None)
    if whole is None:
        return None
    array, runs = whole.array, [run for job in jobs if (run := state.runs.get(job.run_id)) is not None]
    waiting = [job for job in jobs if job.phase is Phase.QUEUED and not job.held]
    kept = {job.job_id for job in jobs if job.in_minimum}
    renewed = {job.job_id for job in jobs if array is not None and job.spec_at == whole.spec_at}
    return ServiceRow(
        name=whole.service_name,
        tenant=whole.tenant,
        queue=min((job.queue for job in jobs), default=whole.queue),
        job_id="" if made_of is None else uid,
        replicas=len(jobs) if array is None else array.wanted,
        running=sum(_is_at_work(run) for run in runs),
        waiting=len(waiting),
        min_replicas=minimum_of(jobs) if array is None else array.least,
        guaranteed=sum(_is_at_work(run) and run.job_id in kept for run in runs),
        max_replicas=0 if array is None else array.most,
        gpu_milli=sum(run.amount.gpu_milli for run in runs),
        why=hide_other_tenants(tenant, _why_fewer(state, whole, waiting), state),
        revision=0 if array is None else array.revision,
        renewed=sum(_is_at_work(run) and run.job_id in renewed for run in runs),
        rollout="" if array is None else array.rollout_state,
    )


def _is_at_work(run: Run) -> bool:
    return run.started and not run.stopping


def _why_fewer(state: State, whole: Job, waiting: list[Job]) -> str:
    """The reason that keeps the first replica that waits, or the service from having one; a hold lets nothing start."""
    first = min(waiting, key=lambda job: (job.taken_n, job.task, job.job_id), default=None)
    reason = None if first is None else first.reason
    if whole.array is not None:
        rollout, lacks = whole.array.rollout, whole.array.too_many < whole.array.surge
        stopped = None if rollout is None else rollout.stopped
        reason = whole.hold or stopped or reason or (over_limit_of_task(state, whole) if lacks else None)
    return "" if reason is None else reason.sentence()


def dataset_places(state: State, tenant: str | None, pools: Collection[str]) -> tuple[DatasetPlaces, ...]:
    """
    Data sets of the tenant, of all tenants for None, on the nodes of these pools, by tenant and name; and those that
    jobs wait to read there.

    Runs may say different sizes of one: the last one counts. What nodes say of tenants that are not there is left out.
    """
    used, told = dict[str, list[tuple[int, str, int]]](), dict[str, list[str]]()
    tenants: Collection[str] = state.tree.tenants if tenant is None else {tenant}
    for node in (node for node in state.nodes.values() if node.pool in pools):
        for key, size_bytes, used_ts in node.kept_data:
            if tenant is None or split_key(key)[0] == tenant:
                used.setdefault(key, []).append((used_ts, node.name, size_bytes))
        for key in node.told_data:
            if split_key(key)[0] == EVERY_TENANT or split_key(key)[0] in tenants:
                told.setdefault(key, []).append(node.name)
    readers, domains = _readers(state, tenant, pools, used.keys() | told.keys()), _Domains(state, pools)
    listed = sorted(used.keys() | told.keys() | readers.keys(), key=split_key)
    made = [_places(key, used.get(key, []), told.get(key, []), readers.get(key, [])) for key in listed]
    first = [tuple(_reader(state, tenant, job) for job, _ in readers.get(key, [])[:READERS_MAX]) for key in listed]
    named = (places.model_copy(update={"readers": jobs}) for places, jobs in zip(made, first, strict=True))
    return tuple(domains.added_to(places) for places in named)


def _reader(state: State, tenant: str | None, job: Job) -> DatasetReader:
    why = "" if job.reason is None else hide_other_tenants(tenant, job.reason.sentence(), state)
    return DatasetReader(job_id=job.job_id, name=job.name, why=why)


def _places(key: str, used: list[tuple[int, str, int]], told: list[str], readers: list[ReadingJob]) -> DatasetPlaces:
    (owner, name), (used_ts, _, size_bytes) = split_key(key), max(used, default=NEVER_USED)
    return DatasetPlaces(
        tenant=owner,
        dataset=name,
        size_bytes=size_bytes or next((size for _, size in readers), 0),
        nodes=tuple(sorted(node for _, node, _ in used)),
        used_ts=used_ts,
        told_nodes=tuple(sorted(told)),
        waiting=len(readers),
    )


def _readers(
    state: State, tenant: str | None, pools: Collection[str], listed: Collection[str]
) -> dict[str, list[ReadingJob]]:
    """Jobs that wait by each data set that they read: a tenant's own, else one of these that all tenants have."""
    found = dict[str, list[ReadingJob]]()
    waiting = [job for job in state.jobs.values() if job.phase is Phase.QUEUED and job.array is None]
    mine = (job for job in waiting if job.gang.reads_data and tenant in (None, job.tenant))
    for job in sorted(mine, key=lambda job: (job.taken_n, job.task, job.job_id)):
        reads = {key: size for role in job.gang for key, size, _ in role.need.data}
        for key, size in reads.items() if state.tree.pool(job.queue) in pools else ():
            of_all = dataset_key(EVERY_TENANT, split_key(key)[1])
            at = of_all if key not in listed and of_all in listed else key
            found.setdefault(at, []).append((job, size))
    return found


class _Domains:
    """Domains of the nodes of some pools, by the level within which caches serve each other, else by the narrowest."""

    def __init__(self, state: State, pools: Collection[str]) -> None:
        levels = state.tree.levels
        self._level = state.tree.policy.data_caches.level or next(reversed(levels), "")
        nodes = (node for node in state.nodes.values() if node.pool in pools and not node.gone)
        named = ((node.name, node.label(levels[self._level])) for node in nodes if self._level in levels)
        self._domain_of = {name: domain for name, domain in named if domain is not None}
        self._sizes = Counter(self._domain_of.values())

    def added_to(self, places: DatasetPlaces) -> DatasetPlaces:
        """The data set with the domains of the nodes that have it."""
        has = {*places.nodes, *places.told_nodes} & self._domain_of.keys()
        counted = Counter(self._domain_of[name] for name in has)
        domains = [DatasetDomain(domain=at, has=counted[at], nodes=self._sizes[at]) for at in sorted(counted)]
        return places.model_copy(update={"level": self._level if domains else "", "domains": tuple(domains)})

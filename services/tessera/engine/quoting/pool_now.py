"""
A pool at one ledger time, as much of it as a drawn future needs: nodes, runs, the waiting jobs and the line's rules.

A value made from a state and never stored in it. GPUs are counted in whole ones, a share as a whole one. Jobs without
GPUs are left out: what they wait for is not counted here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tessera.domain.devices.resources import WHOLE_GPU
from tessera.domain.entities import Job, Run
from tessera.domain.queues import UNLIMITED, QueueTree
from tessera.domain.runtimes import JobKind, kind_of
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.ahead.booked_nodes import BookedNodes
from tessera_schemas.config import OrderName

GPU_QUOTA = "gpu_milli"
WINDOWS_MAX = 2048


class JobShape(NamedTuple):
    """
    Features that equal jobs share: `pieces` are (GPUs of a pod, pods), the largest first; `models` none for any.

    `path` is the job's queue and all above it, the root last.
    """

    kind: JobKind
    pieces: tuple[tuple[int, int], ...]
    models: tuple[str, ...]
    path: tuple[str, ...]
    user: str
    priority: int
    limit_ms: int

    @property
    def gpus(self) -> int:
        """GPUs of all pods."""
        return sum(each * many for each, many in self.pieces)


JobClass = tuple[str, ...]
"""Features by which jobs are scored together: pool, queue, class of priority, size."""


def class_of(pool: str, shape: JobShape) -> JobClass:
    """Jobs that are scored together: of one pool, queue and class of priority, and about as large."""
    size = "1" if shape.gpus == 1 else "to 4" if shape.gpus <= 4 else "to 8" if shape.gpus <= 8 else "over 8"
    return pool, shape.path[0], str(shape.priority), size


def read_shape(stored: Sequence[Any]) -> JobShape:
    """A shape from what JSON makes of it. Raises TypeError or ValueError for anything else."""
    # JSON knows lists alone, and a shape is a key.
    kind, pieces, models, path, user, priority, limit_ms = stored
    pairs = tuple((int(each), int(many)) for each, many in pieces)
    return JobShape(JobKind(*kind), pairs, tuple(models), tuple(path), user, priority, limit_ms)


class NodeNow(NamedTuple):
    """A node that takes jobs, with its GPUs and how many of them are free."""

    model: str
    gpus: int
    free: int


class WindowNow(NamedTuple):
    """A time in which the nodes of these numbers are kept for the jobs of a booking, and shut to all others."""

    start_ts: int
    end_ts: int
    nodes: tuple[int, ...]
    booking: str


class Terms(NamedTuple):
    """
    Standing of a job to the windows of its pool: the `booking` that it has part in, "" for none.

    A promised job may start `elsewhere`, too, and ends its booking by its start. `stay_ms` is how long a start has to
    be before a window of others, 0 for as long as the job is expected to run.
    """

    booking: str = ""
    elsewhere: bool = True
    stay_ms: int = 0


ANYWHERE = Terms()


class RunNow(NamedTuple):
    """A run: GPUs by number of the node, -1 for one that takes no new jobs; `stopping` ones end soon."""

    shape: JobShape
    places: tuple[tuple[int, int], ...]
    started_ts: int
    stopping: bool = False
    booking: str = ""


class WaitingNow(NamedTuple):
    """A waiting job; no start of it before `not_before`."""

    job_id: str
    shape: JobShape
    submitted_ts: int
    not_before: int = 0
    deadline_ts: int = 0
    terms: Terms = ANYWHERE


class QueueNow(NamedTuple):
    """A queue in the tree: GPUs that it may hold with all below it, without borrowing and at most."""

    order: OrderName
    strict: bool
    weight: int
    own: int
    most: int


class PoolNow(NamedTuple):
    """The pool at `ts`; `depth` is the number of blocked jobs for which room is kept, 0 under `backfill: off`."""

    ts: int
    nodes: tuple[NodeNow, ...]
    runs: tuple[RunNow, ...]
    waiting: tuple[WaitingNow, ...]
    queues: Mapping[str, QueueNow]
    tenant_weights: Mapping[str, int]
    patience_ms: int
    depth: int
    backfill_patience_ms: int
    windows: tuple[WindowNow, ...] = ()


def pool_now(state: State, pool: str) -> PoolNow:
    """The pool as of `state.ts`."""
    tree = state.tree
    nodes = sorted((node for node in state.nodes.values() if node.pool == pool and node.ready), key=lambda n: n.name)
    numbers = {node.name: at for at, node in enumerate(nodes)}
    seen = tuple(
        NodeNow(node.gpu_model, node.gpus, sum(free >= WHOLE_GPU for free in node.gpu_free[: node.gpus]))
        for node in nodes
    )
    policy, booked = tree.policy, BookedNodes(state, pool)
    return PoolNow(
        state.ts,
        seen,
        tuple(_runs(state, pool, numbers)),
        tuple(_waiting(state, pool, booked)),
        {name: _queue(tree, name) for name in sorted(tree.queues)},
        {name: tenant.weight for name, tenant in sorted(tree.tenants.items())},
        policy.order_patience_seconds * 1000,
        policy.backfill_depth if policy.backfill == "reserve" else 0,
        policy.backfill_patience_seconds * 1000,
        _windows(booked, numbers),
    )


def _windows(booked: BookedNodes, numbers: Mapping[str, int]) -> tuple[WindowNow, ...]:
    """The windows that are not over, by their beginning; at most `WINDOWS_MAX`, since later ones matter less."""
    # Futures look at each node of each window; what begins far ahead matters least, and is left out first.
    windows = booked.windows[:WINDOWS_MAX]
    nodes = {
        booking.name: tuple(sorted(numbers[name] for name in booked.nodes_of(booking) if name in numbers))
        for booking in {booking.name: booking for _, _, booking in windows}.values()
    }
    return tuple(WindowNow(start, end, nodes[booking.name], booking.name) for start, end, booking in windows)


def terms_of(booked: BookedNodes, job: Job) -> Terms:
    """Standing of the job to the windows."""
    # Most pools have no windows, and all their jobs then stand alike: equal terms make equal jobs one line.
    if not booked and not job.booking:
        return ANYWHERE
    promise = booked.promise_of(job)
    return Terms(promise or job.booking, bool(promise) or not job.booking, booked.stay(job))


def shape_of(tree: QueueTree, job: Job) -> JobShape | None:
    """The job's shape; None without GPUs, or where its queue takes no jobs."""
    # A share of a GPU counts as a whole one: beside shares no whole GPU is had on the device, and how shares lie
    # together is not asked here.
    pieces: dict[int, int] = {}
    for role in job.roles:
        need = role.need
        if gpus := need.gpus or (need.gpu_parts if need.gpu_milli or need.mig_profile else 0):
            pieces[gpus] = pieces.get(gpus, 0) + role.replicas
    if not pieces or tree.pool(job.queue) is None:
        return None
    models = tuple(sorted({model for role in job.roles for model in role.need.gpu_models}))
    priority, path = tree.priority_of(job), tree.path(job.queue)
    ordered = tuple(sorted(pieces.items(), reverse=True))
    return JobShape(kind_of(job), ordered, models, path, job.user, priority, job.time_limit_seconds * 1000)


def _waiting(state: State, pool: str, booked: BookedNodes) -> Iterable[WaitingNow]:
    """Waiting jobs by age; those that are held, or wait for others, have no start that time alone brings."""
    jobs = (job for job in state.jobs.values() if job.phase is Phase.QUEUED and not job.kept_out)
    for job in sorted(jobs, key=lambda job: (job.submitted_ts, job.job_id)):
        if state.tree.pool(job.queue) == pool and (shape := shape_of(state.tree, job)) is not None:
            terms = terms_of(booked, job)
            yield WaitingNow(job.job_id, shape, job.submitted_ts, job.not_before, job.deadline_ts, terms)


def _runs(state: State, pool: str, numbers: Mapping[str, int]) -> Iterable[RunNow]:
    for run in sorted(state.runs.values(), key=lambda run: run.run_id):
        job = state.jobs.get(run.job_id)
        shape = None if job is None or state.tree.pool(run.queue) != pool else shape_of(state.tree, job)
        if shape is not None:
            places = _places(run, numbers)
            stops = bool(run.stopping or run.over)
            yield RunNow(shape, places, run.allocated_ts, stops, "" if job is None else job.booking)


def _places(run: Run, numbers: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    # On nodes that are cordoned or gone GPUs are held in vain for who waits: they end, and nothing becomes free.
    held: dict[int, int] = {}
    for place in run.places:
        need = run.gang.need_of[place.role]
        gpus = need.gpus or (need.gpu_parts if need.gpu_milli or need.mig_profile else 0)
        at = numbers.get(place.node, -1)
        held[at] = held.get(at, 0) + gpus
    return tuple(sorted(held.items()))


def _queue(tree: QueueTree, name: str) -> QueueNow:
    queue = tree.queues[name]
    quotas = [quota for below in _below(tree, name) for quota in tree.queues[below].quotas]
    mine = [quota for quota in queue.quotas if quota.resource == GPU_QUOTA]
    covered = any(resource == GPU_QUOTA for _, resource in tree.covered[tree.roots[name]])
    # Quotas of flavors are added up, and lending limits left out: who waits for one flavor alone is told too short a
    # wait, which the scores of its class correct.
    own = most = UNLIMITED
    if covered:
        own = sum(quota.nominal for quota in quotas if quota.resource == GPU_QUOTA)
        limits = [quota.borrowing_limit for quota in mine]
        bounded = queue.parent is None or (bool(limits) and None not in limits)
        most = own + sum(limit or 0 for limit in limits) * (queue.parent is not None) if bounded else UNLIMITED
    strict = queue.queueing_strategy == "strict_fifo"
    return QueueNow(queue.order, strict, queue.weight, own // WHOLE_GPU, most // WHOLE_GPU)


def _below(tree: QueueTree, name: str) -> list[str]:
    return [name, *(each for child in tree.children.get(name, ()) for each in _below(tree, child))]

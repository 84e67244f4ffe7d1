"""Quota and use as metrics (metric, labels, value): queues and their quota, tenants and their limits."""

from collections.abc import Iterator

from tessera.domain.devices.resources import WHOLE_GPU
from tessera.domain.state import State

Shown = tuple[str, tuple[str, ...], float]


def sharing(state: State) -> Iterator[Shown]:
    """Shares as of now, from sums that the state keeps anyway."""
    yield from _queues(state)
    yield from _tenants(state)


def _queues(state: State) -> Iterator[Shown]:
    for name, queue in state.tree.queues.items():
        nominal = sum(quota.nominal for quota in queue.quotas if quota.resource == "gpu_milli")
        yield "queue_nominal_gpus", (name,), nominal / WHOLE_GPU
        waiting = state.index.waiting.get(name, ())
        yield "queue_waiting_jobs", (name,), len(waiting)
        head = state.jobs.get(waiting[0][-1]) if waiting else None
        if head is not None:
            yield "queue_head_submitted_timestamp_seconds", (name,), head.submitted_ts / 1000


def _tenants(state: State) -> Iterator[Shown]:
    for who, amount in state.index.held.items():
        if len(who) == 2:  # with a user it is a part of the same
            queue, tenant = who
            yield "tenant_held_gpus", (tenant, queue), amount.gpu_milli / WHOLE_GPU
    for name, known in state.tree.tenants.items():
        use = state.tenant_use.get(name)
        yield "tenant_asked_gpus", (name,), 0 if use is None else use.amount.gpu_milli / WHOLE_GPU
        yield "tenant_jobs", (name,), 0 if use is None else use.jobs
        yield "tenant_weight", (name,), known.weight
        if known.limits.gpus is not None:
            yield "tenant_gpus_max", (name,), known.limits.gpus

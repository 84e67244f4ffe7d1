"""
A start that is promised: the nodes and the window in which a job is to start by a time, or why it cannot be. Pure.

A promise is a booking of whole nodes for one job. It is made like any other: the nodes are free by then, since what
runs there has ended by its time limit or may be stopped. What the nodes' GPUs cost for as long as the job may run is
what its price is a part of. Quota is not kept: that its queue has enough by itself is asked when the promise is made.
"""

from collections import Counter
from collections.abc import Iterator

from tessera.domain.devices.resources import WHOLE_GPU
from tessera.domain.quota.bookings import PROMISE_LEAD_MS
from tessera.domain.state import State
from tessera.engine.ahead.booked_nodes import is_well
from tessera.engine.ahead.choosing import choose_booking
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import Booked
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.bookings import LENGTH_MAX_MS, NODES_MAX, PROMISE_PREFIX, BookedWindow, BookingWish
from tessera_schemas.work.money import GPU_HOUR, held_cost

FIELD = "start_by_ts"
AHEAD_MAX_MS = 31 * 86_400_000
STOPS_MS = 900_000
"""Time beyond its limit that a run is given to stop in, and to start a little late."""


def choose_promise(state: State, fact: JobAdmitted, number: int) -> Booked | Reason:
    """
    The booking by which the start of a job is promised, or the first reason against it.

    It is named by the job's `number` and not by its id: others are told for what they leave their nodes.
    """
    spec, pool = fact.spec, state.tree.pool(fact.spec.queue)
    against = _fault(state, fact, pool)
    if against is not None or pool is None:
        return against or _reason(Code.NO_SUCH_QUEUE, fact.spec.queue)
    start = spec.start_by_ts - PROMISE_LEAD_MS
    # As long as its run may last: a later window of another on these nodes would shut them to it when its time comes.
    end = spec.start_by_ts + (spec.time_limit_seconds or 0) * 1000 + STOPS_MS
    if end - start > LENGTH_MAX_MS:
        return _reason(Code.NOT_SUPPORTED_YET, "its time limit is longer than nodes can be kept for, 31 days")
    window = BookedWindow(start_ts=start, end_ts=end)
    found: Booked | Reason = _reason(Code.NOT_FREE_THEN, "no node of its pool holds its largest pod")
    # One model at a time, since a gang is on one; the first that has enough nodes by then is taken.
    for model, count in _nodes_needed(state, pool, spec):
        if count > NODES_MAX:
            return _reason(Code.NOT_SUPPORTED_YET, f"{count} nodes; a start is promised on {NODES_MAX} at most")
        wish = BookingWish(
            name=f"{PROMISE_PREFIX}{number}",
            pool=pool,
            windows=(window,),
            node_count=count,
            gpu_model=model,
            who=(fact.tenant,),
        )
        found = choose_booking(state, wish, why="its start is promised", is_promise=True)
        if isinstance(found, Booked):
            return _priced(state, found, fact)
    # By the last model that was tried, in the words of the job's own field.
    return found.model_copy(update={"field": FIELD}) if isinstance(found, Reason) else found


def _fault(state: State, fact: JobAdmitted, pool: str | None) -> Reason | None:
    spec, tree = fact.spec, state.tree
    # First of all: who may not ask is told nothing of nodes and quotas.
    tenant = tree.tenants.get(fact.tenant)
    if tenant is None or not tenant.promises:
        return _reason(Code.NOT_GRANTED, "an operator grants promises by `promises: true` of the tenant")
    if fact.adopted is not None or pool is None:
        return _reason(Code.NOT_SUPPORTED_YET, "only a job that was submitted is promised its start")
    if spec.start_by_ts - PROMISE_LEAD_MS <= state.ts:
        numbers = {"earliest_ts": state.ts + PROMISE_LEAD_MS + 1}
        return Reason(code=Code.INVALID_FIELD, field=FIELD, numbers=numbers, detail="it is too soon, or over")
    if spec.start_by_ts > state.ts + AHEAD_MAX_MS:
        return _reason(Code.INVALID_FIELD, "it is more than 31 days from now")
    near = next((role.name for role in spec.roles if role.topology is not None), None)
    if near is not None or any(group.topology is not None for group in spec.groups):
        return _reason(Code.NOT_SUPPORTED_YET, "nodes of a promise are chosen without topology; leave it out")
    if not any(role.resources.gpus for role in spec.roles):
        return _reason(Code.NOT_SUPPORTED_YET, "a start is promised to jobs of whole GPUs alone")
    return _quota_fault(state, spec)


def _quota_fault(state: State, spec: JobSpec) -> Reason | None:
    # What is borrowed may be called in at any time, so that nobody could promise it.
    quotas = [quota for quota in state.tree.queues[spec.queue].quotas if quota.resource == "gpu_milli"]
    nominal, asked = sum(quota.nominal for quota in quotas), spec.gpu_milli()
    if not quotas or asked <= nominal:
        return None
    numbers = {"gpu_milli": asked, "nominal": nominal}
    detail = "its queue has fewer by itself, and what is borrowed can be called in"
    return Reason(code=Code.EXCEEDS_MAX_QUOTA, field=FIELD, numbers=numbers, detail=detail)


def _nodes_needed(state: State, pool: str, spec: JobSpec) -> Iterator[tuple[str, int]]:
    """GPU models that would do, as the job names them or the most common first, and how many whole nodes it takes."""
    each_pod = (role.resources.gpus for role in spec.roles for _ in range(role.gang))
    pods = sorted(filter(None, each_pod), reverse=True)
    wanted = list(dict.fromkeys(model for role in spec.roles for model in role.gpu_models))
    sizes: dict[str, int] = {}
    many = Counter[str]()
    for node in state.nodes.values():
        if node.pool == pool and node.gpus and is_well(state, node):
            many[node.gpu_model] += 1
            sizes[node.gpu_model] = min(sizes.get(node.gpu_model, node.gpus), node.gpus)
    for model in wanted or sorted(many, key=lambda model: (-many[model], model)):
        # By the smallest node of the model: whichever nodes are chosen hold the pods.
        # The largest pods first, each where it fits: with sizes that divide a node's there is no better way.
        free = list[int]()
        for gpus in pods if pods[0] <= sizes.get(model, 0) else ():
            at = next((at for at, left in enumerate(free) if left >= gpus), len(free))
            if at == len(free):
                free.append(sizes[model])
            free[at] -= gpus
        if free:
            yield model, len(free)


def _priced(state: State, made: Booked, fact: JobAdmitted) -> Booked:
    tree, length_ms = state.tree, (fact.spec.time_limit_seconds or 0) * 1000
    percent = tree.policy.promise_price_percent
    held = Counter[str]()
    for node in state.nodes.found(made.nodes):
        held[tree.flavor_of(node)] += node.gpus * WHOLE_GPU
    cost = 0 if tree.money is None else held_cost(tree.money.rates(held, state.ts), state.ts, state.ts + length_ms)
    gpu_ms, micros = held.total() * length_ms * percent // 100, cost * percent // 100 // GPU_HOUR
    return made.model_copy(update={"job": fact.job_id, "price_gpu_ms": gpu_ms, "price_micros": micros})


def _reason(code: Code, detail: str) -> Reason:
    return Reason(code=code, field=FIELD, detail=detail)

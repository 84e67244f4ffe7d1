"""
Steps that folding several records takes: a job moved, amounts tallied, devices held; and the function that applies each
record, registered by the record's class. Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tessera.domain.devices.costs import cost_of
from tessera.domain.devices.networks import pools_drawn, reached
from tessera.domain.devices.resources import Amount, Node
from tessera.domain.entities import Job, Run, Use
from tessera.domain.errors import Contradiction
from tessera.domain.runtimes import kind_of, learn
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang
from tessera.domain.work.phases import Phase, moved
from tessera_schemas.ledger import AnyRecord, TakenFact
from tessera_schemas.shard.ledger_form import ARRAY_SLOTS_FROM, ENDED_NODES_FROM, PRICES_FROM, RUN_SUMS_FROM
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.tenant_shares import Limits

Apply = Callable[[State, Any, Sequence[TakenFact]], None]
ApplyT = TypeVar("ApplyT", bound=Apply)
SESSION_LIMITS = ("sessions_per_user", "sessions")
APPLY: dict[type[AnyRecord], Apply] = {}


def applies(*records: type[AnyRecord]) -> Callable[[ApplyT], ApplyT]:
    """Register the function below as the one that applies these records."""

    def register(apply: ApplyT) -> ApplyT:
        APPLY.update(dict.fromkeys(records, apply))
        return apply

    return register


FORMAT_OF_LATER = 2
"""Before, no checkpoints of a run were remembered, nor class and evictions of an ended job: states hash as they did."""
FORMAT_OF_IDENTITY = 4
"""Before, a ledger had no name of its own, and its pods bore none."""


def job_of(state: State, job_id: str) -> Job:
    """Returns the live job; raises Contradiction if there is none of this id."""
    job = state.jobs.get(job_id)
    if job is None:
        raise Contradiction(f"record {state.n} names job {job_id}, which is not live")
    return job


def run_of(state: State, name: str) -> Run:
    """Returns the run that holds devices; raises Contradiction if there is none of this id."""
    run = state.runs.get(name)
    if run is None:
        raise Contradiction(f"record {state.n} names run {name}, which holds nothing")
    return run


def move(state: State, job: Job, to: Phase, **changes: Any) -> Job:
    """Stores and returns the job in another phase with further changes; raises IllegalMove if no edge leads there."""
    after = replace(job, phase=moved(job.job_id, job.phase, to), **changes)
    state.put_job(after)
    return after


def tally(state: State, queue: str, flavor: str, amount: Amount, sign: int, jobs: int = 1) -> None:
    """Add to what the queue's runs hold: in all flavors, and in the run's own."""
    for name in (queue, f"{queue}/{flavor}") if flavor else (queue,):
        use = state.queue_use.get(name) or Use(name)
        state.queue_use.put(name, Use(name, use.jobs + sign * jobs, use.amount.plus(amount, sign)))
    # Of the queue itself, since runs of one flavor may be gone before those of another.
    held = state.queue_use.get(queue)
    if state.removed_queues.get(queue) is not None and (held is None or not held.jobs):
        state.removed_queues.drop(queue)
        state.make_tree()


def tally_tenant(state: State, job: Job, amount: Amount, sign: int) -> None:
    """Adds a job and its amount to what its tenant uses (sign 1), or takes both off (-1)."""
    use = state.tenant_use.get(job.tenant) or Use(job.tenant)
    limits = state.tree.limits_of(job.tenant)
    pods = 0 if limits.pods is None else job.pods_asked
    sessions, services = use.sessions, use.services
    if job.session is not None and _has_one_of(SESSION_LIMITS, limits):
        sessions = _counted(dict(sessions) | {job.user: use.sessions_of(job.user) + sign})
    if _is_service(job) and limits.services is not None:
        services += sign
    amount, pods = use.amount.plus(amount, sign), use.pods + sign * pods
    state.tenant_use.put(job.tenant, Use(job.tenant, use.jobs + sign, amount, pods, sessions, services))


def _has_one_of(names: Sequence[str], limits: Limits) -> bool:
    return any(getattr(limits, name) is not None for name in names)


def _is_service(job: Job) -> bool:
    return job.array is not None and job.array.is_service


def _counted(sessions: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((user, number) for user, number in sessions.items() if number))


def count_limited(state: State) -> None:
    """Counts anew after a change of the configuration what tenants have a limit of now: pods, services, sessions."""
    counted_by = (("pods",), ("services",), SESSION_LIMITS)
    by_pods, by_services, by_sessions = (
        {name for name, tenant in state.tree.tenants.items() if _has_one_of(limits, tenant.limits)}
        for limits in counted_by
    )
    pods, services, sessions = Counter[str](), Counter[str](), dict[str, Counter[str]]()
    for job in state.jobs.values() if by_pods or by_services or by_sessions else ():
        if job.tenant in by_pods:
            pods[job.tenant] += job.pods_asked
        if _is_service(job) and job.tenant in by_services:
            services[job.tenant] += 1
        if job.session is not None and job.tenant in by_sessions:
            sessions.setdefault(job.tenant, Counter())[job.user] += 1
    for use in list(state.tenant_use.values()):
        of_users = _counted(sessions.get(use.name, {}))
        counted = replace(use, pods=pods[use.name], sessions=of_users, services=services[use.name])
        if counted != use:
            state.tenant_use.put(use.name, counted)


def hold(state: State, gang: Gang, placements: Sequence[Placement], sign: int) -> None:
    """Take (1) or give back (-1) what placements hold on their nodes."""
    touched: dict[str, Node] = {}
    for placement in placements:
        node = state.nodes.get(placement.node)
        if node is None:
            raise Contradiction(f"record {state.n} uses node {placement.node}, which is unknown")
        touched[node.name] = node
    if pools := pools_drawn(placements):
        touched |= {node.name: node for node in reached(state.nodes.values(), pools)}
    gang.take(touched, placements, sign)
    for node in touched.values():
        state.nodes.put(node.name, node)


def count_held(state: State, run: Run) -> Run:
    """Adds what the run held until now to its job, and returns it as counted; nothing once it is over."""
    if (job := state.jobs.get(run.job_id)) is None:
        return run
    counted, run = with_held(state, job, run)
    if counted is not job:
        state.put_job(counted)
    return run


def with_held(state: State, job: Job, run: Run) -> tuple[Job, Run]:
    """The job with what its run held until now, and the run as counted; both as they are once that is over."""
    if run.over or state.format < RUN_SUMS_FROM:
        return job, run
    held = run.amount.gpu_milli * max(0, state.ts - run.uncounted_ts)
    if held:
        micros, rest = cost_of(state, job, state.ts) if state.format >= PRICES_FROM else (0, 0)
        job = replace(job, gpu_milli_ms=job.gpu_milli_ms + held, cost_micros=micros, cost_rest=rest)
    return job, replace(run, counted_ts=state.ts)


def count_costs(state: State, holders: Iterable[object]) -> None:
    """Counts what the runs among these held by the prices and flavors until now."""
    for run in holders:
        if isinstance(run, Run):
            state.put_run(count_held(state, run))


def with_nodes_of(state: State, job: Job, run: Run) -> Job:
    """The job with the nodes of its run, which it keeps to its end; in an older ledger the job as it is."""
    return replace(job, nodes=run.nodes) if state.format >= ENDED_NODES_FROM else job


def end_backoffs(state: State, placements: Sequence[Placement], failed: bool) -> None:
    """A run started on these nodes, which ends their back-offs; those after failed programs only if it lasted."""
    for name in dict.fromkeys(placement.node for placement in placements):
        backoff = state.backoffs.get(name)
        if backoff is not None and (failed or not backoff.failed):
            state.backoffs.drop(name)


def drop_empty(state: State, placements: Sequence[Placement]) -> None:
    """A node that is gone stays only as long as something holds it."""
    for placement in placements:
        node = state.nodes.get(placement.node)
        if node is not None and node.gone and not node.is_held:
            forget_node(state, node)


def forget_node(state: State, node: Node) -> None:
    """A node is gone and holds nothing: nothing is remembered of it."""
    state.drop_node(node)
    if state.backoffs.get(node.name) is not None:
        state.backoffs.drop(node.name)
    if state.mig_changes.get(node.name) is not None:
        state.mig_changes.drop(node.name)
    test = state.node_tests.get(node.name)
    if test is not None and not test.is_alive:
        state.node_tests.drop(node.name)
    if state.reputations.get(node.name) is not None:
        state.reputations.drop(node.name)


def count_task(state: State, task: Job, **changes: int) -> None:
    """Adds to the counters of the array that the job is a task of; nothing for any other job."""
    if not task.task_of:
        return
    job = job_of(state, task.task_of)
    if job.array is None:
        raise Contradiction(f"record {state.n}: job {job.job_id} is no array")
    sums = {name: getattr(job.array, name) + change for name, change in changes.items()}
    state.put_job(replace(job, array=replace(job.array, **sums)))


def is_aside(state: State, task: Job) -> bool:
    """Whether a task waits and is held or was tried before: its array keeps no slot for it."""
    return state.format >= ARRAY_SLOTS_FROM and task.phase is Phase.QUEUED and (task.held or task.attempt > 0)


def known(state: State, job_id: str) -> bool:
    """Whether the job is live or remembered."""
    return state.jobs.get(job_id) is not None or state.ended.get(job_id) is not None


def learn_runtime(state: State, run: Run, job: Job) -> None:
    """A run ended by itself: now it is known how long it took."""
    if run.started_ts:
        learn(state.runtimes, kind_of(job), state.ts - run.started_ts, state.ts)

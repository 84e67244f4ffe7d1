"""
Plans that make room: which runs may be evicted for which job, and whether the plan's placements fit without them.

Proposers search plans and the committer judges them at the head of the ledger; both ask here, so that they agree on
the rules. None of them can loop: what is evicted comes after its preemptor in the order, and a run that is too young,
or whose job was evicted too often, is nobody's victim.
"""

from collections.abc import Iterable, Iterator, Sequence

from tessera.domain.entities import Earmark, Job, Run
from tessera.domain.evolve import evolved
from tessera.domain.phases import Phase
from tessera.domain.queues import Over, QuotaBook
from tessera.domain.resources import WHOLE_GPU, Need, Node, RoleNeed
from tessera.domain.state import State
from tessera.engine.fits import fits
from tessera.engine.ordering import comes_before
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import PlanCause
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code, Reason

CAUSES: dict[str, frozenset[PlanCause]] = {
    "off": frozenset(),
    "priority": frozenset({"preemption"}),
    "fair": frozenset({"preemption", "reclaim"}),
}
"""What each preset allows."""

EVICTED_AS: dict[PlanCause, Code] = {
    "preemption": Code.PREEMPTED,
    "reclaim": Code.RECLAIMED,
    "defragment": Code.DEFRAGMENTED,
}


def may_evict(state: State, owner: Job, run: Run, cause: PlanCause, book: QuotaBook) -> Reason | None:
    """
    Why `run` may not be evicted for `owner`, naming the rule; None when it may.

    `book` is the state's, less the victims before this one: a queue gives back what it was lent and no more.
    """
    policy, victim = state.tree.policy, state.jobs.get(run.job_id)
    if cause not in CAUSES[policy.preset]:
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="policy.preset", detail=policy.preset)
    if victim is None or victim.job_id == owner.job_id or run.stopping or victim.phase is not Phase.RUNNING:
        return Reason(code=Code.VICTIM_GONE, detail=run.run_id)
    age_seconds = (state.ts - run.started_ts) // 1000
    if not victim.preemptible or age_seconds < policy.min_runtime_seconds or victim.evictions >= policy.evictions_max:
        numbers = {"age_seconds": age_seconds, "evictions": victim.evictions, "preemptible": int(victim.preemptible)}
        return Reason(code=Code.EVICTION_BUDGET_SPENT, detail=run.run_id, numbers=numbers)
    if not _entitled(state, owner, victim, run, cause, book) or not comes_before(state, owner, victim):
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="policy.preset", detail=f"{policy.preset}: {run.run_id}")
    return None


def _entitled(state: State, owner: Job, victim: Job, run: Run, cause: PlanCause, book: QuotaBook) -> bool:
    """Preemption: a lower class of the same queue. Reclaim: a queue of the same tree that holds what it was lent."""
    tree = state.tree
    if cause == "preemption":
        same_queue = owner.queue == victim.queue
        return same_queue and tree.priority(victim.priority_class) < tree.priority(owner.priority_class)
    if owner.queue == victim.queue or tree.roots[owner.queue] != tree.roots.get(victim.queue):
        return False
    return book.holds_lent(victim.queue, run.flavor, run.amount)


def nodes_for(state: State, pool: str, flavor: str, avoid: Sequence[str] = ()) -> Iterator[Node]:
    """The nodes of a pool and flavor ("" for all) as decisions see them: a drained node is not ready."""
    tree = state.tree
    for node in state.nodes.values():
        if node.pool != pool or node.name in avoid or (flavor and tree.flavor_of(node) != flavor):
            continue
        yield evolved(node, ready=False) if state.drains.get(node.name) is not None else node


def may_shrink(state: State, owner: Job, run: Run, ranks: Sequence[int]) -> Reason | None:
    """
    Why these pods of `run` may not be removed for `owner`, naming the rule; None when they may.

    Whatever the preset: what an elastic run has beyond its gang it has only as long as nobody of at least its own
    priority class waits for the room.
    """
    job, priority = state.jobs.get(run.job_id), state.tree.priority
    staying = {extra.placement.rank for extra in run.extra if not extra.leaving}
    if job is None or job.job_id == owner.job_id or run.stopping or not set(ranks) <= staying:
        return Reason(code=Code.VICTIM_GONE, detail=run.run_id)
    if priority(job.priority_class) > priority(owner.priority_class):
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="priority_class", detail=run.run_id)
    return None


def extra_places(run: Run, ranks: Sequence[int]) -> tuple[Placement, ...]:
    """Where these pods beyond its gang are."""
    return tuple(extra.placement for extra in run.extra if extra.placement.rank in ranks)


def nodes_without(
    state: State, runs: Iterable[Run], marks: Iterable[Earmark], parts: Iterable[tuple[Run, Sequence[int]]] = ()
) -> dict[str, Node]:
    """The nodes that `runs`, `marks` and `parts` (runs with ranks beyond their gang) are on, as without them."""
    found: dict[str, Node] = {}
    holders = [(holder.roles, holder.places) for holder in runs]
    holders += [(mark.roles, mark.placements) for mark in marks]
    holders += [(run.roles, extra_places(run, ranks)) for run, ranks in parts]
    for roles, places in holders:
        needs = {role.name: role.need for role in roles}
        for placement in places:
            node = found.get(placement.node) or state.nodes.get(placement.node)
            if node is not None:
                found[node.name] = node.taking(needs[placement.role], placement, -1)
    for name, node in found.items():
        if state.drains.get(name) is not None:
            found[name] = evolved(node, ready=False)
    return found


def placement_faults(
    roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...], nodes: dict[str, Node]
) -> Iterator[str]:
    """What keeps the gang from being placed so on `nodes`, pod by pod; nothing when it can be."""
    wanted = [role.name for role in roles for _ in range(role.replicas)]
    if [placement.role for placement in placements] != wanted:
        yield f"it is not placed whole: {len(placements)} of {len(wanted)} pods, or other roles"
    if [placement.rank for placement in placements] != list(range(len(placements))):
        yield "ranks are not 0, 1, 2, …"
    needs = {role.name: role.need for role in roles}
    trial = dict(nodes)
    for placement in placements:
        node, need = trial.get(placement.node), needs.get(placement.role)
        if node is None or need is None:
            yield f"rank {placement.rank}: no such node or role ({placement.node}, {placement.role})"
            return
        miss = fits(need, node)
        if miss is not None:
            yield f"rank {placement.rank} does not fit node {node.name}: {miss.value}"
        yield from _device_faults(need, node, placement)
        trial[node.name] = node.taking(need, placement, 1)


def _device_faults(need: Need, node: Node, placement: Placement) -> Iterator[str]:
    devices = placement.devices
    milli = WHOLE_GPU if need.gpus else need.gpu_milli
    count = need.gpus or (1 if need.gpu_milli else 0)
    at = f"rank {placement.rank} on node {node.name}"
    if placement.gpu_milli != milli or len(devices) != count or len(set(devices)) != count:
        yield f"{at}: asked for {count} devices of {milli}, got {list(devices)} of {placement.gpu_milli}"
    for device in devices:
        left = node.gpu_free[device] if 0 <= device < len(node.gpu_free) else 0
        if left < milli:
            yield f"{at}: device {device} has {left} left, {milli} are taken"


def quota_reason(over: Over) -> Reason:
    """The numbers of a quota that is used up."""
    flavor, resource = over.cell
    numbers = {
        "wanted": over.wanted,
        "available": over.available,
        "used": min(over.used, INT_MAX),
        "nominal_quota": over.nominal,
    }
    return Reason(
        code=Code.WAITING_FOR_QUOTA,
        field=f"queues.{over.queue}.{resource}" + (f" of {flavor}" if flavor else ""),
        numbers=numbers,
    )

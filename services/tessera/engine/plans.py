"""
Plans that make room: which runs may be evicted for which job, and whether the plan's placements fit without them.

Proposers search plans and the committer judges them at the head of the ledger; both ask here, so that they agree on
the rules. None of them can loop: a victim is of a lower class than its preemptor, or it holds quota that the
preemptor's queue has a right to and stays within; and a run that is too young, or whose job was evicted too often, is
nobody's victim (ADR 0013). Borrowed quota goes back whatever the preset says and however often its holder was evicted
(ADR 0020).
"""

from collections.abc import Iterable, Iterator, Sequence

from tessera.domain.entities import Earmark, Job, Run
from tessera.domain.evolve import evolved
from tessera.domain.phases import Phase
from tessera.domain.queues import Over, QueueTree, QuotaBook
from tessera.domain.resources import WHOLE_GPU, Amount, Need, Node, RoleNeed, placed_amount
from tessera.domain.state import State
from tessera.engine.fits import fits
from tessera.engine.mig import is_position
from tessera.engine.relations import broken
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import PlanCause
from tessera_schemas.mig import GEOMETRIES
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code, Reason

EVICTED_AS: dict[PlanCause, Code] = {
    "preemption": Code.PREEMPTED,
    "reclaim": Code.RECLAIMED,
    "defragment": Code.DEFRAGMENTED,
}

KEPT_SECONDS = 300
"""So long no plan names a run that a disruption budget kept: budgets change with what runs, not by the second."""

Held = tuple[tuple[RoleNeed, ...], Iterable[Placement]]
"""Pods by the roles that say what each holds."""


def startable(state: State, job: Job) -> bool:
    """Whether the job may start now, were there room: it waits, nobody holds it, its queue is there and not stopped."""
    return (
        job.phase is Phase.QUEUED
        and not job.kept_out
        and job.not_before <= state.ts
        and state.tree.pool(job.queue) is not None
        and state.tree.stopped(job.queue) is None
    )


def pods_away(job: Job) -> Reason:
    """Why an adopted job is out of line after a run: only its owner makes its pods again, and in its own time."""
    owner = job.adopted.owner if job.adopted is not None else ""
    return Reason(code=Code.GANG_INCOMPLETE, numbers={"pods_wanted": job.pods}, detail=f"{owner} makes its pods again")


def not_allowed(state: State, owner: Job, cause: PlanCause) -> Reason | None:
    """Why nobody is evicted for `owner` and this cause; elastic runs shrink, and runs move, all the same."""
    preset, queue = state.tree.policy.preset, state.tree.queues.get(owner.queue)
    if cause == "preemption" and preset == "off":
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="policy.preset", detail=preset)
    if cause == "reclaim" and (queue is None or queue.reclaim == "never"):
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field=f"queues.{owner.queue}.reclaim", detail="never")
    return None


def may_evict(
    state: State, owner: Job, run: Run, cause: PlanCause, book: QuotaBook, flavor: str | None = None
) -> Reason | None:
    """
    Why `run` may not be evicted for `owner`, naming the rule; None when it may.

    `book` is the state's, less the victims before this one: a queue gives back what it was lent and no more. `flavor`
    is the one that `owner` would start on; None: the run's own.
    """
    policy, victim = state.tree.policy, state.jobs.get(run.job_id)
    if (refused := not_allowed(state, owner, cause)) is not None:
        return refused
    if victim is None or victim.job_id == owner.job_id or run.stopping or victim.phase is not Phase.RUNNING:
        return Reason(code=Code.VICTIM_GONE, detail=run.run_id)
    against = protected(state, victim, run, lent=cause == "reclaim" and run.queue != owner.queue)
    if against is not None:
        return against
    if not _gives_way(state, owner, victim, run, cause, book, run.flavor if flavor is None else flavor):
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="policy.preset", detail=f"{policy.preset}: {run.run_id}")
    return None


def protected(state: State, victim: Job, run: Run, lent: bool = False) -> Reason | None:
    """
    Why nobody may evict the run now: not preemptible, too young, evicted too often, or kept by a budget just now.

    `lent`: it holds quota that goes back to its owner. A budget that is spent since it started does not keep that.
    """
    policy, age_seconds = state.tree.policy, (state.ts - run.started_ts) // 1000
    if run.kept_ts and state.ts - run.kept_ts < KEPT_SECONDS * 1000:
        left = KEPT_SECONDS - (state.ts - run.kept_ts) // 1000
        return Reason(
            code=Code.BLOCKED_BY_DISRUPTION_BUDGET, detail=run.run_id, numbers={"not_asked_again_for_seconds": left}
        )
    within = lent or victim.evictions < policy.evictions_max
    if victim.preemptible and age_seconds >= policy.min_runtime_seconds and within:
        return None
    numbers = {"age_seconds": age_seconds, "evictions": victim.evictions, "preemptible": int(victim.preemptible)}
    return Reason(code=Code.EVICTION_BUDGET_SPENT, detail=run.run_id, numbers=numbers)


def _gives_way(state: State, owner: Job, victim: Job, run: Run, cause: PlanCause, book: QuotaBook, flavor: str) -> bool:
    """
    A lower class of the same queue; or, to reclaim, a queue of the same tree that was lent more, as `reclaim` says.

    Between queues the fair share is not asked: what is taken back is the owner's by its quota, and the earmark keeps
    it until the owner starts. Lent to the victim's side means that every queue from the victim's up to the one that
    it shares with the owner's uses more than its own, of something that both jobs ask for.
    """
    tree = state.tree
    lower = tree.priority_of(victim) < tree.priority_of(owner)
    if owner.queue == victim.queue:
        return lower and tree.policy.preset != "off"
    if cause != "reclaim" or tree.roots[owner.queue] != tree.roots.get(victim.queue):
        return False
    if not lower and tree.queues[owner.queue].reclaim == "lower_priority":
        return False
    common, shared = _common(owner.amount, run.amount), set(tree.path(owner.queue))
    below = [queue for queue in tree.path(victim.queue) if queue not in shared]
    return all(book.holds_lent(queue, run.flavor if run.flavor == flavor else "", common) for queue in below)


def _common(one: Amount, other: Amount) -> Amount:
    """What both ask for, of each resource the smaller."""
    return Amount(
        min(one.cpu_milli, other.cpu_milli),
        min(one.memory_bytes, other.memory_bytes),
        min(one.gpu_milli, other.gpu_milli),
    )


def standing(run: Run) -> tuple[Placement, ...]:
    """What an eviction of the run would free: what its gang holds, and what it grew by and still has."""
    return (*run.gang_places, *(extra.placement for extra in run.surplus))


def leaving(state: State) -> list[tuple[Run, tuple[Placement, ...]]]:
    """
    Pods that are being stopped already, whoever wanted it: their room comes back without any plan.

    What has been stopping for longer than room is kept for a job is not waited for: or plans that count on a pod that
    never goes would evict others again and again.
    """
    since = state.ts - state.tree.policy.earmark_seconds * 1000
    found = []
    for run in state.runs.values():
        if run.stopping:
            if stopped_ts(state, run) > since:
                found.append((run, run.places))
        elif run.extra and run.resized_ts > since:
            going = tuple(extra.placement for extra in run.extra if extra.leaving)
            found += [(run, going)] if going else []
    return found


def stopped_ts(state: State, run: Run) -> int:
    """When it was revoked, or ended by itself; 0 when nobody remembers."""
    ended = state.ended.get(run.job_id)
    return run.stopped_ts or (0 if ended is None else ended.ended_ts)


def in_the_way(state: State, run: Run) -> list[Earmark]:
    """
    The earmarks that end if a stopping run is to go on, by owner: whoever it was to stop for or was to move, and those
    on its nodes for which there is no room beside it.
    """
    stopping = [(other.roles, other.places) for other in state.runs.values() if other.stopping and other is not run]
    shrinking = [
        (other.roles, tuple(extra.placement for extra in other.extra if extra.leaving))
        for other in state.runs.values()
        if other.extra and not other.stopping
    ]
    names = {placement.node for placement in run.places}
    nodes = nodes_less(state, [*stopping, *shrinking])
    full = {name for name in names if (node := nodes.get(name) or state.nodes.get(name)) is not None and node.overfull}
    return [
        mark
        for owner, mark in sorted(state.earmarks.items())
        if owner == run.job_id
        or run.run_id in mark.victims
        or any(placement.node in full for placement in mark.placements)
    ]


def book_without(state: State, gone: Iterable[tuple[Run, tuple[Placement, ...]]]) -> QuotaBook:
    """Who uses and lends what once these pods are gone."""
    book = state.quota_book()
    for run, places in gone:
        book.add(run.queue, run.flavor, placed_amount(run.roles, places), -1)
    return book


def outranked(state: State, job: Job, nodes: Iterable[str]) -> list[Earmark]:
    """
    Earmarks on these nodes whose owners are of a strictly lower class than `job`, by owner.

    Room that was taken back for a queue stays that queue's: else a higher class that has to give back would return.
    """
    named, priority = set(nodes), state.tree.priority_of
    return [
        mark
        for owner, mark in sorted(state.earmarks.items())
        if (other := state.jobs.get(owner)) is not None
        and priority(other) < priority(job)
        and (mark.cause != "reclaim" or other.queue == job.queue)
        and any(placement.node in named for placement in mark.placements)
    ]


def nodes_for(state: State, pool: str, flavor: str, avoid: Sequence[str] = ()) -> list[Node]:
    """The nodes of a pool and flavor ("" for all) as decisions see them: a drained node is not ready."""
    drained = {name for name, _ in state.drains.items()}
    nodes = [node for node in state.nodes.values() if node.pool == pool]
    if avoid:
        nodes = [node for node in nodes if node.name not in avoid]
    if flavor:
        nodes = [node for node in nodes if state.tree.is_on(node, flavor)]
    if drained:
        nodes = [evolved(node, ready=False) if node.name in drained else node for node in nodes]
    return nodes


def may_shrink(
    state: State, owner: Job, run: Run, ranks: Sequence[int], cause: PlanCause, book: QuotaBook, flavor: str
) -> Reason | None:
    """
    Why these pods of `run` may not be removed for `owner`, naming the rule; None when they may.

    Whatever the preset: what an elastic run has beyond its gang it has only as long as nobody of at least its own
    priority class waits for the room, and as no owner reclaims what was lent for it.
    """
    job, priority = state.jobs.get(run.job_id), state.tree.priority_of
    staying = {extra.placement.rank for extra in run.surplus}
    if job is None or job.job_id == owner.job_id or run.stopping or not set(ranks) <= staying:
        return Reason(code=Code.VICTIM_GONE, detail=run.run_id)
    if priority(job) <= priority(owner) or gives_back(state, owner, job, run, cause, book, flavor):
        return None
    return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="priority_class", detail=run.run_id)


def gives_back(state: State, owner: Job, victim: Job, run: Run, cause: PlanCause, book: QuotaBook, flavor: str) -> bool:
    """Whether the run holds quota that was lent and that `owner` may reclaim."""
    if cause != "reclaim" or run.queue == owner.queue or not_allowed(state, owner, cause) is not None:
        return False
    return _gives_way(state, owner, victim, run, cause, book, flavor)


def extra_places(run: Run, ranks: Sequence[int]) -> tuple[Placement, ...]:
    """Where these pods beyond its gang are."""
    return tuple(extra.placement for extra in run.extra if extra.placement.rank in ranks)


def nodes_without(
    state: State, runs: Iterable[Run], marks: Iterable[Earmark], parts: Iterable[tuple[Run, Sequence[int]]] = ()
) -> dict[str, Node]:
    """The nodes that `runs`, `marks` and `parts` (runs with ranks beyond their gang) are on, as without them."""
    held: list[Held] = [(run.roles, run.places) for run in runs]
    held += [(mark.roles, mark.placements) for mark in marks]
    return nodes_less(state, [*held, *((run.roles, extra_places(run, ranks)) for run, ranks in parts)])


def nodes_less(state: State, held: Iterable[Held]) -> dict[str, Node]:
    """The nodes that these pods are on, as they would be without them."""
    found: dict[str, Node] = {}
    for roles, places in held:
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
        return
    if [placement.rank for placement in placements] != list(range(len(placements))):
        yield "ranks are not 0, 1, 2, …"
        return
    trial = dict(nodes)
    yield from pod_faults(roles, placements, trial)
    if all(placement.node in trial for placement in placements):
        yield from broken(roles, placements, trial)


def pod_faults(roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...], trial: dict[str, Node]) -> Iterator[str]:
    """What keeps these pods, one after the other, from their nodes and devices; `trial` is left as with them."""
    needs = {role.name: role.need for role in roles}
    for placement in placements:
        node, need = trial.get(placement.node), needs[placement.role]
        if node is None:
            yield f"rank {placement.rank}: no such node ({placement.node})"
            return
        miss = fits(need, node)
        if miss is not None:
            yield f"rank {placement.rank} does not fit node {node.name}: {miss.value}"
        yield from _device_faults(need, node, placement)
        trial[node.name] = node.taking(need, placement, 1)


def _device_faults(need: Need, node: Node, placement: Placement) -> Iterator[str]:
    at = f"rank {placement.rank} on node {node.name}"
    if need.mig_profile:
        if not _is_free_instance(need, node, placement):
            yield f"{at}: devices {list(placement.devices)} have no free {need.mig_profile} at {placement.mig}"
        return
    devices = placement.devices
    milli = WHOLE_GPU if need.gpus else need.gpu_milli
    count = need.gpus or (1 if need.gpu_milli else 0)
    if placement.gpu_milli != milli or len(devices) != count or len(set(devices)) != count or placement.mig:
        yield f"{at}: asked for {count} devices of {milli}, got {list(devices)} of {placement.gpu_milli}"
    for device in devices:
        left = node.gpu_free[device] if 0 <= device < len(node.gpu_free) else 0
        if left < milli:
            yield f"{at}: device {device} has {left} left, {milli} are taken"


def _is_free_instance(need: Need, node: Node, placement: Placement) -> bool:
    """Whether the placement is one instance of the profile at a position that it may have and nobody has."""
    geometry = GEOMETRIES.get(node.mig_geometry)
    profile = geometry.profiles.get(need.mig_profile) if geometry else None
    if geometry is None or profile is None or placement.mig is None or len(placement.devices) != 1:
        return False
    (start, size), slot = placement.mig, placement.devices[0]
    milli = size * geometry.milli_per_slice
    return size == profile.size and placement.gpu_milli == milli and is_position(need, node, slot, start)


def quota_reason(over: Over) -> Reason:
    """The numbers of a quota that is used up."""
    flavor, resource = over.cell
    numbers = {
        "wanted": over.wanted,
        "available": over.available,
        "used": min(over.used, INT_MAX),
        "nominal_quota": over.nominal,
    }
    detail = ""
    if over.firm:
        detail = "work that may not be evicted does not borrow: it waits for its own queue's quota"
    elif over.used + over.wanted <= over.nominal:
        detail = "others borrow what is its own"
    return Reason(
        code=Code.WAITING_FOR_QUOTA,
        field=f"queues.{over.queue}.{resource}" + (f" of {flavor}" if flavor else ""),
        numbers=numbers,
        detail=detail,
    )


def lacks_quota(book: QuotaBook, job: Job, flavor: str, cause: PlanCause, keeper: str) -> Reason | None:
    """Why the job may not start as the book stands; what is reclaimed is for `keeper`, which then keeps to its own."""
    over = book.lacks(job, flavor)
    if over is not None:
        return quota_reason(over)
    borrows = cause == "reclaim" and keeper not in book.keepers(job.queue, flavor, job.amount)
    return would_borrow(job.queue) if borrows else None


def is_its_own(tree: QueueTree, book: QuotaBook, job: Job, flavor: str, lenders: Iterable[str]) -> bool:
    """
    Whether what these queues give back is the job's: one queue from its own up keeps to its own, and is above none.

    The queues of one team have its quota in common, so that none of them takes it from another.
    """
    above = {name for queue in lenders if queue != job.queue for name in tree.path(queue)}
    return any(keeper not in above for keeper in book.keepers(job.queue, flavor, job.amount))


def would_borrow(queue: str) -> Reason:
    """Nothing is taken back from others for a queue that would then hold more than its own."""
    return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field=f"queues.{queue}", detail="it would borrow itself")

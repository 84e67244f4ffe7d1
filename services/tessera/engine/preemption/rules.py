"""
Rules of eviction and shrinking: whose runs may give way to whom, and whose reservations stand in the way. Pure.

Proposers search plans and the committer judges them at the head of the ledger; both ask here, so that they agree on
the rules. No plan can loop: a victim is of a lower class than its preemptor, or it holds quota that the preemptor's
queue has a right to and stays within, or a budget of it is spent and none of the preemptor's; and a run that is too
young, or whose job was evicted too often, is nobody's victim (ADR 0013). Borrowed quota goes back whatever the preset
says and however often its holder was evicted (ADR 0020).
"""

from collections.abc import Iterable, Sequence

from tessera.domain.devices.resources import WHOLE_GPU, Need, Node
from tessera.domain.entities import Earmark, Job, Run
from tessera.domain.folding.services import describe_minimum
from tessera.domain.folding.spending import WHEN_SPENT, spent_budgets
from tessera.domain.queues import QueueTree, QuotaBook
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.domain.work.stops import is_stuck
from tessera.engine.placement.capacity import nodes_less
from tessera_schemas.facts import PlanCause
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import LENT_KEPT_FROM, UNNEEDED_STOPS_FROM
from tessera_schemas.work.budgets import Budget
from tessera_schemas.work.run_ends import DRAINS

EVICTED_AS: dict[PlanCause, Code] = {
    "preemption": Code.PREEMPTED,
    "reclaim": Code.RECLAIMED,
    "defragment": Code.DEFRAGMENTED,
}


KEPT_SECONDS = 300
"""So long no plan names a run that a disruption budget kept: budgets change with what runs, not by the second."""


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
    if run.queue in state.tree.new_queues:  # its job is about to follow its queue's new name, which may keep it
        return Reason(code=Code.NO_SUCH_QUEUE, field="queue", detail=run.run_id)
    against = protected(state, victim, run, lent=cause == "reclaim" and run.queue != owner.queue)
    if against is not None:
        return against
    if cause == "reclaim" and run.queue != owner.queue and _others_hold_the_loan(state, owner, run, book):
        return Reason(code=Code.EVICTION_BUDGET_SPENT, detail=f"{run.run_id}: younger or smaller runs hold the loan")
    if not _gives_way(state, owner, victim, run, cause, book, run.flavor if flavor is None else flavor):
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="policy.preset", detail=f"{policy.preset}: {run.run_id}")
    return None


def protected(state: State, victim: Job, run: Run, lent: bool = False) -> Reason | None:
    """
    Why nobody may evict the run now: kept by a minimum or a budget, not preemptible, too young, or evicted too often.

    `lent`: it holds quota that goes back to its owner. A budget that is spent since it started does not keep that.
    """
    policy, age_seconds = state.tree.policy, (state.ts - run.started_ts) // 1000
    if victim.in_minimum:
        return Reason(code=Code.KEPT_BY_MINIMUM, detail=f"{run.run_id} of {describe_minimum(state, victim)}")
    # Without this pause a run behind a spent disruption budget would be in every next plan, which is undone each time:
    # the preemptor would never look at other victims.
    # A loan's time counts from the first reclaim that a budget undid: who undid another plan is asked for the loan all
    # the same, or a queue's own preemptions would keep the time from beginning.
    asked = lent and (may_call_in(state, run) or (state.format >= LENT_KEPT_FROM and not run.kept_lent_ts))
    if run.kept_ts and state.ts - run.kept_ts < KEPT_SECONDS * 1000 and not asked:
        left = KEPT_SECONDS - (state.ts - run.kept_ts) // 1000
        return Reason(
            code=Code.BLOCKED_BY_DISRUPTION_BUDGET, detail=run.run_id, numbers={"not_asked_again_for_seconds": left}
        )
    # Borrowed quota goes back however often its holder was evicted (ADR 0020): otherwise a budget of evictions would
    # turn a loan into property.
    within = lent or victim.evictions < policy.evictions_max
    if victim.preemptible and age_seconds >= policy.min_runtime_seconds and within:
        return None
    numbers = {"age_seconds": age_seconds, "evictions": victim.evictions, "preemptible": int(victim.preemptible)}
    return Reason(code=Code.EVICTION_BUDGET_SPENT, detail=run.run_id, numbers=numbers)


def may_call_in(state: State, run: Run) -> bool:
    """Whether a loan that the run holds is taken back in spite of its budget, which kept it as long as it may."""
    return run.kept_lent_ts > 0 and 0 < state.tree.policy.lent_kept_seconds * 1000 <= state.ts - run.kept_lent_ts


def _gives_way(state: State, owner: Job, victim: Job, run: Run, cause: PlanCause, book: QuotaBook, flavor: str) -> bool:
    """
    A lower class of the same queue; or, to reclaim, a queue of the same tree that was lent more, as `reclaim` says.

    Between queues the fair share is not asked: what is taken back is the owner's by its quota, and the earmark keeps
    it until the owner starts. Lent to the victim's side means that every queue from the victim's up to the one that
    it shares with the owner's uses more than its own, of something that both jobs ask for.
    """
    tree = state.tree
    # Strictly lower, or two equal jobs would evict each other in turn.
    lower = tree.priority_of(victim) < tree.priority_of(owner)
    if cause == "preemption" and budget_against(state, owner, victim) is not None:
        return tree.policy.preset != "off"
    if owner.queue == victim.queue:
        return lower and tree.policy.preset != "off"
    if cause != "reclaim" or (not lower and tree.queues[owner.queue].reclaim == "lower_priority"):
        return False
    if is_beside_gpus(state, owner, run):
        return True
    if not tree.is_beside(victim.queue, owner.queue):
        return False
    alike, shared = owner.amount.least(run.amount), set(tree.path(owner.queue))
    # Every queue between the victim and the common ancestor must be on loan. If one of them is within its own quota,
    # taking from below it would break that queue's promise to serve another's.
    # What is loose has nothing of its own, and stands in no tree whose use could be asked for.
    below = [queue for queue in tree.path(victim.queue) if queue not in shared and queue not in tree.loose]
    # The flavor counts only where both jobs use the same one. On another, `""` asks about the sum, since quota for any
    # flavor is what both of them share there.
    return all(book.holds_lent(queue, run.flavor if run.flavor == flavor else "", alike) for queue in below)


def budget_against(state: State, owner: Job, victim: Job) -> Budget | None:
    """
    A spent budget of the victim's, where `owner` asks for GPUs of the same pool and has none spent; else None.

    Whatever classes and queues they are of: what a budget does not cover any more goes on where nobody else waits.
    """
    pool = state.tree.pool
    if not state.budgets or not owner.amount.gpu_milli or pool(owner.queue) != pool(victim.queue):
        return None
    spent = _spent_of(state, victim)
    return spent if spent is not None and _spent_of(state, owner) is None else None


def _spent_of(state: State, job: Job) -> Budget | None:
    """The first budget of the job that is spent, whatever that means for new work; a job without GPUs spends none."""
    found = spent_budgets(state, job.queue, job.tenant, job.project, WHEN_SPENT) if job.amount.gpu_milli else []
    return found[0] if found else None


def is_beside_gpus(state: State, owner: Job, run: Run) -> bool:
    """
    Whether a run without GPUs holds CPU or memory that belongs to GPUs which `owner` asks for, by the policy.

    A GPU's part of its node is the node's CPU and memory over its GPUs; who asks for more has no right to it. Nor is
    there one to what the run's queues have a quota for: that is a promise, too.
    """
    # Cheapest first: where nothing is kept, which is the default, no run is looked at any further.
    tree = state.tree
    if not (tree.policy.kept_beside_gpus_percent and owner.amount.gpu_milli) or run.amount.gpu_milli:
        return False
    if run.queue == owner.queue or tree.pool(run.queue) is None or tree.pool(run.queue) != tree.pool(owner.queue):
        return False
    # A quota of CPU or memory anywhere in its tree is a promise, whose own rules say what of it is lent.
    if {"cpu_milli", "memory_bytes"} & {resource for _, resource in tree.covered[tree.roots[run.queue]]}:
        return False
    # One of its nodes is enough: what comes free there is what the owner lacks.
    nodes = state.nodes.found(sorted({place.node for place in run.places}))
    needs = [role.need for role in owner.roles if role.need.total_gpu_milli]
    return any(node.kept_percent and _asks_for_its_part(need, node) for node in nodes for need in needs)


def _asks_for_its_part(need: Need, node: Node) -> bool:
    """Whether a pod with GPUs asks for no more CPU and memory than its GPUs' part of the node."""
    # Without this bound a job of one GPU could clear a whole node of everybody else's CPU work.
    return (
        need.cpu_milli * node.gpus * WHOLE_GPU <= node.cpu_milli * need.total_gpu_milli
        and need.memory_bytes * node.gpus * WHOLE_GPU <= node.memory_bytes * need.total_gpu_milli
    )


def _others_hold_the_loan(state: State, owner: Job, run: Run, book: QuotaBook) -> bool:
    """
    Whether the run's queue would be left with less than its own, while runs of it that are no dearer hold the loan.

    What is lent goes back and no more: if only its age protects the right run, the owner waits for it, at most for
    `min_runtime`.
    """
    priority, own = state.tree.priority_of, state.jobs.get(run.job_id)
    lent = book.lent_to(run.queue, "", owner.amount).gpu_milli
    if own is None or not owner.amount.gpu_milli or run.amount.gpu_milli <= lent:
        return False
    # The loan alone is taken back, or less where the owner asks for less.
    needed, given = min(lent, owner.amount.gpu_milli), 0
    for other in state.runs.values():
        job = state.jobs.get(other.job_id)
        if other is run or other.queue != run.queue or other.stopping or job is None:
            continue
        if not job.preemptible or job.in_minimum:
            continue
        if priority(job) <= priority(own) and 0 < other.amount.gpu_milli <= lent:
            given += other.amount.gpu_milli
    return 0 < needed <= given


def may_shrink(
    state: State, owner: Job, run: Run, ranks: Sequence[int], cause: PlanCause, book: QuotaBook, flavor: str
) -> Reason | None:
    """
    Why these pods of `run` may not be removed for `owner`, naming the rule; None when they may.

    Under every preset, surplus elastic pods yield to any waiting job of equal or higher priority, and to an owner who
    reclaims what was lent for them.
    """
    job, priority = state.jobs.get(run.job_id), state.tree.priority_of
    # Ranks of the gang are never among them: a gang is never shrunk below itself, by anybody.
    whole = set(ranks) == run.surplus_with(ranks)
    if job is None or job.job_id == owner.job_id or run.stopping or not whole:
        return Reason(code=Code.VICTIM_GONE, detail=run.run_id)
    if priority(job) <= priority(owner) or gives_back(state, owner, job, run, cause, book, flavor):
        return None
    return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field="priority_class", detail=run.run_id)


def gives_back(state: State, owner: Job, victim: Job, run: Run, cause: PlanCause, book: QuotaBook, flavor: str) -> bool:
    """Whether the run holds quota that was lent and that `owner` may reclaim."""
    if cause != "reclaim" or run.queue == owner.queue or not_allowed(state, owner, cause) is not None:
        return False
    return _gives_way(state, owner, victim, run, cause, book, flavor)


def is_its_own(tree: QueueTree, book: QuotaBook, job: Job, flavor: str, lenders: Iterable[str]) -> bool:
    """
    Whether what these queues give back is the job's: one queue from its own up keeps to its own, and is above none.

    The queues of one team have its quota in common, so that none of them takes it from another.
    """
    # The queue of the job is left out: what one job takes from a lower class of its own queue is no loan.
    above = {name for queue in lenders if queue != job.queue for name in tree.path(queue)}
    return any(keeper not in above for keeper in book.keepers(job.queue, flavor, job.amount))


def in_the_way(state: State, run: Run) -> list[Earmark]:
    """
    The earmarks that end if a stopping run is to go on, by owner: whoever it was to stop for or was to move, and those
    on its nodes for which there is no room beside it.
    """
    stopping = [(other.gang, other.places) for other in state.runs.values() if other.stopping and other is not run]
    shrinking = [
        (other.gang, tuple(extra.placement for extra in other.extra if extra.leaving))
        for other in state.runs.values()
        if other.extra and not other.stopping
    ]
    names = {placement.node for placement in run.places}
    nodes = nodes_less(state, [*stopping, *shrinking])
    # The run's node as it is once all other stopping pods are gone, and the run stays. If it is overfull even then, an
    # earmark there has room only without the run.
    full = {name for name in names if (node := nodes.get(name) or state.nodes.get(name)) is not None and node.overfull}
    return [
        mark
        for owner, mark in sorted(state.earmarks.items())
        if owner == run.job_id
        or run.run_id in mark.victims
        or any(placement.node in full for placement in mark.placements)
    ]


def is_unneeded(state: State, run: Run) -> bool:
    """
    Whether nobody needs that a run stops which was told to: the job that it makes room for has gone, waits no more,
    or started elsewhere, or the drain of its nodes is over; and no room is kept that counts on its own.
    """
    if run.revoked is None or run.then != "requeue" or state.format < UNNEEDED_STOPS_FROM:
        return False
    nodes = state.nodes.found({placement.node for placement in run.places})
    drained = run.revoked.code in DRAINS and all(
        node.ready and not node.gone and state.drains.get(node.name) is None for node in nodes
    )
    # Room kept for its own job is where it was to move: that ends with the move.
    return (run.unneeded or drained) and all(mark.owner == run.job_id for mark in in_the_way(state, run))


def find_stuck(state: State, mark: Earmark) -> Run | None:
    """
    A run for whose room the earmark's owner waits in vain: it is stuck, or pods by which it shrinks are.

    That is a victim, the owner's own run if it is to move, or one that was stopping before, on a node of the earmark
    that is overfull. The first by its id.
    """
    own = state.jobs.get(mark.owner)
    named = [*mark.victims, *((own.run_id,) if own is not None and own.phase is Phase.EVICTING else ())]
    nodes = state.nodes.found({placement.node for placement in mark.placements})
    # A node of the earmark that is not overfull has room for its owner already: a stuck run there is in nobody's way.
    beside = [run_id for node in nodes if node.overfull for run_id in state.index.runs_on.get(node.name, ())]
    for run in state.runs.found(sorted({*named, *beside})):
        stops = run.stopping or any(extra.leaving for extra in run.extra)
        if stops and is_stuck(state, run):
            return run
    return None


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
        # Counterexample without this: a higher class borrows, is reclaimed, ends the earmark that was made of its
        # quota, and borrows the same again.
        and (mark.cause != "reclaim" or other.queue == job.queue)
        and any(placement.node in named for placement in mark.placements)
    ]

"""
Plans as some proposer that is behind, or wrong, might say them: the committer judges each at the head of the ledger.

Most of them evict what the rules allow. The services search for better ones; here any that fits will do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.placement.capacity import nodes_for, nodes_without
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.preemption.rules import may_evict
from tessera.engine.queueing.readiness import awaits_placement
from tessera_schemas.facts import PlanCause, PlanProposed
from tessera_schemas.reasons import Reason

NOBODY = "chance-1"
"""The engine that these plans name: none that a replay could ask for the same plan again."""
WRONG_PER_CENT = 30
VICTIMS_MAX = 3


def plan_by_chance(state: State, random: Random) -> PlanProposed | None:
    """Some running jobs for some waiting one; None when there is nothing to propose."""
    waiting = [job for _, job in sorted(state.jobs.items()) if job.phase is Phase.QUEUED]
    waiting = [job for job in waiting if state.tree.pool(job.queue) is not None]
    running = [run for _, run in sorted(state.runs.items()) if run.started and not run.stopping]
    if not waiting or not running:
        return None
    random.shuffle(waiting)
    if random.randrange(100) < WRONG_PER_CENT:
        plan = plan_for(state, waiting[0], random.sample(running, 1), random.choice(("preemption", "reclaim")))
    else:
        able = [job for job in waiting if awaits_placement(state, job)]
        every = (plan_for(state, *choice) for job in able for choice in _choices(state, job, running))
        plan = next((plan for plan in every if plan is not None), None)
    return _misplaced(plan, state, random) if plan and random.randrange(100) < WRONG_PER_CENT else plan


def _misplaced(plan: PlanProposed, state: State, random: Random) -> PlanProposed:
    """The same on any nodes, or of a flavor that is no more: as if they had changed since."""
    nodes = sorted(name for name, _ in state.nodes.items())
    places = tuple(replace(place, node=random.choice(nodes)) for place in plan.placements)
    return plan.model_copy(update={"placements": places, "flavor": random.choice((plan.flavor, "gone"))})


def _choices(state: State, job: Job, running: Sequence[Run]) -> Iterator[tuple[Job, list[Run], PlanCause]]:
    """Sets of runs that may be evicted for the job: a few whole ones, then single runs."""
    book = state.quota_book()
    causes: tuple[PlanCause, ...] = ("preemption", "reclaim")
    for cause in causes:
        allowed = [run for run in running if may_evict(state, job, run, cause, book) is None]
        if allowed:
            yield job, allowed[:VICTIMS_MAX], cause
        yield from ((job, [run], cause) for run in allowed)


def plan_for(state: State, owner: Job, victims: list[Run], cause: PlanCause = "preemption") -> PlanProposed | None:
    """The plan that stops `victims` for `owner`; None when it would not fit without them."""
    pool, book = state.tree.pool(owner.queue) or "", state.quota_book()
    for run in victims:
        book.add(run.queue, run.flavor, run.amount, -1)
    for flavor in state.tree.flavors_for(owner.queue, owner.amount):
        nodes = {node.name: node for node in nodes_for(state, pool, flavor)}
        nodes |= {name: node for name, node in nodes_without(state, *victims).items() if name in nodes}
        placed = FreeCapacity(nodes.values()).place(owner.roles)
        if isinstance(placed, Reason) or book.lacks(owner, flavor):
            continue
        return PlanProposed(
            kind="plan_proposed",
            cause=cause,
            job_id=owner.job_id,
            basis_n=state.n,
            ts=state.ts,
            engine=NOBODY,
            policy=state.config.version,
            preset=state.tree.policy.preset,
            victims=tuple(run.run_id for run in victims),
            placements=placed,
            flavor=flavor,
        )
    return None

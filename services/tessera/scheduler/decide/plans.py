"""Plans that others propose: carried out whole, or refused with a reason. The committer searches nothing itself."""

from tessera.domain.entities import Earmark, Job, Run
from tessera.domain.resources import Node, placed_amount
from tessera.domain.state import State
from tessera.engine.plans import (
    EVICTED_AS,
    extra_places,
    may_evict,
    may_shrink,
    nodes_without,
    placement_faults,
    quota_reason,
)
from tessera.scheduler.decide.draft import Draft
from tessera.scheduler.decide.line import startable
from tessera_schemas.facts import PlanProposed
from tessera_schemas.ledger import EarmarkEnded, EarmarkSet, PlanRefused, Revoked, Shrunk
from tessera_schemas.reasons import Code, Reason

Part = tuple[Run, tuple[int, ...]]


def on_plan_proposed(draft: Draft, index: int, fact: PlanProposed) -> None:
    """Victims, the earmark they make room for, and the ends of lesser earmarks in its way: one decision."""
    state = draft.state
    verdict = _judge(state, fact)
    if isinstance(verdict, Reason):
        draft.add(PlanRefused(kind="plan_refused", fact=index, job_id=fact.job_id, reason=verdict))
        return
    for mark in verdict:
        draft.add(EarmarkEnded(kind="earmark_ended", owner=mark.owner, why="outranked"))
    # A reason is shown to the victim's tenant: which job it was for stands in `by`, which not everybody sees.
    detail = f"preset {state.tree.policy.preset}"
    reason = Reason(code=EVICTED_AS[fact.cause], detail=detail)
    for run_id in fact.victims:
        draft.add(Revoked(kind="revoked", run_id=run_id, reason=reason, then="requeue", by=fact.job_id))
    shrunk = Reason(code=Code.SHRUNK, detail=detail)
    for part in fact.shrinks:
        draft.add(Shrunk(kind="shrunk", run_id=part.run_id, ranks=part.ranks, reason=shrunk, by=fact.job_id))
    draft.add(
        EarmarkSet(
            kind="earmark_set",
            owner=fact.job_id,
            cause=fact.cause,
            deadline=state.ts + state.tree.policy.earmark_seconds * 1000,
            placements=fact.placements,
            flavor=fact.flavor,
            victims=fact.victims,
            preset=state.tree.policy.preset,
        )
    )


def _judge(state: State, fact: PlanProposed) -> list[Earmark] | Reason:
    """The lesser earmarks that the plan ends, or why it is refused."""
    job = state.jobs.get(fact.job_id)
    if job is None or not startable(state, job) or state.earmarks.get(fact.job_id) is not None:
        return Reason(code=Code.NOT_WAITING, detail=fact.job_id)
    book = state.quota_book()
    if fact.cause == "reclaim" and book.borrows(job.queue, fact.flavor, job.amount):
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field=f"queues.{job.queue}", detail="it would borrow itself")
    runs: dict[str, Run] = {}
    for run_id in fact.victims:
        run = None if run_id in runs else state.runs.get(run_id)
        if run is None:
            return Reason(code=Code.VICTIM_GONE, detail=run_id)
        against = may_evict(state, job, run, fact.cause, book)
        if against is not None:
            return against
        runs[run_id] = run
        book.add(run.queue, run.flavor, run.amount, -1)
    parts: list[Part] = []
    for shrink in fact.shrinks:
        run = state.runs.get(shrink.run_id)
        if run is None or run.run_id in runs:
            return Reason(code=Code.VICTIM_GONE, detail=shrink.run_id)
        against = may_shrink(state, job, run, shrink.ranks)
        if against is not None:
            return against
        parts.append((run, shrink.ranks))
        book.add(run.queue, run.flavor, placed_amount(run.roles, extra_places(run, shrink.ranks)), -1)
    over = book.over(job.queue, fact.flavor, job.amount)
    return quota_reason(over) if over else _room(state, job, fact, list(runs.values()), parts)


def _room(state: State, job: Job, fact: PlanProposed, runs: list[Run], parts: list[Part]) -> list[Earmark] | Reason:
    """Whether it fits once the victims are gone: with all earmarks standing, or over those of lesser jobs."""
    faults = _faults(state, job, fact, nodes_without(state, runs, (), parts))
    if not faults:
        return []
    lesser = _outranked(state, job, fact)
    if lesser and not _faults(state, job, fact, nodes_without(state, runs, lesser, parts)):
        return lesser
    return Reason(code=Code.PLAN_DOES_NOT_FIT, detail=faults[0][:1024])


def _faults(state: State, job: Job, fact: PlanProposed, nodes: dict[str, Node]) -> list[str]:
    pool = state.tree.pool(job.queue)
    for placement in fact.placements:
        node = nodes.get(placement.node) or state.nodes.get(placement.node)
        if node is None or node.pool != pool or (fact.flavor and state.tree.flavor_of(node) != fact.flavor):
            return [f"node {placement.node} is not of pool {pool}, flavor {fact.flavor or 'any'}"]
        if state.drains.get(placement.node) is not None:
            return [f"node {placement.node} is being drained"]
        nodes[placement.node] = node
    return list(placement_faults(job.roles, fact.placements, nodes))


def _outranked(state: State, job: Job, fact: PlanProposed) -> list[Earmark]:
    """Earmarks on the plan's nodes whose owners are of a strictly lower priority class."""
    nodes, priority = {p.node for p in fact.placements}, state.tree.priority
    found = []
    for owner in sorted(owner for owner, _ in state.earmarks.items()):
        mark, other = state.earmarks.get(owner), state.jobs.get(owner)
        if mark is None or other is None or not any(p.node in nodes for p in mark.placements):
            continue
        if priority(other.priority_class) < priority(job.priority_class):
            found.append(mark)
    return found

"""Plans that others propose: carried out whole, or refused with a reason. The committer searches nothing itself."""

from collections.abc import Iterator, Sequence

from tessera.domain.devices.resources import Node
from tessera.domain.entities import Earmark, Job, Run
from tessera.domain.health.spares import find_spares
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.engine.ahead.booked_nodes import shut_for
from tessera.engine.defragmentation.budgets import MovesLeft, outside_windows
from tessera.engine.defragmentation.offers import agreed_for, awaits_answers, find_unasked
from tessera.engine.defragmentation.relocations import (
    GPU_SECOND,
    NodesOfRuns,
    TargetCapacity,
    gained,
    lacks_again,
    may_move,
    without_gain,
)
from tessera.engine.placement.capacity import HeldPlaces, extra_places, leaving, nodes_less, standing
from tessera.engine.placement.faults import placement_faults
from tessera.engine.preemption.candidates import eviction_cost
from tessera.engine.preemption.rules import (
    EVICTED_AS,
    budget_against,
    is_its_own,
    may_call_in,
    may_evict,
    may_shrink,
    outranked,
)
from tessera.engine.queueing.own_place import place_given_back, without_own_place
from tessera.engine.queueing.readiness import awaits_room, book_without, quota_reason, would_borrow
from tessera.scheduler.decide.draft import RECORD_BYTES, Draft, judges
from tessera.scheduler.decide.moves import offer_moves
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import Move, PlanProposed
from tessera_schemas.ledger import AnyRecord, EarmarkEnded, EarmarkSet, PlanRefused, Revoked, Shrunk
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement


@judges(PlanProposed)
def on_plan_proposed(draft: Draft, index: int, fact: PlanProposed) -> None:
    """Victims, the earmark they make room for, and the ends of lesser earmarks in its way: one decision."""
    job = draft.state.jobs.get(fact.job_id)
    # The kept place of a gang that restarts becomes part of the room that is made for all of it.
    state = draft.state if job is None else without_own_place(draft.state, job)
    verdict = _judge(state, fact)
    if not isinstance(verdict, Reason):
        records = _asked_first(draft.state, fact) or _carried_out(draft.state, fact, verdict)
        if state is not draft.state and isinstance(records[-1], EarmarkSet):
            records.insert(0, place_given_back(fact.job_id))
        # Whole or not at all: half of the victims free no room for a gang, and what they lost would be lost for
        # nothing. Records are therefore made and measured before the first one is added.
        stored = [record.to_bytes() for record in records]
        size = sum(map(len, stored)) + len(stored)
        if size + RECORD_BYTES <= draft.bytes_left:
            for record, data in zip(records, stored, strict=True):
                draft.add(record, data)
            return
        numbers = {"bytes": size, "bytes_left": max(0, draft.bytes_left)}
        verdict = Reason(code=Code.PLAN_DOES_NOT_FIT, field="message", numbers=numbers)
    draft.add(PlanRefused(kind="plan_refused", fact=index, job_id=fact.job_id, reason=verdict))


def _carried_out(state: State, fact: PlanProposed, lesser: Sequence[Earmark]) -> list[AnyRecord]:
    policy = state.tree.policy
    # A reason is shown to the victim's tenant: which job it was for stands in `by`, which not everybody sees.
    detail = f"preset {policy.preset}"
    shrunk = Reason(code=Code.SHRUNK, detail=detail)
    deadline = state.ts + policy.earmark_seconds * 1000
    return [
        # Lesser earmarks end first: the new one may lie on the same devices, and two at once would be one device for
        # two owners.
        *(EarmarkEnded(kind="earmark_ended", owner=mark.owner, why="outranked") for mark in lesser),
        *(
            Revoked(
                kind="revoked",
                run_id=run_id,
                reason=_evicted(state, fact, run_id, detail),
                then="requeue",
                by=fact.job_id,
                called_in=_is_called_in(state, fact, run_id),
            )
            for run_id in fact.victims
        ),
        *(
            Shrunk(kind="shrunk", run_id=part.run_id, ranks=part.ranks, reason=shrunk, by=fact.job_id)
            for part in fact.shrinks
        ),
        *(_kept_for_moved(state, move, deadline) for move in fact.moves),
        EarmarkSet(
            kind="earmark_set",
            owner=fact.job_id,
            cause=fact.cause,
            deadline=deadline,
            placements=fact.placements,
            flavor=fact.flavor,
            victims=fact.victims,
            preset=policy.preset,
            gain_gpu_seconds=_foretold_gain(state, fact),
        ),
    ]


def _foretold_gain(state: State, fact: PlanProposed) -> int:
    """GPU seconds that the owner of moves gains by them, before what they lose; 0 for other plans."""
    job = state.jobs.get(fact.job_id) if fact.moves else None
    return 0 if job is None else min(gained(state, job) // GPU_SECOND, INT_MAX)


def _asked_first(state: State, fact: PlanProposed) -> list[AnyRecord]:
    """Offers to the runs that are to be asked before they move; nothing where none is."""
    # Only of a plan that would be carried out now: nobody is asked for what would not fit anyway.
    job = state.jobs.get(fact.job_id) if fact.cause == "defragment" else None
    unasked = [] if job is None else find_unasked(state, job, state.runs.found(fact.victims))
    return [] if job is None else [*offer_moves(state, job, fact, unasked)]


def _is_called_in(state: State, fact: PlanProposed, run_id: str) -> bool:
    """Whether the victim gives back a loan that its disruption budget has kept for long enough."""
    job, run = state.jobs.get(fact.job_id), state.runs.get(run_id)
    lent = fact.cause == "reclaim" and job is not None and run is not None and job.queue != run.queue
    return lent and run is not None and may_call_in(state, run)


def _evicted(state: State, fact: PlanProposed, run_id: str, detail: str) -> Reason:
    """The reason given to the job of an evicted run, with what the relocation costs it."""
    run = state.runs.get(run_id)
    if fact.cause != "defragment" or run is None:
        owner, victim = state.jobs.get(fact.job_id), None if run is None else state.jobs.get(run.job_id)
        if fact.cause == "preemption" and owner is not None and victim is not None:
            budget = budget_against(state, owner, victim)
            detail += "" if budget is None else f"; budget {budget.name} is spent"
        return Reason(code=EVICTED_AS[fact.cause], detail=detail)
    lost = min(eviction_cost(state, run) // GPU_SECOND, INT_MAX)
    return Reason(code=Code.DEFRAGMENTED, numbers={"lost_gpu_seconds": lost})


def _kept_for_moved(state: State, move: Move, deadline: int) -> EarmarkSet:
    """The earmark at the destination of a relocated job, recorded in the same message as its eviction."""
    run = state.runs.get(move.run_id)
    assert run is not None  # it was judged just now
    return EarmarkSet(
        kind="earmark_set",
        owner=run.job_id,
        cause="defragment",
        deadline=deadline,
        placements=move.placements,
        flavor=run.flavor,
        preset=state.tree.policy.preset,
    )


def _judge(state: State, fact: PlanProposed) -> list[Earmark] | Reason:
    """The lesser earmarks that the plan ends, or why it is refused."""
    job = state.jobs.get(fact.job_id)
    if job is None or not awaits_room(state, job):
        return Reason(code=Code.NOT_WAITING, detail=fact.job_id)
    if fact.cause == "defragment" and (awaited := awaits_answers(state, job)) is not None:
        return awaited
    if fact.flavor not in state.tree.flavors_for(job.queue, job.amount):
        return Reason(code=Code.PLAN_DOES_NOT_FIT, field=f"queues.{job.queue}", detail=f"flavor {fact.flavor or 'any'}")
    # What is being stopped counts as gone, as in the search of the proposer; judged otherwise, each plan that relies on
    # a stop under way would be refused.
    going = leaving(state)
    book = book_without(state, going)
    held: list[HeldPlaces] = [(run.gang, places) for run, places in going]
    against = (
        # Each step takes its part out of the same book and the next one is judged by what is left: of two victims of a
        # queue that has one loan the second is then no longer on loan.
        _evict(state, job, fact, book, held)
        or _shrink(state, job, fact, book, held)
        or _check_relocations(state, job, fact, book)
    )
    if against is not None:
        return against
    # Asked last, with all victims out of the book: an owner may have back its own and no more, or it would reclaim in
    # order to borrow, and the next owner would reclaim from it (ADR 0020).
    if fact.cause == "reclaim" and not is_its_own(state.tree, book, job, fact.flavor, _lenders(state, job, fact)):
        return would_borrow(job.queue)
    return _find_capacity(state, job, fact, book, held)


def _lenders(state: State, job: Job, fact: PlanProposed) -> list[str]:
    """The queues of whose runs the plan takes something that no lower class has to give up anyway."""
    wanted, priority = state.tree.priority_of(job), state.tree.priority_of
    shrunk = [s.run_id for s in fact.shrinks]
    above = [run for run in state.runs.found(shrunk) if priority(state.jobs.get(run.job_id)) > wanted]
    return [run.queue for run in (*state.runs.found(fact.victims), *above)]


def _evict(state: State, job: Job, fact: PlanProposed, book: QuotaBook, held: list[HeldPlaces]) -> Reason | None:
    """Take the victims out of `book` and note what they hold; or the first reason against one."""
    for place, run_id in enumerate(fact.victims):
        run = state.runs.get(run_id)
        # A victim that is named twice would give its room twice.
        if run is None or run_id in fact.victims[:place]:
            return Reason(code=Code.VICTIM_GONE, detail=run_id)
        moves = fact.cause == "defragment"
        against = may_move(state, job, run) if moves else may_evict(state, job, run, fact.cause, book, fact.flavor)
        if against is not None:
            return against
        places = standing(run)
        book.add(run.queue, run.flavor, run.gang.amount_of(places), -1)
        held.append((run.gang, places))
    return None


def _shrink(state: State, job: Job, fact: PlanProposed, book: QuotaBook, held: list[HeldPlaces]) -> Reason | None:
    """Take the pods of elastic runs out of `book` and note what they hold; or the first reason against one."""
    named = set(fact.victims)
    for shrink in fact.shrinks:
        run = state.runs.get(shrink.run_id)
        # Pods of a run that goes as a whole are in `held` already, and so are those of a run that was named before.
        if run is None or shrink.run_id in named:
            return Reason(code=Code.VICTIM_GONE, detail=shrink.run_id)
        against = may_shrink(state, job, run, shrink.ranks, fact.cause, book, fact.flavor)
        if against is not None:
            return against
        named.add(shrink.run_id)
        places = extra_places(run, shrink.ranks)
        book.add(run.queue, run.flavor, run.gang.amount_of(places), -1)
        held.append((run.gang, places))
    return None


def _check_relocations(state: State, job: Job, fact: PlanProposed, book: QuotaBook) -> Reason | None:
    """Whether all that move can go on where they are to, at once and by their quota, and whether that is worth it."""
    if len(fact.moves) > state.tree.policy.defragment_moves_max:
        numbers = {"moves": len(fact.moves), "moves_max": state.tree.policy.defragment_moves_max}
        return Reason(code=Code.PLAN_DOES_NOT_FIT, field="policy.defragment_moves_max", numbers=numbers)
    runs = state.runs.found(move.run_id for move in fact.moves)
    if (beyond := _beyond_limits(state, job, runs)) is not None:
        return beyond
    ground = TargetCapacity(NodesOfRuns(state))
    # The owner's places are taken first, then each move's in turn: what is left to a move is free now, whatever happens
    # to the others, so that moves can be carried out in any order (ADR 0013).
    ground.take(job.gang, fact.placements)
    for run, move in zip(runs, fact.moves, strict=True):
        over = lacks_again(state, book, run)
        if over is not None:
            return quota_reason(over)
        book.add(run.queue, run.flavor, run.amount)
        nodes, _ = ground.nodes(run)
        fault = next(_misplaced(state, run, run.flavor, move.placements, nodes), None)
        if fault is not None:
            return Reason(code=Code.PLAN_DOES_NOT_FIT, detail=f"{run.run_id}: {fault}"[:1024])
        ground.take(run.gang, move.placements)
    return without_gain(state, job, runs) if runs else None


def _beyond_limits(state: State, job: Job, runs: Sequence[Run]) -> Reason | None:
    """The calendar's or a budget's reason against moving these runs; runs that agreed were asked within the hours."""
    agreed = agreed_for(state, job)
    if any(run.run_id not in agreed for run in runs) and (closed := outside_windows(state)) is not None:
        return closed
    left = MovesLeft(state, job)
    return next((against for run in runs if (against := left.take(run)) is not None), None)


def _find_capacity(
    state: State, job: Job, fact: PlanProposed, book: QuotaBook, held: list[HeldPlaces]
) -> list[Earmark] | Reason:
    """Whether quota and nodes hold it once all that is gone: with all earmarks standing, or over lesser jobs'."""
    against = _faults(state, job, fact, book, held)
    if against is None:
        return []
    if fact.cause == "defragment":
        return against  # nobody's room is taken for a plan that only gains time
    # Only after the plan failed with all earmarks standing: who loses its earmark must search, and perhaps evict, once
    # more.
    lesser = outranked(state, job, {placement.node for placement in fact.placements})
    for mark in lesser:
        held.append((mark.gang, mark.placements))
        owner = state.jobs.get(mark.owner)
        if owner is not None and owner.queue in state.tree.queues:
            book.add(owner.queue, mark.flavor, owner.amount, -1)
    # The first reason is told, also where the second look failed: that is what the proposer can mend.
    return lesser if lesser and _faults(state, job, fact, book, held) is None else against


def _faults(state: State, job: Job, fact: PlanProposed, book: QuotaBook, held: list[HeldPlaces]) -> Reason | None:
    over = book.lacks(job, fact.flavor)
    if over is not None:
        return quota_reason(over)
    fault = next(_misplaced(state, job, fact.flavor, fact.placements, nodes_less(state, held)), None)
    return None if fault is None else Reason(code=Code.PLAN_DOES_NOT_FIT, detail=fault[:1024])


def _misplaced(
    state: State, job: Job | Run, flavor: str, placements: tuple[Placement, ...], nodes: dict[str, Node]
) -> Iterator[str]:
    pool = state.tree.pool(job.queue)
    spares = () if isinstance(job, Job) and job.displaced else find_spares(state, pool or "")
    shut = shut_for(state, job if isinstance(job, Job) else state.jobs.get(job.job_id))
    for placement in placements:
        node = nodes.get(placement.node) or state.nodes.get(placement.node)
        if node is None or node.pool != pool or not state.tree.is_on(node, flavor):
            yield f"node {placement.node} is not of pool {pool}, flavor {flavor or 'any'}"
            return
        if state.drains.get(placement.node) is not None:
            yield f"node {placement.node} is being drained"
            return
        if placement.node in shut:
            yield f"node {placement.node} is reserved before it would have left"
            return
        if placement.node in spares:
            yield f"node {placement.node} is kept as a spare"
            return
        nodes[placement.node] = node
    yield from placement_faults(job.roles, placements, nodes)

"""
Fold of records about offers of moves. Pure.

An offer ends with its run: a run that is stopped, for this move or for anything else, is asked nothing any more.
"""

from collections.abc import Sequence

from tessera.domain.errors import Contradiction
from tessera.domain.folding.steps import applies, run_of
from tessera.domain.moves.offers import OfferedMove
from tessera.domain.moves.scores import MovePlan, moved_run
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera_schemas.ledger import EarmarkSet, MoveAnswered, MoveOffered, MoveScored, MoveWithdrawn, TakenFact


@applies(MoveOffered)
def apply_move_offered(state: State, record: MoveOffered, facts: Sequence[TakenFact]) -> None:
    """Notes the offer; raises Contradiction for a run that stops, or is asked already, or where nobody waits."""
    run, before = run_of(state, record.run_id), state.moves.get(record.run_id)
    if run.stopping or state.jobs.get(record.by) is None or (before is not None and not before.is_refused):
        raise Contradiction(f"record {state.n}: run {run.run_id} cannot be asked to move for {record.by}")
    offer = OfferedMove(run.run_id, record.by, state.ts, record.deadline, record.net_gpu_seconds)
    state.moves.put(run.run_id, offer)


@applies(MoveAnswered)
def apply_move_answered(state: State, record: MoveAnswered, facts: Sequence[TakenFact]) -> None:
    """Notes the answer; one that was given may be changed. Raises Contradiction for a run that nobody has asked."""
    offer = _offer_of(state, record.run_id)
    state.moves.put(offer.run_id, replace(offer, how=record.how, moves=record.moves, answered_ts=state.ts))


@applies(MoveWithdrawn)
def apply_move_withdrawn(state: State, record: MoveWithdrawn, facts: Sequence[TakenFact]) -> None:
    """Forgets the offer; raises Contradiction for a run that nobody has asked."""
    state.moves.drop(_offer_of(state, record.run_id).run_id)


@applies(MoveScored)
def apply_move_scored(state: State, record: MoveScored, facts: Sequence[TakenFact]) -> None:
    """Forgets moves that are scored; raises Contradiction for a job for which none were begun."""
    if state.move_plans.get(record.job_id) is None:
        raise Contradiction(f"record {state.n}: nothing was moved for job {record.job_id}")
    state.move_plans.drop(record.job_id)


def begin_moves(state: State, record: EarmarkSet) -> None:
    """Notes what the moves that this earmark waits for are to gain and to lose; its runs stop already."""
    runs = state.runs.found(record.victims)
    lost = sum(run.revoked.numbers.get("lost_gpu_seconds", 0) for run in runs if run.revoked is not None)
    plan = MovePlan(record.owner, state.ts, record.gain_gpu_seconds, lost, tuple(map(moved_run, runs)))
    state.move_plans.put(record.owner, plan.with_earlier(state.move_plans.get(record.owner)))


def _offer_of(state: State, run_id: str) -> OfferedMove:
    offer = state.moves.get(run_id)
    if offer is None:
        raise Contradiction(f"record {state.n}: run {run_id} was not asked to move")
    return offer

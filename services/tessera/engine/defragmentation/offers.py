"""
Rules of offers of moves: which runs are asked before they move, how long an answer counts, and when it does no more.

A plan of moves is judged in full before anybody is asked, and made anew, by a new search, once all have answered: what
a run agrees to is to move for the job, and not a place. Proposer and committer ask the same rules. Pure.
"""

from collections.abc import Iterable

from tessera.domain.entities import Job, Run
from tessera.domain.moves.offers import OfferedMove, offers_for
from tessera.domain.state import State
from tessera.engine.defragmentation.relocations import may_move, without_gain
from tessera.engine.queueing.readiness import awaits_placement
from tessera_schemas.reasons import Code, Reason

AGREED_MS = 60_000
"""A run that agreed may be moved for so long after the last answer for the same job; a plan takes seconds."""


def find_unasked(state: State, owner: Job, runs: Iterable[Run]) -> list[Run]:
    """The runs of a plan for `owner` that have to be asked first: none of them has agreed to move for it."""
    # Without time to answer a question would be none: the checkpoint notice is then all that a run gets, as ever.
    if not state.tree.policy.move_answer_seconds:
        return []
    agreed = agreed_for(state, owner)
    return [run for run in runs if run.run_id not in agreed]


def agreed_for(state: State, owner: Job) -> set[str]:
    """Runs that have agreed to move for the job."""
    return {offer.run_id for offer in offers_for(state.moves, owner.job_id) if offer.moves}


def awaits_answers(state: State, owner: Job) -> Reason | None:
    """Why nothing is planned for the job now: runs were asked to move for it, and their answers are to come."""
    # A second plan before all have answered would ask still others, and free more room than the job needs.
    open_ = [offer for offer in offers_for(state.moves, owner.job_id) if offer.is_open]
    if not open_:
        return None
    left = max(0, max(offer.deadline for offer in open_) - state.ts)
    return Reason(code=Code.MOVE_OFFERED, numbers={"runs": len(open_), "seconds_left": -(-left // 1000)})


def find_withdrawal(state: State, offer: OfferedMove) -> Reason | None:
    """Why an offer that is open or agreed to is taken back; None while it stands."""
    run, owner = state.runs.get(offer.run_id), state.jobs.get(offer.owner)
    if run is None or run.stopping:
        return Reason(code=Code.VICTIM_GONE, detail=offer.run_id)
    if owner is None or not awaits_placement(state, owner):
        return Reason(code=Code.MOVE_NOT_NEEDED, detail="the job waits for room no more")
    # A run may have lost its right to move meanwhile, as by a hold of its job: nobody is to answer for nothing.
    against = may_move(state, owner, run)
    if against is not None or offer.is_open:
        return against
    # Who has agreed is kept ready while others are still asked, and then until a plan had time to come. What a plan
    # would say is told by the rules that need no search; where they say nothing, it went another way.
    all_offers = offers_for(state.moves, owner.job_id)
    last = max(each.answered_ts for each in all_offers)
    if any(each.is_open for each in all_offers) or state.ts < last + AGREED_MS:
        return None
    detail = "the plan, made anew, needs it no more"
    return without_gain(state, owner, [run]) or Reason(code=Code.MOVE_NOT_NEEDED, detail=detail)

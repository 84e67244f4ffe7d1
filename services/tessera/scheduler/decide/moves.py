"""Offers of moves: which runs a plan asks first, what they answer, and the end of offers that help nobody any more."""

from collections.abc import Iterable
from operator import attrgetter

from tessera.domain.entities import Job, Run
from tessera.domain.moves.offers import OfferedMove
from tessera.domain.moves.scores import MovedRun
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.defragmentation.offers import find_withdrawal
from tessera.engine.defragmentation.relocations import GPU_SECOND
from tessera.engine.preemption.candidates import eviction_cost, weight
from tessera.scheduler.decide.draft import Draft, judges
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import MoveReplied, PlanProposed
from tessera_schemas.ledger import MoveAnswered, MoveOffered, MoveScored, MoveWithdrawn
from tessera_schemas.shard.moves import HowAnswered


def offer_moves(state: State, owner: Job, fact: PlanProposed, runs: Iterable[Run]) -> list[MoveOffered]:
    """Offers to the runs of a plan that were not asked yet; the plan itself is made anew once they have answered."""
    # Each says what the whole plan gains: a run that stays takes the gain of all the others along.
    deadline = state.ts + state.tree.policy.move_answer_seconds * 1000
    return [
        MoveOffered(
            kind="move_offered",
            run_id=run.run_id,
            by=owner.job_id,
            deadline=deadline,
            net_gpu_seconds=fact.net_gpu_seconds,
            lost_gpu_seconds=min(eviction_cost(state, run) // GPU_SECOND, INT_MAX),
        )
        for run in runs
    ]


@judges(MoveReplied)
def on_move_replied(draft: Draft, index: int, fact: MoveReplied) -> None:
    """Takes the answer of a run that was asked; a later one counts, as long as the run stands where it is."""
    job = draft.state.jobs.get(fact.job_id)
    # An earlier attempt was asked for other nodes, and cannot speak for the run that stands on these.
    if job is not None and job.tenant == fact.tenant and fact.attempt in (0, job.attempt):
        _answer(draft, job.run_id, "accepted" if fact.accept else "vetoed", fact.accept)


def answer_by_checkpoint(draft: Draft, run_id: str) -> None:
    """A run that was asked and has saved its work moves: it loses nothing by that now. A veto stands."""
    # A periodic save after a veto is no change of mind, and one before the offer would be an old one.
    offer = draft.state.moves.get(run_id)
    if offer is not None and offer.is_open:
        _answer(draft, run_id, "checkpoint", moves=True)


def settle_moves(draft: Draft, starts_since: int) -> None:
    """
    Ends offers that help nobody any more, and counts the silence of runs that had their whole time to answer.

    Time before `starts_since` does not count: nobody looked for answers then.
    """
    state = draft.state
    # What ended in this very message is seen here: facts come before, and what fills room comes after.
    for offer in sorted(state.moves.values(), key=attrgetter("run_id")):
        if draft.full:
            return
        reason = None if offer.is_refused else find_withdrawal(state, offer)
        if reason is not None:
            draft.add(MoveWithdrawn(kind="move_withdrawn", run_id=offer.run_id, reason=reason))
        elif offer.is_open and _is_over(offer, state.ts, starts_since):
            moves = state.tree.policy.moves.silence == "move"
            draft.add(MoveAnswered(kind="move_answered", run_id=offer.run_id, how="silence", moves=moves))


def score_moves(draft: Draft) -> None:
    """Says what came of moves, once the job that they made room for has started, or has gone."""
    state = draft.state
    # At its start and not later: how long it then runs has nothing to do with the moves, and it may soon be gone.
    for plan in sorted(state.move_plans.values(), key=attrgetter("owner")):
        owner = state.jobs.get(plan.owner)
        has_started = owner is not None and owner.phase is Phase.RUNNING
        if (owner is None or has_started) and not draft.full:
            waited = weight(owner.amount) * (state.ts - plan.planned_ts) if owner is not None else 0
            gained = max(0, plan.gain - waited // GPU_SECOND) if has_started else 0
            draft.add(
                MoveScored(
                    kind="move_scored",
                    job_id=plan.owner,
                    predicted_gain_gpu_seconds=plan.gain,
                    predicted_lost_gpu_seconds=plan.lost,
                    gained_gpu_seconds=gained,
                    lost_gpu_seconds=min(sum(_lost(state, each) for each in plan.moved) // GPU_SECOND, INT_MAX),
                )
            )


def _lost(state: State, moved: MovedRun) -> int:
    """Loss of a moved run: its work that was not saved, and the time until its job ran again, or until now."""
    job = state.jobs.get(moved.job_id)
    runs_again = job is not None and job.phase is Phase.RUNNING and job.run_id != moved.run_id
    until = job.started_ts if job is not None and runs_again else state.ts
    return moved.gpu_milli * max(0, until - moved.since_ts)


def is_answer_due(state: State, ts: int) -> bool:
    """Whether the time of an open offer is over at `ts`, however it was watched."""
    return any(offer.is_open and offer.deadline <= ts for offer in state.moves.values())


def _is_over(offer: OfferedMove, ts: int, starts_since: int) -> bool:
    return ts >= max(offer.deadline, starts_since + offer.deadline - offer.offered_ts)


def _answer(draft: Draft, run_id: str, how: HowAnswered, moves: bool) -> None:
    offer = draft.state.moves.get(run_id)
    run = draft.state.runs.get(run_id)
    # The same word again is no record: a program may say it until it hears of the move.
    if offer is None or run is None or run.stopping or (not offer.is_open and offer.moves is moves):
        return
    draft.add(MoveAnswered(kind="move_answered", run_id=run_id, how=how, moves=moves))

"""Words about moves that make room in one piece: whom they wait for, and what a run that is asked may answer. Pure."""

from collections.abc import Iterator

from tessera.domain.entities import Job, Run
from tessera.domain.moves.offers import OfferedMove
from tessera.domain.state import State
from tessera.engine.defragmentation.budgets import MovesLeft, outside_windows
from tessera.engine.defragmentation.relocations import NO_ROOM
from tessera.engine.explain.blockers import Viewer
from tessera_schemas.shard.lending import next_within, week_begins, week_of
from tessera_schemas.text.units import format_moment

NAMED = 4
ANSWERS = {
    "accepted": "has agreed",
    "checkpoint": "has saved its work and moves",
    "silence": "did not answer and moves",
}


def describe_moves(state: State, job: Job, viewer: Viewer) -> Iterator[str]:
    """Sentences on the runs that are asked to move for a waiting job; on some of many."""
    offers = sorted(
        (offer for offer in state.moves.values() if offer.owner == job.job_id),
        key=lambda offer: (not offer.is_open, offer.deadline, offer.run_id),
    )
    # Open questions first, those that end soonest: what the reader waits for.
    standing = [offer for offer in offers if not offer.is_refused]
    if standing:
        yield f"A move of {_runs(len(standing))} is near, to make room for it in one piece."
    for offer in offers[:NAMED]:
        yield f"{_who(state, offer, viewer)} {_answer(state, offer)}."
    if len(offers) > NAMED:
        yield f"Another {_runs(len(offers) - NAMED)} were asked, too."
    if state.tree.policy.defragment and job.reason is not None and job.reason.code in NO_ROOM:
        yield from _limits(state, job, viewer)


def _limits(state: State, job: Job, viewer: Viewer) -> Iterator[str]:
    """The calendar and the budgets of moves, as far as they keep runs from being moved now."""
    policy = state.tree.policy.moves
    if outside_windows(state) is not None:
        begins = policy.windows[0].clock(next_within(policy.windows, state.ts))
        yield f"Runs are asked to move, so that it finds room in one piece, from {begins} on."
    left, until = MovesLeft(state, job), format_moment(week_begins(week_of(state.ts) + 1))
    spent = [row.tenant for row in state.moved.values() if left.is_spent(row.tenant)]
    for tenant in sorted(filter(viewer.may_see, spent))[:NAMED]:
        yield f"No run of tenant {tenant} is moved for it before {until}: the budget of the week is spent."
    if any(not viewer.may_see(tenant) for tenant in spent):
        yield f"Runs of other tenants are not moved for it before {until}: their budgets of the week are spent."


def describe_offer(state: State, run: Run) -> Iterator[str]:
    """Sentences for the run that is asked: until when it answers, how, and what its silence means."""
    offer, policy = state.moves.get(run.run_id), state.tree.policy.moves
    if offer is None or not state.tree.policy.move_answer_seconds or run.stopping:
        return
    if offer.is_refused:
        until = offer.answered_ts + policy.veto_seconds * 1000
        if until > state.ts:
            yield f"It was asked to move, and stays: nobody asks again before {format_moment(until)}."
    elif offer.is_open:
        silence = "moves" if policy.silence == "move" else "stays"
        yield (
            f"It is asked to move, so that a job that waits finds its room, and answers by "
            f"{format_moment(offer.deadline)}: `tessera move {run.job_id} --accept` or `--veto`, or a new checkpoint; "
            f"else it {silence}."
        )
    else:
        yield f"It {ANSWERS.get(offer.how, 'moves')}: it stops, and starts elsewhere, once a new plan still needs that."


def _who(state: State, offer: OfferedMove, viewer: Viewer) -> str:
    # Whose run is asked is its tenant's affair, as with all that holds what a job waits for.
    run = state.runs.get(offer.run_id)
    job = None if run is None else state.jobs.get(run.job_id)
    return f"Job {job.name} ({job.job_id})" if job is not None and viewer.may_see(job.tenant) else "A run"


def _answer(state: State, offer: OfferedMove) -> str:
    if offer.is_open:
        return f"is asked, and answers by {format_moment(offer.deadline)}"
    return "was asked, and stays" if offer.is_refused else ANSWERS.get(offer.how, "moves")


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"

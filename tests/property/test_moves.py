"""
Moves over shards drawn by chance: each plan can be carried out step by step, everybody who moves goes on where that was
promised, and nothing moves without a net gain.
"""

from itertools import combinations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.client.ledger.replay import verify
from tessera.domain.storing.snapshot import dump, load
from tessera.engine.defragmentation.relocations import GPU_SECOND
from tessera.engine.defragmentation.search import _Search, defragmentation
from tessera.engine.preemption.candidates import eviction_cost
from tessera.engine.preemption.plans import Plan, proposal
from tessera_schemas.ledger import LEDGER_MESSAGE, Allocated, EarmarkSet, LedgerMessage, PlanRefused, Revoked
from tests.property.move_worlds import planned, world
from tests.rounds import Rounds

SEEDS = st.integers(0, 10**9)


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_a_plan_is_carried_out_whole_and_everybody_starts_where_that_was_promised(seed: int) -> None:
    rounds, chance = world(seed), Random(seed)
    for job, made in list(planned(rounds))[:1]:
        message = rounds.commit(proposal(rounds.state, made, rounds.ts), ms=0)
        promised = {job.job_id: made.placements}
        for move in made.moves:
            promised[move.run_id.rsplit("-", 1)[0]] = move.placements
        kept = {r.owner: r.placements for r in message.records if isinstance(r, EarmarkSet)}
        assert kept == promised, message.records
        assert [r.run_id for r in message.records if isinstance(r, Revoked)] == [m.run_id for m in made.moves]
        stopping, at = [move.run_id for move in made.moves], len(rounds.stored)
        chance.shuffle(stopping)
        while stopping:  # in any order, and each goes on before the others are gone
            rounds.held_back = set(stopping[1:])
            mover = stopping.pop(0)
            rounds.round(plans=False)
            run = rounds.state.runs.get(next_run(mover))
            assert run is not None
            assert run.placements == promised[run.job_id]
        rounds.round(plans=False)
        started = [r for m in messages(rounds, at) for r in m.records if isinstance(r, Allocated)]
        assert {r.job_id: r.placements for r in started if r.job_id in promised} == promised


def next_run(run_id: str) -> str:
    job, attempt = run_id.rsplit("-", 1)
    return f"{job}-{int(attempt) + 1}"


def messages(rounds: Rounds, at: int) -> list[LedgerMessage]:
    return [LEDGER_MESSAGE.validate_json(data) for data in rounds.stored[at:]]


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_nothing_moves_without_a_net_gain_nor_for_a_job_of_a_lower_class(seed: int) -> None:
    rounds = world(seed)
    for job, made in planned(rounds):
        runs = [rounds.state.runs.get(move.run_id) for move in made.moves]
        gained = job.amount.gpu_milli * (rounds.ts - job.told_ts)
        lost = sum(run.amount.gpu_milli * (rounds.ts - max(run.saved_ts, run.started_ts) + 300_000) for run in runs)
        assert gained > lost
        assert made.net_gpu_seconds == (gained - lost) // GPU_SECOND
        assert len(runs) <= rounds.state.tree.policy.defragment_moves_max
        priority = rounds.state.tree.priority
        others = [rounds.state.jobs.get(run.job_id) for run in runs]
        assert all(priority(other.priority_class) <= priority(job.priority_class) for other in others)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_no_cheaper_moves_would_do(seed: int) -> None:
    """Against every set of runs that may move, for the same placement of each set."""
    rounds = world(seed)
    for job, made in planned(rounds):
        search = _Search(rounds.state, job, "")
        movable = search._movable()
        if len(movable) > 9:
            continue
        most = rounds.state.tree.policy.defragment_moves_max
        sets = (list(s) for n in range(1, 1 + min(most, len(movable))) for s in combinations(movable, n))
        costs = [sum(loss.cost for loss in taken) for taken in sets if search._with(taken) is not None]
        lost = sum(eviction_cost(rounds.state, rounds.state.runs.get(move.run_id)) for move in made.moves)
        assert lost == min(costs)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_equal_states_give_equal_bytes_however_they_came_to_be(seed: int) -> None:
    rounds = world(seed)
    restored = load(iter(list(dump(rounds.state))))
    for job, made in planned(rounds):
        again = defragmentation(restored, job, rounds.ts)
        assert isinstance(again, Plan)
        assert proposal(restored, again, rounds.ts).to_bytes() == proposal(rounds.state, made, rounds.ts).to_bytes()


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_it_comes_to_rest_within_the_budgets_and_a_replay_makes_every_plan_again(seed: int) -> None:
    rounds = world(seed)
    rounds.settle()
    for _ in range(3):
        rounds.commit(ms=3_600_000)
        rounds.settle()
    budget = rounds.state.tree.policy.evictions_max
    assert all(job.evictions <= budget for job in rounds.state.jobs.values())
    refused = [r for m in messages(rounds, 0) for r in m.records if isinstance(r, PlanRefused)]
    assert refused == []
    report = verify(rounds.stored)
    assert report.findings == []
    assert report.plans >= len(rounds.plans)

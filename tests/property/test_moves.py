"""
Moves over shards drawn by chance: each plan can be carried out step by step, everybody who moves goes on where that was
promised, and nothing moves without a net gain.
"""

from collections.abc import Iterator
from itertools import combinations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.client.replay import verify
from tessera.domain.entities import Job
from tessera.domain.snapshot import dump, load
from tessera.engine.defragmentation.relocations import GPU_SECOND
from tessera.engine.defragmentation.search import _Search, defragmentation
from tessera.engine.preemption.candidates import eviction_cost
from tessera.engine.preemption.plans import Plan, proposal
from tessera.engine.queueing.blocked_heads import stuck_heads
from tessera_schemas.config import Queue
from tessera_schemas.facts import CheckpointSaved
from tessera_schemas.ledger import LEDGER_MESSAGE, Allocated, EarmarkSet, LedgerMessage, PlanRefused, Revoked
from tests.builders import node_seen
from tests.rounds import Rounds

SEEDS = st.integers(0, 10**9)
CLASSES = ("low", "normal", "high")


def world(seed: int) -> Rounds:
    """A shard that was full and in which some ended: what is free lies in pieces, and larger jobs wait."""
    chance = Random(seed)
    nodes = [node_seen(f"node-{n}", 8, labels={"rack": f"r{n % 2}"}) for n in range(chance.randrange(2, 5))]
    rules = {"preset": "off", "defragment": True, "defragment_moves_max": chance.choice((2, 8))}
    queues = [Queue(name=name) for name in "ab"]
    rounds = Rounds(*queues, nodes=nodes, **rules)
    left, number = 8 * len(nodes), 0
    while left > 3:
        gpus, pods = chance.choice((1, 1, 2, 2, 3)), chance.choice((1, 1, 1, 2))
        preemptible, priority = chance.random() < 0.9, chance.choice(CLASSES)
        rounds.submit(f"j{number}", gpus, pods, chance.choice("ab"), priority=priority, preemptible=preemptible)
        left, number = left - gpus * pods, number + 1
        rounds.round(plans=False)
    for _ in range(3):
        rounds.round(plans=False)
    for key in [job.key for job in rounds.state.jobs.values() if rounds.running(job.key)]:
        fate = chance.random()
        if fate < 0.5:
            rounds.finish(key)
        elif fate < 0.9:
            rounds.commit(CheckpointSaved(kind="checkpoint_saved", run_id=rounds.run(key).run_id), ms=60_000)
    for number in range(2):
        rounds.submit(f"wide{number}", chance.choice((6, 7, 8)), chance.choice((1, 1, 1, 2)), "a", priority="normal")
    for _ in range(3):
        rounds.round(plans=False)
    rounds.commit(ms=chance.choice((900_000, 3_600_000)))
    return rounds


def planned(rounds: Rounds) -> Iterator[tuple[Job, Plan]]:
    for job in stuck_heads(rounds.state, rounds.ts, 64):
        found = defragmentation(rounds.state, job, rounds.ts)
        if isinstance(found, Plan):
            yield job, found


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

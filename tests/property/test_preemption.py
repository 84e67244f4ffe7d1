"""
Plans over shards drawn by chance: each holds at the state that it was made from, takes nothing that is not needed, and
comes to rest.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.client.ledger.replay import verify
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.engine.placement.capacity import leaving, nodes_for, nodes_less
from tessera.engine.placement.gangs import place_gang
from tessera.engine.preemption.plans import Plan, Victim, plan, proposal
from tessera.engine.preemption.rules import is_its_own, outranked
from tessera.engine.queueing.ordering import stuck_heads
from tessera.engine.queueing.readiness import book_without
from tessera.preemption.decide import preemption_heads, preemption_plan
from tessera.reclamation.reclaim.decide import reclamation_heads, reclamation_plan
from tessera_schemas.config import Queue
from tessera_schemas.facts import PlanCause
from tessera_schemas.ledger import EarmarkSet, Revoked
from tessera_schemas.reasons import Reason
from tests.builders import node_seen
from tests.rounds import Rounds, share

CLASSES = ("low", "normal", "high", "urgent")
CAUSES: tuple[PlanCause, ...] = ("preemption", "reclaim")
SEEDS = st.integers(0, 10**9)
JOBS = 14


def trees(chance: Random, gpus: int) -> list[Queue]:
    """Queues that share a root, some of them below another; what they own comes to about what there is."""
    names = ["a", "b", "c"]
    own = {name: chance.randrange(0, gpus // 2 + 1) for name in names}
    parent = {name: chance.choice(("all", "all", "inner")) for name in names}
    weights = {name: chance.choice((0, 1, 1, 3)) for name in names}
    return [
        Queue(name="all"),
        share("inner", chance.randrange(0, 3)),
        *(share(name, own[name], parent=parent[name], weight=weights[name]) for name in names),
    ]


def world(seed: int, **policy: Any) -> Rounds:
    chance = Random(seed)
    sizes = [chance.choice((4, 8)) for _ in range(chance.randrange(1, 5))]
    nodes = [node_seen(f"node-{n}", size, labels={"rack": f"r{n % 2}"}) for n, size in enumerate(sizes)]
    chance.shuffle(nodes)
    rules: dict[str, Any] = {"preset": chance.choice(("priority", "fair", "fair")), "grow_after_seconds": 0, **policy}
    rounds = Rounds(*trees(chance, sum(sizes)), nodes=nodes, **rules)
    for number in range(JOBS):
        submit(rounds, chance, f"j{number}")
        if chance.random() < 0.6:
            rounds.round(plans=chance.random() < 0.3)
        if chance.random() < 0.2:
            rounds.held_back = {run.run_id for run in rounds.state.runs.values() if chance.random() < 0.3}
    for _ in range(4):
        rounds.round(plans=False)
    return rounds


def submit(rounds: Rounds, chance: Random, key: str) -> None:
    more = {"max_replicas": 4} if chance.random() < 0.3 else {}
    rounds.submit(
        key,
        gpus=chance.choice((1, 1, 2, 3, 4, 8)),
        pods=chance.choice((1, 1, 2)),
        queue=chance.choice("abc"),
        priority=chance.choice(CLASSES),
        preemptible=chance.random() < 0.9,
        **more,
    )


def planned(rounds: Rounds) -> Iterator[tuple[Job, Plan]]:
    """Every plan there is now, whoever would propose it."""
    for job in stuck_heads(rounds.state, rounds.ts, 64):
        for cause in CAUSES:
            found = plan(rounds.state, job, rounds.ts, cause)
            if isinstance(found, Plan):
                yield job, found


def enough(state: State, job: Job, made: Plan, victims: tuple[Victim, ...]) -> bool:
    """Whether the job fits once only these are gone, said apart from the search."""
    gone = leaving(state)
    for victim in victims:
        run = state.runs.get(victim.run_id)
        assert run is not None
        kept = {extra.placement.rank for extra in run.extra if extra.leaving}
        gone.append(
            (run, tuple(p for p in run.places if (p.rank in victim.ranks if victim.ranks else p.rank not in kept)))
        )
    book, held = book_without(state, gone), [(run.roles, places) for run, places in gone]
    for mark in outranked(state, job, {p.node for p in made.placements}) if made.outranked else ():
        held.append((mark.roles, mark.placements))
        owner = state.jobs.get(mark.owner)
        assert owner is not None
        book.add(owner.queue, mark.flavor, owner.amount, -1)
    if book.over(job.queue, made.flavor, job.amount):
        return False
    wanted, priority = state.tree.priority_of(job), state.tree.priority_of
    lenders = [v.queue for v in victims if not v.ranks or priority(state.jobs.get(v.job_id)) > wanted]
    if made.cause == "reclaim" and not is_its_own(state.tree, book, job, made.flavor, lenders):
        return False
    nodes = {node.name: node for node in nodes_for(state, state.tree.pool(job.queue) or "", made.flavor)}
    nodes |= {name: node for name, node in nodes_less(state, held).items() if name in nodes}
    return not isinstance(place_gang(job.roles, nodes), Reason)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_the_committer_carries_out_every_plan_made_from_the_state_it_stands_at(seed: int) -> None:
    rounds = world(seed)
    for _, made in list(planned(rounds))[:1]:
        message = rounds.commit(proposal(rounds.state, made, rounds.ts), ms=0)
        assert any(isinstance(record, EarmarkSet) for record in message.records), message.records
        evicted = [
            record.run_id for record in message.records if isinstance(record, Revoked) and record.by == made.job_id
        ]
        assert evicted == [victim.run_id for victim in made.victims if not victim.ranks]


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_no_plan_names_a_victim_without_which_the_job_would_fit_as_well(seed: int) -> None:
    rounds = world(seed)
    for job, made in planned(rounds):
        assert enough(rounds.state, job, made, made.victims)
        for victim in made.victims:
            assert not enough(rounds.state, job, made, tuple(v for v in made.victims if v is not victim)), made


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_equal_states_give_equal_bytes_however_they_came_to_be(seed: int) -> None:
    rounds = world(seed)
    restored = load(iter(list(dump(rounds.state))))
    for job, made in planned(rounds):
        again = plan(restored, job, rounds.ts, made.cause)
        assert isinstance(again, Plan)
        assert proposal(restored, again, rounds.ts).to_bytes() == proposal(rounds.state, made, rounds.ts).to_bytes()


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_it_comes_to_rest_and_stays_there_until_something_ends(seed: int) -> None:
    rounds = world(seed)
    rounds.held_back = set()
    rounds.settle()
    rounds.commit(ms=3_600_000)  # what deadlines end has ended: pods by which a run was to grow, earmarks
    rounds.settle()
    plans = len(rounds.plans)
    for _ in range(3):
        rounds.commit(ms=3_600_000)
        rounds.settle()
    assert len(rounds.plans) == plans
    evictions = sum(job.evictions for job in rounds.state.jobs.values())
    assert evictions <= JOBS * len(CLASSES)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_nothing_is_taken_back_for_a_queue_that_borrows_nor_from_one_that_does_not(seed: int) -> None:
    rounds = world(seed, preset="fair")
    for job, made in planned(rounds):
        if made.cause != "reclaim":
            continue
        before = rounds.state.quota_book()
        cell = ("", "gpu_milli")
        for victim in made.victims:
            if victim.queue != job.queue and not victim.ranks:
                assert before.used(victim.queue, cell) > before_own(rounds, victim.queue)
        path = rounds.state.tree.path
        lenders = {name for v in made.victims if v.queue != job.queue and not v.ranks for name in path(v.queue)}
        keeps = []
        for keeper in path(job.queue)[:-1]:
            back = sum(v.gpu_milli for v in made.victims if keeper in path(v.queue))
            gone = [(run, places) for run, places in leaving(rounds.state) if keeper in path(run.queue)]
            back += sum(run.gang.amount_of(places).gpu_milli for run, places in gone)
            marks = [rounds.state.jobs.get(owner) for owner in made.outranked]
            back += sum(owner.amount.gpu_milli for owner in marks if keeper in path(owner.queue))
            if before.used(keeper, cell) - back + job.amount.gpu_milli <= before.total(keeper, cell):
                keeps.append(keeper)
        assert set(keeps) - lenders, "one queue from its own up keeps to its own, and is above none that gives back"


def before_own(rounds: Rounds, queue: str) -> int:
    quota = rounds.state.tree.quotas[queue].get(("", "gpu_milli"))
    return quota.nominal if quota else 0


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_of_equal_jobs_one_that_was_preempted_and_is_sent_again_at_once_evicts_nobody(seed: int) -> None:
    chance = Random(seed)
    rounds = Rounds(nodes={f"node-{n}": 4 for n in range(chance.randrange(1, 4))}, preset="priority")
    gpus = chance.choice((1, 2, 4))
    for number in range(10):
        rounds.submit(f"j{number}", gpus=gpus, priority=chance.choice(CLASSES))
    rounds.settle()
    rounds.submit("urgent", gpus=gpus, priority="urgent")
    rounds.settle()
    plans = len(rounds.plans)
    for number, names in enumerate(rounds.evicted()):
        for name in names:
            rounds.submit(f"{name}-again-{number}", gpus=gpus, priority=rounds.job(name).priority_class)
    rounds.settle()
    assert len(rounds.plans) == plans


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_replay_makes_every_plan_again(seed: int) -> None:
    rounds = world(seed)
    rounds.settle()
    report = verify(rounds.stored)
    assert report.findings == []
    assert report.plans >= len(rounds.plans)


@pytest.mark.parametrize("policy", [{}, {"preset": "off"}, {"defragment": True}], ids=["preset", "off", "defragment"])
@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_service_that_looks_at_nobody_misses_no_plan(policy: dict[str, Any], seed: int) -> None:
    rounds = world(seed, **policy)
    for heads, plan_for in ((preemption_heads, preemption_plan), (reclamation_heads, reclamation_plan)):
        looked_at = heads(rounds.state, rounds.ts, 64)
        for job in stuck_heads(rounds.state, rounds.ts, 64):
            assert job in looked_at or not isinstance(plan_for(rounds.state, job, rounds.ts), Plan)

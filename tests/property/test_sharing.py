"""
Whatever happens to a shard with queues that share: no rule is broken, shares stay even, facts may come in any order.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.client.ledger.replay import verify
from tessera.queueing.decide import order
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tessera.testkit.sim.planner import plan_for
from tessera_schemas.base import run_id
from tessera_schemas.config import Policy, Queue, Quota
from tessera_schemas.facts import (
    AnyFact,
    CancelRequested,
    CheckpointSaved,
    HoldRequested,
    PodsMade,
    PriorityRequested,
    RunEnded,
    RunStarted,
)
from tests.builders import admitted, config_body, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed
from tests.random_ledger import random_ledger

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_no_decision_of_any_life_breaks_an_invariant_or_a_rule(seed: int) -> None:
    """Quotas, borrowing, lending, flavors, holds, drains, stopped queues, plans and their budgets among them."""
    stored = random_ledger(seed, 60).stored
    report = check(stored)
    check_rules(report, stored)
    assert [f"{v.invariant} at {v.n}: {v.text}" for v in report.violations] == []


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_every_decision_of_any_life_is_recomputed(seed: int) -> None:
    assert not verify(random_ledger(seed, 60).stored).findings


# -- fairness -------------------------------------------------------------------------------------------------------

WAITING = 30


class Sharing:
    """Two queues of equal jobs of one GPU on one node, in which work never ends: each that ends is followed by one."""

    def __init__(self, gpus: int, weights: tuple[int, int], random: Random) -> None:
        self.random, self.weights = random, dict(zip(("a", "b"), weights, strict=True))
        queues = [Queue(name=name, parent="all", weight=weight) for name, weight in self.weights.items()]
        self.ledger = Committed().begin(node_seen("node-a", gpus=gpus), body=config_body(Queue(name="all"), *queues))
        self.count = 0
        self.ledger.commit(*(self._submit(name) for _ in range(WAITING) for name in self.weights))

    def _submit(self, name: str) -> AnyFact:
        self.count += 1
        return admitted(f"k{self.count}", job_spec(role(cpu_milli=1, memory_bytes=1), queue=name))

    def held(self) -> dict[str, int]:
        return {name: self.ledger.state.held_by_queue(name).gpu_milli // 1000 for name in self.weights}

    def start(self) -> list[str]:
        """Serve the line; the queues whose jobs start, in their order."""
        queue_of = {job.job_id: job.queue for job in self.ledger.state.jobs.values()}
        made = self.ledger.commit(orders=(self.ledger.line(),))
        return [queue_of[record.job_id] for record in made.records if record.kind == "allocated"]

    def end_some(self) -> None:
        runs = sorted(name for name, _ in self.ledger.state.runs.items())
        for name in self.random.sample(runs, self.random.randrange(1, len(runs) + 1)):
            queue = self.ledger.state.runs.get(name).queue
            made = PodsMade(kind="pods_made", run_id=name, uids=(f"uid-{name}",))
            self.ledger.commit(made, RunEnded(kind="run_ended", run_id=name), run_absent(name), self._submit(queue))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 16), st.tuples(st.integers(1, 5), st.integers(1, 5)), st.randoms(use_true_random=False))
def test_every_job_that_starts_is_of_the_queue_that_holds_least_for_its_weight(
    gpus: int, weights: tuple[int, int], random: Random
) -> None:
    """So that, while both have work, no start leaves them more than one job apart."""
    world = Sharing(gpus, weights, random)
    for _ in range(6):
        held = world.held()
        for name in world.start():
            other = "b" if name == "a" else "a"
            assert held[name] * world.weights[other] <= held[other] * world.weights[name], held
            held[name] += 1
        assert held == world.held()
        assert sum(held.values()) == gpus, "nothing that fits is left"
        world.end_some()


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 16), st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_what_is_filled_at_once_is_shared_within_one_job(gpus: int, weights: tuple[int, int]) -> None:
    world = Sharing(gpus, weights, Random(0))
    held = dict.fromkeys(weights and ("a", "b"), 0)
    for name in world.start():
        held[name] += 1
        apart = abs(held["a"] * weights[1] - held["b"] * weights[0])
        assert apart <= max(weights), f"{held} for {weights}"


# -- lent quota -----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), st.randoms(use_true_random=False))
def test_an_owner_gets_its_nominal_quota_back_from_whoever_borrowed_it(
    nominal: int, borrowed: int, random: Random
) -> None:
    """The committer carries out a plan for each job of the owner, until it holds all that is its own."""
    quota = (Quota(resource="gpu_milli", nominal=nominal * 1000),)
    body = config_body(
        Queue(name="all"),
        Queue(name="owner", parent="all", quotas=quota),
        Queue(name="borrower", parent="all", quotas=(Quota(resource="gpu_milli", nominal=(8 - nominal) * 1000),)),
        policy=Policy(preset="fair", min_runtime_seconds=0),
    )
    ledger = Committed().begin(node_seen("node-a", gpus=8), body=body)
    jobs = [admitted(f"b{i}", job_spec(role(), queue="borrower")) for i in range(8 - nominal + borrowed)]
    ledger.commit(*jobs)
    ledger.commit(orders=(ledger.line(),))
    for job in jobs:
        name = run_id(job.job_id, 1)
        if ledger.state.runs.get(name) is not None:
            ledger.commit(
                PodsMade(kind="pods_made", run_id=name, uids=("uid-0",)), RunStarted(kind="run_started", run_id=name)
            )
    for i in range(nominal):
        wanted = admitted(f"o{i}", job_spec(role(), queue="owner"))
        ledger.commit(wanted)
        ledger.commit(orders=(ledger.line(),))
        job, state = ledger.state.jobs.get(wanted.job_id), ledger.state
        if job.phase.value == "queued":
            victim = random.choice([run for run in state.runs.values() if run.queue == "borrower"])
            ledger.commit(plan_for(state, job, [victim], "reclaim"))
            ledger.commit(run_absent(victim.run_id))
    assert ledger.state.held_by_queue("owner").gpu_milli == nominal * 1000
    assert ledger.state.held_by_queue("borrower").gpu_milli <= (8 - nominal) * 1000


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_preempted_job_that_is_submitted_again_at_once_triggers_no_new_preemption(random: Random) -> None:
    """What is evicted comes behind its preemptor, so that no plan of it is ever accepted."""
    body = config_body(policy=Policy(preset="fair", min_runtime_seconds=0, evictions_max=1000))
    ledger = Committed().begin(node_seen("node-a", gpus=4), body=body)
    classes = ["low", "normal", "high", "urgent"]
    ledger.commit(*(admitted(f"k{i}", job_spec(priority_class=random.choice(classes))) for i in range(8)))
    evictions = 0
    for turn in range(40):
        ledger.commit(orders=(ledger.line(),))
        for name, run in sorted(ledger.state.runs.items()):
            if not run.started:
                ledger.commit(
                    PodsMade(kind="pods_made", run_id=name, uids=("uid-0",)),
                    RunStarted(kind="run_started", run_id=name),
                )
        state = ledger.state
        waiting = sorted(
            (job for job in state.jobs.values() if job.phase.value == "queued"), key=lambda job: job.job_id
        )
        plans = [plan_for(state, job, [run]) for job in waiting for _, run in sorted(state.runs.items())]
        made = ledger.commit(*random.sample([plan for plan in plans if plan is not None], min(3, len(plans))))
        for record in made.records:
            if record.kind == "revoked":
                evictions += 1
                ledger.commit(run_absent(record.run_id))
        assert turn < 30 or not any(record.kind == "revoked" for record in made.records), "it never comes to rest"
    assert evictions <= 4 * (len(classes) - 1)


# -- the order of facts ---------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.randoms(use_true_random=False))
def test_facts_about_different_things_give_the_same_line_and_the_same_starts_in_any_order(
    seed: int, shuffler: Random
) -> None:
    """Only jobs that come in one message are told apart by their place in it: that is their age."""

    def lived(shuffled: bool) -> tuple[tuple[str, ...], set[tuple[str, str, tuple[int, ...]]]]:
        chance = Random(seed)
        queues = [Queue(name=name, parent="all", weight=chance.randrange(3)) for name in ("a", "b", "c")]
        ledger = Committed().begin(node_seen("node-a", gpus=2), body=config_body(Queue(name="all"), *queues))
        jobs = [
            admitted(f"k{i}", job_spec(role(gpus=chance.choice((1, 2))), queue=chance.choice("abc"))) for i in range(12)
        ]
        ledger.commit(*jobs)
        ledger.commit(orders=(ledger.line(),))
        facts = [_about(job.job_id, chance) for job in jobs] + [node_seen(f"node-{n}", gpus=2) for n in "bc"]
        if shuffled:
            shuffler.shuffle(facts)
        ledger.commit(*facts)
        before = order(ledger.state, "default", ledger.ts)
        ledger.commit(orders=(ledger.line(),))
        starts = {(run.run_id, p.node, p.devices) for run in ledger.state.runs.values() for p in run.placements}
        return before, starts

    assert lived(shuffled=False) == lived(shuffled=True)


def _about(job: str, chance: Random) -> AnyFact:
    return chance.choice(
        (
            HoldRequested(kind="hold_requested", job_id=job, tenant="lab"),
            PriorityRequested(
                kind="priority_requested", job_id=job, tenant="lab", priority_class=chance.choice(("low", "high"))
            ),
            CancelRequested(kind="cancel_requested", job_id=job, tenant="lab"),
            CheckpointSaved(kind="checkpoint_saved", run_id=run_id(job, 1)),
            PodsMade(kind="pods_made", run_id=run_id(job, 1), uids=("uid-0",)),
        )
    )

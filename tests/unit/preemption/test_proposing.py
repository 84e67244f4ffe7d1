"""The service: one open plan for each job, none that meets another's, and a rest after each refusal."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

import tessera.preemption.decide as preemption_decide
import tessera.reclamation.reclaim.decide as reclaim_decide
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.preemption.plans import proposing
from tessera.engine.queueing.ordering import stuck_heads
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Clock, Outgoing
from tessera.kernel.process.leases import PARTITIONS, Members, partition_of
from tessera.kernel.process.proposing import Proposals
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.preemption.decide import preemption_heads, preemption_plan
from tessera.reclamation.reclaim.decide import reclaim_plan, reclamation_heads
from tessera_schemas.cluster.mig_changes import MigChangeProposed
from tessera_schemas.facts import FACT_MESSAGE, CancelRequested, PlanProposed
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.subjects import fact, stream
from tests.builders import SHARD
from tests.rounds import Rounds, share
from tests.virtual_time import VirtualClock

OTHER = b"a fact of somebody else"


class Replica:
    """One proposer beside a shard that moves only when a test says so."""

    def __init__(self, rounds: Rounds, clock: VirtualClock, partitions: frozenset[int], plan_for: Any) -> None:
        self.rounds, self.clock = rounds, clock
        self.broker = MemoryBroker(clock)
        self.broker.add_shard(SHARD)
        bus, metrics, ids = MemoryBus(self.broker), Metrics("preemption"), itertools.count()
        ports = Ports(
            clock=cast(Clock, clock),
            bus=bus,
            ledger=StreamLedger(bus, SHARD),
            store=cast(Any, None),
            cluster=cast(Any, None),
            health=Health(clock, metrics),
            metrics=metrics,
            instance="preemption-1",
            new_tx=lambda: str(next(ids)),
        )
        self.bus = bus
        members = cast(Members, type("Some", (), {"partitions": lambda self: partitions})())
        heads = reclamation_heads if plan_for is reclaim_plan else preemption_heads
        self.proposals = Proposals(ports, SHARD, "preemption", rounds.state, members, proposing(plan_for), heads, 32)

    def proposed(self) -> list[PlanProposed]:
        stored = self.broker.stream(stream("FACTS", SHARD)).messages.values()
        facts = [FACT_MESSAGE.validate_json(message.data).fact for message in stored if message.data != OTHER]
        return [said for said in facts if isinstance(said, PlanProposed)]

    async def say_as_much_as_was_taken_in(self) -> None:
        """So that the next fact has the sequence that the shard expects."""
        for _ in range(self.rounds.facts_upto):
            await self.bus.publish(Outgoing(fact(SHARD, "binder", "other"), OTHER))

    def names(self) -> list[str]:
        return [self.rounds.name(said.job_id) for said in self.proposed()]

    async def hear(self, message: LedgerMessage, seconds: float = 0.2) -> None:
        await self.proposals.on_ledger([Entry(message, b"")])
        await self.clock.run(seconds)


@asynccontextmanager
async def replica(
    rounds: Rounds, partitions: frozenset[int] = frozenset(range(PARTITIONS)), plan_for: Any = preemption_plan
) -> AsyncIterator[Replica]:
    made = Replica(rounds, VirtualClock(), partitions, plan_for)
    await made.say_as_much_as_was_taken_in()
    task = asyncio.create_task(made.proposals.propose())
    try:
        await made.clock.run(1.2)
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def contested(jobs: int = 1, **policy: Any) -> Rounds:
    """Two full nodes, and urgent jobs of one node each that were told that there is no room."""
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, **{"preset": "priority"} | policy)
    for key in ("a", "b"):
        rounds.submit(key, gpus=8, priority="low")
        rounds.settle()
    for number in range(jobs):
        rounds.submit(f"urgent-{number}", gpus=8, priority="urgent")
    rounds.round(plans=False)
    return rounds


async def test_a_plan_is_proposed_once_and_not_again_before_the_committer_answered() -> None:
    async with replica(contested()) as one:
        await one.clock.run(60)
        assert one.names() == ["urgent-0"]


async def test_the_next_job_leaves_the_first_ones_victims_to_it() -> None:
    """Alone both would evict the same run: the cheaper one."""
    rounds = contested(2)
    async with replica(rounds) as one:
        await one.clock.run(10)
        first, second = one.proposed()
        assert one.names() == ["urgent-0", "urgent-1"]
        assert not set(first.victims) & set(second.victims)
        await one.hear(rounds.commit(first, second))
        assert len(rounds.state.earmarks) == 2


async def test_a_refusal_is_an_answer_and_the_next_try_waits_longer_each_time() -> None:
    rounds = contested()
    async with replica(rounds) as one:
        for refusals in range(1, 4):
            proposal = one.proposed()[-1]
            gone = proposal.model_copy(update={"victims": ("a" * 20 + "-1",)})
            await one.hear(rounds.commit(gone, ms=10), 0.3)
            assert len(one.proposed()) == refusals
            await one.clock.run(0.5 * 2**refusals + 2)
            assert len(one.proposed()) == refusals + 1


async def test_a_refused_change_of_a_node_for_the_same_job_pauses_none_of_its_plans() -> None:
    rounds = contested()
    (urgent,) = [job for job in rounds.state.jobs.values() if job.phase is Phase.QUEUED]
    change = MigChangeProposed(
        kind="mig_change_proposed",
        job_id=urgent.job_id,
        node="node-a",
        config="all-1g.10gb",
        basis_n=rounds.state.n,
        ts=rounds.ts,
        engine="any",
        policy=rounds.state.config.version,
    )
    refused = rounds.commit(change, ms=0)
    assert [record.kind for record in refused.records] == ["plan_refused"]
    made = Replica(rounds, VirtualClock(), frozenset(range(PARTITIONS)), preemption_plan)
    await made.say_as_much_as_was_taken_in()
    for _ in range(5):
        await made.proposals.on_ledger([Entry(refused, b"")])
    proposing = asyncio.create_task(made.proposals.propose())
    await made.clock.run(1.2)
    proposing.cancel()
    assert made.names() == ["urgent-0"]


async def test_an_accepted_plan_leaves_the_job_alone() -> None:
    rounds = contested()
    async with replica(rounds) as one:
        await one.hear(rounds.commit(*one.proposed()), 60)
        assert len(one.proposed()) == 1


async def test_nothing_is_proposed_under_the_preset_off() -> None:
    async with replica(contested(preset="off")) as one:
        await one.clock.run(60)
        assert one.proposed() == []


async def test_a_job_of_another_replicas_partition_is_left_to_it() -> None:
    rounds = contested()
    ours = partition_of(rounds.job("urgent-0").job_id)
    async with replica(rounds, frozenset(range(PARTITIONS)) - {ours}) as one:
        assert one.proposed() == []
    async with replica(rounds, frozenset({ours})) as other:
        assert other.names() == ["urgent-0"]


async def test_a_job_that_has_not_been_tried_yet_is_not_planned_for() -> None:
    rounds = contested(0)
    rounds.submit("new", gpus=8, priority="urgent")
    async with replica(rounds) as one:
        assert one.proposed() == []


async def test_room_that_frees_itself_ends_the_search() -> None:
    rounds = contested()
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=rounds.job("a").job_id))
    async with replica(rounds) as one:
        await one.clock.run(5)
        assert one.proposed() == []


async def test_a_run_is_evicted_once_it_is_old_enough_although_nothing_else_happens() -> None:
    rounds = contested(min_runtime_seconds=3600)
    async with replica(rounds) as one:
        await one.clock.run(60)
        assert one.proposed() == []
        rounds.commit(ms=3_600_000)
        await one.clock.run(10)
        assert one.names() == ["urgent-0"]


async def test_reclamation_proposes_for_lent_quota_and_preemption_for_lower_classes() -> None:
    rounds = Rounds(share("a", 8), share("b", 8), share("all", 0, parent=None), nodes={"node-a": 16})
    rounds.submit("own", gpus=4, queue="a", priority="low")
    rounds.submit("lent", gpus=12, queue="b", priority="low")
    rounds.settle()
    rounds.submit("urgent", gpus=4, queue="a", priority="urgent")
    rounds.round(plans=False)
    async with replica(rounds) as preemption, replica(rounds, plan_for=reclaim_plan) as reclamation:
        assert preemption.proposed() == []
        assert [said.cause for said in reclamation.proposed()] == ["reclaim"]
        assert reclamation.proposed()[0].victims == (rounds.run("lent").run_id,)


@pytest.mark.parametrize("plan_for", [preemption_plan, reclaim_plan])
async def test_a_finished_job_costs_no_pass_over_the_line_where_nobody_could_give_way(
    plan_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are of one class and one queue, so that no plan can exist: each message of the ledger passes by."""
    passes = count_passes(monkeypatch)
    rounds = full_of_one_class()
    async with replica(rounds, plan_for=plan_for) as one:
        for number in range(4):
            rounds.finish(f"running-{number}")
            await one.hear(rounds.commit(orders=[rounds.line("default")]))
        assert [rounds.job(f"waiting-{number}").reason is None for number in (0, 7)] == [True, False]
        assert passes == []


async def test_of_many_runs_the_classes_are_not_asked_since_a_pass_costs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    passes, rounds = count_passes(monkeypatch), full_of_one_class()
    for bound, looked in ((8, False), (7, True)):
        monkeypatch.setattr(preemption_decide, "RUNS_ASKED", bound)
        preemption_decide.preemption_heads(rounds.state, rounds.ts, 8)
        assert bool(passes) is looked


async def test_who_waits_behind_a_lower_class_is_looked_for_after_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = count_passes(monkeypatch)
    async with replica(contested()) as one:
        assert (one.names(), bool(passes)) == (["urgent-0"], True)


def full_of_one_class() -> Rounds:
    rounds = Rounds(nodes={"node-a": 8}, preset="priority")
    for number in range(8):
        rounds.submit(f"running-{number}")
    rounds.settle()
    for number in range(8):
        rounds.submit(f"waiting-{number}")
    rounds.round(plans=False)
    return rounds


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with each pass over the lines of the pools."""
    passes = list[int]()

    def noted(state: State, ts: int, heads: int) -> list[Job]:
        passes.append(state.n)
        return stuck_heads(state, ts, heads)

    for service in (preemption_decide, reclaim_decide):
        monkeypatch.setattr(service, "stuck_heads", noted)
    return passes

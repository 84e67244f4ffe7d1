"""One replica learns prices when a pool's mix has settled; what goes wrong beside the service does not harm it."""

import asyncio
from typing import Any, cast

import pytest

from tessera.domain.mix import SETTLED_AT, Mix
from tessera.engine.pricing import pricing_problem as lesson_module
from tessera.engine.pricing.pricing_problem import PricingProblem, make_pricing_problem
from tessera.kernel.errors import Transient
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.process.leases import PARTITIONS, Members
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.reclamation.prices import handlers as prices_module
from tessera.reclamation.prices import learning
from tessera.reclamation.prices.decide import is_due
from tessera.reclamation.prices.handlers import AGAIN_SECONDS, LOOK_SECONDS, Prices
from tessera.reclamation.prices.learning import learn_in_subprocess
from tessera.reclamation.settings import ReclamationSettings
from tessera_schemas.facts import FACT_MESSAGE, PricesLearnt
from tests.builders import SHARD, node_seen
from tests.rounds import Rounds
from tests.virtual_time import VirtualClock

LOOK = LOOK_SECONDS + 1


class School:
    """A shard with one pool, reclamation's learner, and a committer that takes in what it says at each turn."""

    def __init__(self, partitions: int = PARTITIONS, placement: str = "tessera", **settings: Any) -> None:
        self.clock, self.rounds = VirtualClock(), Rounds(nodes={"node-a": 8}, placement=placement)
        self.broker = MemoryBroker(self.clock)
        self.broker.add_shard(SHARD)
        self.problems: list[PricingProblem] = []
        self.said: list[PricesLearnt] = []
        self.failing = 0
        self.open = asyncio.Event()
        self.open.set()
        self._cursor, self._partitions = 0, frozenset(range(partitions))
        self._settings = ReclamationSettings(**{"learn_from_arrivals": 1, **settings})

    def partitions(self) -> frozenset[int]:
        return self._partitions

    async def learn(self, problem: PricingProblem, seconds: float) -> tuple[int, ...]:
        self.problems.append(problem)
        await self.open.wait()
        if self.failing:
            self.failing -= 1
            raise Transient("it crashed")
        return tuple(gpus * milli * 1000 for _, milli, gpus, _, _ in problem.kinds)

    async def __aenter__(self) -> "School":
        metrics = Metrics("reclamation")
        ports = Ports(
            clock=self.clock,
            bus=MemoryBus(self.broker, "reclamation"),
            ledger=cast(Any, None),
            store=cast(Any, None),
            cluster=cast(Any, None),
            health=Health(self.clock, metrics),
            metrics=metrics,
            instance="reclamation-1",
            new_tx=lambda: "",
        )
        prices = Prices(ports, self._settings, self.rounds.state, cast(Members, self), self.learn)
        self._task = asyncio.create_task(prices.learn_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def look(self, seconds: float = LOOK) -> list[str]:
        """Let it look, and the committer take in what it said: the kinds of the records."""
        await self.clock.run(seconds)
        stored = self.broker.stream(f"FACTS_{SHARD}").messages
        said = [FACT_MESSAGE.validate_json(stored[seq].data).fact for seq in sorted(stored) if seq > self._cursor]
        self._cursor = max(stored, default=0)
        self.said += [fact for fact in said if isinstance(fact, PricesLearnt)]
        return [record.kind for record in self.rounds.commit(*said).records] if said else []

    def come(self, jobs: int = 1) -> None:
        for _ in range(jobs):
            self.rounds.submit(f"job-{self.rounds.state.n}")

    @property
    def mix(self) -> Mix:
        found: Mix = self.rounds.state.mixes.get("default")
        return found


async def test_a_pool_is_priced_once_for_each_time_its_mix_settles() -> None:
    async with School() as school:
        assert await school.look() == []
        school.come()
        assert await school.look() == ["mix_priced"]
        assert await school.look(600) == []
        school.come(SETTLED_AT[0])
        assert await school.look() == ["mix_priced"]
        assert (school.mix.settled, school.mix.priced, len(school.problems)) == (2, 2, 2)


async def test_before_enough_has_come_nothing_is_learnt() -> None:
    async with School(learn_from_arrivals=3) as school:
        school.come(2)
        assert await school.look() == []
        school.come()
        assert await school.look() == ["mix_priced"]


async def test_a_replica_learns_for_its_own_pools_only() -> None:
    async with School(partitions=0) as school:
        school.come()
        assert await school.look(60) == []
        assert school.problems == []


async def test_a_placement_policy_that_goes_by_no_prices_learns_none() -> None:
    async with School(placement="fgd") as school:
        school.come()
        assert await school.look(60) == []


async def test_a_pool_without_gpus_waits_until_there_are_some() -> None:
    async with School() as school:
        school.rounds.commit(node_seen("node-a", 0))
        school.come()
        assert await school.look(60) == []
        school.rounds.commit(node_seen("node-b", 8))
        assert await school.look() == ["mix_priced"]


async def test_what_failed_is_tried_again_later_and_each_time_later_still() -> None:
    async with School() as school:
        school.failing = 2
        school.come()
        assert await school.look() == []
        assert await school.look(45) == []
        assert len(school.problems) == 1
        await school.look(30)
        assert len(school.problems) == 2
        await school.look(90)
        assert len(school.problems) == 2
        assert await school.look(60) == ["mix_priced"]


async def test_a_mix_that_settles_meanwhile_is_learnt_at_once() -> None:
    async with School() as school:
        school.open.clear()
        school.come()
        assert await school.look() == []
        school.come(SETTLED_AT[0])
        school.open.set()
        assert await school.look(1) == ["prices_refused", "mix_priced"]
        assert (school.mix.settled, school.mix.priced) == (2, 2)


async def test_a_pool_that_grew_noticeably_is_priced_anew() -> None:
    async with School() as school:
        school.come()
        await school.look()
        school.rounds.commit(node_seen("node-b", 8))
        assert await school.look(70) == ["mix_priced"]
        assert school.mix.priced_gpus == 16


@pytest.mark.parametrize(
    ("how", "numba", "learnt_by"),
    [
        ("auto", True, "rehearsed"),
        ("auto", False, "auction"),
        ("rehearsed", False, "rehearsed"),
        ("auction", True, "auction"),
    ],
)
async def test_how_it_was_learnt_stands_in_the_fact(
    how: str, numba: bool, learnt_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices_module, "find_spec", lambda name: name if numba else None)
    monkeypatch.setattr(lesson_module, "REHEARSED_FROM", SETTLED_AT[0])
    async with School(prices=how) as school:
        school.come()
        await school.look()
        school.come(SETTLED_AT[0])
        await school.look()
    assert school.said[0].learnt_by == "auction"  # of a mix that is hardly known there is nothing to rehearse
    assert school.said[-1].learnt_by == learnt_by


async def test_what_is_learnt_beside_the_service_is_what_the_lesson_says() -> None:
    problem = PricingProblem(((1000, 0, 0, 0, 7), (4000, 1000, 1, 0, 80)), ((0, 8, 64_000, 2),), 1, False)
    prices = await learn_in_subprocess(problem, 300.0)
    assert prices[0] == 0
    assert 0 < prices[1] < 2_000_000


async def test_a_lesson_that_cannot_be_learnt_says_so() -> None:
    with pytest.raises(Transient, match=r"tessera\.reclamation\.prices\.learning"):
        await learn_in_subprocess(PricingProblem(((1, 2, 3, 4, 5),), ((7, 1, 1, 1),), 1, False), 300.0)


@pytest.mark.parametrize("told", [b"", b"[]", b"[1, -1]", b"[0.5]", b'{"prices": [1]}', b"[1] [2]"])
async def test_an_answer_that_the_fact_would_not_take_is_none(told: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(module: str, question: bytes, seconds: float) -> bytes:
        return told

    monkeypatch.setattr(learning, "call_subprocess", answered)
    with pytest.raises(Transient, match="cannot be read"):
        await learn_in_subprocess(PricingProblem((), (), 1, False), 1.0)


# -- what is learnt


async def test_a_pool_is_priced_again_once_one_model_is_fuller_than_the_others() -> None:
    async with School() as school:
        nodes = [node_seen(f"a100-{n:02}", 8, gpu_model="a100") for n in range(60)]
        school.rounds.commit(*nodes, *(node_seen(f"l40-{n}", 8, gpu_model="l40") for n in range(10)))
        for number in range(10):
            school.rounds.submit(f"bound-{number}", pods=8, gpu_models=("l40",), cpu_milli=1000)
        for number in range(45):
            school.rounds.submit(f"other-{number}", pods=8, gpu_models=("a100",), cpu_milli=1000)
        assert await school.look() == ["mix_priced"]
        assert await school.look(2 * AGAIN_SECONDS) == []
        school.rounds.settle()
        assert await school.look() == ["mix_priced"]
        before, after = ({model: count for model, _, _, count in each.shapes} for each in school.problems)
        assert (before, after) == ({0: 60, 1: 1, 2: 10}, {0: 15, 1: 1, 2: 1})


def problem(rounds: Rounds) -> PricingProblem:
    mix = rounds.state.mixes.get("default")
    found = make_pricing_problem(mix, rounds.state.nodes.values(), rehearsed=True)
    assert found is not None
    return found


def test_a_lesson_names_the_nodes_that_serve_what_is_asked_for() -> None:
    nodes = [
        node_seen("node-a", 8, gpu_model="a100"),
        node_seen("node-b", 4, gpu_model="l40", device_profile="plugin"),
        node_seen("node-c", 4, gpu_model="l40", device_profile="plugin"),
        node_seen("node-d", 8, gpu_model="h100", device_profile="mig", mig_geometry="80gb"),
        node_seen("node-e", 0),
    ]
    rounds = Rounds(nodes=nodes)
    rounds.submit("one", gpu_models=("l40",), cpu_milli=1111)
    rounds.submit("two", cpu_milli=2222)
    found = problem(rounds)
    assert (found.models, found.gpus, found.rehearsed) == (2, 16, False)
    assert found.shapes == ((0, 8, 64_000, 1), (1, 4, 64_000, 2))


def test_bits_say_which_models_a_kind_may_run_on_and_what_runs_nowhere_has_no_weight() -> None:
    rounds = Rounds(nodes=[node_seen("node-a", 8, gpu_model="a100"), node_seen("node-b", 8, gpu_model="l40")])
    rounds.submit("bound", gpu_models=("l40",))
    mix = rounds.state.mixes.get("default")
    rows = dict(zip((kind for kind, _ in mix.known), problem(rounds).kinds, strict=True))
    bound = next(kind for kind in rows if kind.models == ("l40",) and kind.gpu_milli == 1000)
    free = next(kind for kind in rows if not kind.models and kind.gpu_milli == 1000)
    share = next(kind for kind in rows if kind.gpu_milli == 500)
    assert rows[bound][3:] == (0b10, dict(mix.known)[bound])
    assert rows[free][3:] == (0, dict(mix.known)[free])
    assert rows[share][3:] == (0, 0)  # the stock device plugin serves whole GPUs only


@pytest.mark.parametrize(
    ("priced", "gpus", "due"),
    [(0, 0, True), (1, 100, True), (2, 100, False), (2, 91, False), (2, 90, True), (2, 112, True)],
)
def test_when_a_pool_is_due(priced: int, gpus: int, due: bool) -> None:
    mix = Mix("default", arrivals=50, settled=2, priced=priced, priced_gpus=gpus)
    assert is_due(mix, 100, from_arrivals=50) is due
    assert not is_due(mix, 100, from_arrivals=51)


def test_the_fact_of_what_was_learnt_is_small_however_many_kinds_there_are() -> None:
    fact = PricesLearnt(
        kind="prices_learnt",
        pool="default",
        settled=1,
        basis_n=1,
        gpus=8,
        engine="any",
        learnt_by="rehearsed",
        prices=(64_000_000,) * 1024,
    )
    assert len(fact.to_bytes()) < 16 * 1024

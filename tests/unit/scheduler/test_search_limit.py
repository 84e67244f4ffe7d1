"""Gangs that only a search can refuse take turns: a message takes a bounded number of looks, whoever remembers."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tessera.domain.work.phases import Phase
from tessera.engine import ENGINE_ID
from tessera.engine.placement import gangs as gangs_module
from tessera.engine.placement.gangs import try_to_place
from tessera.engine.queueing.search_limit import LOOKS_MAX, SearchLimit
from tessera.scheduler import decide as module
from tessera.scheduler.decide import LOOKS_OF, CapacityCache, Inputs, decide
from tessera_schemas.config import Queue
from tessera_schemas.facts import AnyFact, RunEnded
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import AnyRecord
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, queue, role, run_absent
from tests.ledgers import Committed

KINDS, NODES, PODS = 40, 80, 200
LIMIT = 2_000
"""Looks in vain of a message here, some 400 for each gang."""


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Number of searches since it was last asked."""
    asked: list[object] = []

    def search(*gang: Any) -> Any:
        asked.append(gang)
        return try_to_place(*gang)

    monkeypatch.setattr(gangs_module, "try_to_place", search)

    def count() -> int:
        found = len(asked)
        asked.clear()
        return found

    return count


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOOKS_OF, ENGINE_ID, LIMIT)


def in_each_others_way(kind: int) -> JobSpec:
    """Four pods have room on a node: enough for each role alone, and not for both."""
    half = {"replicas": PODS, "cpu_milli": 7_000 + kind}
    return job_spec(role("a", gpus=1, **half), role("b", gpus=0, **half))


def cluster(*queues: Any) -> Committed:
    ledger = Committed()
    ledger.commit(config_proposed(config_body(*queues) if queues else None), holder="scheduler-1")
    ledger.commit(*(node_seen(f"n{at}", gpus=8, cpu_milli=32_000) for at in range(NODES)))
    return ledger


def wait(ledger: Committed, *specs: JobSpec, first: int = 0) -> list[str]:
    facts = [admitted(f"k{first + at}", spec) for at, spec in enumerate(specs)]
    ledger.commit(*facts)
    return [fact.job_id for fact in facts]


def untold(ledger: Committed) -> int:
    return sum(job.reason is None for job in ledger.state.jobs.values())


def test_without_the_limit_one_message_searches_for_all(searches: Callable[[], int]) -> None:
    ledger = cluster()
    wait(ledger, *map(in_each_others_way, range(KINDS)))
    ledger.commit(orders=(ledger.line(),))
    assert searches() == KINDS
    assert untold(ledger) == 0


@pytest.mark.usefixtures("limited")
def test_a_message_searches_for_some_and_in_the_end_all_are_told(searches: Callable[[], int]) -> None:
    ledger = cluster()
    wait(ledger, *map(in_each_others_way, range(KINDS)))
    ledger.commit(orders=(ledger.line(),))
    first = searches()
    assert 2 <= first <= KINDS // 2
    messages = 0
    while untold(ledger):
        ledger.commit(ms=37)
        assert searches() <= KINDS // 2
        messages += 1
        assert messages < 500
    assert all(job.phase is Phase.QUEUED for job in ledger.state.jobs.values())


@pytest.mark.usefixtures("limited")
def test_a_small_job_behind_all_of_them_starts_at_once() -> None:
    ledger = cluster()
    wait(ledger, *map(in_each_others_way, range(KINDS)))
    (small,) = wait(ledger, job_spec(role(gpus=1)), first=KINDS)
    message = ledger.commit(orders=(ledger.line(),))
    assert [record.job_id for record in message.records if record.kind == "allocated"] == [small]


@pytest.mark.usefixtures("limited")
def test_a_gang_in_the_middle_of_the_line_that_fits_gets_its_turn() -> None:
    ledger = cluster()
    wait(ledger, *map(in_each_others_way, range(KINDS // 2)))
    (fits,) = wait(ledger, job_spec(role(replicas=PODS, gpus=1)), first=KINDS)
    wait(ledger, *map(in_each_others_way, range(KINDS // 2, KINDS)), first=KINDS + 1)
    ledger.commit(orders=(ledger.line(),))
    for _ in range(500):
        if ledger.state.runs.get(f"{fits}-1") is not None:
            return
        ledger.commit(ms=37)
    pytest.fail("it was never looked at")


@pytest.mark.usefixtures("limited")
def test_nobody_passes_a_gang_of_a_strict_queue_that_waits_for_its_turn() -> None:
    ledger = cluster(Queue(name="research", queueing_strategy="strict_fifo"), queue("batch"))
    others = [in_each_others_way(kind).model_copy(update={"queue": "batch"}) for kind in range(KINDS)]
    wait(ledger, *others)
    wait(ledger, in_each_others_way(KINDS), job_spec(role(gpus=1)), first=KINDS)
    ledger.commit(orders=(ledger.line(),))
    for _ in range(100):
        ledger.commit(ms=37)
    assert not list(ledger.state.runs.items())


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("seed", range(40))
def test_who_remembers_nothing_decides_the_same(seed: int) -> None:
    """A committer that has just begun, and a replay, after any number of messages: each of these differed once."""
    assert life(seed, remembers=False) == life(seed, remembers=True)


def life(seed: int, remembers: bool) -> list[tuple[AnyRecord, ...]]:
    chance, ledger, messages = Random(seed), cluster(queue("research", gpu_milli=300_000), queue("batch")), []
    for turn in range(30):
        facts: list[AnyFact] = [
            admitted(f"k{turn}-{at}", any_spec(chance, chance.choice(("research", "batch"))))
            for at in range(chance.randrange(40))
        ]
        for name, run in list(ledger.state.runs.items()):
            if run.stopping:
                facts.append(run_absent(name))
            elif chance.random() < 0.3:
                facts.append(RunEnded(kind="run_ended", run_id=name))
        if not remembers:
            ledger.capacity = CapacityCache()
        orders = (ledger.line(),) if chance.random() < 0.5 else ()
        messages.append(ledger.commit(*facts, orders=orders, ms=chance.randrange(1, 5_000)).records)
    assert untold(ledger)  # somebody waits for a turn
    assert {"allocated", "waiting"} <= {record.kind for records in messages for record in records}
    return messages


def any_spec(chance: Random, queue: str) -> JobSpec:
    if chance.random() < 0.7:
        return in_each_others_way(chance.randrange(KINDS)).model_copy(update={"queue": queue})
    return job_spec(role(gpus=chance.randrange(1, 9), replicas=chance.choice((1, 20))), queue=queue)


def test_each_engine_is_computed_with_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def place(_draft: Any, _pool: str, _known: Any, looks_max: int | None) -> None:
        asked.append(looks_max)

    monkeypatch.setattr(module, "place_in_order", place)
    ledger = cluster()
    wait(ledger, job_spec(role(gpus=1)))
    inputs = Inputs(ledger.state.n + 1, ledger.ts + 1, 1, ledger.facts_upto, orders=(ledger.line(),))
    for engine in LOOKS_OF:
        decide(ledger.state, inputs, engine=engine)
    assert asked == [*LOOKS_OF.values()] == [LOOKS_MAX]


@pytest.mark.parametrize("pace", [1, 37, 250, 1_000, 1_024, 60_000])
def test_every_place_of_a_line_has_its_turn_at_any_pace(pace: int) -> None:
    jobs, opened = 512, set[int]()
    for tick in range(1_500):
        limit = SearchLimit(jobs, 1_790_000_000_000 + tick * pace, 1)
        limit.searched_in_vain(1)
        first = next((place for place in range(jobs) if limit.is_open(place)), None)
        assert first is not None
        opened.update(range(first, min(first + 8, jobs)))
    assert opened >= set(range(8, jobs))

"""
Services that share a process: they read the same books, which move with the ledger alone, and fall with the process.

Whatever shares a process, the services of a world without chance write the same ledger, byte by byte. Where a fault is
drawn for each call the run is another one, since fewer calls are made: there the checkers judge.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest
import structlog

from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump
from tessera.kernel.ledger.loop import open_books
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ledger.stream import read_plain
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.ports import Outgoing
from tessera.testkit.sim import world as seeded
from tessera.testkit.sim.coverage import SIMULATED
from tessera.testkit.sim.guard import SEED_SECONDS
from tessera.testkit.sim.loop import VirtualLoop
from tessera.testkit.sim.services import SHARD, SimulatedServices
from tessera.testkit.sim.world import judge_seed
from tessera_schemas.ledger import LEDGER_MESSAGE
from tests.simulation.still_world import World, configure, spec

COMPACT = ("admission", "queueing", "preemption", "reclamation", "projection")
LAYOUTS: dict[str, tuple[tuple[str, ...], ...]] = {"separate": (), "compact": (COMPACT,), "single": (SIMULATED,)}
"""What shares a process; second instances of these share another."""
READERS = ("queueing", "preemption", "reclamation", "binder")
INDEXES = ("retry_at", "start_by", "strays", "lost", "waiting", "runs_on")
JOBS = 12
LOOK_MS = 1000
"""Who attaches sees what it has to do by its first look, a moment later than by a record."""
LOOK_SECONDS = 0.25
FOUND = (("compact", 4),)
"""Each failed once; its cause is mended."""
AT_NIGHT = tuple(
    pytest.param(*seed, marks=pytest.mark.nightly("half a minute of a seed"))
    for seed in (("compact", 8), ("single", 3), ("single", 9))
)
SEEDS = (*FOUND, ("compact", 2), ("single", 12), *AT_NIGHT)


def folded(broker: MemoryBroker, shard: Shard, upto: int) -> State:
    messages = broker.stream(f"LEDGER_{SHARD}").messages
    for n in range(shard.state.n + 1, upto + 1):
        shard.fold(decode_entry(read_plain(messages[n])))
    return shard.state


async def strays(services: SimulatedServices, fold: Callable[[int], State]) -> list[str]:
    """Rows and indexes in which books that services read are not what the ledger makes of it as of their n."""
    found = list[str]()
    for slot, member in list(services.members.items()):
        if slot.split("/")[0] in READERS:
            state = (await open_books(member.ports, SHARD)).state
            other = fold(state.n)
            if state.n == other.n:
                rows = [row.decode() for row in sorted(set(dump(state)) ^ set(dump(other)))]
                rows += [
                    name for name in INDEXES if used(getattr(state.index, name)) != used(getattr(other.index, name))
                ]
                found += [f"{slot} at {state.n}: {row}" for row in rows]
    return found


def used(index: Any) -> Any:
    """An index without the lines that are empty by now; their order may be a restored state's."""
    return {name: sorted(line) for name, line in index.items() if line} if isinstance(index, dict) else sorted(index)


class SeededWorld(seeded.World):
    """Holds the books that its services read against the ledger, every while."""

    def around(self) -> list[Coroutine[Any, Any, None]]:
        return [*super().around(), self.check_books()]

    async def check_books(self) -> None:
        while not self.services.violations:
            await self.services.clock.sleep(LOOK_SECONDS)
            self.services.violations += await strays(self.services, lambda n: self.state())


@pytest.mark.timeout(4 * SEED_SECONDS)
@pytest.mark.parametrize(("layout", "seed"), SEEDS)
def test_a_seed_ends_without_a_violation_where_services_share_a_process(
    layout: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    monkeypatch.setattr(seeded, "World", partial(SeededWorld, groups=LAYOUTS[layout]))
    assert not judge_seed(seed).violations


async def worked(world: World, restarted: str, at: int) -> None:
    """Jobs that run, wait, make way and end, two each second; after `at` of them a service restarts alone."""
    await configure(world, preset="fair", min_runtime_seconds=1)
    random, found, fold = Random(5), list[str](), partial(folded, world.services.broker, Shard())
    for key in range(JOBS):
        job = spec(random.uniform(8, 16))
        await world.submit(f"k{key}", job.model_copy(update={"priority_class": "high" if key > 8 else "normal"}))
        await world.sleep(0.5)
        if key == at:
            world.services._fall(restarted, alone=True)
        found += await strays(world.services, fold)
    await world.sleep(60)
    assert found + await strays(world.services, fold) + world.services.violations == []
    assert len(world.state().ended) == JOBS
    await world.close()


def ledger_of(layout: str, restarted: str = "", at: int = -1) -> list[bytes]:
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        world = World(loop, groups=LAYOUTS[layout])
        runner.run(worked(world, restarted, at))
    return [read_plain(each).data for each in world.services.broker.stream(f"LEDGER_{SHARD}").messages.values()]


@pytest.mark.parametrize("layout", ["compact", "single"])
def test_without_chance_services_write_the_same_ledger_whatever_shares_a_process(layout: str) -> None:
    assert ledger_of(layout) == ledger_of("separate")


def said(ledger: list[bytes]) -> Iterator[tuple[tuple[str, str], int]]:
    """When what was said of each job and run, the first time last."""
    for message in map(LEDGER_MESSAGE.validate_json, reversed(ledger)):
        for record in message.records:
            yield (record.kind, getattr(record, "run_id", getattr(record, "job_id", ""))), message.ts


@pytest.mark.parametrize("at", [2, 9])
@pytest.mark.parametrize("service", READERS)
def test_who_attaches_to_standing_books_does_all_that_it_does_where_it_folds_them_anew(service: str, at: int) -> None:
    """Who folds anew is told of what happened meanwhile record by record; who attaches sees it by its first look."""
    attached, anew = dict(said(ledger_of("single", service, at))), dict(said(ledger_of("separate", service, at)))
    assert attached.keys() == anew.keys()
    assert any(kind == "revoked" for kind, _ in anew)
    assert max(attached[what] - ts for what, ts in anew.items()) <= LOOK_MS


def instances(world: World) -> dict[str, str]:
    return {slot: member.ports.instance for slot, member in world.services.members.items()}


def test_a_crash_takes_all_of_its_process_and_an_error_of_one_service_that_one_alone(loop: VirtualLoop) -> None:
    loop.run_until_complete(crash(World(loop, groups=LAYOUTS["compact"])))


async def crash(world: World) -> None:
    await configure(world)
    first, member = instances(world), world.services.members["reclamation"]
    books = await open_books(member.ports, SHARD)
    world.services._fall("queueing", alone=True)
    assert first.keys() - instances(world).keys() == {"queueing"}
    await world.sleep(3)
    second = instances(world)
    assert {slot for slot in first if first[slot] != second[slot]} == {"queueing"}
    assert await open_books(world.services.members["queueing"].ports, SHARD) is books
    world.services.kill("preemption")
    assert instances(world).keys() == {"scheduler", "binder"}
    await world.sleep(3)
    third = instances(world)
    assert {slot for slot in first if second[slot] != third[slot]} == set(COMPACT)
    assert await open_books(world.services.members["queueing"].ports, SHARD) is not books
    await world.close()


def test_a_contradiction_in_the_books_halts_each_of_their_readers(loop: VirtualLoop) -> None:
    loop.run_until_complete(contradiction(World(loop, groups=LAYOUTS["compact"])))


async def contradiction(world: World) -> None:
    await configure(world)
    stored = world.services.broker.stream(f"LEDGER_{SHARD}")
    again = stored.messages[stored.last_seq]
    world.services.kill("scheduler")  # who writes would halt first
    await world.clients.publish(Outgoing(again.subject, again.data, headers=again.headers))
    await world.sleep(2)
    halted = dict(said.split(" halted: ") for said in world.services.violations)
    assert len({halted.get(reader) for reader in READERS[:-1]}) == 1
    assert "calls itself" in halted["queueing"]
    await world.close()

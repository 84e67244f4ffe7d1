"""
No outage of Tessera stops a pod: each service is cut off on each of its roads for longer than every deadline.

Meanwhile a job runs, another starts, a node is silent for a moment and a third job comes. After it nothing that ran was
stopped, and no attempt was spent.
"""

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tessera.domain.state import State
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ledger.stream import read_plain
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.local.cluster.driving import drive
from tessera.local.cluster.nodes import NodeRow, node_object
from tessera.testkit.sim.coverage import SIMULATED, Coverage
from tessera.testkit.sim.faults import Rates, Road
from tessera.testkit.sim.loop import VirtualLoop
from tessera.testkit.sim.services import SHARD, SimulatedServices
from tessera.testkit.sim.workload import SETTLED, TENANTS, Command, apply_config, submit_job
from tessera.testkit.sim.world import answered
from tessera_schemas.base import job_id
from tessera_schemas.config import Policy
from tessera_schemas.job import JobSpec, Template
from tests.builders import job_spec, role

START_SECONDS, LOST_SECONDS, ORPHAN_SECONDS = 15, 12, 10.0
CUT_SECONDS = 40.0
SETTINGS: dict[str, dict[str, Any]] = {"binder": {"resync_seconds": 2.0, "orphan_seconds": ORPHAN_SECONDS}}
ROADS = {
    "admission": (Road.NATS, Road.REDIS),
    "binder": (Road.NATS, Road.LEDGER, Road.CLUSTER),
    "reclamation": (Road.NATS, Road.LEDGER, Road.CLUSTER),
    "scheduler": (Road.NATS, Road.LEDGER),
    "projection": (Road.NATS, Road.LEDGER, Road.REDIS),
    "queueing": (Road.NATS, Road.LEDGER),
    "preemption": (Road.NATS, Road.LEDGER),
}
TRIALS = [((service,), road) for service, roads in ROADS.items() for road in roads]
TRIALS += [(tuple(ROADS), road) for road in Road]


def spec(seconds: float, limit: int | None = None) -> JobSpec:
    template = Template(image="train:1", annotations={"tessera.io/simulate-seconds": str(seconds)})
    worker = role(gpus=2).model_copy(update={"template": template})
    return job_spec(worker, time_limit_seconds=limit)


class World:
    """A shard of two nodes without chance."""

    def __init__(self, loop: VirtualLoop, beside: "World | None" = None) -> None:
        """`beside` is an installation on the same cluster, which has a NATS, a Redis and a ledger of its own."""
        self.loop, rates = loop, Rates(Random(1))
        rates.stop()
        self.services = SimulatedServices(loop, Random(2), rates, Coverage(), settings=SETTINGS)
        self.clients = MemoryBus(self.services.broker, "client")
        if beside is not None:
            self.services.cluster = beside.services.cluster
            self.services._started = 1000  # chance that is not the first one's, which names the ledger
        self.driving = None if beside else loop.create_task(drive(self.services.cluster, self.services.clock))
        for name in ("node-a", "node-b") if beside is None else ():
            row = NodeRow(name=name, cpu="64", memory="512Gi", gpus=8)
            self.services.cluster.create("nodes", "", node_object(row, name))
        for name in SIMULATED:
            self.services.start(name)

    async def send(self, command: Command) -> None:
        await self.clients.publish(Outgoing(command.subject, command.data, headers=answered(command)))

    async def submit(self, key: str, job: JobSpec) -> str:
        await self.send(submit_job(SHARD, 0.0, TENANTS[0], key, job))
        return job_id(SHARD, TENANTS[0], key)

    async def sleep(self, seconds: float) -> None:
        await self.services.clock.sleep(seconds)

    def records(self) -> list[Any]:
        stored = self.services.broker.stream(f"LEDGER_{SHARD}").messages.values()
        return [record for each in stored for record in decode_entry(read_plain(each)).message.records]

    def state(self) -> State:
        shard = Shard()
        for each in self.services.broker.stream(f"LEDGER_{SHARD}").messages.values():
            shard.fold(decode_entry(read_plain(each)))
        return shard.state

    async def close(self) -> None:
        if self.driving is not None:
            self.driving.cancel()
        await self.services.close()


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    yield loop
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
    asyncio.set_event_loop(None)
    loop.close()


async def configure(world: World) -> None:
    policy = Policy(start_timeout_seconds=START_SECONDS, node_lost_seconds=LOST_SECONDS)
    await world.send(apply_config(SHARD, SETTLED.model_copy(update={"policy": policy}), 0))
    await world.sleep(2)


async def trial(world: World, services: tuple[str, ...], road: Road) -> None:
    await configure(world)
    running = await world.submit("running", spec(600))
    limited = await world.submit("limited", spec(8, limit=20))
    await world.sleep(4)
    starting = await world.submit("starting", spec(600))
    await world.sleep(0.2)
    node = next(placement.node for placement in world.state().runs.get(f"{running}-1").placements)
    world.services.cluster.set_reachable(node, False)
    await world.sleep(5)
    members = [world.services.members[name] for name in services]
    for member in members:
        member.faults.cut_roads.add(road)
    if road is Road.CLUSTER:
        world.services.cluster.close_watches()
    await world.sleep(1)
    world.services.cluster.set_reachable(node, True)
    late = await world.submit("late", spec(600))
    await world.sleep(CUT_SECONDS)
    for member in members:
        member.faults.cut_roads.clear()
    await world.sleep(40)
    state = world.state()
    for job in (running, starting, late):
        assert (state.jobs.get(job).phase, state.jobs.get(job).attempt) == ("running", 1), job
    assert state.ended.get(limited).phase == "succeeded"
    assert [record.reason.sentence() for record in world.records() if record.kind == "revoked"] == []
    assert world.services.violations == []


NAMES = [f"{services[0] if len(services) == 1 else 'all'}-{road}" for services, road in TRIALS]


@pytest.mark.parametrize(("services", "road"), TRIALS, ids=NAMES)
def test_a_road_that_is_cut_off_for_longer_than_every_deadline_stops_nothing(
    loop: VirtualLoop, services: tuple[str, ...], road: Road
) -> None:
    world = World(loop)
    loop.run_until_complete(trial(world, services, road))
    loop.run_until_complete(world.close())


async def with_a_wrong_clock(world: World, service: str, ahead_ms: int) -> None:
    await configure(world)
    limited = await world.submit("limited", spec(40, limit=60))
    await world.sleep(4)
    world.services.members[service].clock.skew_ms = ahead_ms
    starting = await world.submit("starting", spec(600, limit=900))
    await world.sleep(60)
    state = world.state()
    assert (state.jobs.get(starting).phase, state.jobs.get(starting).attempt) == ("running", 1)
    assert state.ended.get(limited).phase == "succeeded"


@pytest.mark.parametrize("ahead_ms", [600_000, -600_000], ids=["ahead", "behind"])
@pytest.mark.parametrize("service", ["scheduler", "binder", "reclamation"])
def test_a_clock_that_is_set_wrong_by_ten_minutes_ends_no_run(loop: VirtualLoop, service: str, ahead_ms: int) -> None:
    world = World(loop)
    loop.run_until_complete(with_a_wrong_clock(world, service, ahead_ms))
    loop.run_until_complete(world.close())


async def with_a_second_installation(first: World) -> None:
    await configure(first)
    running = await first.submit("running", spec(6000))
    await first.sleep(4)
    second = World(first.loop, beside=first)
    await first.sleep(300)
    await configure(second)
    late = await second.submit("running", spec(6000))  # the same key, so the same names of run and pods
    await first.sleep(100)
    state = first.state()
    assert (state.jobs.get(running).phase, state.jobs.get(running).attempt) == ("running", 1)
    assert [record.kind for record in first.records() if record.kind == "revoked"] == []
    assert len(first.services.cluster.list("pods")[0]) == 1
    assert second.state().jobs.get(late).phase != "running"
    assert sum(node.others.gpus for node in second.state().nodes.values()) == 2
    await second.close()


def test_a_second_installation_with_the_same_shard_name_stops_nothing_of_the_first(loop: VirtualLoop) -> None:
    first = World(loop)
    loop.run_until_complete(with_a_second_installation(first))
    loop.run_until_complete(first.close())

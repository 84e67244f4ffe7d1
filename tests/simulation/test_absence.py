"""
No outage of Tessera stops a pod: each service is cut off on each of its roads for longer than every deadline.

Meanwhile a job runs, another starts, a node is silent for a moment and a third job comes. After it nothing that ran was
stopped, and no attempt was spent.
"""

import pytest

from tessera.testkit.sim.faults import Road
from tessera.testkit.sim.loop import VirtualLoop
from tests.simulation.still_world import World, configure, spec

CUT_SECONDS = 40.0
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

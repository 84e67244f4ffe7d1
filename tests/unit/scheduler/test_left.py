"""What is left of the pools, as the leader's metrics."""

from tessera.domain.devices.held_back import HoldsBack
from tessera.kernel.service.metrics import Metrics
from tessera.scheduler.free_slots import measuring
from tests.builders import config_proposed, node_seen
from tests.unit.scheduler.committers import Leader, World


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"pool": "default", **labels})


async def test_the_leader_says_how_many_slots_are_left_and_why_gpus_are_idle() -> None:
    world = World()
    async with Leader(world) as leader, measuring(leader.ports, leader.shard, 5.0):
        metrics = leader.ports.metrics
        await world.fact(config_proposed())
        await world.fact(node_seen("node-a", 8))
        await world.fact(node_seen("node-b", 4, ready=False))
        await world.clock.run(6)
        assert value(metrics, "tessera_slots", gpus="4", level="pool") == 2
        assert value(metrics, "tessera_slots", gpus="8", level="node") == 1
        assert value(metrics, "tessera_idle_gpus", cause="none") == 8
        assert value(metrics, "tessera_idle_gpus", cause="fault") == 4
        assert value(metrics, "tessera_held_back_gpus", rule="nothing_waits") == 8
        assert {value(metrics, "tessera_held_back_gpus", rule=rule) for rule in HoldsBack} == {0, 8}, (
            "each rule has a value"
        )


async def test_a_ledger_that_stands_still_is_not_measured_again() -> None:
    world = World()
    async with Leader(world) as leader, measuring(leader.ports, leader.shard, 5.0):
        await world.fact(config_proposed())
        await world.fact(node_seen("node-a", 8))
        await world.clock.run(6)
        leader.ports.metrics.left_of_pools([])  # so that it shows whether anybody measures
        await world.clock.run(20)
        assert value(leader.ports.metrics, "tessera_slots", gpus="4", level="pool") is None
        await world.fact(node_seen("node-b", 8))
        await world.clock.run(6)
        assert value(leader.ports.metrics, "tessera_slots", gpus="4", level="pool") == 4

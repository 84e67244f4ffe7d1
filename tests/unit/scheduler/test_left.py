"""What is left of the pools, as the leader's metrics."""

from tessera.domain.devices.free_slots import Slots
from tessera.domain.devices.held_back import HoldsBack
from tessera.kernel.service.metrics import CLASSES_MAX, Metrics
from tessera.scheduler.free_slots import measuring
from tessera_schemas.cluster.device_layouts import DeviceTaint, TakenDevice
from tessera_schemas.work.arrays import SERVICE_TASKS, JobArray, ServiceSize
from tests.builders import admitted, config_proposed, job_spec, node_seen
from tests.published_devices import DRIVER, class_seen, layout_seen, offering, whole_gpus
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


async def test_the_leader_says_how_many_devices_of_each_class_there_are_taken_and_tainted() -> None:
    world, layout = World(), whole_gpus(4)
    taint = DeviceTaint(device=f"{DRIVER}/node-a/gpu-3", key="XidError", effect="NoSchedule")
    taken = TakenDevice(device=f"{DRIVER}/node-b/gpu-0")
    async with Leader(world) as leader, measuring(leader.ports, leader.shard, 5.0):
        metrics = leader.ports.metrics
        for fact in (config_proposed(), layout_seen(layout), class_seen()):
            await world.fact(fact)
        await world.fact(offering("node-a", layout, 4, tainted=(taint,)))
        await world.fact(offering("node-b", layout, 4, taken=(taken,)))
        await world.clock.run(6)
        states = {"offered": 8, "taken": 1, "tainted": 1}
        for state, number in states.items():
            assert value(metrics, "tessera_class_devices", device_class=DRIVER, state=state) == number
        metrics.left_of_pools([])
        assert value(metrics, "tessera_class_devices", device_class=DRIVER, state="offered") is None


async def test_the_leader_says_how_many_services_run_fewer_replicas_than_are_guaranteed() -> None:
    world, size = World(), ServiceSize(min_replicas=1, max_replicas=2)
    async with Leader(world) as leader:
        below = leader.ports.metrics.registry
        async with measuring(leader.ports, leader.shard, 5.0):
            await world.fact(config_proposed())
            await world.fact(admitted("chat", job_spec(service=size, array=JobArray(tasks=SERVICE_TASKS))))
            await world.clock.run(6)
            assert below.get_sample_value("tessera_services_below_minimum") == 1
        assert below.get_sample_value("tessera_services_below_minimum") == 0, "the next leader measures"


def test_classes_of_a_pool_are_shown_up_to_a_bound_those_with_most_devices_first() -> None:
    metrics, uses = Metrics("scheduler"), tuple((f"class-{at:03}", at, 0, 0) for at in range(CLASSES_MAX + 1))
    metrics.left_of_pools([Slots("default", 0, 0, (), (), device_classes=uses)])
    assert value(metrics, "tessera_class_devices", device_class="class-000", state="offered") is None
    assert value(metrics, "tessera_class_devices", device_class="class-001", state="offered") == 1


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

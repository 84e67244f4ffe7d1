"""Gangs as large as one message names them, whatever their devices are called."""

from tessera.engine.queueing.allocation_size import ALLOCATION_BYTES_MAX, longest_of, most_bytes
from tessera_schemas.cluster.device_layouts import DeviceCapacity, DeviceLayout, DevicePool, OfferedDevice
from tessera_schemas.facts import AnyFact
from tessera_schemas.job import Role
from tessera_schemas.ledger import LEDGER_MESSAGE
from tests.builders import admitted, job_spec, node_seen, role
from tests.published_devices import DRIVER, claim, claiming, class_seen, layout_seen, offering, whole_gpus
from tests.rounds import Rounds, share

EIGHT = whole_gpus(8)
COUNTED = "nvidia.com/gpu"


def started(nodes: list[AnyFact], *roles: Role) -> Rounds:
    world = Rounds(share("research", 8 * 600, None), nodes=[layout_seen(EIGHT), *nodes])
    world.commit(admitted("gang", job_spec(*roles, name="gang")))
    world.settle()
    return world


def assert_bound_holds(world: Rounds) -> None:
    messages = (LEDGER_MESSAGE.validate_json(stored) for stored in world.stored)
    (size,) = (len(record.to_bytes()) for each in messages for record in each.records if record.kind == "allocated")
    most = most_bytes(world.state, world.job("gang"), longest_of(world.run("gang").all_placements))
    assert size <= most <= ALLOCATION_BYTES_MAX


def test_a_gang_of_two_thousand_published_gpus_starts() -> None:
    nodes = [offering(f"node-{at:03}", EIGHT, 8) for at in range(256)]
    world = started([class_seen(), *nodes], claiming(claim(count=8), replicas=256))
    assert sum(len(place.drawn) for place in world.run("gang").all_placements) == 2048
    assert_bound_holds(world)


def test_a_class_that_answers_gpus_keeps_no_large_gang_from_nodes_of_a_plugin() -> None:
    nodes = [node_seen(f"node-{at:03}", 8) for at in range(512)]
    world = started([class_seen(extended_resource=COUNTED), *nodes], role(gpus=8, replicas=512))
    assert len(world.run("gang").all_placements) == 512
    assert_bound_holds(world)


def test_the_names_of_shared_capacity_count() -> None:
    amount = DeviceCapacity(value=64_000, default=1_000)
    names = {f"example.com/{'m' * 60}{at}": amount for at in range(8)}
    shared = OfferedDevice(pool=0, name="nic-0", capacity=names, is_shared=True)
    layout = DeviceLayout(pools=(DevicePool(driver=DRIVER),), devices=(shared,), kinds="33" * 32)
    nodes = [layout_seen(layout), class_seen(), offering("node-0", layout, 0)]
    world = started(nodes, claiming(claim(), replicas=40))
    assert len(world.run("gang").all_placements[0].drawn[0].capacity) == 8
    assert_bound_holds(world)

"""A scheduler that stood still for longer than its lease holds it again, without being started anew."""

from tessera.kernel.errors import Transient
from tessera.kernel.process.leases import RENEWALS_PER_LEASE
from tessera_schemas import subjects
from tests.builders import SHARD, config_proposed
from tests.unit.scheduler.committers import Served, World

LEASE = 2.0


def renewals(world: World) -> int:
    """Sequence of the newest message of the lease."""
    stream = world.broker.stream(subjects.stream("LEASES", SHARD))
    return max(stream.by_subject[subjects.lease(SHARD, "scheduler", "leader")], default=0)


def holders(world: World) -> list[str]:
    """Who opened the epochs."""
    return [message.holder for message in world.ledger if message.holder]


async def test_a_lone_scheduler_that_was_paused_holds_its_lease_again_and_goes_on_in_its_epoch() -> None:
    world = World()
    lone = Served(world, "scheduler-1")
    await world.clock.run(2 * LEASE)
    world.clock.pause(10 * LEASE)
    await world.clock.run(LEASE)
    before = renewals(world)
    await world.clock.run(2 * LEASE)
    assert renewals(world) > before
    assert holders(world) == ["scheduler-1"]
    await lone.dies()


async def test_a_scheduler_that_another_has_replaced_meanwhile_stands_by_and_takes_over_later() -> None:
    world = World()
    first = Served(world, "scheduler-1")
    await world.clock.run(2 * LEASE)
    second = Served(world, "scheduler-2")
    first.faults.before_publish["lease."] = [Transient("away")] * 1000
    await world.clock.run(3 * LEASE)
    first.faults.before_publish.clear()
    await world.fact(config_proposed())
    await world.clock.run(5 * LEASE)
    assert holders(world) == ["scheduler-1", "scheduler-2"]
    before = renewals(world)
    await world.clock.run(LEASE)
    assert renewals(world) - before <= RENEWALS_PER_LEASE + 1, "both renew one lease"
    await second.dies()
    await world.clock.run(3 * LEASE)
    assert holders(world) == ["scheduler-1", "scheduler-2", "scheduler-1"]
    await first.dies()

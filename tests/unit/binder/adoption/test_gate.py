"""A tenant that makes more pods than its budget lets in, or a ledger without room: what waits says why, and comes."""

from collections import Counter
from dataclasses import replace

import pytest

from tessera_schemas import subjects
from tessera_schemas.commands import AdoptJob
from tessera_schemas.config import Limits, Tenant
from tests.builders import SHARD, config_body, config_proposed
from tests.unit.binder.adoption.adoption_world import AdoptionWorld

LEDGER = subjects.stream("LEDGER", SHARD)
MIB = 2**20


async def limit(world: AdoptionWorld, **lab: int) -> None:
    tenants = (Tenant(name="lab", limits=Limits(**lab)), Tenant(name="other"))
    body = config_body(policy=world.state.config.body.policy).model_copy(update={"tenants": tenants})
    await world.commit(config_proposed(body, world.state.config.version))


def submitted(world: AdoptionWorld) -> int:
    return len([command for command in world.commands if isinstance(command, AdoptJob)])


def told(world: AdoptionWorld) -> Counter[str]:
    return Counter(world.condition(pod).get("reason", "") for pod in world.owned("pod-"))


async def test_a_budget_lets_a_burst_in_then_so_many_a_second_and_the_others_say_so() -> None:
    async with AdoptionWorld() as world:
        await limit(world, submits_per_second=1, submits_burst=5)
        for number in range(20):
            world.make_pod(f"pod-{number}", gpus=0, seconds=600)
        await world.run(2)
        assert 5 <= submitted(world) <= 8
        await world.run(4)
        assert 8 <= submitted(world) <= 12
        assert told(world)["TenantBudgetExceeded"] >= 5
        waiting = [pod for pod in world.owned("pod-") if world.condition(pod).get("reason") == "TenantBudgetExceeded"]
        assert "it is submitted by itself" in world.condition(waiting[0])["message"]
        await world.run(30)
        assert submitted(world) == 20
        assert len(world.adopted("pod-")) == 20


async def test_bytes_count_as_well() -> None:
    async with AdoptionWorld() as world:
        await limit(world, bytes_per_second=100, bytes_burst=3000)
        for number in range(20):
            world.make_pod(f"pod-{number}", gpus=0, seconds=600)
        await world.run(3)
        assert 2 <= submitted(world) < 10
        await world.run(300)
        assert submitted(world) == 20


@pytest.mark.parametrize("used", [47 * MIB, 49 * MIB], ids=["with room", "within the reserve"])
async def test_a_ledger_without_room_keeps_pods_waiting_until_there_is_some(used: int) -> None:
    async with AdoptionWorld() as world:
        stream = world.broker.stream(LEDGER)
        stream.config, stream.bytes = replace(stream.config, bytes_max=64 * MIB), used
        await world.run(5)
        world.make_pod("pod-1", gpus=0, seconds=600)
        await world.run(20)
        assert submitted(world) == (used < 48 * MIB)
        assert told(world)["LedgerFull"] == (used > 48 * MIB)
        stream.config = replace(stream.config, bytes_max=256 * MIB)
        await world.run(100)
        assert len(world.adopted("pod-")) == 1


async def test_refused_work_is_not_recorded_in_a_ledger_without_room() -> None:
    async with AdoptionWorld() as world:
        stream = world.broker.stream(LEDGER)
        stream.config, stream.bytes = replace(stream.config, bytes_max=64 * MIB), 49 * MIB
        await world.run(5)
        world.make_pod("pod-1", labels={"tessera.io/gang": "one"})  # a gang without a size
        await world.run(20)
        assert (told(world)["MissingField"], len(world.state.refused)) == (1, 0)
        stream.config = replace(stream.config, bytes_max=256 * MIB)
        await world.run(60)
        assert len(world.state.refused) == 1

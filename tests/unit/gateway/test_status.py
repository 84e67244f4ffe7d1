"""What the gateway says of the shard itself: to an operator all, to a tenant what is not about instances."""

import orjson

from tessera.kernel.ports import Outgoing
from tessera_schemas import subjects
from tessera_schemas.shard.services import SERVICES
from tests.builders import SHARD, admitted
from tests.unit.gateway.gateway_world import World


def let_live(world: World, leader: str) -> None:
    """Every service says that it is well, but the binder; `leader` is the scheduler's."""
    for service in SERVICES:
        unwell = {"looks": "no good look for 35 s"} if service == "binder" else {}
        probe = subjects.lease(SHARD, service, f"probe.{service}-1")
        world.broker.store(Outgoing(probe, orjson.dumps({"format": 4, "unwell": unwell})))
    lease = subjects.lease(SHARD, "scheduler", "leader")
    world.broker.store(Outgoing(lease, orjson.dumps({"holder": leader})))


async def test_an_operator_is_told_who_leads_and_who_is_not_ready_and_a_tenant_that_it_is_so(world: World) -> None:
    await world.commit(admitted("k1"))
    let_live(world, "scheduler-1")
    operator, tenant = world.token(None), world.token("lab")
    async with world.gateway():
        said = (await world.ask("GET", "/v1/status", operator)).body
        told = (await world.ask("GET", "/v1/status", tenant)).body
    state = world.committed.state
    assert (said["ledger_n"], said["ledger_ts"], said["views_n"]) == (state.n, state.ts, state.n)
    assert (said["led"], said["leader"], said["standstill"], said["well"]) == (True, "scheduler-1", "", False)
    assert [one["what"] for one in said["troubles"]] == ["binder-1 is not ready: looks: no good look for 35 s"]
    assert (told["led"], told["leader"], told["well"]) == (True, "", False)
    assert [one["what"] for one in told["troubles"]] == ["binder is not ready"]


async def test_without_a_leader_it_says_that_nothing_is_decided(world: World) -> None:
    let_live(world, "")
    token = world.token("lab")
    async with world.gateway():
        said = (await world.ask("GET", "/v1/status", token)).body
    assert (said["led"], said["well"]) == (False, False)
    assert said["standstill"].startswith("no scheduler leads: nothing new starts")

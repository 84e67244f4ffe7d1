"""A tenant's durable subscriber on a real server, in an account of its own: what it gets when it comes and goes."""

import asyncio
from pathlib import Path

import pytest

from tessera.client.connect.connecting import open_bus
from tessera.client.connect.locating import find
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending.sdk import Tessera
from tessera.kernel.nats.once import connect_once
from tessera.kernel.ports import Outgoing
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tests.e2e.live import SECONDS

TENANT, NAME = "lab", "billing"


async def test_one_that_leaves_at_once_takes_no_event_with_it(tmp_path: Path) -> None:
    """
    Who asks for events and leaves before the server has taken note stays in its books as somebody who waits.

    Seen with nats-server 2.15.1 across accounts: every other event went to nobody, and came again after 30 s.
    """
    async with Platform(tmp_path / "up", services=[], cluster=False, tenants=[TENANT]) as platform:
        await platform.add_tenant(TENANT, {NAME: ()})
        place = find(platform.directory)
        stream, durable = subjects.stream("EVENTS", "main"), subjects.subscriber_durable(TENANT, NAME)
        event = Outgoing(subjects.event("main", TENANT, "default", "job.admitted.v1"), b"{}")
        async with (
            open_bus(place, place.identity(TENANT)) as bus,
            open_bus(place, place.identity("projection")) as projection,
        ):
            for _ in range(8):
                leaves = bus.work(stream, durable)
                await leaves.next(timeout=0)
                await leaves.close()
            stays = bus.work(stream, durable)
            await stays.next(timeout=0.1)
            for seq in range(1, 9):
                assert await projection.publish(event) == seq
                (delivery,) = await stays.next(timeout=SECONDS)
                assert (delivery.message.seq, delivery.deliveries) == (seq, 1)
                await stays.ack(delivery)


async def test_one_that_is_not_declared_is_told_what_to_declare_and_ends(tmp_path: Path) -> None:
    """It waited for ever: NATS refuses the request for a durable that there is not, and the refusal went into a log."""
    async with (
        Platform(tmp_path / "up", services=[], cluster=False, tenants=[TENANT]) as platform,
        Tessera.connect(TENANT, home=platform.directory) as tessera,
    ):
        await refused(tessera, "allocations")
        await platform.add_tenant(TENANT, {NAME: ()})
        operator = find(platform.directory).identity("operator").nats
        admin = await connect_once(platform.nats.url, operator.user, operator.password, seconds=60)
        await admin.jsm().delete_consumer(subjects.stream("EVENTS", "main"), subjects.subscriber_durable(TENANT, NAME))
        await admin.close()
        await refused(tessera, NAME)


async def refused(tessera: Tessera, name: str) -> None:
    with pytest.raises(Failure, match=rf"`subscribers: \[{{name: {name}}}\]`.*tessera apply") as failure:
        await asyncio.wait_for(anext(tessera.subscribe(name)), SECONDS)
    assert failure.value.code is Exit.NOT_FOUND

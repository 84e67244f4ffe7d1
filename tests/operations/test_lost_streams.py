"""What is lost while the ledger stays: made anew by `init`, while every service runs, and the shard goes on."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from nats.aio.client import Client

from tessera.client.connect.connecting import open_bus
from tessera.client.connect.locating import find
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ledger.snapshots import Manifest, chunks_of
from tessera.kernel.ports import Message, Outgoing
from tessera.kernel.provisioning.streams import Bounds, stream_config
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tessera_schemas.events import CURSOR_HEADER
from tessera_schemas.shard.orders import Order
from tessera_schemas.shard.services import SERVICES
from tessera_schemas.shard.streams import streams
from tests.e2e.live import TENANTS, Live, configuration, job, until_halted

pytestmark = pytest.mark.asyncio(loop_scope="module")

FACTS = subjects.stream("FACTS", "main")


@pytest_asyncio.fixture(loop_scope="module")
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform(tmp_path / "up", tenants=TENANTS) as running:
        yield running


async def lose(platform: Platform, *kinds: str) -> None:
    """The server loses these streams, and comes back."""
    await platform.stop("nats")
    for kind in kinds:
        (folder,) = (platform.directory / "nats" / "store").glob(f"**/streams/{kind}_main")
        shutil.rmtree(folder)
    await platform.start("nats")


async def test_a_shard_that_lost_every_stream_but_its_ledger_goes_on_once_they_are_made(platform: Platform) -> None:
    kinds = [spec.name.removesuffix("_main") for spec in streams("main") if spec.name != "LEDGER_main"]
    async with Live.on(platform, configuration()) as live:
        for number in range(3):
            before = await live.submit(job(f"before-{number}", gpus=1))
            await live.until_ended(before.job_id)
        await lose(platform, *kinds)
        await platform._init()
        for number in range(3):
            after = await live.submit(job(f"after-{number}", gpus=1))
            await live.until_ended(after.job_id)
        for service in SERVICES:
            await live.until_ready(service)


async def test_facts_that_began_anew_halt_the_shard_until_they_are_mended(platform: Platform) -> None:
    """As a stream that somebody made by hand, or from a copy: its next numbers are those of facts that are known."""
    (spec,) = (spec for spec in streams("main") if spec.name == FACTS)

    async def remake(admin: Client) -> None:
        await admin.jsm().add_stream(stream_config(spec, Bounds()))

    async with Live.on(platform, configuration()) as live:
        before = await live.submit(job("before", gpus=1))
        await live.until_ended(before.job_id)
        await lose(platform, "FACTS")
        await platform._as("administrator", "main", remake)
        for service in ("scheduler", "admission", "binder"):
            assert "`tessera init --mend`" in await until_halted(live, service)
        for service in platform.services:
            await platform.stop(service)
        await platform._init()
        for service in platform.services:
            await platform.start(service)
        after = await live.submit(job("after", gpus=1))
        await live.until_ended(after.job_id)


async def forge(platform: Platform, identity: str, *messages: Outgoing) -> list[int]:
    """Store messages with the rights of a service; their sequences."""
    place = find(platform.directory)
    async with open_bus(place, place.identity(identity)) as bus:
        return [await bus.publish(message) for message in messages]


async def test_what_a_derived_stream_says_of_the_ledger_stops_it_for_no_longer_than_an_operator_wants(
    platform: Platform,
) -> None:
    """A whole state far ahead is no witness. Nothing shows that an event or an order is false: an operator drops it."""
    far = 10**9
    async with Live.on(platform, configuration()) as live:
        before = await live.submit(job("before", gpus=1))
        await live.until_ended(before.job_id)
        false = Shard()
        for n, data in enumerate(live.stored, start=1):
            false.fold(decode_entry(Message("", n, data)))
        false.state.n = far
        state_hash = false.hasher.of(false.state)
        seqs = await forge(
            platform, "projection", *(Outgoing(subjects.snapshot_chunk("main", 0), c) for c in chunks_of(false.state))
        )
        manifest = Manifest(v=1, n=far, state_hash=state_hash, chunks=tuple(seqs))
        await forge(platform, "projection", Outgoing(subjects.snapshot_manifest("main"), manifest.to_bytes()))
        for service in ("scheduler", "projection"):
            await platform.restart(service)
        after = await live.submit(job("after", gpus=1))
        await live.until_ended(after.job_id)
        said = await live.command("ledger", "inspect")
        assert said.code == 0, said

        order = Order(v=1, pool="default", basis_n=far, ts=1, engine="e", policy=0, jobs=())
        await forge(platform, "queueing", Outgoing(subjects.order("main", "nowhere"), order.to_bytes()))
        event = subjects.event("main", "lab", "default", "job.bound.v1")
        await platform.stop("projection")  # or an event of the job that has just ended may become the newest
        await forge(platform, "projection", Outgoing(event, b"{}", headers={CURSOR_HEADER: f"{far}.0"}))
        assert f"knows record {far}" in await until_halted(live, "scheduler")
        for _ in range(2):  # the second time there is nothing left
            said = await live.command("ledger", "drop-ahead", "--yes")
            assert said.code == 0, said
        assert said.out.splitlines()[-1].startswith("0 ahead of record ")
        for service in platform.services:
            await platform.restart(service)
        later = await live.submit(job("later", gpus=1))
        await live.until_ended(later.job_id)

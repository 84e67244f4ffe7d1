"""What is lost while the ledger stays: made anew by `init`, while every service runs, and the shard goes on."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from nats.aio.client import Client

from tessera.kernel.ledger.snapshots import Manifest
from tessera.kernel.nats.once import connect_once
from tessera.kernel.provisioning.streams import Bounds, stream_config
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tessera_schemas.shard.services import SERVICES
from tessera_schemas.shard.streams import streams
from tests.e2e.live import TENANTS, Live, configuration, job, until_halted

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

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


async def test_a_forged_snapshot_stops_nobody_and_an_operator_drops_it(platform: Platform) -> None:
    stream, subject = subjects.stream("SNAP", "main"), subjects.snapshot_manifest("main")
    forged = Manifest(v=1, n=10**9, state_hash="0" * 64, chunks=()).to_bytes()

    async def forge(admin: Client) -> None:
        login = platform.credentials.read("projection").nats
        writer = await connect_once(platform.nats.url, login.user, login.password)
        await writer.jetstream().publish(subject, forged)
        await writer.close()

    async with Live.on(platform, configuration()) as live:
        await platform._as("administrator", "main", forge)
        await platform.restart("scheduler")
        after = await live.submit(job("after", gpus=1))
        await live.until_ended(after.job_id)
        said = await live.command("ledger", "inspect")
        assert said.code == 0, said
        said = await live.command("ledger", "drop-snapshots")
        assert said.code == 0, said
        last = await live.bus.last(stream, subject)
        assert last is None or last.data != forged

"""
Every stream and cursor beside the ledger: lost, made anew, and restored from an older copy, while every service runs.

Each time the status says what is gone and the way out. Afterwards whatever was acknowledged is in the record, every
event was given to a subscriber and to a webhook, and the checkers and the replay find all that is stored as it must be.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from nats.aio.client import Client

from tessera.client.outcomes import Failure
from tessera.kernel.errors import Transient
from tessera.kernel.tasks.task_group import cancel_all
from tessera_schemas import subjects
from tessera_schemas.shard.services import SERVICES
from tests.e2e.live import EVERYTHING, Live, configuration, eventually, job, until_halted
from tests.e2e.platform_checks import assert_all_is_well, stored_events

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = 1_000.0
STREAMS = ("SUBMIT", "CONTROL", "ORDERS", "EVENTS", "SNAP", "LEASES", "DLQ")
REDIS, LOGS, DURABLE = "redis", "job-logs", "durable"
AT_NIGHT = [pytest.param(part, marks=pytest.mark.nightly("20 s for each part")) for part in (*STREAMS[3:], LOGS)]


@dataclass
class Kept:
    """A platform, and the ids of events that a subscriber and a webhook of a tenant were given."""

    live: Live
    config: Path
    subscribed: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)

    def folder(self, part: str) -> Path:
        if part in (REDIS, LOGS):
            return self.live.home / part
        (found,) = (self.live.home / "nats" / "store").glob(f"**/streams/{part}_main")
        return found

    @asynccontextmanager
    async def away(self, part: str) -> AsyncIterator[Path]:
        """Where a part is stored, while its server is down."""
        folder = self.folder(part)
        async with self.live.down({REDIS: REDIS, LOGS: "gateway"}.get(part, "nats")):
            yield folder

    async def apply(self) -> str:
        said = await self.live.command("apply", "-f", str(self.config), "--yes")
        assert said.code == 0, said.err + said.out
        return said.out + said.err

    async def listen(self) -> None:
        """As a program that is started again whenever it ends."""
        while True:
            with suppress(Transient, Failure):
                async for event in self.live.clients["lab"].subscribe(EVERYTHING):
                    self.subscribed.add(event.id)
            await asyncio.sleep(0.2)

    async def until_status_says(self, *words: str) -> None:
        async def says() -> bool:
            said = await self.live.command("status")
            return said.code == 1 and all(word in said.out for word in words)

        await eventually(says, f"status says {words}")

    async def until_all_is_told(self, since: int) -> None:
        """Every event of the tenant behind record `since` came to the subscriber and to the webhook."""
        stored = {json.loads(data)["id"] for subject, _, data in await stored_events(self.live) if ".lab." in subject}
        due = {event for event in stored if int(event.partition(".")[0]) > since}
        assert due
        await eventually(lambda: due <= self.subscribed, "the subscriber was given every event")
        await eventually(lambda: due <= self.delivered, "the webhook was given every event")


@asynccontextmanager
async def receiver(delivered: set[str]) -> AsyncIterator[str]:
    """A webhook's receiver; its URL."""

    async def take(request: web.Request) -> web.Response:
        delivered.add(json.loads(await request.read())["id"])
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Kept]:
    delivered: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_CONFIG_SECONDS", "0.2")
        async with (
            receiver(delivered) as url,
            Live.at(tmp_path_factory.mktemp("platform"), configuration()) as live,
        ):
            (live.home / "webhook-secrets" / "lab.signs").write_text("only-the-receiver-and-the-notifier")
            body = configuration().model_dump(mode="json", exclude_defaults=True)
            (lab,) = [tenant for tenant in body["tenants"] if tenant["name"] == "lab"]
            lab["webhooks"] = [{"name": "hook", "url": url, "secret": "signs"}]
            file = live.home / "config.yaml"
            file.write_text(yaml.safe_dump(body))
            made = Kept(live, file, delivered=delivered)
            assert "webhook notifier_lab_hook: begins with new events" in await made.apply()
            listening = asyncio.create_task(made.listen())
            yield made
            await cancel_all(listening)


async def ended(live: Live, name: str, **more: Any) -> str:
    done = await live.submit(job(name, **more))
    await live.until_ended(done.job_id)
    return done.job_id


@pytest.mark.parametrize("part", [*STREAMS[:3], REDIS, *AT_NIGHT])
async def test_what_is_lost_made_anew_or_older_swallows_nothing(kept: Kept, part: str, tmp_path: Path) -> None:
    live, since = kept.live, kept.live.state.n
    await ended(live, "before-the-copy")
    async with kept.away(part) as stored:
        older = shutil.copytree(stored, tmp_path / "older")
    holder = await live.submit(job("holds-three-nodes", gpus=8, replicas=3, seconds=LONG))
    await live.until_phase(holder.job_id, "running")
    waits = await live.submit(job("waits-in-line", gpus=8, replicas=2))
    await ended(live, "after-the-copy")

    async with kept.away(part) as stored:
        shutil.rmtree(stored)
        (stored if part == REDIS else tmp_path).mkdir(exist_ok=True)
    if part in STREAMS:
        await kept.until_status_says(part, "tessera init")
        if part != "SUBMIT":  # nothing else keeps a command from being acknowledged, and none is lost
            await live.submit(job("while-it-was-lost"))
        await live.platform._init()
    if part == "EVENTS":  # subscribers and webhooks had their places in it
        said = await kept.apply()
        assert "webhook notifier_lab_hook: begins with the oldest event that is kept" in said
    await ended(live, "made-anew")

    async with kept.away(part) as stored:
        shutil.rmtree(stored)
        shutil.copytree(older, stored)
    await ended(live, "older-copy")
    assert live.phase(waits.job_id) == "queued"
    await live.clients["lab"].cancel(holder.job_id, now=True)
    await live.until_ended(waits.job_id, holder.job_id)
    await asyncio.gather(*(live.until_ready(service) for service in SERVICES))
    await assert_all_is_well(live)
    await kept.until_all_is_told(since)
    # By now a gateway collects again; it may be a moment later than a pod that nobody keeps.
    last = await ended(live, "last", ttl_seconds_after_finished=20)
    logs = kept.folder(LOGS) / "main" / "lab"
    await eventually(lambda: any(logs.glob(f"{last}-*.log")), "the log of the last job is kept")


async def test_a_webhook_whose_place_is_lost_is_told_of_and_misses_nothing(kept: Kept) -> None:
    live, since = kept.live, kept.live.state.n

    async def lose(operator: Client) -> None:
        await operator.jsm().delete_consumer(subjects.stream("EVENTS", "main"), subjects.webhook_durable("lab", "hook"))

    await live.platform._as(subjects.OPERATOR, "main", lose)
    await kept.until_status_says("lab.hook", "tessera apply")
    await ended(live, "while-it-was-lost")
    assert "webhook notifier_lab_hook: begins with the oldest event that is kept" in await kept.apply()
    await live.until_ready("notifier")
    await kept.until_all_is_told(since)


@pytest.mark.parametrize("durable", [("SUBMIT", "admission"), ("CONTROL", "admission-control")])
async def test_a_queues_place_that_is_lost_is_told_of_and_made_anew(kept: Kept, durable: tuple[str, str]) -> None:
    kind, name = durable

    async def lose(operator: Client) -> None:
        await operator.jsm().delete_consumer(subjects.stream(kind, "main"), name)

    await kept.live.platform._as(subjects.OPERATOR, "main", lose)
    await kept.until_status_says(f"queue {kind}", "tessera init")
    during = asyncio.create_task(kept.live.submit(job("while-it-was-lost")))
    await kept.live.platform._init()
    await kept.live.until_ended((await during).job_id)
    await kept.live.until_ready("admission")
    await assert_all_is_well(kept.live)


async def test_a_ledger_that_is_lost_is_made_anew_by_nobody_in_silence(kept: Kept, tmp_path: Path) -> None:
    """The last test here: one that `init` made is halted at, and the newest copy goes on."""
    live = kept.live
    async with kept.away("LEDGER") as stored:
        newest = shutil.copytree(stored, tmp_path / "newest")
        shutil.rmtree(stored)
    await kept.until_status_says("LEDGER", "restore its newest copy")
    await live.platform._init()
    for service in ("scheduler", "projection", "binder"):
        assert "restore the newest copy" in await until_halted(live, service)
    for service in SERVICES:
        await live.platform.stop(service)
    async with kept.away("LEDGER") as stored:
        shutil.rmtree(stored)
        shutil.copytree(newest, stored)
    for service in SERVICES:
        await live.platform.start(service)
    await ended(live, "after-the-ledger-was-restored")
    await assert_all_is_well(live)

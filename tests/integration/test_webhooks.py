"""Webhooks on real servers: real events, a real receiver, and everything that a receiver may do wrong."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
import yaml
from aiohttp import web

from tessera.kernel.ports import Message
from tessera_schemas import subjects
from tests.e2e.live import SECONDS, Live, configuration, eventually, job

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "only-the-receiver-and-the-notifier"
ROLES = ("good", "flaky", "broken", "slow", "redirecting", "filtered")
NOWHERE = {"inside": "http://10.255.255.1/hook", "unsigned": "http://127.0.0.1:9/hook"}
Json = dict[str, Any]


@dataclass
class Receiver:
    """Answers by the path it is asked at, and keeps what came: events by path."""

    port: int = 0
    got: dict[str, list[tuple[dict[str, str], bytes]]] = field(default_factory=lambda: defaultdict(list))
    is_up: bool = True

    async def answer(self, request: web.Request) -> web.Response:
        role = request.path.strip("/")
        body = await request.read()
        attempts = sum(headers["webhook-id"] == request.headers["webhook-id"] for headers, _ in self.got[role])
        self.got[role].append(({name.lower(): value for name, value in request.headers.items()}, body))
        if role == "redirecting":
            return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{self.port}/stolen"})
        if role == "slow":
            await asyncio.sleep(30)
        if role == "broken" or not self.is_up or (role == "flaky" and attempts < 2):
            return web.Response(status=500)
        return web.Response(status=204)

    def ids(self, role: str) -> list[str]:
        return [headers["webhook-id"].removeprefix("main.") for headers, _ in self.got[role]]

    def kinds(self, role: str) -> list[str]:
        return [json.loads(body)["type"].removeprefix("io.tessera.") for _, body in self.got[role]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    app = web.Application()
    app.router.add_post("/{role}", made.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> AsyncIterator[Live]:
    """The tenant lab has a webhook of each kind; the notifier tries four times, quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_RETRY_SECONDS", "[0.2, 0.2, 0.2]")
        patch.setenv("TESSERA_DELIVER_SECONDS", "1")
        patch.setenv("TESSERA_CONFIG_SECONDS", "0.2")
        async with Live.at(tmp_path_factory.mktemp("platform"), configuration()) as live:
            await declare(live, receiver)
            yield live


async def declare(live: Live, receiver: Receiver) -> None:
    (live.home / "webhook-secrets" / "lab.signs").write_text(SECRET)
    (live.home / "webhook-secrets" / "ops.stolen").write_text(SECRET)
    urls = {role: f"http://127.0.0.1:{receiver.port}/{role}" for role in ROLES} | NOWHERE
    hooks: list[Json] = [{"name": name, "url": url, "secret": "signs"} for name, url in urls.items()]
    filters: Json = {"types": ["job.succeeded.v1", "job.failed.v1"], "queues": ["default"]}
    hooks = [hook | (filters if hook["name"] == "filtered" else {}) for hook in hooks]
    # What another tenant's secret is called is of no use: a name is looked up among one's own.
    hooks = [hook | ({"secret": "stolen"} if hook["name"] == "unsigned" else {}) for hook in hooks]
    body = configuration().model_dump(mode="json", exclude_defaults=True)
    (lab,) = [tenant for tenant in body["tenants"] if tenant["name"] == "lab"]
    lab["webhooks"] = hooks
    file = live.home / "config.yaml"
    file.write_text(yaml.safe_dump(body))
    said = await live.command("apply", "-f", str(file), "--yes")
    assert said.code == 0, said.err + said.out


async def events_of(live: Live, job_id: str) -> list[str]:
    """Ids of the stored events of a job."""
    found = [json.loads(message.data) for message in await all_of(live, "EVENTS", "events.main.lab.>")]
    return [event["id"] for event in found if event["data"].get("job_id") == job_id]


async def all_of(live: Live, stream: str, subject: str) -> list[Message]:
    """Every message that a stream has on a subject by now."""
    last = await live.bus.last(subjects.stream(stream, "main"), subject)
    source, found = live.bus.follow(subjects.stream(stream, "main"), subject, 0), list[Message]()
    try:
        while last is not None and (not found or found[-1].seq < last.seq):
            found += await source.next(timeout=SECONDS)
    finally:
        await source.close()
    return found


async def dead_letters(live: Live) -> dict[str, int]:
    """Number of dead letters by the reason that each gives."""
    found: dict[str, int] = defaultdict(int)
    for message in await all_of(live, "DLQ", "dlq.main.notifier.>"):
        found[message.headers["Tessera-Reason"]] += 1
    return found


async def test_events_come_signed_and_each_receiver_is_served_by_itself(live: Live, receiver: Receiver) -> None:
    await live.submit(job("others"), tenant="ops")
    done = await live.submit(job("hooked"))
    await live.until_ended(done.job_id)
    expected = await events_of(live, done.job_id)
    await eventually(lambda: set(expected) <= set(receiver.ids("good")), "the good receiver has every event")
    for headers, body in receiver.got["good"]:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
        assert headers["content-type"] == "application/cloudevents+json"
        assert headers["webhook-id"] == f"main.{json.loads(body)['id']}"
        assert json.loads(body)["tenant"] == "lab"
    await eventually(
        lambda: set(receiver.kinds("filtered")) == {"job.succeeded.v1"}, "the filter lets one event through"
    )
    await eventually(
        lambda: all(receiver.ids("flaky").count(event) >= 3 for event in expected), "what failed twice comes again"
    )

    async def all_are_buried() -> bool:
        reasons = await dead_letters(live)
        return all(
            sum(number for reason, number in reasons.items() if f"webhook {name} of lab" in reason or name in reason)
            >= len(expected)
            for name in ("broken", "slow", "redirecting", "inside", "lab.stolen")
        )

    await eventually(all_are_buried, "what could never be delivered is a dead letter")
    reasons = " ".join(await dead_letters(live))
    assert "HTTP 500" in reasons
    assert "redirects are not followed" in reasons
    assert "10.255.255.1 is not a public address" in reasons
    assert "TimeoutError" in reasons
    assert not receiver.got["stolen"]
    assert all(receiver.ids("broken").count(event) == 4 for event in expected)


async def test_events_wait_for_a_receiver_and_for_the_notifier(live: Live, receiver: Receiver) -> None:
    async with live.down("notifier"):
        away = await live.submit(job("away"))
        await live.until_ended(away.job_id)
        before = len(receiver.got["good"])
    expected = await events_of(live, away.job_id)
    await eventually(lambda: set(expected) <= set(receiver.ids("good")), "events waited for the notifier")
    assert len(receiver.got["good"]) >= before + len(expected)
    receiver.is_up = False
    try:
        down = await live.submit(job("down"))
        await live.until_phase(down.job_id, "allocated", "binding", "running", "succeeded")
        await eventually(lambda: len(receiver.got["good"]) > before + len(expected), "a delivery was refused")
    finally:
        receiver.is_up = True
    await live.until_ended(down.job_id)
    expected = await events_of(live, down.job_id)
    await eventually(lambda: set(expected) <= set(receiver.ids("good")), "events waited for the receiver")


async def test_the_secret_is_nowhere_but_in_its_file(live: Live) -> None:
    assert live.stored
    assert not any(SECRET.encode() in data for data in live.stored)
    for path in (live.home / "logs").iterdir():
        assert SECRET.encode() not in path.read_bytes(), path
    log = (live.home / "logs" / "notifier.log").read_text()
    assert "webhook_not_delivered" in log
    assert "10.255.255.1/hook" not in log

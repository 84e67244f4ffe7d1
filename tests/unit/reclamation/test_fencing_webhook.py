"""The call that turns a machine off, against a server on the loopback."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera.kernel.messaging.signing import headers
from tessera.reclamation.fencing.webhook import PowerAnswer, PowerWebhook
from tessera.reclamation.settings import ReclamationSettings

SECRET = "a-secret-of-many-bytes"
BODY: dict[str, Any] = {"node": "node-a", "provider_id": "aws:///eu/i-1", "request": "k", "why": "silent for 90 s"}


class Power:
    """Turns each machine off once, whatever it answers; remembers the keys."""

    def __init__(self) -> None:
        self.status, self.body = 200, json.dumps({"state": "off", "detail": "power: Off"}).encode()
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.turned_off: list[str] = []
        self.hangs = asyncio.Event()
        self.hangs.set()

    async def handle(self, request: web.Request) -> web.Response:
        sent = await request.read()
        self.requests.append((dict(request.headers), sent))
        key = request.headers["Idempotency-Key"]
        if key not in self.turned_off:
            self.turned_off.append(key)
        await self.hangs.wait()
        return web.Response(status=self.status, body=self.body, headers={"Location": "/elsewhere"})


@pytest.fixture
async def power() -> Power:
    return Power()


@pytest.fixture
async def url(power: Power) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/fence", power.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/fence"
    power.hangs.set()
    await runner.cleanup()


def settings(tmp_path: Path, **more: Any) -> ReclamationSettings:
    (tmp_path / "secret").write_text(SECRET + "\n")
    return ReclamationSettings(**{"fencing_secret": tmp_path / "secret", "fencing_allow_http": True, **more})


@pytest.fixture
async def webhook(tmp_path: Path) -> AsyncIterator[PowerWebhook]:
    made = PowerWebhook(settings(tmp_path), SystemClock())
    yield made
    await made.close()


async def test_a_call_is_signed_and_bears_its_key(power: Power, url: str, webhook: PowerWebhook) -> None:
    assert await webhook.turn_off(url, "k", BODY) == PowerAnswer("off", "power: Off")
    ((got, sent),) = power.requests
    assert json.loads(sent) == BODY
    signed = headers([SECRET.encode()], "k", int(got["webhook-timestamp"]), sent)
    assert {name: got[name] for name in signed} == signed
    assert got["Idempotency-Key"] == "k"


async def test_a_repeat_of_a_key_turns_nothing_off_again(power: Power, url: str, webhook: PowerWebhook) -> None:
    for _ in range(3):
        await webhook.turn_off(url, "k", BODY)
    assert (len(power.requests), power.turned_off) == (3, ["k"])


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (202, b"", PowerAnswer("")),
        (202, b'{"state": "asked"}', PowerAnswer("asked")),
        (200, b"<html>", PowerAnswer("")),
        (200, b'["off"]', PowerAnswer("")),
        (200, b'{"state": true}', PowerAnswer("")),
        (200, b'{"state": "off", "detail": "a\\nb"}', PowerAnswer("off", "a b")),
        (409, b'{"state": "failed", "detail": "no such machine"}', PowerAnswer("failed", "no such machine")),
        (410, b'{"state": "failed"}', PowerAnswer("failed", "HTTP 410")),
    ],
)
async def test_only_a_plain_word_ends_a_request(
    power: Power, url: str, webhook: PowerWebhook, status: int, body: bytes, answer: PowerAnswer
) -> None:
    power.status, power.body = status, body
    assert await webhook.turn_off(url, "k", BODY) == answer


@pytest.mark.parametrize("status", [302, 401, 404, 500, 503])
async def test_what_is_no_answer_is_tried_again_even_where_it_says_off(
    power: Power, url: str, webhook: PowerWebhook, status: int
) -> None:
    power.status = status
    with pytest.raises(Transient, match=f"HTTP {status}"):
        await webhook.turn_off(url, "k", BODY)


async def test_a_webhook_that_hangs_is_given_up(power: Power, url: str, tmp_path: Path) -> None:
    power.hangs.clear()
    webhook = PowerWebhook(settings(tmp_path, fencing_call_seconds=0.2), SystemClock())
    with pytest.raises(Transient):
        await webhook.turn_off(url, "k", BODY)
    await webhook.close()


async def test_nothing_is_sent_unsigned_or_in_the_clear(power: Power, url: str, tmp_path: Path) -> None:
    for more, words in (
        ({"fencing_secret": None}, "no secret"),
        ({"fencing_secret": tmp_path / "nowhere"}, "no secret"),
        ({"fencing_allow_http": False}, "plain http"),
    ):
        webhook = PowerWebhook(settings(tmp_path, **more), SystemClock())
        with pytest.raises(Transient, match=words):
            await webhook.turn_off(url, "k", BODY)
        await webhook.close()
    assert power.requests == []


async def test_a_server_that_is_away_is_tried_again(webhook: PowerWebhook) -> None:
    with pytest.raises(Transient):
        await webhook.turn_off("http://127.0.0.1:1/fence", "k", BODY)

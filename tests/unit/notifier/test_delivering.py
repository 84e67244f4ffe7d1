"""Receivers that never answer: a tenant's own wait for them, and nobody else's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import orjson
from aiohttp import web

from tessera.kernel.clock import SystemClock
from tessera.kernel.ports import Delivery, Message
from tessera.kernel.service.metrics import Metrics
from tessera.notifier.delivering import Deliveries, Receiver, open_session
from tessera.notifier.settings import NotifierSettings
from tessera_schemas.shard.receivers import Webhook

HOOKS, AT_ONCE, PER_TENANT = 16, 8, 4
SECRET = "whsec_" + "c2VjcmV0" * 6


class Tarpit:
    """Answers `/quick` at once, and `/slow` when it is closed."""

    def __init__(self) -> None:
        self.open, self.most = 0, 0
        self.filled, self.closed = asyncio.Event(), asyncio.Event()

    async def quick(self, _: web.Request) -> web.Response:
        return web.Response()

    async def slow(self, _: web.Request) -> web.Response:
        self.open += 1
        self.most = max(self.most, self.open)
        if self.open == PER_TENANT:
            self.filled.set()
        try:
            await self.closed.wait()
        finally:
            self.open -= 1
        return web.Response()


@asynccontextmanager
async def serving(tarpit: Tarpit) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes([web.post("/quick", tarpit.quick), web.post("/slow", tarpit.slow)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site.name
    finally:
        tarpit.closed.set()
        await runner.cleanup()


def event(seq: int) -> Delivery:
    return Delivery(Message("events.main.a.q.job.bound.v1", seq, orjson.dumps({"id": f"{seq}.1"})), 1, None)


async def test_webhooks_that_never_answer_hold_connections_of_their_own_tenant_alone(tmp_path: Path) -> None:
    tarpit = Tarpit()
    for tenant in ("a", "b"):
        (tmp_path / f"{tenant}.s").write_text(SECRET)
    async with serving(tarpit) as url:
        settings = NotifierSettings(
            keys_dir=tmp_path, allow_http=True, allowed_networks=(ip_network("127.0.0.0/8"),), at_once=AT_ONCE
        )
        counted, clock = Deliveries(Metrics("notifier")), SystemClock()
        async with open_session(settings) as session:

            def receiver(tenant: str, path: str, connections: asyncio.Semaphore) -> Receiver:
                webhook = Webhook(name="hook", url=f"{url}/{path}", secret="s")
                return Receiver(tenant, webhook, session, settings, clock, counted, connections)

            own = asyncio.Semaphore(PER_TENANT)
            slow = [
                asyncio.ensure_future(receiver("a", "slow", own).on_events([event(n) for n in range(AT_ONCE)]))
                for _ in range(HOOKS)
            ]
            await tarpit.filled.wait()
            assert await receiver("b", "quick", asyncio.Semaphore(PER_TENANT)).on_events([event(1)]) == [None]
            assert tarpit.most == PER_TENANT
            tarpit.closed.set()
            assert [outcome for done in await asyncio.gather(*slow) for outcome in done] == [None] * HOOKS * AT_ONCE

"""What a service and `tessera init` refuse of a NATS server, told from its monitoring and from its greeting."""

import asyncio
import contextlib
from typing import Any

import pytest
from aiohttp import web

from tessera.kernel.errors import StartupError
from tessera.kernel.nats.once import check_closed
from tessera.kernel.process.preflight import check_synced
from tessera.kernel.process.settings import ServiceSettings


async def refused(said: dict[str, Any], **allowed: bool) -> str:
    """The refusal of a server whose monitoring says this; "" when it is taken."""

    async def varz(_request: web.Request) -> web.Response:
        return web.json_response(said)

    app = web.Application()
    app.router.add_get("/varz", varz)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    settings = ServiceSettings.model_construct(
        nats_monitor_url=f"http://127.0.0.1:{port}",
        connect_seconds=2.0,
        **{"allow_unsynced": False, "allow_anybody": False} | allowed,
    )
    try:
        await check_synced(settings)
    except StartupError as error:
        return str(error)
    finally:
        await runner.cleanup()
    return ""


SYNCED, UNSYNCED = ({"jetstream": {"config": {"sync_always": yes}}} for yes in (True, False))
CLOSED = {"auth_required": True}


async def test_a_server_that_lets_anybody_in_is_refused_like_one_that_does_not_sync():
    assert "lets anybody in" in await refused(SYNCED)
    assert "TESSERA_ALLOW_ANYBODY=true" in await refused(SYNCED | {"auth_required": False})
    assert "sync_interval: always" in await refused(UNSYNCED | CLOSED)
    assert await refused(SYNCED | CLOSED) == ""


async def test_each_is_allowed_by_itself():
    assert "sync_interval" in await refused(UNSYNCED, allow_anybody=True)
    assert "lets anybody in" in await refused(UNSYNCED, allow_unsynced=True)
    assert await refused(UNSYNCED, allow_unsynced=True, allow_anybody=True) == ""


@pytest.mark.parametrize(("greeting", "fine"), [(b'{"auth_required":true}', True), (b"{}", False)])
async def test_init_makes_nothing_on_a_server_that_asks_nobody_for_a_password(greeting: bytes, fine: bool):
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + greeting + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    refusal = contextlib.nullcontext() if fine else pytest.raises(StartupError, match="lets anybody in")
    async with server:
        with refusal:
            await check_closed(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", "admin", "secret")

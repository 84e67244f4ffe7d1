"""Connections that say nothing: they take neither the API from others nor the probes from who watches us."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import aiohttp
import pytest
from structlog.testing import capture_logs

from tessera.gateway.entrance import door
from tessera.kernel.process.limits import raise_soft_limit, soft_limit
from tests.unit.gateway.gateway_world import World

FLOODS = """
import contextlib, resource, socket, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
for n in range({number}):
    held.append(socket.socket())
    held[-1].bind((f"127.0.1.{{n % 50 + 1}}", 0))
    held[-1].connect(("127.0.0.1", {port}))
    with contextlib.suppress(OSError):
        held[-1].send(b"GET /v1")
print("held", flush=True)
time.sleep(120)
"""
TURNED_AWAY = "tessera_gateway_connections_turned_away_total"


@contextmanager
def descriptors(soft: int) -> Iterator[None]:
    """So many descriptors as a gateway's own process has them: what tests before this one left open does not count."""
    before, others = resource.getrlimit(resource.RLIMIT_NOFILE), len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft + others, before[1]))
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(door, "soft_limit", lambda: soft_limit() - others)
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@asynccontextmanager
async def flood(port: int, number: int) -> AsyncIterator[None]:
    """Half-open connections from fifty addresses, held by a process of its own."""
    program = FLOODS.format(port=port, number=number)
    running = await asyncio.create_subprocess_exec("python3", "-c", program, stdout=asyncio.subprocess.PIPE)
    try:
        assert running.stdout is not None
        await asyncio.wait_for(running.stdout.readline(), 60)
        yield
    finally:
        running.kill()
        await running.wait()


def half_open(port: int, address: str, number: int) -> list[socket.socket]:
    made = []
    for _ in range(number):
        made.append(socket.create_connection(("127.0.0.1", port), source_address=(address, 0)))
        with suppress(OSError):
            made[-1].send(b"GET /v1/jobs HTTP/1.1\r\nHost:")
    return made


async def test_a_flood_that_would_take_every_descriptor_leaves_readyz_and_is_cut_in_time(world: World) -> None:
    token = world.token("lab")
    with descriptors(300), capture_logs() as logs:
        async with world.gateway(head_seconds=10):
            port = await world.health.serve("127.0.0.1", 0)
            try:
                async with flood(world.port, 500):
                    async with (
                        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=9)) as http,
                        http.get(f"http://127.0.0.1:{port}/readyz") as answer,
                    ):
                        assert answer.status == 200
                    async with asyncio.timeout(60):
                        while True:
                            with suppress(aiohttp.ClientError):
                                assert (await world.ask("GET", "/v1/jobs", token)).status == 200
                                break
                            await asyncio.sleep(0.05)
            finally:
                await world.health.close()
            assert world.measured(TURNED_AWAY, limit="connections_max") >= 500 - (300 - 128)
    assert [entry["event"] for entry in logs].count("connections_turned_away") == 1


async def test_one_address_cannot_take_the_room_of_others(world: World) -> None:
    token = world.token("lab")
    async with world.gateway(connections_per_address=20):
        held = await asyncio.to_thread(half_open, world.port, "127.0.0.2", 200)
        try:
            assert (await world.ask("GET", "/v1/jobs", token)).status == 200
            assert world.measured(TURNED_AWAY, limit="connections_per_address") == 180
            assert world.measured("tessera_gateway_connections") >= 20
        finally:
            for connection in held:
                connection.close()
        async with asyncio.timeout(60):
            while world.measured("tessera_gateway_connections"):
                await asyncio.sleep(0.01)


async def test_a_slow_or_silent_head_is_cut_and_an_event_stream_lives_on(world: World) -> None:
    token = world.token("lab")
    async with (
        world.gateway(head_seconds=0.3, heartbeat_seconds=0.1) as _,
        world.streaming("/v1/events", token) as stream,
    ):
        silent = await asyncio.open_connection("127.0.0.1", world.port)
        slow = await asyncio.open_connection("127.0.0.1", world.port)
        for letter in b"GET /v1":
            slow[1].write(bytes([letter]))
            await asyncio.sleep(0.1)
        for reader, writer in (silent, slow):
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        world.event("lab")
        assert len(await stream.take(1)) == 1


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    with descriptors(256):
        raise_soft_limit()
        assert soft_limit() == min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65_536)


@pytest.mark.parametrize("host", ["", "localhost"])
async def test_names_of_several_addresses_are_listened_on(world: World, host: str) -> None:
    token = world.token("lab")
    more = {"allowed_hosts": ("127.0.0.1",), "plaintext_ok": True}
    async with world.gateway(api_host=host, **more):
        assert (await world.ask("GET", "/v1/jobs", token)).status == 200

"""What listens where NATS should be and is not NATS is an outage like any other: said at the start, outlived later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import StartupError
from tessera.kernel.nats.connection import NatsConnection

SECONDS = 60.0
INFO = b'INFO {"max_payload": 1048576}\r\n'
NOT_NATS = {"HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n", "bytes": b"\x00\xff" * 40 + b"\r\n", "no JSON": b"INFO {\r\n"}


class Peer:
    """A server that greets each connection with `greeting`, and answers pings."""

    def __init__(self) -> None:
        self.greeting, self.connections, self._open = INFO, 0, set[asyncio.StreamWriter]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            writer.write(self.greeting)
            while line := await reader.readline():
                if line == b"PING\r\n":
                    writer.write(b"PONG\r\n")
        except ConnectionError:
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()


@asynccontextmanager
async def connecting(peer: Peer) -> AsyncIterator[NatsConnection]:
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = NatsConnection(
        f"nats://127.0.0.1:{port}", SystemClock(), reconnect_seconds=0.02, tls=None, options={},
        on_denied=lambda _: None, on_lost=lambda: None, on_back=lambda: None,
    )  # fmt: skip
    try:
        yield connection
    finally:
        await connection.close()
        server.close()


@pytest.mark.parametrize("what", NOT_NATS)
async def test_a_start_beside_what_is_not_nats_is_one_line_that_says_what_to_do(what: str) -> None:
    peer = Peer()
    peer.greeting = NOT_NATS[what]
    async with connecting(peer) as connection:
        with pytest.raises(StartupError, match=r"no NATS server at .*correct TESSERA_NATS_URL"):
            await connection.open(0.3)


@pytest.mark.parametrize("what", NOT_NATS)
async def test_a_connection_comes_back_after_others_have_answered_in_between(what: str) -> None:
    peer = Peer()
    async with connecting(peer) as connection, asyncio.timeout(SECONDS):
        await connection.open(SECONDS)
        peer.greeting = NOT_NATS[what]
        peer.cut()
        while peer.connections < 4:
            await asyncio.sleep(0.01)
        assert not connection.connected
        peer.greeting = INFO
        while not connection.connected:
            await asyncio.sleep(0.01)

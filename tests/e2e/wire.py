"""A way to a server that can be cut without a word to either end, as a network does it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tessera_local.free_port import LOOPBACK


@dataclass
class Wire:
    """An address of our own for a server; once it is cut, connections stay open and nothing comes through."""

    url: str
    _whole: asyncio.Event = field(default_factory=asyncio.Event)

    def cut(self) -> None:
        """From now on nothing comes through, either way."""
        self._whole.clear()

    def mend(self) -> None:
        """Let through what was held back, and all that comes."""
        self._whole.set()


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    """A way to the server at `url`, whole at first."""
    parts = urlsplit(url)
    going: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(2**16):
                await wire._whole.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        for task in (asyncio.create_task(carry(reader, back)), asyncio.create_task(carry(there, writer))):
            going.add(task)

    server = await asyncio.start_server(connected, LOOPBACK, 0)
    wire = Wire(f"{parts.scheme}://{LOOPBACK}:{server.sockets[0].getsockname()[1]}")
    wire.mend()
    try:
        yield wire
    finally:
        server.close()
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)

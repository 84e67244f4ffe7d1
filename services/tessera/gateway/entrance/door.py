"""
The way in from the network: how many connections the API holds, of one address and of all.

A connection costs a file descriptor before it has said anything, and whoever opens enough of them would leave none for
NATS, Redis and the health listener. So we accept by ourselves: what is over a limit is closed at once, TLS handshakes
count from their first byte, and descriptors of the process are kept in reserve.
"""

import asyncio
import socket
import ssl
from collections import Counter

import structlog
from aiohttp import web

from tessera.gateway.entrance.addresses import LIMIT, Addresses, counted
from tessera.gateway.measures import Measures
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.ports import Clock
from tessera.kernel.process.limits import soft_limit

BACKLOG = 128
DESCRIPTORS_IN_RESERVE = 128
# For NATS, Redis, files, and probes of the health listener; the API gets what the process may open beyond them.
LOG_SECONDS = 10.0
NO_DESCRIPTOR_SECONDS = 0.1  # until the next try; one becomes free when a connection ends

log = structlog.get_logger()


class Door:
    """Counts connections from when they are accepted until they are lost."""

    def __init__(self, settings: GatewaySettings, measures: Measures, clock: Clock) -> None:
        self._settings, self._measures, self._clock = settings, measures, clock
        self._most = min(settings.connections_max, max(1, soft_limit() - DESCRIPTORS_IN_RESERVE))
        self._addresses = Addresses(settings, measures)
        self._held: Counter[str] = Counter()
        self._turned_away, self._logged_at = 0, -LOG_SECONDS
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[socket.socket] = []

    def open(self, listeners: list[socket.socket], server: web.Server, tls: ssl.SSLContext | None) -> None:
        """Begins to accept connections on the listeners and hands them to the server, behind TLS if given."""
        self._listeners = listeners
        for listener in listeners:
            self._begin(self._accept(listener, server, tls))

    async def close(self) -> None:
        """Accept nothing more; connections that are open stay."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    @property
    def port(self) -> int:
        """Port of the first listener, which the system chose where none was configured."""
        taken: int = self._listeners[0].getsockname()[1]
        return taken

    def left(self, address: str) -> None:
        """A connection of this address is no more."""
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]
        self._measures.connections.set(self._held.total())

    async def _accept(self, listener: socket.socket, server: web.Server, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("connection_not_accepted", error=error.strerror)
                await self._clock.sleep(NO_DESCRIPTOR_SECONDS)
                continue
            address = counted(peer[0])
            full = self._full(peer[0], address)
            if full is not None:
                connection.close()
                self._log_turned_away(full, peer[0])
            else:
                self._held[address] += 1
                self._measures.connections.set(self._held.total())
                self._begin(self._greet(connection, address, server, tls))
            await self._clock.sleep(0)  # accepting is not all that the loop does, even in a flood

    async def _greet(
        self, connection: socket.socket, address: str, server: web.Server, tls: ssl.SSLContext | None
    ) -> None:
        visit = Visit(self, address, server())
        seconds = None if tls is None else self._settings.head_seconds
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: visit, connection, ssl=tls, ssl_handshake_timeout=seconds
            )
        except BaseException as error:
            connection.close()
            visit.end()
            if not isinstance(error, OSError):  # an SSLError is one; a client that speaks no TLS is no news
                raise

    def _full(self, peer: str, address: str) -> str | None:
        # The limit that another connection of this peer, which counts for `address`, would exceed, if any.
        if self._held.total() >= self._most:
            return "connections_max"
        at_most = self._held[address] >= self._settings.connections_per_address
        return LIMIT if at_most and not self._addresses.is_proxy(peer) else None

    def _log_turned_away(self, limit: str, address: str) -> None:
        self._measures.turned_away.labels(limit).inc()
        self._turned_away += 1
        now = self._clock.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            log.warning("connections_turned_away", number=self._turned_away, limit=limit, newest=address)
            self._turned_away, self._logged_at = 0, now

    def _begin(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Visit(asyncio.Protocol):
    """One connection: all of it is the server's, and its end is told to the door, once."""

    def __init__(self, door: Door, address: str, handler: web.RequestHandler) -> None:
        self._door, self._address, self._handler = door, address, handler
        self._over = False
        self.data_received = handler.data_received  # type: ignore[method-assign]
        self.eof_received = handler.eof_received  # type: ignore[method-assign]
        self.pause_writing = handler.pause_writing  # type: ignore[method-assign]
        self.resume_writing = handler.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hands the new connection to the server's handler."""
        self._handler.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Tells the door, then the server's handler, that the connection has ended."""
        self.end()
        self._handler.connection_lost(error)

    def end(self) -> None:
        """Tells the door once that the connection has ended; repeats change nothing."""
        if not self._over:
            self._over = True
            self._door.left(self._address)

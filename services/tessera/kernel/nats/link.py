"""
One TCP or TLS connection to a NATS server, from its greeting to its end: lines, messages, pings.

A link that is lost stays lost, and what was written to it and not sent goes with it.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import SplitResult

import orjson

from tessera.kernel.nats.parser import MessageParser, OnMessage, ProtocolError

PING_SECONDS = 10.0
SILENT_PINGS_MAX = 2  # pings in a row after which nothing at all came: the server is gone, or stands still
PORT = 4222


class LoginRefused(Exception):
    """The server does not take our name and password."""


class Link(asyncio.Protocol):
    """Calls `on_message` for each message, `on_denied` for each refused permission, and once `on_lost` with itself."""

    def __init__(
        self, on_message: OnMessage, on_denied: Callable[[str], None], on_lost: Callable[["Link", Exception], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = MessageParser(on_message, self._on_line)
        self._on_denied, self._on_lost = on_denied, on_lost
        self._transport: asyncio.Transport | None = None
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._pongs: deque[asyncio.Future[bool]] = deque()
        self._unsent: list[bytes] = []
        self._error: Exception | None = None
        self._silent_pings = self._reads_before = 0
        self._keep_alive: asyncio.TimerHandle | None = None
        self.lost = asyncio.Event()
        self.info: dict[str, Any] = {}
        """What the server said of itself last."""
        self.asks_for_credentials = False
        """By its greeting; what it says later may be meant for others."""
        self.reads = 0
        """Grows with each piece that was read."""

    async def dial(
        self, server: SplitResult, tls_name: str, tls: ssl.SSLContext | None, options: Mapping[str, object]
    ) -> None:
        """Connect, take the greeting, change to TLS if either side wants it, log in. Raises what ended the link."""
        await self._loop.create_connection(lambda: self, server.hostname or "", server.port or PORT)
        await self._greeted
        encrypted = server.scheme == "tls" or bool(self.info.get("tls_required"))
        if encrypted and self._transport is not None:
            context = tls or ssl.create_default_context()
            upgrade = self._loop.start_tls(self._transport, self, context, server_hostname=tls_name)
            self._transport = await upgrade
        login = {"user": server.username, "pass": server.password} if server.username else {}
        connect = {
            "verbose": False, "pedantic": False, "lang": "python", "version": "tessera", "protocol": 1,
            "headers": True, "no_responders": True, "tls_required": encrypted,
        }  # fmt: skip
        self.write(b"CONNECT %b\r\n" % orjson.dumps({**connect, **login, **options}))
        if not await self.ping():
            raise self._error or ConnectionResetError("closed by the server")
        self._keep_alive = self._loop.call_later(PING_SECONDS, self._ping_or_give_up)

    def write(self, command: bytes) -> None:
        """Send it together with whatever else is written in this turn of the loop."""
        if not self._unsent:
            self._loop.call_soon(self._send_unsent)
        self._unsent.append(command)

    def ping(self) -> "asyncio.Future[bool]":
        """True once all has been read that the server sent before it reads this, False when the link is lost."""
        pong: asyncio.Future[bool] = self._loop.create_future()
        if self._error is not None:
            pong.set_result(False)
        else:
            self._pongs.append(pong)
            self.write(b"PING\r\n")
        return pong

    def end(self, error: Exception) -> None:
        """Drop the connection with what is unsent, for this reason."""
        self._settle(error)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Send what is written, then close."""
        self._send_unsent()
        self._settle(ConnectionResetError("closed by us"))
        if self._transport is not None:
            self._transport.close()

    # -- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the server speaks first."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Parse; bytes that are not NATS end the link."""
        self.reads += 1
        try:
            self._parser.feed(data)
        except ProtocolError as error:
            self.end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side closed, or the network did."""
        self._settle(exc or ConnectionResetError("closed by the server"))

    # -- inside

    def _settle(self, error: Exception) -> None:
        if self._error is not None:
            return
        self._error = error
        self._unsent.clear()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if not self._greeted.done():
            self._greeted.set_exception(error)
            self._greeted.exception()  # whoever could not even connect never waits for it
        for pong in self._pongs:
            if not pong.done():
                pong.set_result(False)
        self.lost.set()
        self._on_lost(self, error)

    def _send_unsent(self) -> None:
        if self._unsent and self._transport is not None and self._error is None:
            self._transport.writelines(self._unsent)
        self._unsent = []

    def _on_line(self, line: bytes) -> None:
        verb, _, rest = line.partition(b" ")
        match verb:
            case b"PING":
                self.write(b"PONG\r\n")
            case b"PONG":
                if self._pongs and not (pong := self._pongs.popleft()).done():
                    pong.set_result(True)
            case b"INFO":
                self._on_info(rest)
            case b"-ERR":
                self._on_error(rest.decode("utf-8", "replace").strip("' "))
            case b"+OK":
                pass
            case _:
                raise ProtocolError(f"unknown command: {line[:100]!r}")

    def _on_info(self, rest: bytes) -> None:
        try:
            self.info = {**self.info, **orjson.loads(rest)}
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"malformed INFO: {rest[:100]!r}") from error
        if not self._greeted.done():
            self.asks_for_credentials = bool(self.info.get("auth_required"))
            self._greeted.set_result(None)

    def _on_error(self, text: str) -> None:
        lower = text.lower()
        if "permissions violation" in lower:
            self._on_denied(text)
        else:
            self.end(LoginRefused(text) if "authorization" in lower else ConnectionResetError(text))

    def _ping_or_give_up(self) -> None:
        self._silent_pings = self._silent_pings + 1 if self.reads == self._reads_before else 0
        self._reads_before = self.reads
        if self._silent_pings > SILENT_PINGS_MAX:
            self.end(TimeoutError("the server is silent"))
            return
        self.ping()
        self._keep_alive = self._loop.call_later(PING_SECONDS, self._ping_or_give_up)

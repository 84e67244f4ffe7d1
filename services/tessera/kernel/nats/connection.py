"""
A connection to NATS that comes back: a link to one server at a time, and the subscriptions that survive each link.

The client protocol is spoken here and not by nats-py, with which `tessera init` makes streams (ADR 0029). Messages go
to a plain function without a task and decoded headers in between, nothing written before a disconnect is sent after
it, and any error of the server but a refused permission means reconnect, never the end.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import SplitResult, urlsplit

import structlog

from tessera.kernel.errors import Poison, StartupError, Transient
from tessera.kernel.nats.link import PORT, Link, LoginRefused
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.task_group import cancel_all
from tessera.kernel.tasks.waiting import spread

TakeMessage = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with subject, reply subject, data, raw headers. Must not raise."""

ATTEMPT_SECONDS = 4.0  # from dialling one server until it has taken our name
FLUSH_SECONDS = 2.0
PAYLOAD_BYTES_MAX = 1 << 20

log = structlog.get_logger()


class NatsConnection:
    """
    Keeps one link up. `on_lost` is called when it is lost, `on_back` when another stands and has the subscriptions.

    Args:
        url: of one server, or several separated by commas; servers that these name are tried, too.
        tls: for servers that want it; by default the system's authorities (SSL_CERT_FILE).
        options: what CONNECT says besides, such as `user`, `pass`, `name`.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        reconnect_seconds: float,
        tls: ssl.SSLContext | None,
        options: dict[str, Any],
        on_denied: Callable[[str], None],
        on_lost: Callable[[], None],
        on_back: Callable[[], None],
    ) -> None:
        self._clock, self._reconnect_seconds, self._tls, self._options = clock, reconnect_seconds, tls, options
        self._on_denied, self._on_lost, self._on_back = on_denied, on_lost, on_back
        servers = [_parsed(each.strip()) for each in url.split(",")]
        self._servers = sorted(servers, key=lambda server: spread(1.0, options.get("name"), server.netloc))
        self._link: Link | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._routes: dict[int, tuple[str, TakeMessage]] = {}
        self._last_sid = 0
        self.connected = self.closed = False
        self.links = 0
        """Count of the links that have stood so far."""
        self.asks_for_credentials = False
        """As the server said when it was last connected to."""

    async def open(self, seconds: float) -> None:
        """Raises StartupError when no server answers within `seconds`, or one refuses our name."""
        error: Exception | None = None
        try:
            async with asyncio.timeout(seconds):
                while (error := await self._connect_to_any()) is not None:
                    if isinstance(error, LoginRefused):
                        break
                    await self._clock.sleep(self._reconnect_seconds)
        except TimeoutError as out_of_time:
            error = error or out_of_time
        urls = ",".join(server.geturl() for server in self._servers)
        if isinstance(error, LoginRefused):
            user = self._options.get("user", "")
            raise StartupError(
                f"NATS at {urls} refuses user {user!r}: set TESSERA_CREDENTIALS_FILE to what `tessera init` wrote"
            ) from error
        if error is not None:
            why = f"{type(error).__name__}: {error}"
            raise StartupError(f"no NATS server at {urls} ({why}): start one, or correct TESSERA_NATS_URL") from error
        self._keeping = asyncio.ensure_future(self._keep())

    @property
    def payload_bytes_max(self) -> int:
        """The largest message that the server takes, headers and data."""
        return int(self._link.info.get("max_payload", PAYLOAD_BYTES_MAX)) if self._link else PAYLOAD_BYTES_MAX

    def write(self, command: bytes) -> None:
        """Raises Transient when not connected: then not a byte has left."""
        if not self.connected or self._link is None:
            raise Transient("not connected to NATS")
        self._link.write(command)

    def subscribe(self, subject: str, route: TakeMessage) -> int:
        """Have `route` called with every message on `subject`, over reconnects. Raises Transient when closed."""
        if self.closed:
            raise Transient(f"{subject}: the connection to NATS is closed")
        if subject.split() != [subject]:
            raise Poison(f"{subject!r}: not a subject")
        self._last_sid += 1
        self._routes[self._last_sid] = subject, route
        if self.connected:
            self.write(_subscription(self._last_sid, subject))
        return self._last_sid

    async def unsubscribe(self, sid: int) -> None:
        """No more messages are sent; those that the server sent before have been routed when this returns."""
        if self.connected and sid in self._routes:
            self.write(b"UNSUB %d\r\n" % sid)
            await self.flush()
        self._routes.pop(sid, None)

    async def flush(self) -> None:
        """Wait until the server has read what was written, or the link is lost, at most `FLUSH_SECONDS`."""
        if self._link is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._link.ping()

    def reads(self) -> int:
        """A count that grows with what is read."""
        return self._link.reads if self._link else 0

    def when_read(self, done: Callable[[], None]) -> None:
        """Call `done` once everything has been read that the server sent before it reads this: it answers in order."""

        def on_pong(pong: "asyncio.Future[bool]") -> None:
            if not pong.cancelled() and pong.result():
                done()

        if self._link is not None:
            self._link.ping().add_done_callback(on_pong)

    async def close(self) -> None:
        """Send what is written, then disconnect for good."""
        if self.closed:
            return
        if self.connected:
            await self.flush()
        self.connected, self.closed = False, True
        if self._keeping is not None:
            await cancel_all(self._keeping)
        if self._link is not None:
            self._link.close()

    # -- inside

    async def _keep(self) -> None:
        """Wait for the link's end and make another, for ever."""
        while self._link is not None:
            await self._link.lost.wait()
            while (error := await self._connect_to_any()) is not None:
                log.debug("nats_not_reached", error=str(error), kind=type(error).__name__)
                await self._clock.sleep(self._reconnect_seconds)
            self._on_back()

    async def _connect_to_any(self) -> Exception | None:
        """Try each server once; None when one took us, else why the last one did not."""
        error: Exception | None = None
        for server, tls_name in [*self._candidates()]:
            link = Link(self._on_message, self._on_denied, self._on_link_lost)
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    await link.dial(server, tls_name, self._tls, self._options)
            except (OSError, LoginRefused) as failure:
                link.end(failure)
                error = failure
                continue
            except asyncio.CancelledError:
                link.end(ConnectionResetError("given up"))
                raise
            self._link, self.connected = link, True
            self.links += 1
            self.asks_for_credentials = link.asks_for_credentials
            for sid, (subject, _) in self._routes.items():
                link.write(_subscription(sid, subject))
            return None
        return error

    def _candidates(self) -> Iterator[tuple[SplitResult, str]]:
        """Servers to try and their names for TLS: those we were given, then those that the last one named."""
        for server in self._servers:
            yield server, server.hostname or ""
        first, known = self._servers[0], {server.netloc for server in self._servers}
        for address in self._link.info.get("connect_urls") or () if self._link else ():
            if address not in known:  # often an IP address, which no certificate names
                yield first._replace(netloc=address), first.hostname or ""

    def _on_link_lost(self, link: Link, error: Exception) -> None:
        if link is self._link and self.connected:
            self.connected = False
            log.warning("nats_lost", error=str(error), kind=type(error).__name__)
            self._on_lost()

    def _on_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        found = self._routes.get(sid)
        if found is None:
            return
        try:
            found[1](subject, reply, data, headers)
        except Exception:  # one bad message must not end the reading of the connection
            log.exception("nats_message_not_handled", subject=subject.decode("utf-8", "replace"))


def _subscription(sid: int, subject: str) -> bytes:
    return b"SUB %b  %d\r\n" % (subject.encode(), sid)


def _parsed(url: str) -> SplitResult:
    """Host and port of a server's URL, which may leave out the scheme."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    return parts if parts.port else parts._replace(netloc=f"{parts.netloc}:{PORT}")

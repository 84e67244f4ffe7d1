"""
HTTP/1.1 to one API server over connections that are kept: as little around the parser (llhttp) as calls need.

One request at a time is on a connection. It goes back to the others only when its answer was read to the end, the
request was sent to the end, and the server means to go on; in all other cases, cancellation among them, it is closed.
Whatever fails is an OSError. Proxies of the environment and redirects are not followed, and no answer is asked for
compressed: the calls of a scheduler are small, and its lists are read in pages.
"""

import asyncio
import re
import select
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools
from httptools.parser.protocol import HTTPProtocol

IDLE_SECONDS = 30.0
"""After this much rest a connection is not used again: what stands between may have forgotten it without a word."""
MOST_IDLE = 128
LARGEST_HEAD = 64 * 1024  # bytes of status line, headers and trailers, those of informational answers included
LARGEST_BODY = 512 * 1024 * 1024  # bytes of an answer that is kept whole
_AHEAD = 1024 * 1024  # bytes of an answer that wait for their reader before the server is held back
_CONNECT_SECONDS = 10.0
_PORTS = {"http": 80, "https": 443}
_REPEATED = frozenset({"GET", "HEAD", "DELETE"})
_TARGET = re.compile(r"[!-~]+")


class HttpAnswer(NamedTuple):
    """An answer that was read to its end; `wait` is its Retry-After as sent, or ""."""

    status: int
    reason: str
    wait: str
    body: bytes


class _Unanswered(ConnectionError):
    """The connection ended before the first byte of an answer: the request may have arrived, or not."""


class Connections:
    """
    Connections to the server at `base_url`, opened as needed; whoever calls bounds the requests at a time.

    `tls` is asked at the first connection. A request is sent a second time by one rule: it was on a connection that
    had served before, this one ended without a byte of answer, and the method is GET, HEAD or DELETE. A repeated
    deletion finds what the first one left: ours name a UID, so that they never reach another object. POST and PATCH
    are left to the caller, who knows what a repeat would find.
    """

    def __init__(self, base_url: str, tls: Callable[[], ssl.SSLContext]) -> None:
        self._base_url = base_url
        self._host, slash, path = base_url.partition("://")[2].rpartition("@")[2].partition("/")
        self._prefix = slash + path
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._idle: deque[_Connection] = deque()  # the last to have rested stands at the end
        self._open: set[_Connection] = set()

    async def call(
        self, method: str, target: str, headers: str, body: bytes | None, seconds: float | None = None
    ) -> HttpAnswer:
        """The whole answer; connecting, waiting for it and reading it take at most `seconds` together."""
        async with asyncio.timeout(seconds):
            connection = await self._asked(method, target, headers, body)
            try:
                whole = await connection.rest(LARGEST_BODY)
            finally:
                self._release(connection)
        return HttpAnswer(connection.status, connection.reason, connection.wait, whole)

    @asynccontextmanager
    async def stream(self, target: str, headers: str, silence_seconds: float | None) -> AsyncIterator["HttpStream"]:
        """A GET whose answer may last; it ends with TimeoutError when nothing came for `silence_seconds`."""
        async with asyncio.timeout(silence_seconds):
            connection = await self._asked("GET", target, headers, None)
        try:
            yield HttpStream(connection, silence_seconds)
        finally:
            self._release(connection)

    async def close(self) -> None:
        """Close all connections, those in use, too; a later request opens new ones."""
        ended = [connection.cut() for connection in list(self._open)]
        self._idle.clear()
        if ended:
            await asyncio.wait(ended)

    async def _asked(self, method: str, target: str, headers: str, body: bytes | None) -> "_Connection":
        """A connection on which the head of an answer to this has come."""
        request = _request(method, self._prefix + target, self._host, headers, body)
        while True:
            kept = self._kept()
            connection = kept or await self._connected()
            try:
                await connection.ask(request, bodyless=method == "HEAD")
            except _Unanswered:
                if kept is None or method not in _REPEATED:
                    raise
            except BaseException:
                connection.cut()
                raise
            else:
                return connection

    def _kept(self) -> "_Connection | None":
        """The connection that rested least, if any can be used."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh():
                return connection
            connection.cut()
        return None

    async def _connected(self) -> "_Connection":
        try:
            address = urlsplit(self._base_url)
            host, port = address.hostname or "", address.port or _PORTS[address.scheme]
        except (KeyError, ValueError):
            host = ""
        if not host:
            raise ConnectionError(f"{self._host!r} is no address of an API server: one begins with http:// or https://")
        if address.scheme == "https" and self._context is None:
            self._context = self._tls()
        secure = self._context if address.scheme == "https" else None
        connecting = asyncio.get_running_loop().create_connection
        made = partial(_Connection, self._open)  # type: ignore[abstract]  # the parser's other events are of no use here
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, connection = await connecting(made, host, port, ssl=secure)
        return connection

    def _release(self, connection: "_Connection") -> None:
        if not connection.rests():
            connection.cut()
            return
        self._idle.append(connection)
        while self._idle and (len(self._idle) > MOST_IDLE or self._idle[0].has_rested_long()):
            self._idle.popleft().cut()


class HttpStream:
    """An answer that is read as it comes."""

    def __init__(self, connection: "_Connection", silence_seconds: float | None) -> None:
        self._connection = connection
        self._silence_seconds = silence_seconds
        self.status = connection.status

    async def whole(self) -> HttpAnswer:
        """The rest of the answer, for refusals: they are short."""
        connection = self._connection
        async with asyncio.timeout(self._silence_seconds):
            body = await connection.rest(LARGEST_BODY)
        return HttpAnswer(connection.status, connection.reason, connection.wait, body)

    async def piece(self) -> bytes:
        """Bytes that came since the last call, or the next ones; b"" at the end."""
        async with asyncio.timeout(self._silence_seconds):
            return await self._connection.piece()


class _Connection(asyncio.Protocol, HTTPProtocol):
    """
    One connection, and the answer that is being read from it.

    The parser calls the methods `on_...`. Whoever reads waits for one thing at a time: the head, or more of the body.
    """

    def __init__(self, beside: set["_Connection"]) -> None:
        self._beside = beside  # those that are open
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport
        self._poll = select.poll()
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._error: OSError | None = None
        self._asking = False  # from a request until its answer is complete
        self._rested_since = 0.0
        self._begin(bodyless=False)

    def _begin(self, *, bodyless: bool) -> None:
        self.status, self.reason, self.wait = 0, "", ""
        self._bodyless = bodyless
        self._begun = self._headed = self._complete = self._paused = False
        self._keeps = False  # the connection may serve again after this answer
        self._delimited = False  # the head says where the body ends; else it ends with the connection
        self._head_bytes = self._field_bytes = self._waiting_bytes = 0
        self._pieces: list[bytes] = []

    # --- What the pool asks ---

    async def ask(self, request: bytes, *, bodyless: bool) -> None:
        """Send it and wait for the head of its answer."""
        self._begin(bodyless=bodyless)
        self._asking = True
        self._transport.write(request)
        while not self._headed:
            await self._more()

    async def piece(self) -> bytes:
        """Bytes of the body since the last call, or the next ones; b"" at its end."""
        while not self._pieces:
            if self._complete:
                return b""
            await self._more()
        came = b"".join(self._pieces) if len(self._pieces) > 1 else self._pieces[0]
        self._pieces, self._waiting_bytes = [], 0
        if self._paused:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return came

    async def rest(self, most: int) -> bytes:
        """The body to its end. Raises ConnectionError when it has more than `most` bytes."""
        came = await self.piece()
        if self._complete and not self._pieces:
            return came
        parts, size = [came], len(came)
        while came := await self.piece():
            parts.append(came)
            size += len(came)
            if size > most:
                raise ConnectionError(f"the answer has more than {most} bytes")
        return b"".join(parts)

    def rests(self) -> bool:
        """Begin to rest, if the connection can serve again."""
        ready = self._complete and self._keeps and self._error is None and not self._transport.is_closing()
        if not ready or self._transport.get_write_buffer_size():
            return False
        self._rested_since = self._loop.time()
        return True

    def has_rested_long(self) -> bool:
        """Says if the connection rested longer than it is trusted."""
        return self._loop.time() - self._rested_since > IDLE_SECONDS

    def is_fresh(self) -> bool:
        """
        Whether a request may be sent on it. The socket is asked, too: while our loop was busy the server may have
        closed, or have sent what nobody asked for.
        """
        return not (self._transport.is_closing() or self.has_rested_long() or self._poll.poll(0))

    def cut(self) -> asyncio.Future[None]:
        """Close it at once, whatever is on its way. Returns what tells that it is closed."""
        self._fail(ConnectionError("the connection was closed on our side"))
        return self._ended

    async def _more(self) -> None:
        """Wait for what comes next. Raises what ended the connection, once all is taken that came before that."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: OSError) -> None:
        if self._error is None:
            self._error = error
        self._transport.abort()
        self._wake()

    # --- What the transport tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._beside.add(self)

    def data_received(self, data: bytes) -> None:
        if not self._asking:
            self._fail(ConnectionError("the server sent what nobody asked for"))
            return
        self._begun = True
        if not self._headed:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the answer is no HTTP/1.1 as expected: {error.__context__ or error}"))
        except httptools.HttpParserUpgrade:
            self._fail(ConnectionError("the server changes to a protocol that nobody asked for"))
        if not self._headed and self._head_bytes > LARGEST_HEAD:
            self._fail(ConnectionError(f"its headers have more than {LARGEST_HEAD} bytes"))
        if self._waiting_bytes > _AHEAD and not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()
        if self._headed:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._asking and self._headed and not self._delimited and exc is None and self._error is None:
            self._complete, self._asking = True, False
        elif self._error is None:
            how = f"the connection ended ({exc!r})" if exc else "the server closed the connection"
            within, before = f"{how} within its answer", f"{how} before it answered"
            self._error = ConnectionError(within) if self._begun else _Unanswered(before)
        self._beside.discard(self)
        self._ended.set_result(None)
        self._wake()

    # --- What the parser tells ---

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self._complete:
            raise ValueError("a second answer came with it")

    def on_status(self, status: bytes) -> None:
        """The words beside the status, perhaps a part of them."""
        self.reason += status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > LARGEST_HEAD:
            raise ValueError(f"its headers have more than {LARGEST_HEAD} bytes")
        name = name.lower()
        if name == b"retry-after":
            self.wait = value.decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self._delimited = True

    def on_headers_complete(self) -> None:
        """The head is whole: of the answer itself, or of an informational one before it."""
        status = self._parser.get_status_code()
        if status < 200:
            return
        self.status = status
        self._headed = True
        self._keeps = self._parser.should_keep_alive() and not self._bodyless
        if self._bodyless:  # the parser waits for a body, so that the connection ends here
            self._complete, self._asking = True, False

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if not self._bodyless:
            self._pieces.append(body)
            self._waiting_bytes += len(body)

    def on_message_complete(self) -> None:
        """The answer is whole; after an informational one the answer itself follows."""
        if self._headed:
            self._complete, self._asking = True, False
        else:
            self.reason, self.wait, self._delimited = "", "", False


def _request(method: str, target: str, host: str, headers: str, body: bytes | None) -> bytes:
    """
    The bytes of a request. Raises ConnectionError, which names nothing of the headers, where text would break out of
    its line: of a name that somebody else chose, or of a token from a file that is none.
    """
    if not _TARGET.fullmatch(target):
        raise ConnectionError(f"{target!r} cannot be asked for: a path has printable ASCII without spaces")
    head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{headers}"
    if body is not None or method in ("POST", "PATCH"):
        head += f"Content-Length: {len(body or b'')}\r\n"
    if not head.isascii():
        raise ConnectionError("a header has other characters than ASCII; is the token of the cluster one?")
    return head.encode() + b"\r\n" + (body or b"")

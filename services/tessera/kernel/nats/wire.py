"""
One connection to NATS: routed subscriptions, and requests answered on one private inbox.

Over nats-py, with five differences that need its inside (held by the contract tests): messages go to a plain
function without a queue, a task and decoded headers in between (2.5 times the receive rate); ours are read and written
past its patterns (twice the rate again); any error line but a refused permission means reconnect, never the end; a
flush that is given up does not end the reading; and nothing written before a disconnect is sent after it, so that an
append whose sender gave up does not arrive later.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import nats.errors
import structlog
from nats.aio.client import Client

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import KernelError, Poison, StartupError, Transient, UnknownOutcome
from tessera.kernel.nats.parser import MessageParser
from tessera.kernel.nats.protocol import header_block, publish_command
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.deadline import Deadline

Route = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with subject, reply subject, data, raw headers. Must not raise."""

FLUSH_SECONDS = 2.0
PING = b"PING\r\n"

log = structlog.get_logger()

NOT_CONNECTED = (
    nats.errors.OutboundBufferLimitError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionDrainingError,
    nats.errors.ConnectionReconnectingError,
)


@dataclass(frozen=True, slots=True)
class Reply:
    data: bytes
    headers: bytes


class _Client(Client):
    """nats-py's client with the hot path cut short."""

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[int, Route] = {}
        self._ps: MessageParser = MessageParser(self, self._route)
        self._sending = False

    def _route(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        route = self.routes.get(sid)
        if route is None:
            return
        try:
            route(subject, reply, data, headers)
        except Exception:  # one bad message must not end the read loop of the connection
            log.exception("nats_message_not_handled", subject=subject.decode("utf-8", "replace"))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """Of a message that nats-py has put together itself."""
        self._route(sid, subject, reply, data, headers or b"")

    async def _process_err(self, err_msg: str) -> None:
        error = nats.errors.Error(f"nats: {err_msg}")
        if "permissions violation" in err_msg:
            await self._error_cb(error)
        else:
            await self._process_op_err(error)

    async def _process_pong(self) -> None:
        """Ignore a PONG whose waiter has given up; nats-py would end the read loop and leave the connection deaf."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def flush(self, timeout: float = FLUSH_SECONDS) -> None:
        """As nats-py's, which waits with `asyncio.wait_for` and so may lose a cancellation."""
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if self._reading_task is None or self._reading_task.done():
            await self._flush_pending()  # nobody reads a pong
            return
        pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self._send_ping(pong)
        try:
            async with asyncio.timeout(timeout):
                await pong
        except TimeoutError as error:
            raise nats.errors.FlushTimeoutError from error

    def write(self, command: bytes) -> None:
        """Send it together with whatever else is written in this turn of the loop, without a task in between."""
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._sending:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._send_written)

    def _send_written(self) -> None:
        self._sending = False
        if self._pending and self._transport is not None and self.is_connected:
            with contextlib.suppress(OSError, RuntimeError):  # lost: reading notices it too, and tells all who wait
                self._transport.writelines(self._pending)
            self.forget_unsent()

    @property
    def asks_for_credentials(self) -> bool:
        return bool(self._server_info.get("auth_required"))

    def reads(self) -> int:
        return self._ps.reads

    def when_read(self, done: Callable[[], None]) -> None:
        """Call `done` once everything has been read that the server sent before it reads this: it answers in order."""

        def on_pong(pong: "asyncio.Future[bool]") -> None:
            if not pong.cancelled():
                done()

        pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        pong.add_done_callback(on_pong)
        self._pongs.append(pong)
        self.write(PING)

    def forget_unsent(self) -> None:
        self._pending, self._pending_data_size = [], 0


class _Waiting:
    """Somebody waits for replies to `subject`; `reply` gets each of them, `fail` the reason why no more will come."""

    __slots__ = ("deadline", "fail", "reply", "subject")

    def __init__(self, subject: str, reply: Callable[[Reply], None], fail: Callable[[KernelError], None]) -> None:
        self.subject, self.reply, self.fail = subject, reply, fail
        self.deadline: Deadline | None = None


class NatsWire:
    def __init__(self, client: _Client, clock: Clock) -> None:
        self._client, self.clock = client, clock
        self._waiting: dict[bytes, _Waiting] = {}
        self._inbox = ""
        self._requests = 0
        self._listeners: dict[int, Callable[[], None]] = {}
        self._listener_ids = 0
        self.connected = False

    @property
    def closed(self) -> bool:
        """The connection is gone for good: somebody closed it."""
        return self._client.is_closed

    @property
    def lets_anybody_in(self) -> bool:
        """As the server said when it was last connected to: it may have come back with another configuration."""
        return not self._client.asks_for_credentials

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        user: str = "",
        password: str = "",
        name: str = "",
        inbox_prefix: str = "_INBOX",
        startup_seconds: float = 10.0,
        reconnect_seconds: float = 0.2,
        clock: Clock | None = None,
        **options: Any,
    ) -> "NatsWire":
        """
        Connect, then reconnect for ever. `options` go to nats-py (TLS, NKeys).

        Raises StartupError when no server answers within `startup_seconds` or it refuses the credentials.
        """
        client = _Client()
        wire = cls(client, clock or SystemClock())
        last_error: list[Exception] = []

        async def on_error(error: Exception) -> None:
            last_error[:] = [error]
            wire._on_error(error)
            if not wire._inbox and "authorization" in str(error).lower():
                raise StartupError(f"NATS at {url} refuses user {user!r}: check its name and password")

        try:
            async with asyncio.timeout(startup_seconds):
                await client.connect(
                    [server.strip() for server in url.split(",")],
                    name=name or None,
                    user=user or None,
                    password=password or None,
                    inbox_prefix=inbox_prefix,
                    error_cb=on_error,
                    disconnected_cb=wire._on_disconnected,
                    reconnected_cb=wire._on_reconnected,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=reconnect_seconds,  # type: ignore[arg-type]  # seconds; a float works
                    ping_interval=10,
                    pending_size=0,  # no sending of old bytes after a reconnect
                    **options,
                )
        except StartupError:
            await client.close()
            raise
        except (TimeoutError, OSError, nats.errors.Error) as error:
            await client.close()
            why = last_error[0] if last_error else error
            raise StartupError(
                f"no NATS server at {url} ({type(why).__name__}: {why}): start one, or correct the setting nats_url"
            ) from error
        wire._inbox = client.new_inbox()
        wire.connected = True
        await wire.subscribe(f"{wire._inbox}.*", wire._on_reply)
        return wire

    # -- sending

    async def send(self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        """
        Send one message. Raises Transient when not connected: then not a byte has left.

        Raises Poison for what is no subject, and above the server's limit: the server counts the headers too, and
        would end the connection.
        """
        client, block = self._client, header_block(headers) if headers else b""
        size = len(block) + len(data)
        if size > client.max_payload:
            raise Poison(f"{subject}: {size} bytes are more than the server takes")
        if client.is_closed or client.is_draining_pubs or not client.is_connected:
            raise Transient(f"{subject}: not connected to NATS")
        client.write(publish_command(subject, reply, block, data))

    async def ask(
        self, subject: str, data: bytes, timeout: float, headers: Mapping[str, str] | None = None
    ) -> "asyncio.Future[Reply | KernelError]":
        """
        Send a request and return the future of its one reply; an error is its *result*, so none is ever lost.

        UnknownOutcome after a disconnect, or after `timeout` seconds, once all is read that the server had sent by then
        (if it is silent, after as long again); Transient when the request certainly had no effect.
        """
        future: asyncio.Future[Reply | KernelError] = asyncio.get_running_loop().create_future()

        def settle(outcome: Reply | KernelError) -> None:
            self._forget(token)
            if not future.done():
                future.set_result(outcome)

        token, reply_to = self._await_replies(subject, settle, settle)
        try:
            await self.send(subject, data, reply_to, headers)
        except KernelError as error:
            settle(error)
        else:
            self._expire_after(token, timeout)
        return future

    async def ask_many(self, subject: str, data: bytes, timeout: float) -> list[Reply]:
        """All replies up to and including the one with a status, or those that came before time or connection ended."""
        replies: list[Reply] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(_: KernelError | None = None) -> None:
            if not done.done():
                done.set_result(None)

        def on_reply(reply: Reply) -> None:
            replies.append(reply)
            if reply.headers.startswith(b"NATS/1.0 "):
                end()

        token, reply_to = self._await_replies(subject, on_reply, end)
        try:
            await self.send(subject, data, reply_to)
            self._expire_after(token, timeout)
            await done
        finally:
            self._forget(token)
        return replies

    # -- receiving

    async def subscribe(self, subject: str, route: Route) -> int:
        """Have `route` called with every message on `subject`; survives reconnects. Raises Transient when closed."""
        try:
            subscription = await self._client.subscribe(subject)
        except NOT_CONNECTED as error:
            raise Transient(f"{subject}: the connection to NATS is closed") from error
        sid: int = subscription._id
        self._client.routes[sid] = route
        return sid

    async def unsubscribe(self, sid: int) -> None:
        """No more messages are sent; those that the server sent before have been routed when this returns."""
        subscription = self._client._subs.get(sid)
        if subscription is not None and not self.closed:
            await subscription.unsubscribe()
            if self.connected:
                # nats-py has forgotten the subscription, but `routes` has not: what is on its way still comes through
                with contextlib.suppress(nats.errors.Error, TimeoutError):
                    await self._client.flush()
        self._client.routes.pop(sid, None)

    def on_reconnect(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called after each reconnect and at the end; returns what takes it off again."""
        self._listener_ids += 1
        key = self._listener_ids
        self._listeners[key] = listener

        def remove() -> None:
            self._listeners.pop(key, None)

        return remove

    def new_inbox(self) -> str:
        """Subject for replies below this identity's inbox prefix, new at each call."""
        return self._client.new_inbox()

    async def close(self) -> None:
        """Send out what is written, then leave."""
        self.connected = False
        if not self.closed:
            try:
                await self._client.drain()
            except (nats.errors.Error, TimeoutError):
                await self._client.close()
        self._fail_all("the connection was closed")
        self._call_listeners()

    # -- inside

    def _await_replies(
        self, subject: str, reply: Callable[[Reply], None], fail: Callable[[KernelError], None]
    ) -> tuple[bytes, str]:
        self._requests += 1
        token = b"%d" % self._requests
        self._waiting[token] = _Waiting(subject, reply, fail)
        return token, f"{self._inbox}.{self._requests}"

    def _expire_after(self, token: bytes, seconds: float) -> None:
        waiting = self._waiting.get(token)
        if waiting is not None:
            expire = partial(self._expire, token)
            waiting.deadline = Deadline(seconds, expire, self._client.reads, lambda: self._client.when_read(expire))

    def _expire(self, token: bytes) -> None:
        waiting = self._forget(token)
        if waiting is not None:
            waiting.fail(UnknownOutcome(f"{waiting.subject}: no answer in time"))

    def _forget(self, token: bytes) -> _Waiting | None:
        waiting = self._waiting.pop(token, None)
        if waiting is not None and waiting.deadline is not None:
            waiting.deadline.cancel()
        return waiting

    def _on_reply(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes) -> None:
        waiting = self._waiting.get(subject.rpartition(b".")[2])
        if waiting is not None:
            waiting.reply(Reply(data, headers))

    def _fail_all(self, why: str) -> None:
        for token in list(self._waiting):
            waiting = self._forget(token)
            if waiting is not None:
                waiting.fail(UnknownOutcome(f"{waiting.subject}: {why}"))

    def _on_error(self, error: Exception) -> None:
        words = str(error).lower()
        log.warning("nats_error", error=str(error), kind=type(error).__name__)
        _, found, rest = words.partition("permissions violation for publish to ")
        if not found:
            return
        denied = rest.strip("'\" ")
        for token, waiting in list(self._waiting.items()):
            if waiting.subject.lower() == denied:
                self._forget(token)
                waiting.fail(Transient(f"{waiting.subject}: this identity may not publish there"))

    async def _on_disconnected(self) -> None:
        self.connected = False
        self._client.forget_unsent()
        self._fail_all("disconnected before the answer")

    async def _on_reconnected(self) -> None:
        self.connected = True
        self._call_listeners()

    def _call_listeners(self) -> None:
        for listener in list(self._listeners.values()):
            listener()

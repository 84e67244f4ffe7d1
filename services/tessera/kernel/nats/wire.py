"""
Requests over one connection to NATS: each answered on one private inbox, or failed for a stated reason.

An answer counts until all has been read that the server had sent when its time was over.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from tessera.kernel import ids
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Denied, KernelError, Poison, UnknownOutcome
from tessera.kernel.nats.connection import NatsConnection, TakeMessage
from tessera.kernel.nats.protocol import header_block, publish_command
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.deadline import Deadline

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reply:
    data: bytes
    headers: bytes


class _Waiting:
    """Somebody waits for replies to `subject`; `reply` gets each of them, `fail` the reason why no more will come."""

    __slots__ = ("deadline", "fail", "reply", "subject")

    def __init__(self, subject: str, reply: Callable[[Reply], None], fail: Callable[[KernelError], None]) -> None:
        self.subject, self.reply, self.fail = subject, reply, fail
        self.deadline: Deadline | None = None


class NatsWire:
    """
    Connects with `connect`; then reconnects for ever.

    Args:
        inbox_prefix: private to this identity, or others read its answers.
        tls: for servers that want it; by default the system's authorities.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str = "",
        password: str = "",
        name: str = "",
        inbox_prefix: str = "_INBOX",
        reconnect_seconds: float = 0.2,
        clock: Clock | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        login = {"user": user, "pass": password} if user else {}
        self.clock = clock or SystemClock()
        self._connection = NatsConnection(
            url,
            self.clock,
            reconnect_seconds=reconnect_seconds,
            tls=tls,
            options={"name": name, **login},
            on_denied=self._on_denied,
            on_lost=lambda: self._fail_all("disconnected before the answer"),
            on_back=self._call_listeners,
        )
        self._inbox_prefix = inbox_prefix
        self._inbox = self.new_inbox()
        self._waiting: dict[bytes, _Waiting] = {}
        self._requests = 0
        self._listeners: dict[int, Callable[[], None]] = {}
        self._listener_ids = 0

    async def connect(self, seconds: float) -> None:
        """Raises StartupError when no server answers within `seconds`, or one refuses our name."""
        self._connection.subscribe(f"{self._inbox}.*", self._on_reply)
        await self._connection.open(seconds)

    @property
    def connected(self) -> bool:
        """False while the connection is lost; it comes back by itself."""
        return self._connection.connected

    @property
    def links(self) -> int:
        """Count of connections made to a server so far."""
        return self._connection.links

    @property
    def closed(self) -> bool:
        """The connection is gone for good: somebody closed it."""
        return self._connection.closed

    @property
    def lets_anybody_in(self) -> bool:
        """
        Whether the server lets anybody in, as it said at the last connect: it may have come back with another
        configuration.
        """
        return not self._connection.asks_for_credentials

    # -- sending

    async def send(self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        """
        Send one message. Raises Transient when not connected: then not a byte has left.

        Raises Poison for what is no subject, and above the server's limit: the server counts the headers too, and
        would end the connection.
        """
        block = header_block(headers) if headers else b""
        size = len(block) + len(data)
        if size > self._connection.payload_bytes_max:
            raise Poison(f"{subject}: {size} bytes are more than the server takes")
        self._connection.write(publish_command(subject, reply, block, data))

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

    def subscribe(self, subject: str, route: TakeMessage) -> int:
        """Have `route` called with every message on `subject`; survives reconnects. Raises Transient when closed."""
        return self._connection.subscribe(subject, route)

    async def unsubscribe(self, sid: int) -> None:
        """No more messages are sent; those that the server sent before have been routed when this returns."""
        await self._connection.unsubscribe(sid)

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
        return f"{self._inbox_prefix}.{ids.random_key()}"

    async def close(self) -> None:
        """Send out what is written, then leave."""
        await self._connection.close()
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
            expire, connection = partial(self._expire, token), self._connection
            waiting.deadline = Deadline(seconds, expire, connection.reads, lambda: connection.when_read(expire))

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

    def _on_denied(self, text: str) -> None:
        """Fail who waits for an answer to a publish that the server says it refused; where nobody waits, say so."""
        denied = text.lower().partition("permissions violation for publish to ")[2].strip("'\" ")
        waiting_for_it = [token for token, waiting in self._waiting.items() if waiting.subject.lower() == denied]
        for token in waiting_for_it:
            if (waiting := self._forget(token)) is not None:
                waiting.fail(Denied(f"{waiting.subject}: this identity may not publish there"))
        if not waiting_for_it:
            log.warning("nats_permission_refused", error=text)

    def _call_listeners(self) -> None:
        for listener in list(self._listeners.values()):
            listener()

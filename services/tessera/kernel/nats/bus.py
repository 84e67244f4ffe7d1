"""
The Bus port over JetStream.

No service ever creates a stream or a consumer: `tessera init` makes streams with direct get and with a live copy of
each stored message, and the few durables of the work queues.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

import orjson

from tessera.kernel.errors import Denied, KernelError
from tessera.kernel.nats.follow import NatsFollow
from tessera.kernel.nats.protocol import publish_headers, publish_outcome
from tessera.kernel.nats.reads import NatsReads
from tessera.kernel.nats.wire import NatsWire, Reply
from tessera.kernel.nats.work import NatsWork
from tessera.kernel.ports import Message, Outgoing, Usage

ACK_SECONDS = 5.0
STARTUP_SECONDS = 10.0
NOT_FOUND = 404
WINDOW = 512  # publishes under way at once
WINDOW_BYTES = 4 << 20

_Answer = asyncio.Future[Reply | KernelError]


class NatsBus:
    def __init__(self, wire: NatsWire, ack_seconds: float = ACK_SECONDS) -> None:
        self._wire, self._reads, self._ack_seconds = wire, NatsReads(wire), ack_seconds

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        user: str = "",
        password: str = "",
        name: str = "",
        inbox_prefix: str = "_INBOX",
        ack_seconds: float = ACK_SECONDS,
        startup_seconds: float = STARTUP_SECONDS,
        **options: Any,
    ) -> Self:
        """
        Connect, then reconnect for ever.

        Args:
            url: of one server, or several separated by commas.
            inbox_prefix: private to this identity, e.g. `_INBOX.scheduler`; else one client reads another's answers.
            ack_seconds: how long a publish waits for its ack before its outcome counts as unknown.
            startup_seconds: how long to try until a first server answers.
            options: `reconnect_seconds`, `clock` and `tls`, as of `NatsWire`.
        Raises: StartupError when no server answers or it refuses the credentials.
        """
        wire = NatsWire(url, user=user, password=password, name=name, inbox_prefix=inbox_prefix, **options)
        await wire.connect(startup_seconds)
        return cls(wire, ack_seconds)

    @property
    def connected(self) -> bool:
        """False while the connection is lost; it comes back by itself."""
        return self._wire.connected

    @property
    def links(self) -> int:
        """Count of connections made to a server so far; behind each may be another store."""
        return self._wire.links

    @property
    def lets_anybody_in(self) -> bool:
        """Whether the server that was last connected to asks nobody for credentials."""
        return self._wire.lets_anybody_in

    async def close(self) -> None:
        """Write out what is buffered, then disconnect."""
        await self._wire.close()

    async def publish(self, out: Outgoing) -> int:
        """One request and its ack; without an ack in time, or after a lost connection, UnknownOutcome."""
        return _sequence(out, await (await self._send(out)))

    async def publish_all(self, batch: Sequence[Outgoing]) -> list[int]:
        """Sent in order, at most `WINDOW` messages and 4 MiB unanswered at a time."""
        answers: list[_Answer] = []
        oldest, unanswered_bytes = 0, 0
        for out in batch:
            while oldest < len(answers) and (
                len(answers) - oldest >= WINDOW or unanswered_bytes + len(out.data) > WINDOW_BYTES
            ):
                await answers[oldest]
                unanswered_bytes -= len(batch[oldest].data)
                oldest += 1
            answers.append(await self._send(out))
            unanswered_bytes += len(out.data)
        outcomes = [await answer for answer in answers]
        return [_sequence(out, outcome) for out, outcome in zip(batch, outcomes, strict=True)]

    def follow(self, stream: str, subject: str, after: int) -> NatsFollow:
        """Follower over live copies and direct gets; the first `next` subscribes."""
        return NatsFollow(self._wire, stream, subject, after)

    def work(self, stream: str, durable: str) -> NatsWork:
        """Puller of a durable; the first `next` asks the server for messages."""
        return NatsWork(self._wire, stream, durable)

    async def lacks(self, stream: str, durable: str) -> bool:
        """
        Whether the server says that there is no such durable, or none that we may read.

        False also while it says neither, as when it is away.
        """
        request = await self._wire.ask(f"$JS.API.CONSUMER.INFO.{stream}.{durable}", b"", self._ack_seconds)
        answer = await request
        if isinstance(answer, Reply):
            error = orjson.loads(answer.data).get("error") or {}
            return error.get("code") == NOT_FOUND
        return isinstance(answer, Denied)

    async def get(self, stream: str, seq: int) -> Message | None:
        """Direct get from any replica; one that lags answers None for a message that was just stored."""
        return await self._reads.get(stream, seq)

    async def last(self, stream: str, subject: str) -> Message | None:
        """One request to the stream's leader; a deposed leader may answer stale, so confirm by compare-and-swap."""
        return await self._reads.last(stream, subject)

    async def last_all(self, stream: str, subject: str) -> list[Message]:
        """Direct gets in batches of 1,024 and 4 MiB. Raises Poison when more than 1,024 subjects match."""
        return await self._reads.last_all(stream, subject)

    async def usage(self, stream: str) -> Usage:
        """One request for the stream's state, answered by the leader; headers and overhead count."""
        return await self._reads.usage(stream)

    async def send(self, subject: str, data: bytes) -> None:
        """Write to the connection without waiting. Raises Transient when not connected, Poison when too large."""
        await self._wire.send(subject, data)

    async def listen(self, subject: str, on_message: Callable[[str, bytes], None]) -> None:
        """Have `on_message(subject, data)` called with what others `send`; at most once, until the bus is closed."""

        def route(to: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
            on_message(to.decode(), data)

        self._wire.subscribe(subject, route)

    async def _send(self, out: Outgoing) -> _Answer:
        return await self._wire.ask(out.subject, out.data, self._ack_seconds, publish_headers(out))


def _sequence(out: Outgoing, outcome: Reply | KernelError) -> int:
    if isinstance(outcome, Reply):
        answer = publish_outcome(out.subject, outcome.data, outcome.headers)
        if not isinstance(answer, KernelError):
            return answer
        outcome = answer
    raise outcome

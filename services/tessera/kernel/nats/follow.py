"""
Following a stream in order without a consumer: live copies, and direct gets for whatever they lack.

The server repeats each message on `live.<subject>` after it is stored. That path may lose messages (a reconnect, a
full buffer), so a live message is handed on only if nothing can lie between it and the cursor:

- its sequence is the cursor + 1, whatever the subject; or
- the subject is literal, and the message before it *on that subject* (`Nats-Last-Sequence`) is not after the cursor.

In all other cases the stream itself is read from the cursor on. A wildcard that covers part of a stream therefore
reads by direct get most of the time, with the live copy as the sign that there is something. A message lost on the
live path with nothing behind it is found by a read every 0.5 s. Who is far behind takes no live copies: each would be
received only to be thrown away.
"""

import asyncio
from collections import deque

from tessera.kernel.errors import Transient
from tessera.kernel.nats.protocol import number, own_headers
from tessera.kernel.nats.reads import NatsReads
from tessera.kernel.nats.wire import NatsWire
from tessera.kernel.ports import Message
from tessera_schemas import subjects

POLL_SECONDS = 0.5
LINGER_SECONDS = 0.002
LINGER_BELOW = 64  # a single message goes at once, for idle latency; more than this is a batch already
REPLICA_LAG_SECONDS = 0.005  # between reads while a replica does not have yet what the leader announced
BUFFER_MESSAGES = 4096
BUFFER_BYTES = 16 << 20
LIVE_PREFIX_LENGTH = len(subjects.live(""))

_Live = tuple[int, int, bytes, bytes, bytes]  # sequence, the one before it on its subject, subject, data, headers


class NatsFollow:
    def __init__(self, wire: NatsWire, stream: str, subject: str, after: int) -> None:
        self._wire, self._reads = wire, NatsReads(wire)
        self._stream, self._subject, self._cursor = stream, subject, after
        self._literal = "*" not in subject and ">" not in subject
        self._live: deque[_Live] = deque()
        self._live_bytes = 0
        self._must_read = True  # there may be stored messages that no live copy tells of
        self._far_behind = False  # live copies came faster than they were taken
        self._woken = asyncio.Event()
        self._sid: int | None = None
        self._unlisten = wire.on_reconnect(self._on_reconnect)
        self._closed = False

    async def next(self, limit: int = 256, timeout: float | None = None) -> list[Message]:
        """
        Next messages; cancelling loses none, since the cursor moves only as messages are returned. [] after close.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not self._closed:
            if self._wire.closed:
                raise Transient("the connection to NATS is closed")
            await self._listen_unless_far_behind()
            if self._head_follows():
                if 2 <= len(self._live) < LINGER_BELOW:
                    await self._wire.clock.sleep(LINGER_SECONDS)
                return self._take(limit)
            pause = POLL_SECONDS
            if (self._must_read or self._live) and self._wire.connected:
                if messages := await self._read(limit):
                    return messages
                if self._must_read or self._live:
                    pause = REPLICA_LAG_SECONDS
            if deadline is not None and loop.time() >= deadline:
                return []
            await self._wait(pause, deadline)
        return []

    async def _listen_unless_far_behind(self) -> None:
        if self._far_behind and self._sid is not None:
            sid, self._sid = self._sid, None
            await self._wire.unsubscribe(sid)
        elif self._sid is None and not self._far_behind:
            self._sid = self._wire.subscribe(subjects.live(self._subject), self._on_live)

    async def close(self) -> None:
        """Drop the buffered live copies and unsubscribe; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._woken.set()
        self._unlisten()
        self._forget_live()
        if self._sid is not None:
            await self._wire.unsubscribe(self._sid)

    def _on_live(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes) -> None:
        seq = number(headers, b"Nats-Sequence")
        if seq is None or seq <= self._cursor:
            return
        if len(self._live) >= BUFFER_MESSAGES or self._live_bytes >= BUFFER_BYTES:
            self._forget_live()
            self._must_read = self._far_behind = True
        if self._far_behind:
            return
        self._live.append((seq, number(headers, b"Nats-Last-Sequence") or 0, subject, data, headers))
        self._live_bytes += len(data)
        self._woken.set()

    def _on_reconnect(self) -> None:
        self._must_read = True
        self._woken.set()

    def _forget_live(self) -> None:
        self._live.clear()
        self._live_bytes = 0

    def _pop(self) -> _Live:
        head = self._live.popleft()
        self._live_bytes -= len(head[3])
        return head

    def _head_follows(self) -> bool:
        """Drop what the cursor has passed; True if the first live message is certainly the next one."""
        while self._live and self._live[0][0] <= self._cursor:
            self._pop()
        if not self._live:
            return False
        seq, before, *_ = self._live[0]
        return seq == self._cursor + 1 or (self._literal and before <= self._cursor)

    def _take(self, limit: int) -> list[Message]:
        messages: list[Message] = []
        while len(messages) < limit and self._head_follows():
            seq, _, subject, data, headers = self._pop()
            messages.append(Message(subject[LIVE_PREFIX_LENGTH:].decode(), seq, data, own_headers(headers)))
            self._cursor = seq
        return messages

    async def _read(self, limit: int) -> list[Message]:
        try:
            messages, pending = await self._reads.batch(self._stream, self._subject, self._cursor + 1, limit)
        except Transient:
            if self._wire.connected:
                raise
            return []  # the reconnect wakes us
        if not self._closed and messages:
            self._cursor = messages[-1].seq
        self._must_read = pending > 0
        if self._far_behind and pending <= limit:
            self._far_behind, self._must_read = False, True
        return messages

    async def _wait(self, seconds: float, deadline: float | None) -> None:
        """
        Waits until something may have come, at most `seconds` and not beyond the deadline; then the stream is read
        again.
        """
        self._woken.clear()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        alarm = loop.call_at(until if deadline is None else min(until, deadline), self._woken.set)
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()
        if loop.time() >= until:
            self._must_read = True

"""
A durable work queue by continuous pull: a standing credit at the server instead of one request per batch.

The server sends up to the credit as messages come; the credit is renewed when half is used, and asked for anew when
a heartbeat is missed or the connection was lost. What is buffered counts against it, so memory is bounded and one
replica does not hoard the queue.
"""

import asyncio
import contextlib
from collections import deque

import orjson

from tessera.kernel.errors import Transient
from tessera.kernel.nats.follow import LINGER_BELOW, LINGER_SECONDS
from tessera.kernel.nats.protocol import delivery_position, number, own_headers, status, status_text
from tessera.kernel.nats.wire import NatsWire
from tessera.kernel.ports import Delivery, Message

CREDIT = 512  # messages buffered here or on their way; two batches of the work loop
CREDIT_BYTES = 8 * 1024**2
"""Of one request. Several are open at a time, and a server ends a connection that has 64 MiB waiting for it."""
PULL_SECONDS = 30
HEARTBEAT_SECONDS = 5
SILENCE_SECONDS = 2.5 * HEARTBEAT_SECONDS  # no heartbeat for so long: the server has forgotten our request
REFUSED_SECONDS = 0.25  # before asking again after a refusal
HEARTBEAT = 100
NOTHING = orjson.dumps({"batch": 1, "no_wait": True, "max_bytes": 1})
NOTHING_SECONDS = 2.0
"""A request that is answered at once and can bring no message, and how long its answer may take."""


class NatsWork:
    def __init__(self, wire: NatsWire, stream: str, durable: str) -> None:
        self._wire = wire
        self._pull_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._inbox = wire.new_inbox()
        self._queue: deque[Delivery] = deque()
        self._credit = 0
        self._last_message_at = 0.0
        self._ask_after = 0.0
        self._refused: str | None = None
        self._woken = asyncio.Event()
        self._sid: int | None = None
        self._unlisten = wire.on_reconnect(self._on_reconnect)
        self._closed = False

    async def next(self, limit: int = 256, timeout: float | None = None) -> list[Delivery]:
        """Next deliveries; cancelling loses none. [] after close. Raises Transient while the durable is not there."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not self._closed:
            if self._wire.closed:
                raise Transient("the connection to NATS is closed")
            if self._sid is None:
                self._sid = self._wire.subscribe(self._inbox, self._on_message)
            await self._renew_credit()
            if self._queue:
                if 2 <= len(self._queue) < LINGER_BELOW:
                    await self._wire.clock.sleep(LINGER_SECONDS)
                return [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
            if self._refused is not None:
                why, self._refused = self._refused, None
                raise Transient(f"{self._pull_subject}: {why}")
            if deadline is not None and loop.time() >= deadline:
                return []
            await self._wait(deadline)
        return []

    async def ack(self, delivery: Delivery) -> None:
        """Send the ack unconfirmed: a lost one means a redelivery. Raises Transient when not connected."""
        await self._wire.send(delivery.token, b"+ACK")

    async def nak(self, delivery: Delivery, delay_seconds: float) -> None:
        """Send the nak; the server counts the delay, if any. Raises Transient when not connected."""
        delay = orjson.dumps({"delay": int(delay_seconds * 1e9)})
        await self._wire.send(delivery.token, b"-NAK " + delay if delay_seconds > 0 else b"-NAK")

    async def term(self, delivery: Delivery) -> None:
        """Send the end of the delivery without waiting for confirmation. Raises Transient when not connected."""
        await self._wire.send(delivery.token, b"+TERM")

    async def in_progress(self, delivery: Delivery) -> None:
        """Send the sign that starts the server's ack wait anew. Raises Transient when not connected."""
        await self._wire.send(delivery.token, b"+WPI")

    async def close(self) -> None:
        """Take no more, and give back what nobody has seen, so that another replica gets it at once."""
        if self._closed:
            return
        self._closed = True
        self._woken.set()
        self._unlisten()
        if self._sid is None:
            return
        await self._registered()
        await self._wire.unsubscribe(self._sid)
        try:
            while self._queue:
                await self.nak(self._queue.popleft(), 0)
        except Transient:
            self._queue.clear()  # they come again when their time is up

    async def _registered(self) -> None:
        """
        Wait until the server has taken in our last request; it takes them in order.

        If our subscription were gone by then, a server that reaches us across accounts would not notice, and feed the
        request, that is nobody, until it expires.
        """
        if self._wire.connected:
            await (await self._wire.ask(self._pull_subject, NOTHING, NOTHING_SECONDS))

    async def _renew_credit(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._credit and now - self._last_message_at > SILENCE_SECONDS:
            self._credit = 0
        held = self._credit + len(self._queue)
        if held > CREDIT // 2 or now < self._ask_after or not self._wire.connected:
            return
        if not self._credit:
            self._last_message_at = now
        batch = CREDIT - held
        self._credit += batch
        times = {"expires": int(PULL_SECONDS * 1e9), "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9)}
        request = orjson.dumps({"batch": batch, "max_bytes": CREDIT_BYTES, **times})
        try:
            await self._wire.send(self._pull_subject, request, self._inbox)
        except Transient:
            self._credit = 0  # the reconnect asks again

    def _on_message(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self._last_message_at = asyncio.get_running_loop().time()
        code = status(headers)
        if code == 0:
            self._credit = max(0, self._credit - 1)
            self._queue.append(_delivery(subject, reply, data, headers))
        elif code != HEARTBEAT:
            self._on_refusal(code, headers)
        else:
            return
        self._woken.set()

    def _on_refusal(self, code: int, headers: bytes) -> None:
        """A request ended (408; 409 if by its bytes), or will not be served: 409, or 503 without such a durable."""
        unserved = number(headers, b"Nats-Pending-Messages")
        if unserved is not None:
            self._credit = max(0, self._credit - unserved)
            return
        self._credit = 0
        self._ask_after = self._last_message_at + REFUSED_SECONDS
        self._refused = f"{code} {status_text(headers)}" if code != 503 else "no such durable, or JetStream is away"

    def _on_reconnect(self) -> None:
        self._credit = 0
        self._woken.set()

    async def _wait(self, deadline: float | None) -> None:
        self._woken.clear()
        now = asyncio.get_running_loop().time()
        until = self._ask_after if self._ask_after > now else now + HEARTBEAT_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until if deadline is None else min(until, deadline)):
                await self._woken.wait()


def _delivery(subject: bytes, reply: bytes, data: bytes, headers: bytes) -> Delivery:
    seq, deliveries, stored_ms = delivery_position(reply)
    message = Message(subject.decode(), seq, data, own_headers(headers), stored_ms)
    return Delivery(message, deliveries, reply.decode())

"""
The Bus port on a MemoryBroker, with a place where a simulator can break things.

Same meaning as over NATS, held by the same contract tests. A fault hook may lose, repeat or reorder what a *live*
delivery brings; a follower repairs that as the real one does, by reading the stream again.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Protocol, TypeVar

from tessera.kernel.errors import KernelError, UnknownOutcome
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.durable import Durable
from tessera.kernel.ports import Delivery, Message, Outgoing, Usage
from tessera.kernel.tasks.waiting import wait_for

POLL_SECONDS = 0.5
LINGER_SECONDS = 0.002
LINGER_BELOW = 64

Item = TypeVar("Item", Message, Delivery)


class BusFaults(Protocol):
    """
    Hooks by which a simulator disturbs one service's calls.

    Raising in `before`: nothing has happened (a publish refused with UnknownOutcome goes to the broker's limbo).
    Raising in `after`: it has happened and the caller does not know. Both may also just wait.
    """

    async def before(self, op: str, subject: str) -> None:
        """Hook ahead of the effect of operation `op`; an error raised here keeps the effect from happening."""

    async def after(self, op: str, subject: str) -> None:
        """Hook behind the effect of operation `op`; an error raised here hides the effect from the caller."""

    def deliver(self, batch: list[Item]) -> list[Item]:
        """Drop, repeat or reorder; what is dropped comes again (follow: 0.5 s later, work: after ack_wait)."""


class MemoryBus:
    def __init__(self, broker: MemoryBroker, identity: str = "", faults: BusFaults | None = None) -> None:
        self.broker, self.identity, self.faults = broker, identity, faults
        self.connected = True
        self.links = 1

    async def close(self) -> None:
        """Set `connected` to False and nothing else: calls still reach the broker, and listeners stay."""
        self.connected = False

    async def publish(self, out: Outgoing) -> int:
        """Store at once; an UnknownOutcome from the fault hook puts the message into the broker's limbo."""
        try:
            await self.before("publish", out.subject)
        except UnknownOutcome:
            self.broker.limbo.append(out)
            raise
        seq = self.broker.store(out)
        await self.after("publish", out.subject)
        return seq

    async def publish_all(self, batch: Sequence[Outgoing]) -> list[int]:
        """Publish one after the other, also after an error; raises the first error at the end."""
        seqs: list[int] = []
        errors: list[KernelError] = []
        for out in batch:
            try:
                seqs.append(await self.publish(out))
            except KernelError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return seqs

    def follow(self, stream: str, subject: str, after: int) -> "MemoryFollow":
        """Reader that finds again what the fault hook dropped on the live path."""
        return MemoryFollow(self, stream, subject, after)

    def work(self, stream: str, durable: str) -> "MemoryWork":
        """Worker on a durable that the broker was given; which one is looked up at each call."""
        return MemoryWork(self, stream, durable)

    async def get(self, stream: str, seq: int) -> Message | None:
        """Message as stored, with no replica that lags. Raises Transient for an unknown stream."""
        await self.before("get", stream)
        return self.broker.stream(stream).messages.get(seq)

    async def last(self, stream: str, subject: str) -> Message | None:
        """Newest message that fits, never stale. Raises Transient for an unknown stream."""
        await self.before("last", subject)
        return self.broker.stream(stream).last(subject)

    async def last_all(self, stream: str, subject: str) -> list[Message]:
        """Newest message per subject, in order of sequence. Raises Transient for an unknown stream."""
        await self.before("last_all", subject)
        return self.broker.stream(stream).last_all(subject)

    async def usage(self, stream: str) -> Usage:
        """Bytes of data alone: headers and a server's overhead are not counted."""
        await self.before("usage", stream)
        found = self.broker.stream(stream)
        first = min(found.messages, default=found.last_seq + 1)
        oldest = found.messages.get(first)
        first_ms = oldest.stored_ms if oldest else 0
        return Usage(found.bytes, found.config.bytes_max, first, first_ms, found.last_seq)

    async def send(self, subject: str, data: bytes) -> None:
        """Call the listeners before returning; a fault hook that raises keeps the message from them."""
        await self.before("send", subject)
        self.broker.send(subject, data)

    async def listen(self, subject: str, on_message: Callable[[str, bytes], None]) -> None:
        """Register with the broker, without a fault hook; the listener outlives `close`."""
        self.broker.listen(subject, on_message)

    async def before(self, op: str, subject: str) -> None:
        """Let others run once, then ask the fault hook; called ahead of the effect of an operation."""
        await asyncio.sleep(0)  # noqa: TID251  # no time passes, but as in a real call others run first
        if self.faults is not None:
            await self.faults.before(op, subject)

    async def after(self, op: str, subject: str) -> None:
        """Ask the fault hook once the effect is there; an error raised here leaves the caller unsure."""
        if self.faults is not None:
            await self.faults.after(op, subject)


class _Source:
    """Common part of followers and workers: wake-up by the stream, lingering, closing."""

    def __init__(self, bus: MemoryBus, stream: str) -> None:
        self._bus, self._stream = bus, stream
        self._clock = bus.broker.clock
        self._woken = asyncio.Event()
        self._unwatch: Callable[[], None] | None = None
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        self._woken.set()
        if self._unwatch is not None:
            self._unwatch()

    def _watch(self) -> None:
        if self._unwatch is None:
            self._unwatch = self._bus.broker.watch(self._stream, self._woken.set)

    async def _wait(self, until: float | None, deadline: float | None) -> bool:
        """Waits until woken or `until`; returns False once the deadline has passed."""
        self._woken.clear()
        if deadline is not None and self._clock.monotonic() >= deadline:
            return False
        ends = [at for at in (until, deadline) if at is not None]
        if ends:
            await wait_for(self._woken, self._clock, max(0.0, min(ends) - self._clock.monotonic()))
        else:
            await self._woken.wait()
        return True

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._clock.monotonic() + timeout


class MemoryFollow(_Source):
    def __init__(self, bus: MemoryBus, stream: str, subject: str, after: int) -> None:
        super().__init__(bus, stream)
        self._subject, self._cursor = subject, after
        self._reread_at: float | None = None  # something was lost on the live path

    async def next(self, limit: int = 256, timeout: float | None = None) -> list[Message]:
        """Messages behind the cursor; what the fault hook dropped is read again 0.5 s later. [] after close."""
        deadline = self._deadline(timeout)
        while not self._closed:
            await self._bus.before("follow", self._subject)
            self._watch()
            if 2 <= len(self._stored(LINGER_BELOW)) < LINGER_BELOW:
                await self._clock.sleep(LINGER_SECONDS)
            batch = self._arrived(limit)
            if batch:
                await self._bus.after("follow", self._subject)
                self._cursor = batch[-1].seq
                return batch
            if not await self._wait(self._reread_at, deadline):
                return []
        return []

    def _stored(self, limit: int) -> list[Message]:
        return list(islice(self._bus.broker.stream(self._stream).read(self._subject, self._cursor + 1), limit))

    def _arrived(self, limit: int) -> list[Message]:
        """Stored messages up to the first that the live path lost; that one is found by reading again."""
        batch, now = self._stored(limit), self._clock.monotonic()
        if self._bus.faults is None or not batch or (self._reread_at is not None and now >= self._reread_at):
            self._reread_at = None  # nothing is missing, or it is being read again
            return batch
        live = {message.seq for message in self._bus.faults.deliver(list(batch))}
        got = list(takewhile(lambda message: message.seq in live, batch))
        if len(got) < len(batch) and self._reread_at is None:
            self._reread_at = now + POLL_SECONDS
        return got


class MemoryWork(_Source):
    def __init__(self, bus: MemoryBus, stream: str, durable: str) -> None:
        super().__init__(bus, stream)
        self._durable_name = durable

    async def next(self, limit: int = 256, timeout: float | None = None) -> list[Delivery]:
        """Redeliveries that are due, then new messages; the fault hook may change the batch. [] after close."""
        deadline = self._deadline(timeout)
        while not self._closed:
            await self._bus.before("work", self._stream)
            self._watch()
            batch = self._take(limit)
            if 2 <= len(batch) < LINGER_BELOW:
                await self._clock.sleep(LINGER_SECONDS)
                batch += self._take(limit - len(batch))
            if batch and self._bus.faults is not None:
                batch = self._bus.faults.deliver(batch)
            if batch:
                return batch
            if not await self._wait(self._durable.next_due(), deadline):
                return []
        return []

    async def ack(self, delivery: Delivery) -> None:
        """Count the delivery as done, also a late one; a work-queue stream drops the message."""
        await self._bus.before("ack", delivery.message.subject)
        self._finish(delivery)
        await self._bus.after("ack", delivery.message.subject)

    async def nak(self, delivery: Delivery, delay_seconds: float) -> None:
        """Put the delivery off by `delay_seconds`; one that a newer delivery has overtaken changes nothing."""
        await self._bus.before("nak", delivery.message.subject)
        self._put_off(delivery, delay_seconds)
        self._bus.broker.stream(self._stream).wake()

    async def term(self, delivery: Delivery) -> None:
        """End the delivery just as `ack` does: a work-queue stream drops the message."""
        await self._bus.before("term", delivery.message.subject)
        self._finish(delivery)
        await self._bus.after("term", delivery.message.subject)

    async def in_progress(self, delivery: Delivery) -> None:
        """Start the ack wait anew; a delivery that a newer one has overtaken changes nothing."""
        await self._bus.before("in_progress", delivery.message.subject)
        self._put_off(delivery, self._durable.ack_wait_seconds)

    @property
    def _durable(self) -> Durable:
        return self._bus.broker.stream(self._stream).durables[self._durable_name]

    def _take(self, limit: int) -> list[Delivery]:
        stream, durable, now = self._bus.broker.stream(self._stream), self._durable, self._clock.monotonic()
        seqs = durable.redeliveries(now, limit)
        unseen = stream.read(">", durable.delivered_upto + 1)
        seqs += durable.first_deliveries(unseen, now, limit - len(seqs))
        return [Delivery(stream.messages[seq], durable.pending[seq].deliveries, seq) for seq in seqs]

    def _finish(self, delivery: Delivery) -> None:
        stream = self._bus.broker.stream(self._stream)
        self._durable.done(delivery.message.seq)
        if stream.config.work_queue:
            stream.remove(delivery.message.seq)
        stream.wake()  # there is room for another delivery

    def _put_off(self, delivery: Delivery, seconds: float) -> None:
        self._durable.again_at(delivery.message.seq, delivery.deliveries, self._clock.monotonic() + seconds)

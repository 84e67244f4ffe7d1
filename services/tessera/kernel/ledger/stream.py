"""
The Ledger port: one stream `LEDGER_<shard>` with the one subject `ledger.<shard>`, over any Bus.

The stream's sequence is the record number n. Chain, epochs and what a record means are the committer's business;
readers get a message's JSON, however it is stored.
"""

from dataclasses import replace

from tessera.kernel.errors import Conflict, InvariantViolation, RolledOver
from tessera.kernel.ports import Bus, Follow, Message, Outgoing
from tessera_schemas import subjects
from tessera_schemas.shard.ledger_form import plain_json, stored_form


def read_plain(message: Message) -> Message:
    """The message with its JSON in place of the bytes that are stored; damaged ones stay, for the decoder to refuse."""
    return replace(message, data=plain_json(message.data))


class StreamLedger:
    def __init__(self, bus: Bus, shard: str) -> None:
        self._bus = bus
        self._shard, self._snapshots = shard, subjects.stream("SNAP", shard)
        self._stream, self._subject = subjects.stream("LEDGER", shard), subjects.ledger(shard)
        self._link_read = bus.links

    async def append(self, data: bytes, expected_seq: int, known: int = 0) -> int:
        """
        Publish held to the subject's last sequence; InvariantViolation when the stream's had moved apart.

        A sequence says nothing of the message that has it: over a link on which the tail was not read to append behind
        it, nothing is sent.
        """
        if self._link_read != self._bus.links:
            raise Conflict(f"{self._subject}: connected again; the tail is to be read first")
        out = Outgoing(self._subject, stored_form(data, known), expected_last_subject_seq=expected_seq)
        seq = await self._bus.publish(out)
        if seq != expected_seq + 1:
            # The subject stood at expected_seq but the stream did not: something else wrote to it or took records out.
            raise InvariantViolation(f"{self._stream}: appended after {expected_seq}, but it became {seq}")
        return seq

    async def tail(self, *, to_append: bool = False) -> Message | None:
        """Newest record, asked of the stream's leader; a deposed leader may answer stale, so confirm by append."""
        link = self._bus.links
        tail = await self._bus.last(self._stream, self._subject)
        if to_append:
            self._link_read = link
        return None if tail is None else read_plain(tail)

    async def first(self) -> int:
        """Number of the stream's first record, as its leader has it."""
        return (await self._bus.usage(self._stream)).first_seq

    async def read(self, seq: int) -> Message | None:
        """Record `seq` from the stream, else as a roll-over kept it for live jobs; a replica that lags answers None."""
        stored = await self._bus.get(self._stream, seq)
        if stored is not None:
            return read_plain(stored)
        kept = await self._bus.last(self._snapshots, subjects.generation_kept(self._shard, seq))
        return None if kept is None else read_plain(Message(self._subject, seq, kept.data))

    def follow(self, after: int) -> "LedgerFollow":
        """Ordered reader of the ledger's literal subject."""
        return LedgerFollow(self, self._bus.follow(self._stream, self._subject, after), after)


class LedgerFollow:
    """
    A follow that tells a roll-over from a gap.

    What is missing before the stream's first record was rolled over; what is missing behind it is damage, and handed on
    for the fold to find.
    """

    def __init__(self, ledger: StreamLedger, source: Follow, after: int) -> None:
        self._ledger, self._source, self._cursor = ledger, source, after
        self._held: list[Message] = []  # read, and not yet known to follow what was handed on

    async def next(self, limit: int = 256, timeout: float | None = None) -> list[Message]:
        """Next records. Raises RolledOver when those that come next have left the stream."""
        messages = self._held or await self._source.next(limit, timeout)
        if messages and messages[0].seq != self._cursor + 1:
            self._held = messages
            if self._cursor + 1 < (first := await self._ledger.first()):
                raise RolledOver(f"the ledger begins with record {first} now, and {self._cursor + 1} was not read yet")
            self._held = []
        self._cursor = messages[-1].seq if messages else self._cursor
        return [read_plain(message) for message in messages]

    async def close(self) -> None:
        """Close the follow of the stream."""
        self._held = []
        await self._source.close()

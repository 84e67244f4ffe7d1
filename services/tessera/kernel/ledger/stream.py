"""
The Ledger port: one stream `LEDGER_<shard>` with the one subject `ledger.<shard>`, over any Bus.

The stream's sequence is the record number n. Chain, epochs and what a record means are the committer's business.
"""

from tessera.kernel.errors import InvariantViolation
from tessera.kernel.ports import Bus, Follow, Message, Outgoing
from tessera_schemas import subjects


class StreamLedger:
    def __init__(self, bus: Bus, shard: str) -> None:
        self._bus = bus
        self._stream, self._subject = subjects.stream("LEDGER", shard), subjects.ledger(shard)

    async def append(self, data: bytes, expected_seq: int) -> int:
        """Publish held to the subject's last sequence; InvariantViolation when the stream's had moved apart."""
        out = Outgoing(self._subject, data, expected_last_subject_seq=expected_seq)
        seq = await self._bus.publish(out)
        if seq != expected_seq + 1:
            # The subject stood at expected_seq but the stream did not: something else wrote to it or took records out.
            raise InvariantViolation(f"{self._stream}: appended after {expected_seq}, but it became {seq}")
        return seq

    async def tail(self) -> Message | None:
        """Newest record, asked of the stream's leader; a deposed leader may answer stale, so confirm by append."""
        return await self._bus.last(self._stream, self._subject)

    async def read(self, seq: int) -> Message | None:
        """Record number `seq` by its stream sequence; a replica that lags answers None."""
        return await self._bus.get(self._stream, seq)

    def follow(self, after: int) -> Follow:
        """Ordered reader of the ledger's literal subject."""
        return self._bus.follow(self._stream, self._subject, after)

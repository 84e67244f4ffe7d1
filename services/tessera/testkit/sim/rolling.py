"""An operator who rolls the ledger over while everything works and fails, and who may die between any two calls."""

from collections.abc import Iterator, Mapping
from random import Random

from tessera.client.ledger.reading import StoredLedger
from tessera.client.ledger.rolling import roll
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.errors import InvariantViolation, KernelError
from tessera.kernel.ledger.stream import StreamLedger, read_plain
from tessera.kernel.memory.broker import MemoryBroker, matches
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Clock, Message
from tessera.testkit.sim.coverage import Coverage
from tessera.testkit.sim.faults import ServiceFaults
from tessera_schemas.ledger import GENESIS
from tessera_schemas.shard.ledger_form import Head, chain_after
from tessera_schemas.subjects import stream

KEEP_MAX = 1


class Archive(Mapping[int, Message]):
    """The whole ledger by number: what the stream holds, and what the operator's backup has of what left it."""

    def __init__(self, broker: MemoryBroker, shard: str) -> None:
        self._stored = broker.stream(stream("LEDGER", shard)).messages
        self._kept: dict[int, Message] = {}
        self.head = Head(0, GENESIS)

    def extend(self) -> None:
        """Copies what the ledger has gained."""
        for n in range(self.head.n + 1, max(self._stored, default=0) + 1):
            message = self._kept[n] = read_plain(self._stored[n])
            self.head = Head(n, chain_after(message.data))

    def check_files(self, first: int, last: int) -> None:
        """Raises Failure unless it has messages `first` to `last`."""
        if any(n not in self._kept for n in range(first, last + 1)):
            raise Failure(Exit.CONFLICT, f"messages {first} to {last} are not kept")

    def __getitem__(self, n: int) -> Message:
        found = self._stored.get(n)
        return self._kept[n] if found is None else read_plain(found)

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept | self._stored)

    def __len__(self) -> int:
        return max(self._stored, default=len(self._kept))


class RollingOperator:
    """Rolls over every few seconds; a call that is lost ends the command, and the next one goes on where it was."""

    def __init__(self, broker: MemoryBroker, shard: str, clock: Clock, random: Random, faults: ServiceFaults) -> None:
        self._broker, self._shard, self._clock, self._random, self._faults = broker, shard, clock, random, faults
        self._bus = MemoryBus(broker, "operator", faults)
        self.archive = Archive(broker, shard)

    async def work(self, coverage: Coverage) -> None:
        """Rolls over again and again; counts each generation that lost messages."""
        while True:
            await self._clock.sleep(self._random.uniform(2.0, 8.0))
            try:
                self.archive.extend()
                done = await roll(self._stored(), self, self.archive, self._random.randrange(KEEP_MAX + 1))
            except (Failure, KernelError) as error:
                if isinstance(error, InvariantViolation):
                    raise
                continue
            if done.first > done.first_before:
                coverage.fault("roll-over")

    def _stored(self) -> StoredLedger:
        return StoredLedger(self._bus, StreamLedger(self._bus, self._shard), self._shard)

    async def purge_before(self, name: str, seq: int) -> None:
        """Take every message below sequence `seq` out of the stream."""
        await self._faults.before("purge", name)
        self._broker.stream(name).purge(seq)
        await self._faults.after("purge", name)

    async def purge_subject(self, name: str, subject: str) -> None:
        """Take every message on `subject` out of the stream."""
        await self._faults.before("purge", name)
        stored = self._broker.stream(name)
        for seq in [seq for seq, message in stored.messages.items() if message.subject == subject]:
            stored.remove(seq)

    async def subjects(self, name: str, pattern: str) -> list[str]:
        """Subjects of the stream that fit `pattern` and have messages."""
        await self._faults.before("read", name)
        found = {message.subject for message in self._broker.stream(name).messages.values()}
        return sorted(subject for subject in found if matches(pattern, subject))

"""The ledger as bytes: from the stream, up to where it ended when first asked, or from an exported file."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tessera.client.connect.connecting import open_bus
from tessera.client.connect.where import Where
from tessera.client.ledger.backup import Backup
from tessera.client.ledger.chain import ChainWalk
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.explain import gone_sentence
from tessera.client.views.story import StoryLine, story
from tessera.kernel.ledger.shard import Shard, decode_entry, restore
from tessera.kernel.ledger.snapshots import OPENING, Manifest, Snapshot, snapshots_of
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.ports import Bus, Follow, Ledger, Message
from tessera_schemas import subjects
from tessera_schemas.ledger import GENESIS
from tessera_schemas.shard.ledger_form import Head

SILENCE_SECONDS = 30.0
EXPORT, HEAD = b'{"export":', b'{"head":'
"""How the first and the last line of an export begin; no message does."""


@dataclass(slots=True)
class StoredLedger:
    """One shard's ledger. What is appended later is not looked at, so that two passes see the same."""

    bus: Bus
    ledger: Ledger
    shard: str
    head: int | None = None
    _first: int = 0
    _begin: Head = field(default_factory=lambda: Head(0, GENESIS))

    async def opening(self) -> Snapshot | None:
        """
        The state with which the ledger opens, as a roll-over left it; None where it has its first message.

        Raises Failure for a ledger that has lost its beginning.
        """
        self._first = self._first or await self.ledger.first()
        if self._first == 1:
            return None
        stored = snapshots_of(self.bus, self.ledger, self.shard, self._is_here, OPENING)
        found = [opening async for opening in stored]
        if not found:
            raise Failure(
                Exit.FAILED,
                f"ledger: begins with message {self._first}, and no generation opens there: it lost its beginning; "
                "restore a backup",
            )
        self._begin = Head(found[-1].state.n, found[-1].state.chain)
        return found[-1]

    def _is_here(self, manifest: Manifest) -> bool:
        return manifest.n + 1 >= self._first

    async def begin(self) -> Head:
        """Head that the first message continues: 0 until a roll-over."""
        if not self._first:
            await self.opening()
        return self._begin

    async def count(self) -> int:
        """Number of the last message that was there when first asked; 0 for an empty ledger."""
        if self.head is None:
            tail = await self.ledger.tail()
            self.head = 0 if tail is None else tail.seq
        return self.head

    async def messages(self, after: int = 0) -> AsyncIterator[tuple[int, bytes]]:
        """Sequence and bytes of every message after `after`, from the ledger's opening on."""
        head = await self.count()
        after = max(after, (await self.begin()).n)
        if after >= head:
            return
        async with aclosing(self._read_to(head, self.ledger.follow(after))) as stored:
            async for message in stored:
                yield message.seq, message.data

    async def _read_to(self, last: int, source: Follow) -> AsyncGenerator[Message]:
        """Stored messages of the source up to number `last`. Raises Failure when NATS is silent before."""
        try:
            while batch := await source.next(timeout=SILENCE_SECONDS):
                for message in batch:
                    yield message
                    if message.seq >= last:
                        return
        finally:
            await source.close()
        raise Failure(Exit.UNAVAILABLE, f"shard {self.shard}: NATS is silent for 30 s; see `tessera doctor`")

    async def opened_shard(self) -> Shard | None:
        """The fold before the first message, where a generation opens there."""
        opening = await self.opening()
        return None if opening is None else Shard(opening.state, opening.hasher)

    async def walk(self) -> ChainWalk:
        """A walk that stands before the first message."""
        return ChainWalk(await self.begin())

    async def events(self) -> AsyncIterator[Message]:
        """The public events that are stored when the first is asked for."""
        stream, every = subjects.stream("EVENTS", self.shard), f"events.{self.shard}.>"
        last = await self.bus.last(stream, every)
        if last is not None:
            async with aclosing(self._read_to(last.seq, self.bus.follow(stream, every, 0))) as stored:
                async for message in stored:
                    yield message

    async def folded(self) -> Shard:
        """The state at the head. Raises InvariantViolation when the ledger contradicts itself."""
        shard = await restore(self.bus, self.ledger, self.shard)
        await shard.catch_up(self.ledger)
        self.head = shard.state.n
        return shard

    async def gap_before(self, first_n: int) -> StoryLine | None:
        """Line in place of a story's records from `first_n` on that a roll-over took out of NATS; None for none."""
        begin = (await self.begin()).n
        opening = await self.opening() if begin >= first_n else None
        if opening is None:
            return None
        return StoryLine(begin, opening.state.ts, gone_sentence(first_n))

    async def story(self, job_id: str, first_n: int) -> list[StoryLine]:
        """The job's part of the messages from `first_n` on; messages that do not name the job are not decoded."""
        lines: list[StoryLine] = []
        wanted = job_id.encode()
        async for seq, data in self.messages(first_n - 1):
            if wanted in data:
                lines += story(decode_entry(Message("", seq, data)).message, job_id)
        return lines


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """
    Messages one per line, as `tessera ledger inspect --export` writes them.

    Before them stands a line that says what follows, after them the head that they lead to, so that a file that was cut
    tells by itself. Exports of 0.3 have neither.
    """

    path: Path

    async def opened_shard(self) -> Shard | None:
        """Returns None: an export holds no state, so only an export that begins with message 1 can be replayed."""
        return None

    async def count(self) -> int:
        """Messages in the file; the lines around them that describe the export do not count."""
        with self._open() as file:
            return sum(1 for line in file if not line.startswith((EXPORT, HEAD)))

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yields each message with its number in the file, from 1 on, in bytes without the line's end."""
        with self._open() as file:
            seq = 0
            for line in file:
                if not line.startswith((EXPORT, HEAD)):
                    seq += 1
                    yield seq, line.rstrip(b"\n")

    def ends(self) -> tuple[bool, bytes]:
        """Whether the first line says that a last one follows, and the last line when it is a head, else nothing."""
        first = last = b""
        with self._open() as file:
            for line in file:
                first, last = first or line, line
        return first.startswith(EXPORT), last.rstrip(b"\n") if last.startswith(HEAD) else b""

    def _open(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise Failure(
                Exit.NOT_FOUND, f"{self.path}: cannot be read ({error.strerror}); name another file"
            ) from error


@dataclass(frozen=True, slots=True)
class LedgerBackup:
    """Messages of a backup; reading them proves its files and its chain."""

    backup: Backup

    async def opened_shard(self) -> Shard | None:
        """The fold before its first message, where that opens a generation. Raises Failure for a damaged file."""
        return None if self.backup.opening is None else self.backup.opening.shard(self.backup.directory)

    async def count(self) -> int:
        """Number of the last message."""
        return self.backup.head.n

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        """Number and bytes of each message. Raises Failure where a file is not what was written."""
        for n, data in self.backup.messages():
            yield n, data


def ledger_in(path: Path) -> LedgerFile | LedgerBackup:
    """An exported ledger, or that of a backup's directory. Raises Failure."""
    return LedgerBackup(Backup.read(path)) if path.is_dir() else LedgerFile(path)


def ledger_of(bus: Bus, shard: str) -> StoredLedger:
    """Ledger of the shard as the stream has it."""
    return StoredLedger(bus, StreamLedger(bus, shard), shard)


@asynccontextmanager
async def stored_ledger(where: Where, identity: str | None = None) -> AsyncIterator[StoredLedger]:
    """The ledger, read as the operator unless another identity is named."""
    async with open_bus(where, where.identity(identity or subjects.OPERATOR)) as bus:
        yield ledger_of(bus, where.shard)

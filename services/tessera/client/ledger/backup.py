"""
A copy of one shard's ledger in a directory: compressed segments that follow one another, and a manifest.

Each segment holds the messages since the one before it; the manifest says for each which messages, the hash of the file
and the chain's hash after its last message. The manifest is written last and in one step, so that a copy that was
broken off leaves the directory as it was. A segment is a ledger export in form: a message a line.
"""

import gzip
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tessera.client.ledger.chain import ChainWalk
from tessera.client.ledger.opening_file import (
    OpeningFile,
    check_file,
    sha256_of,
    sync_to_disk,
    write_in_one_step,
    write_opening,
)
from tessera.client.outcomes import Exit, Failure
from tessera.domain.state import State
from tessera_schemas.ledger import GENESIS
from tessera_schemas.shard.ledger_form import Head

MANIFEST = "manifest.json"
LEVEL = 6  # of gzip: chained JSON shrinks to about an eighth, and a higher level saves little more


@dataclass(frozen=True, slots=True)
class Segment:
    """Messages `first` to `last` in `file`; `chain` is the hash after the last, `sha256` that of the file."""

    file: str
    first: int
    last: int
    chain: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Backup:
    """
    Backup of `shard` in `directory`, as its manifest has it; no segments before the first copy.

    `opening` is the state that it begins with, where the ledger was rolled over before its first copy.
    """

    directory: Path
    shard: str
    segments: tuple[Segment, ...] = ()
    opening: OpeningFile | None = None

    @classmethod
    def read(cls, directory: Path, shard: str = "") -> "Backup":
        """
        Raises Failure for a damaged manifest and for the backup of another shard; "" takes any.

        A directory without a manifest is a backup that is still to be made, if `shard` is named.
        """
        file = directory / MANIFEST
        try:
            raw = json.loads(file.read_text())
            segments, opening = tuple(Segment(**one) for one in raw["segments"]), raw.get("opening")
            found = cls(directory, str(raw["shard"]), segments, opening and OpeningFile(**opening))
        except FileNotFoundError as error:
            if shard and not any(directory.glob("*")):
                return cls(directory, shard)
            raise Failure(Exit.NOT_FOUND, f"{directory}: is no backup of a ledger, {MANIFEST} is missing") from error
        except NotADirectoryError as error:
            raise Failure(Exit.USAGE, f"{directory}: is no directory; name another") from error
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Failure(Exit.FAILED, f"{file}: is damaged ({error}); take another copy of the backup") from error
        if shard and found.shard != shard:
            raise Failure(
                Exit.USAGE, f"{directory}: holds the ledger of shard {found.shard}, not of {shard}; name another"
            )
        return found

    @property
    def head(self) -> Head:
        """The last message that it holds, and the chain's hash there; 0 for none."""
        return Head(self.segments[-1].last, self.segments[-1].chain) if self.segments else self.beginning

    @property
    def beginning(self) -> Head:
        """Head that its first message continues."""
        return Head(self.opening.n, self.opening.chain) if self.opening else Head(0, GENESIS)

    async def opened(self, state: State, kept: AsyncIterator[tuple[int, bytes]]) -> "Backup":
        """
        The backup of a ledger that begins behind `state`, whose live jobs came in by the messages `kept`.

        Raises Failure when it has messages already, and lacks those up to there.
        """
        if self.head.n >= state.n:
            return self
        if self.segments or self.opening:
            raise Failure(
                Exit.CONFLICT,
                f"{self.directory}: ends at {self.head.n}, and the ledger begins with message {state.n + 1}: what lies "
                "between was rolled over into another backup; go on with that one, or choose a new directory",
            )
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = Backup(self.directory, self.shard, (), await write_opening(self.directory, state, kept, LEVEL))
        made._write_manifest()
        return made

    def check_files(self, first: int, last: int) -> None:
        """Raises Failure unless it has messages `first` to `last` in files that are as they were written."""
        if last > self.head.n or first <= self.beginning.n:
            raise Failure(Exit.CONFLICT, f"{self.directory}: lacks messages {first} to {last}; take another copy")
        for segment in self.segments:
            if segment.last >= first and segment.first <= last:
                check_file(self.directory / segment.file, segment.sha256)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """
        Number and bytes of each message, once its whole file has been found to be as it was written.

        Raises Failure at the first file that is missing or was altered, or message that does not continue the chain.
        """
        walk = ChainWalk(self.beginning)
        for segment in self.segments:
            check_file(self.directory / segment.file, segment.sha256)
            with gzip.open(self.directory / segment.file, "rb") as lines:
                for line in lines:
                    data = line.rstrip(b"\n")
                    walk.step(walk.n + 1, data)
                    if walk.broken:
                        raise Failure(Exit.FAILED, f"{segment.file}: {walk.broken}")
                    yield walk.n, data
            if (walk.n, walk.chain) != (segment.last, segment.chain):
                raise Failure(Exit.FAILED, f"{segment.file}: does not end where {MANIFEST} says; take another copy")

    async def extended(
        self, messages: AsyncIterator[tuple[int, bytes]], advance: Callable[[], None] = lambda: None
    ) -> "Backup":
        """
        The backup with one more segment: `messages`, which begin with the last one that it holds, if it holds any.

        Raises Failure when they do not continue it: then the ledger is another one, or was altered.
        """
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        walk, new = ChainWalk(self.head), self.directory / "segment.new"
        try:
            with new.open("wb") as raw, gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as packed:
                async for seq, data in messages:
                    self._add(walk, seq, data, packed)
                    advance()
            if walk.n == self.head.n:
                return self
            sync_to_disk(new)
            file = f"{self.head.n + 1:012d}-{walk.n:012d}.jsonl.gz"
            segment = Segment(file, self.head.n + 1, walk.n, walk.chain, sha256_of(new))
            new.replace(self.directory / file)
        finally:
            new.unlink(missing_ok=True)
        made = Backup(self.directory, self.shard, (*self.segments, segment), self.opening)
        made._write_manifest()
        return made

    def _add(self, walk: ChainWalk, seq: int, data: bytes, packed: gzip.GzipFile) -> None:
        if seq == self.head.n and seq:
            again = ChainWalk(Head(seq - 1, str(json.loads(data)["prev"])))
            again.step(seq, data)
            if again.chain != self.head.chain:
                raise Failure(
                    Exit.CONFLICT,
                    f"message {seq} hashes to {again.chain[:16]}…, in this backup to {self.head.chain[:16]}…: the "
                    "ledger is another one, or was altered; `tessera replay --verify --anchor` tells. Else choose "
                    "a new directory",
                )
            return
        walk.step(seq, data)
        if walk.broken:
            raise Failure(Exit.FAILED, f"ledger: the chain holds up to {walk.n}; {walk.broken}")
        packed.write(data + b"\n")

    def _write_manifest(self) -> None:
        body: dict[str, object] = {"shard": self.shard}
        if self.opening is not None:
            body["opening"] = asdict(self.opening)
        body["segments"] = [asdict(segment) for segment in self.segments]
        write_in_one_step(self.directory / MANIFEST, json.dumps(body, indent=1) + "\n")

"""
The opening of a ledger as a file of its backup: the state before its first message, and the older messages that live
jobs came in by. A backup that has every message from the first one on needs none.
"""

import gzip
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tessera.client.outcomes import Exit, Failure
from tessera.domain.errors import Contradiction
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.kernel.ledger.shard import Shard


def sync_to_disk(path: Path) -> None:
    """Return once the file, or the names in the directory, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_in_one_step(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, whenever the machine stops."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    sync_to_disk(new)
    new.replace(path)
    sync_to_disk(path.parent)


def sha256_of(path: Path) -> str:
    """Hash of the file's bytes. Raises OSError when it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, sha256: str) -> None:
    """Raises Failure for a file that is missing, or is not what was written."""
    try:
        found = sha256_of(path)
    except OSError as error:
        raise Failure(Exit.FAILED, f"{path.name}: cannot be read ({error.strerror}); find a copy") from error
    if found != sha256:
        raise Failure(Exit.FAILED, f"{path.name}: is not what was written; find another copy of it")


STATE, KEPT = b"state ", b"kept "
"""Beginning of each line: a line of the snapshot, or the number and the bytes of a message."""


@dataclass(frozen=True, slots=True)
class OpeningFile:
    """Opening after message `n`, in `file`; `chain` is the hash there, `sha256` that of the file."""

    file: str
    n: int
    chain: str
    sha256: str

    def shard(self, directory: Path) -> Shard:
        """The state, which the checkpoint of the message behind it vouches for. Raises Failure when it is damaged."""
        check_file(directory / self.file, self.sha256)
        try:
            state = load(body for prefix, body in self._lines(directory) if prefix == STATE)
        except (Contradiction, ValidationError, ValueError, KeyError, TypeError) as error:
            raise Failure(Exit.FAILED, f"{self.file}: holds no state that this build reads ({error})") from error
        if (state.n, state.chain) != (self.n, self.chain):
            raise Failure(Exit.FAILED, f"{self.file}: holds the state after {state.n}, not after {self.n}")
        return Shard(state)

    async def kept(self, directory: Path) -> AsyncIterator[tuple[int, bytes]]:
        """Number and bytes of the older messages that live jobs need."""
        for prefix, body in self._lines(directory):
            if prefix == KEPT:
                n, _, data = body.partition(b" ")
                yield int(n), data

    def _lines(self, directory: Path) -> Iterator[tuple[bytes, bytes]]:
        with gzip.open(directory / self.file, "rb") as lines:
            for line in lines:
                prefix = STATE if line.startswith(STATE) else KEPT
                yield prefix, line.removeprefix(prefix).rstrip(b"\n")


async def write_opening(
    directory: Path, state: State, kept: AsyncIterator[tuple[int, bytes]], level: int
) -> OpeningFile:
    """Write the file in one step; the manifest, which makes it part of the backup, is the caller's."""
    new, file = directory / "opening.new", f"{state.n:012d}.opening.gz"
    with new.open("wb") as raw, gzip.GzipFile("", "wb", level, raw, mtime=0) as packed:
        for line in dump(state):
            packed.write(STATE + line + b"\n")
        async for n, data in kept:
            packed.write(KEPT + b"%d " % n + data + b"\n")
    sync_to_disk(new)
    made = OpeningFile(file, state.n, state.chain, sha256_of(new))
    new.replace(directory / file)
    return made

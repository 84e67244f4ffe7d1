"""
Snapshots of the fold on the SNAP stream: chunks first, the manifest last, so that a half-written one is never seen.

A restored state is used only if it hashes to the checkpoint record that follows it in the ledger. One that cannot be
used is passed over for the one before it, whatever its manifest says: whoever may write one may write a false one.

The state with which a generation of the ledger opens is a snapshot, too, on subjects of its own, so that newer
snapshots never take its place (`generations`).
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from tessera.domain.errors import Contradiction
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.kernel.errors import InvariantViolation
from tessera.kernel.ports import Bus, Ledger, Message, Outgoing
from tessera_schemas import subjects
from tessera_schemas.base import Count, Digest, Strict
from tessera_schemas.ledger import LEDGER_MESSAGE, Checkpoint

CHUNK_BYTES = 256 * 1024
COMPRESSED_FROM = 2
"""The format of a ledger from which on its snapshots are compressed: whoever knows it reads both, 0.3 neither."""
ZLIB_HEADER = b"\x78"
READ_AT_ONCE = 32


class Manifest(Strict):
    """Stream sequences that hold the chunks of the snapshot of state `n`."""

    v: Literal[1]
    n: Count
    state_hash: Digest
    chunks: tuple[Count, ...]
    last_event: Annotated[
        str, Field(pattern=r"^(\d+\.\d+)?$", description="Cursor of the newest public event up to n; empty: none")
    ] = ""
    before: Annotated[Count, Field(description="Stream sequence of the manifest before this one; 0: none")] = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A restored state that the ledger vouches for."""

    manifest: Manifest
    state: State
    hasher: StateHash


async def write_snapshot(bus: Bus, shard: str, state: State, state_hash: str) -> None:
    """Store `state`, whose hash is `state_hash`; readers see it once the manifest is there."""
    await store_snapshot(bus, shard, list(chunks_of(state)), state.n, state_hash)


@dataclass(frozen=True, slots=True)
class SnapshotSubjects:
    """Subjects of one series of snapshots, each of which has a manifest and chunks from 0 on."""

    manifest: Callable[[str], str]
    chunk: Callable[[str, int], str]


NEWEST = SnapshotSubjects(subjects.snapshot_manifest, subjects.snapshot_chunk)
OPENING = SnapshotSubjects(subjects.generation_manifest, subjects.generation_chunk)
"""States with which generations open."""


async def store_snapshot(
    bus: Bus,
    shard: str,
    chunks: Sequence[bytes],
    n: int,
    state_hash: str,
    last_event: str = "",
    series: SnapshotSubjects = NEWEST,
) -> None:
    """Store the chunks of the state after `n`, then the manifest."""
    subject = series.manifest(shard)
    seqs = await bus.publish_all([Outgoing(series.chunk(shard, index), chunk) for index, chunk in enumerate(chunks)])
    last = await bus.last(subjects.stream("SNAP", shard), subject)
    manifest = Manifest(
        v=1, n=n, state_hash=state_hash, chunks=tuple(seqs), last_event=last_event, before=last.seq if last else 0
    )
    await bus.publish(Outgoing(subject, manifest.to_bytes()))


async def read_snapshot(bus: Bus, ledger: Ledger, shard: str) -> tuple[State, StateHash] | None:
    """
    The newest snapshot that the ledger vouches for; None when there is none, then the whole ledger is folded.

    Raises InvariantViolation when there is none, and the ledger is not whole: it was rolled over.
    """
    found = await find_snapshot(bus, ledger, shard, lambda manifest: True)
    if found is None and (first := await ledger.first()) > 1:
        raise InvariantViolation(
            f"the ledger begins with record {first}, and no state before it can be read: SNAP lost it, or it was "
            "written by a newer build; restore a backup, which has every record"
        )
    return None if found is None else (found.state, found.hasher)


async def find_snapshot(bus: Bus, ledger: Ledger, shard: str, wanted: Callable[[Manifest], bool]) -> Snapshot | None:
    """The newest snapshot that is `wanted` and that the ledger vouches for, else such an opening of a generation."""
    for series in (NEWEST, OPENING):
        found = await anext(snapshots_of(bus, ledger, shard, wanted, series), None)
        if found is not None:
            return found
    return None


async def snapshots_of(
    bus: Bus, ledger: Ledger, shard: str, wanted: Callable[[Manifest], bool], series: SnapshotSubjects
) -> AsyncIterator[Snapshot]:
    """Snapshots of one series that are `wanted` and that the ledger vouches for, newest first."""
    stream = subjects.stream("SNAP", shard)
    for message in reversed(await _manifests(bus, stream, series.manifest(shard))):
        manifest = _manifest(message)  # none of a newer build's
        found = await _restored(bus, ledger, stream, manifest) if manifest is not None and wanted(manifest) else None
        if found is not None:
            yield found


async def _manifests(bus: Bus, stream: str, subject: str) -> list[Message]:
    """All that the stream keeps, oldest first."""
    last, found = await bus.last(stream, subject), list[Message]()
    source = bus.follow(stream, subject, 0)
    try:
        while last is not None and (not found or found[-1].seq < last.seq):
            found += await source.next()
    finally:
        await source.close()
    return found


async def newest_snapshot_n(bus: Bus, shard: str, series: SnapshotSubjects = NEWEST) -> int:
    """Up to which record the newest snapshot goes, whether or not it can be used; 0 when there is none."""
    message = await bus.last(subjects.stream("SNAP", shard), series.manifest(shard))
    manifest = None if message is None else _manifest(message)
    return 0 if manifest is None else manifest.n


def _manifest(message: Message) -> Manifest | None:
    try:
        return Manifest.model_validate_json(message.data)
    except ValidationError:
        return None


async def _restored(bus: Bus, ledger: Ledger, stream: str, manifest: Manifest) -> Snapshot | None:
    found = await _loaded(bus, stream, manifest)
    if found is None or found.hasher.of(found.state) != await _checkpoint_after(ledger, manifest.n):
        return None
    return found


async def _loaded(bus: Bus, stream: str, manifest: Manifest) -> Snapshot | None:
    parts: list[Message | None] = []
    for first in range(0, len(manifest.chunks), READ_AT_ONCE):
        seqs = manifest.chunks[first : first + READ_AT_ONCE]
        parts += await asyncio.gather(*(bus.get(stream, seq) for seq in seqs))
    if any(part is None for part in parts):
        return None
    hasher = StateHash()
    try:
        state = load(lines_of(part.data for part in parts if part is not None), hasher)
    except (ValidationError, Contradiction, ValueError, KeyError, TypeError, zlib.error):
        return None
    return Snapshot(manifest, state, hasher) if state.n == manifest.n else None


async def _checkpoint_after(ledger: Ledger, n: int) -> str:
    message = await ledger.read(n + 1)
    if message is None:
        return ""
    try:
        records = LEDGER_MESSAGE.validate_json(message.data).records
    except ValidationError:
        return ""  # it vouches for nothing; the fold meets it in its turn, and halts
    return next((record.state_hash for record in records if isinstance(record, Checkpoint)), "")


def chunks_of(state: State) -> Iterator[bytes]:
    """The snapshot of `state` in pieces of some 256 KiB of lines; the state must rest until the last one."""
    pack = _compressed if state.format >= COMPRESSED_FROM else bytes
    held: list[bytes] = []
    size = 0
    for line in dump(state):
        held.append(line)
        size += len(line) + 1
        if size >= CHUNK_BYTES:
            yield pack(b"\n".join(held))
            held, size = [], 0
    if held:
        yield pack(b"\n".join(held))


def _compressed(lines: bytes) -> bytes:
    """Rows are much alike: the fastest level leaves a tenth to a thirtieth of them, in 1.5 ms per MB."""
    return zlib.compress(lines, level=1)


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines of a snapshot from its pieces, compressed or not."""
    for chunk in chunks:
        plain = chunk[:1] != ZLIB_HEADER  # every line begins with a brace or a name
        yield from (chunk if plain else zlib.decompress(chunk)).split(b"\n")

"""
Ground that quotes of starts rest on, as projection stores it on SNAP: pieces of one JSON value, then their manifest.

It is no part of the state and follows from no message alone: scores are of quotes that were given. Whoever finds none,
or none that can be read, begins a record of its own.
"""

import asyncio
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from tessera.kernel.ledger.accounts import UNREADABLE
from tessera.kernel.ports import Bus, Outgoing
from tessera_schemas import subjects

CHUNK_BYTES = 256 * 1024
BYTES_MAX = 256 * 1024 * 1024
READ_AT_ONCE = 32

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredQuotes:
    """
    A record after the ledger's message `n`, whose chain hash is `chain`; `seq` is the number of its manifest.

    One of `n` 0 has nothing: it cannot be read.
    """

    n: int
    chain: str
    seq: int
    record: Mapping[str, Any]


async def store_quotes(bus: Bus, shard: str, n: int, chain: str, packed: bytes, after: int) -> int:
    """
    Store the pieces, then the manifest behind the manifest `after`; returns its number.

    Raises Transient; Conflict where another instance has stored one meanwhile.
    """
    pieces = [packed[at : at + CHUNK_BYTES] for at in range(0, len(packed), CHUNK_BYTES)]
    sent = [Outgoing(subjects.quotes_chunk(shard, index), piece) for index, piece in enumerate(pieces)]
    seqs = await bus.publish_all(sent)
    manifest = json.dumps({"n": n, "chain": chain, "chunks": seqs}).encode()
    return await bus.publish(Outgoing(subjects.quotes_manifest(shard), manifest, expected_last_subject_seq=after))


async def newest_quotes(bus: Bus, shard: str) -> int:
    """Number of the newest manifest; 0 where there is none. Raises Transient."""
    found = await bus.last(subjects.stream("SNAP", shard), subjects.quotes_manifest(shard))
    return 0 if found is None else found.seq


async def read_quotes(bus: Bus, shard: str) -> StoredQuotes | None:
    """The newest record; None where none is stored. Raises Transient."""
    stream = subjects.stream("SNAP", shard)
    found = await bus.last(stream, subjects.quotes_manifest(shard))
    if found is None:
        return None
    try:
        manifest = json.loads(found.data)
        pieces = list[bytes]()
        for first in range(0, len(manifest["chunks"]), READ_AT_ONCE):
            some = manifest["chunks"][first : first + READ_AT_ONCE]
            messages = await asyncio.gather(*(bus.get(stream, int(seq)) for seq in some))
            pieces += [message.data for message in messages if message is not None]
        return StoredQuotes(int(manifest["n"]), str(manifest["chain"]), found.seq, _unpacked(pieces))
    except UNREADABLE as error:
        log.warning("quotes_not_read", error=str(error))
        return StoredQuotes(0, "", found.seq, {})


def _unpacked(pieces: Sequence[bytes]) -> dict[str, Any]:
    # A stream that others can write to must not fill our memory.
    found = json.loads(zlib.decompressobj().decompress(b"".join(pieces), BYTES_MAX))
    if not isinstance(found, dict):
        raise TypeError("not a mapping")
    return found

"""A backup grows by what the ledger gained, and is refused when it, or the ledger, is not what it was."""

import gzip
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tessera.client.ledger.backup import MANIFEST, Backup
from tessera.client.outcomes import Failure
from tests.builders import SHARD
from tests.ledgers import Committed, rechain


@pytest.fixture(scope="module")
def stored() -> list[bytes]:
    made = Committed().begin()
    for key in ("k1", "k2"):
        made.run_to_its_end(key)
    return made.stored


async def copy(directory: Path, stored: Sequence[bytes]) -> Backup:
    """What the command does with a ledger of these messages."""
    before = Backup.read(directory, SHARD)

    async def messages() -> AsyncIterator[tuple[int, bytes]]:
        for n, data in enumerate(stored, start=1):
            if n >= before.head.n:
                yield n, data

    return await before.extended(messages())


async def test_a_backup_in_pieces_gives_back_every_byte_and_its_head(tmp_path: Path, stored: list[bytes]) -> None:
    for end in (3, 4, len(stored)):
        made = await copy(tmp_path, stored[:end])
        assert (made.head.n, [data for _, data in made.messages()]) == (end, stored[:end])
    assert Backup.read(tmp_path) == made
    assert [(one.first, one.last) for one in made.segments] == [(1, 3), (4, 4), (5, len(stored))]


async def test_a_copy_of_nothing_new_changes_nothing(tmp_path: Path, stored: list[bytes]) -> None:
    made = await copy(tmp_path, stored)
    before = sorted((file.name, file.read_bytes()) for file in tmp_path.iterdir())
    assert await copy(tmp_path, stored) == made
    assert sorted((file.name, file.read_bytes()) for file in tmp_path.iterdir()) == before


async def test_a_ledger_that_was_written_again_is_not_added_to_the_backup(tmp_path: Path, stored: list[bytes]) -> None:
    await copy(tmp_path, stored[:5])
    forged = rechain(stored, 1, lambda message: message.update(tx="another-transaction"))
    with pytest.raises(Failure, match="the ledger is another one, or was altered"):
        await copy(tmp_path, forged)
    assert Backup.read(tmp_path).head.n == 5
    assert {file.name for file in tmp_path.iterdir()} == {MANIFEST, "000000000001-000000000005.jsonl.gz"}


async def test_a_copy_that_breaks_off_leaves_the_backup_as_it_was(tmp_path: Path, stored: list[bytes]) -> None:
    before = await copy(tmp_path, stored[:5])

    async def breaks_off() -> AsyncIterator[tuple[int, bytes]]:
        yield 5, stored[4]
        yield 6, stored[5]
        raise ConnectionError("NATS went away")

    with pytest.raises(ConnectionError):
        await before.extended(breaks_off())
    assert Backup.read(tmp_path) == before
    assert [n for n, _ in before.messages()][-1] == 5


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def forge(file: Path) -> None:
    """Another ledger's messages, with the file's new hash in the manifest: only the chain can tell."""
    lines = gzip.decompress(file.read_bytes()).splitlines()
    lines[1] = lines[1].replace(b'"ts":', b'"ts":1', 1)
    file.write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    manifest = json.loads((file.parent / MANIFEST).read_text())
    import hashlib

    manifest["segments"][0]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (file.parent / MANIFEST).write_text(json.dumps(manifest))


DAMAGES = {"a byte is flipped": flip, "a message was forged": forge, "a file is missing": Path.unlink}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_is_found_before_its_segment_is_used(tmp_path: Path, stored: list[bytes], damage: str) -> None:
    await copy(tmp_path, stored[:5])
    await copy(tmp_path, stored)
    DAMAGES[damage](tmp_path / "000000000001-000000000005.jsonl.gz")
    with pytest.raises(Failure, match="000000000001-000000000005"):
        list(Backup.read(tmp_path).messages())


async def test_what_is_no_backup_or_another_shards_is_refused(tmp_path: Path, stored: list[bytes]) -> None:
    await copy(tmp_path / "kept", stored)
    with pytest.raises(Failure, match="holds the ledger of shard main, not of other"):
        Backup.read(tmp_path / "kept", "other")
    shutil.copy(tmp_path / "kept" / f"000000000001-{len(stored):012d}.jsonl.gz", tmp_path)
    with pytest.raises(Failure, match="is no backup of a ledger"):
        Backup.read(tmp_path, SHARD)
    (tmp_path / MANIFEST).write_text('{"shard": "main"')
    with pytest.raises(Failure, match="is damaged"):
        Backup.read(tmp_path)

"""
A ledger that is whole again, out of what a damaged stream and a backup have: found first, written only when asked.

The stream itself is never touched. A repair is a backup that `restore` puts into empty servers, with the messages that
had to be left out beside it, and a record of why.
"""

import gzip
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import copytree

from tessera.client.ledger.backup import LEVEL, Backup
from tessera.client.ledger.chain import ChainWalk
from tessera.client.ledger.opening_file import sha256_of, sync_to_disk, write_in_one_step
from tessera.client.ledger.reading import StoredLedger
from tessera.client.ledger.witnesses import Known
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.ledger.generations import kept_messages
from tessera_schemas.shard.ledger_form import Head

RECORD, ASIDE = "repair.json", "evidence.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Repair:
    """
    Findings about a damaged ledger: `damage` in words ("" for none), its head as stored up to there, and the best whole
    ledger's. `aside` stored messages stand behind the break; they are kept as evidence.
    """

    shard: str
    damage: str
    stored_head: str
    backup_head: str
    head: str
    aside: int

    def lines(self) -> list[str]:
        """Sentences for people."""
        if not self.damage:
            return [f"the ledger is whole up to {self.stored_head}: there is nothing to repair"]
        return [
            f"damage          {self.damage}",
            f"stored, whole   up to {self.stored_head}",
            f"backup, whole   up to {self.backup_head}",
            f"after a repair  up to {self.head}; {self.aside} stored messages from the break on become evidence",
        ]


async def examine(ledger: StoredLedger, backup: Backup | None, known: Known) -> Repair:
    """
    Walk the stored ledger to its first break, beside the backup, whose messages win where the two differ.

    A ledger that ends before what is derived from it knows lost its end; one that reads otherwise there is a fork.
    """
    walk, aside, damage = await ledger.walk(), 0, ""
    beyond = ChainWalk(backup.head) if backup else await ledger.walk()  # the stored messages that continue the backup
    copies = backup.messages() if backup else iter(())
    copy = next(copies, None)
    async for seq, data in ledger.messages():
        while copy is not None and copy[0] < seq:
            copy = next(copies, None)
        if not damage and copy is not None and copy[0] == seq and copy[1] != data:
            damage = f"fork: message {seq} is another one than in the backup"
        if not damage:
            walk.step(seq, data)
            damage = walk.broken
        if backup and seq > backup.head.n:
            beyond.step(seq, data)
        aside += bool(damage)
    deque(copies, maxlen=0)  # reading the rest proves it
    if backup and backup.head.n > known.n:
        known = replace(known, name="the backup", n=backup.head.n)
    damage = damage or await known.contradiction(ledger)
    best = max((walk, beyond), key=lambda found: found.n)
    return Repair(
        ledger.shard,
        damage,
        str(Head(walk.n, walk.chain)),
        str(backup.head) if backup else "-",
        str(Head(best.n, best.chain)),
        aside,
    )


async def write_repair(ledger: StoredLedger, backup: Backup | None, found: Repair, directory: Path) -> Backup:
    """
    Write a backup of the whole ledger, what is left out of the stored one, and the repair's record, which comes last.

    Raises Failure for a directory that holds something.
    """
    _check_empty(directory)
    made = Backup(directory, ledger.shard)
    if backup is not None:
        copytree(backup.directory, directory, dirs_exist_ok=True)
        made = Backup.read(directory, ledger.shard)
    opening = await ledger.opening()
    if opening is not None:
        made = await made.opened(opening.state, kept_messages(ledger.ledger, opening.state))
    made = await made.extended(_between(ledger, made.head.n, _number(found.head)))
    evidence = directory / ASIDE
    with gzip.open(evidence, "wb", LEVEL) as packed:
        async for seq, data in ledger.messages(_number(found.stored_head)):
            packed.write(b"%d " % seq + data + b"\n")
    sync_to_disk(evidence)
    record = {**asdict(found), "evidence": {"file": ASIDE, "sha256": sha256_of(evidence)}}
    write_in_one_step(directory / RECORD, json.dumps(record, indent=1) + "\n")
    return made


async def _between(ledger: StoredLedger, after: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
    async for seq, data in ledger.messages(after):
        if seq > last:
            return
        yield seq, data


def _check_empty(directory: Path) -> None:
    if any(directory.glob("*")):
        raise Failure(Exit.USAGE, f"{directory}: is not empty; a repair is written into a new directory")


def _number(head: str) -> int:
    return int(head.partition(":")[0])

"""
The account of a shard's GPUs as projection stores it on SNAP: periods that are over each in a slot, and what is open.

The newest five minutes come last, and name the messages that have the hour and the day before them, so that what is
read fits together wherever storing broke off. All of it follows from the ledger: whoever stores a period of the same
ledger again stores the same bytes.
"""

import asyncio
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.kernel.ports import Bus, Message, Outgoing
from tessera_schemas import subjects

READ_AT_ONCE = 32
UNREADABLE = (KeyError, TypeError, ValueError, zlib.error)
"""Errors about a message that was not written here, or by a newer build."""
StoredPeriod = Mapping[str, Any]
"""A period as JSON holds it."""


@dataclass(frozen=True, slots=True)
class OpenAccount:
    """
    Account after message `n`, whose chain hash is `chain`, of all time from `since_ts` on until `upto_ts`.

    `newest` are the five minutes that are not over, None while there are none; `sums` is where what is not over of
    longer periods is stored, by their lengths' names. `seq` is the number of the message. One of `n` 0 has nothing: it
    cannot be read.
    """

    n: int
    chain: str
    since_ts: int
    upto_ts: int
    newest: StoredPeriod | None
    sums: dict[str, int] = field(default_factory=dict)
    seq: int = 0


def packed(stored: Mapping[str, Any]) -> bytes:
    """Rows are much alike: the fastest level leaves a tenth of them."""
    return zlib.compress(json.dumps(stored, separators=(",", ":")).encode(), level=1)


def unpacked(data: bytes) -> dict[str, Any]:
    """Raises what `UNREADABLE` has."""
    found = json.loads(zlib.decompress(data))
    if not isinstance(found, dict):
        raise TypeError("not a mapping")
    return found


def period_message(shard: str, length: str, slot: int, period: StoredPeriod) -> Outgoing:
    """Message of a period that is over."""
    return Outgoing(subjects.account_period(shard, length, slot), packed(period))


def sum_message(shard: str, length: str, period: StoredPeriod) -> Outgoing:
    """Message of a longer period that is not over."""
    return Outgoing(subjects.account_open(shard, length), packed(period))


def now_message(shard: str, account: OpenAccount) -> Outgoing:
    """Message of all that is not over, to be stored behind the message `seq` on its subject."""
    stored = {
        "n": account.n,
        "chain": account.chain,
        "since": account.since_ts,
        "upto": account.upto_ts,
        "sums": account.sums,
        "newest": account.newest,
    }
    return Outgoing(subjects.account_now(shard), packed(stored), expected_last_subject_seq=account.seq)


async def read_open(bus: Bus, shard: str) -> OpenAccount | None:
    """Account as far as it is not over; None where nothing is stored. Raises Transient."""
    message = await bus.last(subjects.stream("SNAP", shard), subjects.account_now(shard))
    if message is None:
        return None
    try:
        stored = unpacked(message.data)
        sums = {str(name): int(seq) for name, seq in stored["sums"].items()}
        times = int(stored["since"]), int(stored["upto"])
        return OpenAccount(int(stored["n"]), str(stored["chain"]), *times, stored["newest"], sums, message.seq)
    except UNREADABLE:
        return OpenAccount(0, "", 0, 0, None, {}, message.seq)


async def read_sums(bus: Bus, shard: str, account: OpenAccount) -> dict[str, StoredPeriod]:
    """Longer periods that are not over; those that cannot be read are left out. Raises Transient."""
    found = {name: _read(await bus.get(subjects.stream("SNAP", shard), seq)) for name, seq in account.sums.items()}
    return {name: period for name, period in found.items() if period is not None}


async def read_over(bus: Bus, shard: str, wanted: Sequence[tuple[str, int]]) -> list[StoredPeriod | None]:
    """Periods in slots of these lengths; None for each that is empty. Raises Transient."""
    stream, found = subjects.stream("SNAP", shard), list[StoredPeriod | None]()
    for first in range(0, len(wanted), READ_AT_ONCE):
        some = [subjects.account_period(shard, *slot) for slot in wanted[first : first + READ_AT_ONCE]]
        found += map(_read, await asyncio.gather(*(bus.last(stream, subject) for subject in some)))
    return found


def _read(message: Message | None) -> StoredPeriod | None:
    try:
        return None if message is None else unpacked(message.data)
    except UNREADABLE:
        return None

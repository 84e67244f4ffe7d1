"""
A roll-over, as an operator or a timer asks for it: export, open a generation, drop what is older than those that stay.

Nothing leaves the ledger that is not in the backup, in files that were read again, and nothing that a service may still
have to derive public events from.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from tessera.client.connect.where import Where
from tessera.client.ledger.reading import StoredLedger
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.ledger.generations import StoredShard, StreamAdmin
from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ledger.snapshots import NEWEST, Manifest, Snapshot, snapshots_of
from tessera.kernel.nats.once import connect_once
from tessera.kernel.ports import Message
from tessera.projection.events import START, Cursor
from tessera.projection.evidence import end_of_events, first_due
from tessera_schemas import subjects
from tessera_schemas.shard.ledger_form import Head

GIB, DAY_MS = 1024**3, 86_400_000


class NatsStreamAdmin:
    """StreamAdmin over a connection of the administrator's."""

    def __init__(self, client: Client) -> None:
        self._jetstream = client.jsm()

    async def purge_before(self, stream: str, seq: int) -> None:
        """One request; the server ends it even when we are gone."""
        await self._jetstream.purge_stream(stream, seq=seq)

    async def purge_subject(self, stream: str, subject: str) -> None:
        """One request."""
        await self._jetstream.purge_stream(stream, subject=subject)

    async def delete(self, stream: str, seq: int) -> None:
        """One request: the message is gone, its number stays empty."""
        await self._jetstream.delete_msg(stream, seq)

    async def subjects(self, stream: str, pattern: str) -> list[str]:
        """One request, which gives 100,000 at most."""
        info = await self._jetstream.stream_info(stream, subjects_filter=pattern)
        return sorted(info.state.subjects or ())


@asynccontextmanager
async def administrator_of(where: Where, way_out: str) -> AsyncIterator[NatsStreamAdmin]:
    """A connection as administrator for a while; Failure with the `way_out` for what NATS refuses meanwhile."""
    login = where.identity(subjects.ADMINISTRATOR).nats
    client = await connect_once(where.nats_url, login.user, login.password)
    try:
        yield NatsStreamAdmin(client)
    except (APIError, NatsError) as error:
        raise Failure(Exit.FAILED, f"ledger: NATS refuses it ({error}); {way_out}") from error
    finally:
        await client.close()


@dataclass(frozen=True, slots=True)
class RollPolicy:
    """
    Bounds beyond which a ledger is rolled over: its bytes, and the age of its first message; without bounds, any is.

    `keep` whole generations stay in the stream, besides the one that begins.
    """

    keep: int = 1
    bytes_max: int | None = None
    age_ms_max: int | None = None

    def is_due(self, size_bytes: int, age_ms: int) -> bool:
        """Whether a ledger of this size, whose first message is of this age, is rolled over."""
        bounds = [(self.bytes_max, size_bytes), (self.age_ms_max, age_ms)]
        asked = [(bound, found) for bound, found in bounds if bound is not None]
        return not asked or any(found > bound for bound, found in asked)


@dataclass(frozen=True, slots=True)
class RolledLedger:
    """Outcome of a roll-over: the message before the newest generation, the stream's first one before and after."""

    opened_n: int
    first_before: int
    first: int


class KeptElsewhere(Protocol):
    """A copy of the ledger, as a backup is one."""

    @property
    def head(self) -> Head:
        """The last message that it holds."""

    def check_files(self, first: int, last: int) -> None:
        """Raises Failure unless it holds messages `first` to `last` as they were."""


async def is_due(ledger: StoredLedger, policy: RollPolicy) -> bool:
    """Whether the policy rolls this ledger over now."""
    usage = await ledger.bus.usage(subjects.stream("LEDGER", ledger.shard))
    tail, first = await ledger.ledger.tail(), await ledger.ledger.read(usage.first_seq)
    age_ms = 0 if tail is None or first is None else _ts(tail) - _ts(first)
    return policy.is_due(usage.bytes, age_ms)


async def roll(ledger: StoredLedger, admin: StreamAdmin, backup: KeptElsewhere, keep: int) -> RolledLedger:
    """
    Open a generation at the newest snapshot that is in `backup`, and drop what is older than the `keep` before it.

    Done again after it was broken off, it goes on. Raises Failure when there is no such snapshot, and when a file of
    the backup is not what was written: then nothing is dropped.
    """
    first = await ledger.ledger.first()
    stored = StoredShard(ledger.bus, ledger.ledger, ledger.shard, admin)
    opening = await _newest_exported(ledger, backup)
    await stored.open_generation(opening)
    stay = (await stored.openings())[: keep + 1]
    if len(stay) > keep and first <= stay[-1].state.n:
        backup.check_files(first, stay[-1].state.n)
        await stored.drop_before(stay)
    return RolledLedger(opening.state.n, first, await ledger.ledger.first())


async def _newest_exported(ledger: StoredLedger, backup: KeptElsewhere) -> Snapshot:
    published = await _published(ledger)

    def serves(manifest: Manifest) -> bool:
        return manifest.n <= backup.head.n

    async for found in snapshots_of(ledger.bus, ledger.ledger, ledger.shard, serves, NEWEST):
        if published is None or await first_due(ledger.ledger, published, found.state.n) is None:
            return found
    raise Failure(
        Exit.UNAVAILABLE,
        "ledger: there is no snapshot yet that a checkpoint vouches for and whose events are published; see that "
        "projection runs, and try again in a minute",
    )


async def _published(ledger: StoredLedger) -> Cursor | None:
    """The newest event that was published; None where all have grown too old, as have those that were not."""
    stream = subjects.stream("EVENTS", ledger.shard)
    last = await ledger.bus.last(stream, f"events.{ledger.shard}.>")
    if last is not None:
        return await end_of_events(ledger.bus, ledger.ledger, stream, last)
    had_events = (await ledger.bus.usage(stream)).first_seq > 1
    return None if had_events else START


def _ts(message: Message) -> int:
    return decode_entry(message).message.ts

"""A ledger from a backup, into servers that know nothing of its shard: in place of `tessera init`."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import orjson
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from tessera.client.ledger.backup import Backup
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.errors import Conflict
from tessera.kernel.ledger.generations import store_kept
from tessera.kernel.ledger.snapshots import OPENING, chunks_of, store_snapshot
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import Bus, Outgoing, ProjectionStore
from tessera.kernel.provisioning.credential_files import CredentialDirectory, Login
from tessera.kernel.provisioning.streams import Bounds, ensure_streams
from tessera_schemas import subjects
from tessera_schemas.ledger import LEDGER_MESSAGE, FormatRaised
from tessera_schemas.shard.ledger_form import stored_form

BATCH = 500
WRITER = "scheduler"
"""The identity that may append to a ledger."""


def last_of(backup: Backup) -> bytes:
    """The last message, after all have been read and found whole. Raises Failure for a damaged or an empty backup."""
    every = deque(backup.messages(), maxlen=1)
    if not every:
        raise Failure(Exit.USAGE, f"{backup.directory}: holds no message; there is nothing to restore")
    return every[0][1]


async def check_views(store: ProjectionStore, backup: Backup) -> None:
    """Views of a newer ledger would halt every service at once. Raises Failure, Transient when Redis is away."""
    known = await store.cursor()
    if known > backup.head.n:
        raise Failure(
            Exit.CONFLICT,
            f"Redis of this shard knows message {known}, and the backup ends at {backup.head.n}: find a newer copy of "
            "the ledger's stream, or give the shard an empty Redis",
        )


async def make_streams(admin: Client, backup: Backup, last: bytes, bounds: Bounds) -> None:
    """
    The shard's streams; FACTS begins behind the last fact that the ledger has taken in.

    Raises Failure where FACTS is there already and begins elsewhere: the committer would wait for facts for ever.
    """
    first = int(orjson.loads(last)["facts_upto"]) + 1
    facts, ledger = subjects.stream("FACTS", backup.shard), subjects.stream("LEDGER", backup.shard)
    first_seqs = {facts: first} | ({ledger: backup.beginning.n + 1} if backup.opening else {})
    # Looked at first: streams of `init` may have other bounds too, and no mending of those would help here.
    await _check_facts(admin, facts, first)
    await ensure_streams(admin, backup.shard, replace(bounds, first_seqs=first_seqs))


async def _check_facts(admin: Client, facts: str, first: int) -> None:
    try:
        state = (await admin.jsm().stream_info(facts)).state
    except NotFoundError:
        return
    if state.first_seq > first or state.last_seq + 1 < first:
        raise Failure(
            Exit.CONFLICT,
            f"{facts} is there already and holds {state.first_seq} to {state.last_seq}, the ledger goes on at {first}: "
            "restore into servers on which `tessera init` was not run for this shard",
        )


async def open_ledger(login: Login, url: str, backup: Backup) -> int:
    """Store the opening of a ledger that does not begin with message 1, again and again; returns its format, else 0."""
    if backup.opening is None:
        return 0
    bus = await NatsBus.connect(
        url, user=login.user, password=login.password, inbox_prefix=subjects.inbox(subjects.ADMINISTRATOR)
    )
    try:
        shard = backup.opening.shard(backup.directory)
        await store_kept(bus, backup.shard, backup.opening.kept(backup.directory), shard.state.format)
        await store_snapshot(
            bus,
            backup.shard,
            list(chunks_of(shard.state)),
            shard.state.n,
            shard.hasher.of(shard.state),
            series=OPENING,
        )
        return shard.state.format
    finally:
        await bus.close()


async def append_all(
    directory: CredentialDirectory, url: str, backup: Backup, known: int, advance: Callable[[], None] = lambda: None
) -> None:
    """
    Append what the stored ledger lacks, `known` being the format that it opens with.

    A restore that was broken off goes on where it ended.

    Raises Failure when the stored ledger is not the beginning of the backup's.
    """
    login = directory.read(WRITER).nats
    bus = await NatsBus.connect(url, user=login.user, password=login.password, inbox_prefix=subjects.inbox(WRITER))
    try:
        await _append(bus, backup, known, advance)
    finally:
        await bus.close()


async def _append(bus: Bus, backup: Backup, known: int, advance: Callable[[], None]) -> None:
    tail = await StreamLedger(bus, backup.shard).tail()
    there = 0 if tail is None else tail.seq
    if there > backup.head.n:
        raise _another(backup, there)
    subject, waiting = subjects.ledger(backup.shard), list[Outgoing]()
    for n, data in backup.messages():
        if tail is not None and n == there and data != tail.data:
            raise _another(backup, there)
        if n > there:
            waiting.append(Outgoing(subject, stored_form(data, known), expected_last_seq=n - 1))
        known = max(known, _raised_format(data))
        advance()
        if len(waiting) == BATCH:
            await _publish(bus, waiting)
            waiting = []
    await _publish(bus, waiting)


def _raised_format(data: bytes) -> int:
    """Format that the message raises the ledger to; 0 for most, which do not."""
    if b'"format_raised"' not in data:
        return 0
    records = LEDGER_MESSAGE.validate_json(data).records
    return max((record.format for record in records if isinstance(record, FormatRaised)), default=0)


async def _publish(bus: Bus, batch: list[Outgoing]) -> None:
    try:
        await bus.publish_all(batch)
    except Conflict as error:
        raise Failure(Exit.CONFLICT, f"another process appends to this ledger ({error}); stop all services") from error


def _another(backup: Backup, there: int) -> Failure:
    return Failure(
        Exit.CONFLICT,
        f"the shard has a ledger of {there} messages that is not the beginning of this backup; restore into "
        "empty servers",
    )


def summary(backup: Backup) -> Iterator[str]:
    """Lines about the restore, and about the steps before the services start."""
    yield f"restored shard {backup.shard} up to {backup.head}"
    yield "start the services now; views and events are made anew from the ledger"
    yield (
        "what was decided after that is forgotten. The binder deletes pods of such runs after its `orphan_seconds`: "
        "set that to a day at first, and look with `tessera ledger reconcile`"
    )
